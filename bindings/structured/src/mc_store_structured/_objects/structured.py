"""Structured objects: bundles whose members are arrays, tensors and bytes."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .bundle import Bundles, Source
from .errors import StructuredFormatError
from .manifest import Manifest, check_json_size, dump_json
from .members import Member, encode
from .policy import BundleTransferPolicy
from .refs import RemoteBundleRef
from .slices import Rows, StructuredMemberSlice

STRUCTURED_FIELD_SPECS_KEY = "__mooncake_structured_fields__"
"""The key of the metadata under which the descriptions of the members are."""

_LAYOUT = "layout"
_STRUCTURED = "structured"
_WRAPPED = "__mooncake_wrapped_object__"
_WRAPPED_MEMBER = "value"


@dataclass(frozen=True, init=False)
class StructuredObjectPayload:
    """The object for :meth:`MooncakeBundleTransfer.put_structured_object` to store.

    metadata: a JSON object. The key ``__mooncake_structured_fields__`` is reserved; ``layout`` is
        overwritten.
    buffers: the members by name: numpy arrays, torch tensors, :func:`tensor_object_buffer`, or
        objects with the buffer protocol.

    Raises ``TypeError`` without ``buffers``.
    """

    metadata: Mapping[str, Any]
    buffers: Mapping[str, Any]

    def __init__(
        self,
        metadata: Mapping[str, Any] | None = None,
        buffers: Mapping[str, Any] | None = None,
    ) -> None:
        if buffers is None:
            raise TypeError("StructuredObjectPayload requires buffers")
        object.__setattr__(self, "metadata", {} if metadata is None else metadata)
        object.__setattr__(self, "buffers", buffers)


@dataclass(frozen=True)
class StructuredObjectReadSpec:
    """Which members of an object are read, and which rows of them. Its methods return new ones."""

    ref: RemoteBundleRef | Mapping[str, Any]
    member_names: tuple[str, ...] | None = None
    member_slices: tuple[tuple[str, StructuredMemberSlice], ...] = ()

    def select_members(self, names: Sequence[str] | None) -> StructuredObjectReadSpec:
        """Reads only the members ``names``; all of them for ``None``."""
        return replace(self, member_names=None if names is None else tuple(names))

    def slice_member(
        self, name: str, axis: int, start: int, end: int, step: int = 1
    ) -> StructuredObjectReadSpec:
        """Reads only a part of the member ``name``, in place of an earlier part."""
        others = tuple(pair for pair in self.member_slices if pair[0] != name)
        part = StructuredMemberSlice(axis, start, end, step)
        return replace(self, member_slices=(*others, (name, part)))

    def member_slice(self, name: str) -> StructuredMemberSlice | None:
        """The part of the member ``name`` that is read, if it is not read as a whole."""
        return dict(self.member_slices).get(name)


@dataclass
class StructuredObjectResult:
    """The parts read of an object: its metadata as it is stored, and the members by name."""

    metadata: dict[str, Any]
    objects: dict[str, Any]


@dataclass(frozen=True)
class WriteOptions:
    """The arguments that all puts have."""

    partition: str
    chunk_bytes: int
    policy: BundleTransferPolicy = field(default_factory=BundleTransferPolicy)
    config: Any = None


class StructuredObjects:
    """Writes and reads structured objects as bundles."""

    def __init__(self, bundles: Bundles) -> None:
        self.bundles = bundles

    def put(
        self, metadata: Mapping[str, Any], members: Mapping[str, Any], options: WriteOptions
    ) -> RemoteBundleRef:
        """Stores an object. ``metadata`` must be JSON; its ``layout`` says what the object is."""
        if STRUCTURED_FIELD_SPECS_KEY in metadata:
            raise ValueError(f"structured metadata key {STRUCTURED_FIELD_SPECS_KEY!r} is reserved")
        specs, sources = encode_members(members, options.policy)
        return self.bundles.put(
            metadata_source({**metadata, STRUCTURED_FIELD_SPECS_KEY: specs}),
            sources,
            partition=options.partition,
            chunk_bytes=options.chunk_bytes,
            policy=options.policy,
            config=options.config,
        )

    def put_payload(
        self, payload: StructuredObjectPayload, options: WriteOptions
    ) -> RemoteBundleRef:
        """Stores what a caller composed."""
        if not isinstance(payload, StructuredObjectPayload):
            raise TypeError(f"expected StructuredObjectPayload, got {type(payload).__name__}")
        return self.put({**payload.metadata, _LAYOUT: _STRUCTURED}, payload.buffers, options)

    def put_object(self, value: Any, options: WriteOptions) -> RemoteBundleRef:
        """Stores one member, or a mapping of members."""
        if isinstance(value, Mapping):
            return self.put({_LAYOUT: _STRUCTURED}, value, options)
        return self.put({_WRAPPED: True, _LAYOUT: _STRUCTURED}, {_WRAPPED_MEMBER: value}, options)

    def get_object(self, ref: RemoteBundleRef | Mapping[str, Any]) -> Any:
        """Reads a value that :meth:`put_object` stored."""
        opened = self.open(ref)
        members = opened.read(list(opened.manifest.buffers))
        if opened.metadata.get(_WRAPPED) is True and _WRAPPED_MEMBER in members:
            return members[_WRAPPED_MEMBER]
        return members

    def open(self, ref: RemoteBundleRef | Mapping[str, Any]) -> OpenedObject:
        """The object's manifest and metadata.

        Raises ``ValueError`` if it is no structured object, ``StructuredTransferError`` if it
        cannot be read.
        """
        manifest = self.bundles.load(ref)
        return OpenedObject(self.bundles, manifest, self.bundles.load_meta(manifest))

    def materialize(
        self, spec: StructuredObjectReadSpec, destinations: Mapping[str, Any] | None = None
    ) -> StructuredObjectResult:
        """Reads what ``spec`` says, members with a destination into that.

        Raises ``ValueError`` for a destination of a member that is not read.
        """
        if spec.member_names is not None and not spec.member_names:
            raise ValueError("structured read spec selected no members")
        opened = self.open(spec.ref)
        every = spec.member_names is None
        names = list(opened.manifest.buffers if every else spec.member_names or ())
        slices = dict(spec.member_slices)
        check_destinations(destinations or {}, names)
        if every:
            opened.manifest.select(slices)  # Raises for a slice of what there is not.
        return StructuredObjectResult(
            dict(opened.metadata), opened.read(names, slices, destinations or {})
        )


class OpenedObject:
    """A structured object of which the members can be read."""

    def __init__(self, bundles: Bundles, manifest: Manifest, metadata: dict[str, Any]) -> None:
        specs = metadata.get(STRUCTURED_FIELD_SPECS_KEY)
        if not isinstance(specs, dict):
            raise StructuredFormatError(
                f"{manifest.keys.manifest!r} is a bundle and no structured object: its metadata "
                "describes no members"
            )
        self.manifest = manifest
        self.metadata = metadata
        self.reader = bundles.reader
        self._specs = specs

    def members(self, names: Sequence[str]) -> dict[str, Member]:
        """The members ``names``. Raises ``KeyError`` for others."""
        payloads = self.manifest.select(names)
        return {
            name: Member(name, self._specs.get(name), payload) for name, payload in payloads.items()
        }

    def spec_of(self, name: str) -> dict[str, Any]:
        """The description of the member ``name``."""
        return dict(self.members([name])[name].spec)

    def read(
        self,
        names: Sequence[str],
        slices: Mapping[str, StructuredMemberSlice] | None = None,
        destinations: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Reads members; those that are read as a whole together."""
        members = self.members(names)
        slices, destinations = slices or {}, destinations or {}
        found: dict[str, Any] = {}
        for name, member in members.items():
            rows = self._rows(member, slices.get(name))
            if destinations.get(name) is not None:
                found[name] = member.read_into(self.reader, rows, destinations[name])
            elif rows is not None:
                found[name] = member.read_rows(self.reader, rows)
        whole = [member for name, member in members.items() if name not in found]
        data = self.reader.whole([member.payload for member in whole])
        for member, bytes_of in zip(whole, data, strict=True):
            found[member.name] = member.decode(bytes_of)
        return {name: found[name] for name in members}

    def _rows(self, member: Member, part: StructuredMemberSlice | None) -> Rows | None:
        if part is None:
            return None
        if member.encoding == "bytes":
            raise ValueError(f"structured bytes member {member.name} does not support slicing")
        kind = "ndarray" if member.encoding == "ndarray" else "tensor"
        return Rows.of_slice(part, member.row_count(self.reader), f"structured {kind}")


def metadata_source(metadata: Mapping[str, Any]) -> Source:
    """The metadata of an object as JSON. Raises ``ValueError`` if no reader would parse it."""
    data = dump_json(metadata)
    check_json_size(len(data), "metadata of a structured object")
    return Source(memoryview(data))


def check_destinations(
    destinations: Mapping[str, Any], names: Container[str], columns: Container[str] = ()
) -> None:
    """Raises ``ValueError`` if nothing would be read into one of ``destinations``: its name is not
    among ``names``, or among ``columns``."""
    for name, target in destinations.items():
        if target is not None and name in columns:
            raise ValueError(f"destination {name!r}: a column is read as objects, not into memory")
        if target is not None and name not in names:
            raise ValueError(f"destination {name!r}: nothing of that name is selected to be read")


def encode_members(
    members: Mapping[str, Any], policy: BundleTransferPolicy
) -> tuple[dict[str, Any], dict[str, Source]]:
    """The descriptions and the bytes of members.

    Raises ``TypeError`` for a value that is no member, ``ValueError`` for a tensor that the policy
    refuses.
    """
    specs: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    torch = sys.modules.get("torch")
    for name, value in members.items():
        is_tensor = torch is not None and isinstance(value, torch.Tensor)
        if is_tensor and policy.copy_mode == "zero_copy":
            raise ValueError(
                f"{name}: zero-copy structured tensor fields require a tensor_object_buffer"
            )
        specs[name], sources[name] = encode(value, name)
    return specs, sources
