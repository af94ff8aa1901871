"""References to batches as JSON, for other processes.

A handle has the keys of the manifests, not the manifests: they are read from the store by the
process that imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from .errors import StructuredFormatError
from .refs import (
    DataProtoRefLike,
    MooncakeDataProtoRef,
    RemoteBundleRef,
    StructuredFieldLocation,
    manifest_key_of,
)

DATAPROTO_REF_HANDLE_TYPE = "mooncake_dataproto_ref"
DATAPROTO_REF_HANDLE_VERSION = 1

STORAGE_GROUP_ID = "storage_group_id"
"""The key of a handle with the group in which the store keeps the batch's objects."""

# Handles of version 2 always have a group.
_READABLE_VERSIONS = (DATAPROTO_REF_HANDLE_VERSION, 2)

_KIND = "bundle_stages"
_SECTIONS = ("batch", "non_tensor_batch")


def export_ref(ref: MooncakeDataProtoRef) -> dict[str, Any]:
    """A handle of ``ref``, which JSON can carry to another process.

    Raises ``TypeError`` if ``ref`` is none, or if its ``meta_info`` has values that JSON cannot
    carry. Arrays of numpy become lists.
    """
    if not isinstance(ref, MooncakeDataProtoRef):
        raise TypeError(f"expected MooncakeDataProtoRef, got {type(ref).__name__}")
    handle = {
        "type": DATAPROTO_REF_HANDLE_TYPE,
        "version": DATAPROTO_REF_HANDLE_VERSION,
        "kind": _KIND,
        "batch_size": ref.batch_size,
        "namespace": ref.namespace,
        "partition": ref.partition,
        "global_indexes": _json_safe(ref.global_indexes),
        "stage_refs": {
            stage: {"manifest_key": bundle.manifest_key} for stage, bundle in ref.stage_refs.items()
        },
        "field_index": {
            name: {
                "stage": location.stage,
                "member": location.member,
                "section": location.section,
            }
            for name, location in ref.field_index.items()
        },
        "meta_info": _json_safe(ref.meta_info),
        "encoded_non_tensor": _json_safe(ref.encoded_non_tensor),
    }
    if ref._storage_group_id is not None:
        handle[STORAGE_GROUP_ID] = ref._storage_group_id
    return handle


def import_ref(handle: Mapping[str, Any]) -> MooncakeDataProtoRef:
    """The reference of a handle from :func:`export_ref`. Nothing is read from the store.

    Raises ``ValueError``, as a rule ``StructuredFormatError``, if it is not such a handle.
    """
    if not is_dataproto_ref_handle(handle):
        raise StructuredFormatError("not a Mooncake DataProto ref handle")
    for name, known in (("version", _READABLE_VERSIONS), ("kind", (_KIND,))):
        if handle.get(name) not in known:
            raise StructuredFormatError(
                f"unsupported DataProto ref handle {name}: {handle.get(name)!r}"
            )
    size = handle.get("batch_size")
    if type(size) is not int or size < 0:
        raise StructuredFormatError(f"DataProto ref handle batch_size must be a count: {size!r}")
    stages = {
        str(stage): RemoteBundleRef(manifest_key_of(_mapping(bundle, "stage_refs")), {})
        for stage, bundle in _mapping(handle.get("stage_refs"), "stage_refs").items()
    }
    fields = {
        str(name): _location(str(name), location, stages)
        for name, location in _mapping(handle.get("field_index"), "field_index").items()
    }
    group = handle.get(STORAGE_GROUP_ID)
    is_text = isinstance(group, str) and bool(group)
    if not is_text and (group is not None or handle.get("version") != DATAPROTO_REF_HANDLE_VERSION):
        raise StructuredFormatError(f"DataProto ref handle has invalid {STORAGE_GROUP_ID}")
    indexes = handle.get("global_indexes")
    if indexes is not None and not (
        isinstance(indexes, list) and all(type(index) is int for index in indexes)
    ):
        raise StructuredFormatError("DataProto ref handle global_indexes must be whole numbers")
    return MooncakeDataProtoRef(
        size,
        stages,
        fields,
        dict(_mapping(handle.get("meta_info", {}), "meta_info")),
        str(handle.get("namespace", "default")),
        str(handle.get("partition", "default")),
        indexes,
        dict(_mapping(handle.get("encoded_non_tensor", {}), "encoded_non_tensor")),
        group,
    )


export_dataproto_ref = export_ref
import_dataproto_ref = import_ref


def is_dataproto_ref_handle(value: Any) -> bool:
    """Whether ``value`` claims to be a handle from :func:`export_ref`."""
    return isinstance(value, Mapping) and value.get("type") == DATAPROTO_REF_HANDLE_TYPE


def ref_of(ref: DataProtoRefLike) -> MooncakeDataProtoRef:
    """``ref`` itself, or the reference of a handle. Raises ``TypeError`` for other objects."""
    if isinstance(ref, MooncakeDataProtoRef):
        return ref
    if not isinstance(ref, Mapping):
        raise TypeError(
            f"expected MooncakeDataProtoRef or DataProto handle, got {type(ref).__name__}"
        )
    return import_ref(ref)


def _location(
    name: str, content: object, stages: Mapping[str, RemoteBundleRef]
) -> StructuredFieldLocation:
    location = _mapping(content, "field_index")
    stage, member, section = (location.get(key) for key in ("stage", "member", "section"))
    is_text = isinstance(stage, str) and isinstance(member, str)
    if not is_text or not (name and stage and member):
        raise StructuredFormatError(
            "DataProto ref handle field locations must be non-empty strings"
        )
    if stage not in stages:
        raise StructuredFormatError(
            f"DataProto ref handle field {name!r} references unknown stage {stage!r}"
        )
    if section not in _SECTIONS:
        raise StructuredFormatError(
            f"DataProto ref handle field {name!r} is in the section {section!r}, not one of "
            f"{_SECTIONS}"
        )
    return StructuredFieldLocation(str(stage), str(member), section)


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise StructuredFormatError(f"DataProto ref handle {what} must be a mapping")
    return value


def _json_safe(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _json_safe(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(item) for item in value]
    raise TypeError(
        f"DataProto ref handles support only JSON-safe values, got {type(value).__name__}"
    )
