"""References to what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Section: TypeAlias = Literal["batch", "non_tensor_batch"]


@dataclass
class RemoteBundleRef:
    """A bundle in a store.

    manifest_key: the key of its manifest.
    manifest: the manifest, or ``{}``, which means that the store is asked for it.
    """

    manifest_key: str
    manifest: dict[str, Any]


@dataclass(frozen=True)
class StructuredFieldLocation:
    """Where a field of a batch lies: the stage, the member of its object, the section."""

    stage: str
    member: str
    section: Section


@dataclass
class MooncakeDataProtoRef:
    """A batch in a store.

    batch_size: the number of rows.
    stage_refs: the object of each stage.
    field_index: where each field lies.
    meta_info: values for the whole batch. They lie in the reference, not in the store.
    encoded_non_tensor: for fields with a value of its own for each row, how they are encoded.
    """

    batch_size: int
    stage_refs: dict[str, RemoteBundleRef]
    field_index: dict[str, StructuredFieldLocation]
    meta_info: dict[str, Any]
    namespace: str = "default"
    partition: str = "default"
    global_indexes: list[int] | None = None
    encoded_non_tensor: dict[str, Any] = field(default_factory=dict)
    _storage_group_id: str | None = field(default=None, repr=False)


DataProtoRefLike: TypeAlias = MooncakeDataProtoRef | Mapping[str, Any]


def manifest_key_of(ref: RemoteBundleRef | Mapping[str, Any]) -> str:
    """The manifest's key of a reference.

    Raises ``TypeError`` for another object, ``ValueError`` for a mapping without the key.
    """
    if isinstance(ref, RemoteBundleRef):
        return ref.manifest_key
    if not isinstance(ref, Mapping):
        raise TypeError(f"expected RemoteBundleRef or a mapping, got {type(ref).__name__}")
    key = ref.get("manifest_key")
    if not isinstance(key, str) or not key:
        raise ValueError("bundle ref must include manifest_key")
    return key
