"""The manifest of an object: its payloads, their chunks and their sizes, as JSON.

The format is Mooncake's, so each system reads the other's objects. A manifest is data of a
stranger: :func:`parse` refuses what cannot be true, and lets no payload be counted twice, so that
an object needs no more memory than the store holds for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import StructuredFormatError
from .names import ObjectKeys, is_object_id, keys_of_manifest

VERSION = 1
LAYOUT = "bundle"

MAX_JSON_BYTES = 64 << 20
"""The most bytes of JSON that are parsed: as text it becomes many times larger in memory."""

_MAX_SIZE = 1 << 62


class Chunk(NamedTuple):
    """One key with a part of a payload's bytes."""

    key: str
    size: int


@dataclass(frozen=True)
class Payload:
    """The bytes of one member, in chunks.

    header_size: bytes at the front that describe the rest: 304 for a tensor object, otherwise 0.
    """

    key: str
    size: int
    chunks: tuple[Chunk, ...]
    header_size: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The payload as the manifest has it."""
        chunks = [{"key": chunk.key, "bytes": chunk.size} for chunk in self.chunks]
        content: dict[str, Any] = {"key": self.key, "bytes": self.size, "chunks": chunks}
        if self.header_size:
            content["metadata_bytes"] = self.header_size
        return content


@dataclass(frozen=True)
class Manifest:
    """The parts of an object.

    other_objects: ids of objects of which this one uses payloads.
    cleanup_keys: keys that are not payloads, and end with this object.
    """

    keys: ObjectKeys
    meta: Payload
    buffers: Mapping[str, Payload]
    other_objects: tuple[str, ...] = ()
    cleanup_keys: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The manifest as it is stored."""
        content: dict[str, Any] = {
            "version": VERSION,
            "layout": LAYOUT,
            "object_id": self.keys.object_id,
            "meta": self.meta.to_dict(),
            "buffers": {name: payload.to_dict() for name, payload in self.buffers.items()},
        }
        if self.other_objects:
            content["buffer_object_ids"] = list(self.other_objects)
        if self.cleanup_keys:
            content["cleanup_keys"] = list(self.cleanup_keys)
        return content

    def data_keys(self) -> Iterator[str]:
        """Every key of the object but the manifest's own."""
        for payload in (self.meta, *self.buffers.values()):
            for chunk in payload.chunks:
                yield chunk.key
        yield from self.cleanup_keys

    def select(self, names: Iterable[str]) -> dict[str, Payload]:
        """The payloads ``names``. Raises ``KeyError`` if there are others among the names."""
        wanted = list(dict.fromkeys(names))
        unknown = [name for name in wanted if name not in self.buffers]
        if unknown:
            raise KeyError(f"unknown bundle buffers: {unknown}")
        return {name: self.buffers[name] for name in wanted}


def dump_json(content: object) -> bytes:
    """``content`` as compact JSON."""
    return json.dumps(content, separators=(",", ":")).encode()


def load_json(data: bytes | bytearray | memoryview, what: str) -> dict[str, Any]:
    """The JSON object in ``data``. Raises ``StructuredFormatError`` if there is none."""
    check_json_size(len(data), what)
    try:
        content = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise StructuredFormatError(f"{what} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise StructuredFormatError(f"{what} must decode to a dict")
    return content


def check_json_size(size: int, what: str, advice: str = "") -> None:
    """Raises ``StructuredFormatError`` if ``size`` bytes of JSON are too many."""
    if size > MAX_JSON_BYTES:
        raise StructuredFormatError(
            f"{what} has {size} bytes, more than the {MAX_JSON_BYTES} that are parsed{advice}"
        )


def parse(content: Mapping[str, Any], manifest_key: str, prefix: str) -> Manifest:
    """The manifest ``content`` that is stored as ``manifest_key``, of an object of ``prefix``.

    Raises ``ValueError``, as a rule ``StructuredFormatError``, if it is not one: another version,
    sizes that do not add up, a key of another object, a chunk that occurs twice.
    """
    keys = keys_of_manifest(manifest_key, prefix)
    wrong = {"version": VERSION, "layout": LAYOUT, "object_id": keys.object_id}
    for name, expected in wrong.items():
        if content.get(name) != expected:
            raise StructuredFormatError(
                f"invalid bundle manifest {manifest_key!r}: its {name} is {content.get(name)!r}, "
                f"not {expected!r}"
            )
    others = _texts(content.get("buffer_object_ids"), "buffer_object_ids")
    if not all(map(is_object_id, others)):
        raise StructuredFormatError("bundle manifest names objects that have no valid id")
    owners = [keys, *(ObjectKeys(prefix, other) for other in others if other != keys.object_id)]
    reader = _Reader(owners)
    buffers = content.get("buffers")
    if not isinstance(buffers, dict):
        raise StructuredFormatError("bundle manifest has no buffers")
    return Manifest(
        keys,
        reader.payload(content.get("meta")),
        {name: reader.payload(value) for name, value in buffers.items()},
        tuple(others),
        tuple(reader.key(key) for key in _texts(content.get("cleanup_keys"), "cleanup_keys")),
    )


class _Reader:
    """Reads the payloads of one manifest."""

    def __init__(self, owners: list[ObjectKeys]) -> None:
        self._owners = owners
        self._seen: set[str] = set()

    def payload(self, content: object) -> Payload:
        if not isinstance(content, dict) or not isinstance(content.get("chunks"), list):
            raise StructuredFormatError("bundle payload has no list of chunks")
        chunks = tuple(self._chunk(chunk) for chunk in content["chunks"])
        size = _size(content.get("bytes"), "bundle payload bytes")
        header_size = _size(content.get("metadata_bytes", 0), "bundle payload metadata_bytes")
        total = sum(chunk.size for chunk in chunks)
        if total != size:
            raise StructuredFormatError(
                f"bundle payload chunks total {total} bytes, expected {size}"
            )
        if header_size > size:
            raise StructuredFormatError(
                f"bundle payload of {size} bytes has a header of {header_size}"
            )
        return Payload(self.key(content.get("key")), size, chunks, header_size)

    def _chunk(self, content: object) -> Chunk:
        if not isinstance(content, dict):
            raise StructuredFormatError("bundle chunk must be a dict")
        key = self.key(content.get("key"))
        if key in self._seen:
            raise StructuredFormatError(f"bundle chunk {key!r} occurs twice")
        self._seen.add(key)
        return Chunk(key, _size(content.get("bytes"), "bundle chunk bytes"))

    def key(self, key: object) -> str:
        if not isinstance(key, str) or not any(owner.owns(key) for owner in self._owners):
            raise StructuredFormatError(
                f"bundle payload key {key!r} is outside the bundle namespace"
            )
        return key


def _texts(values: object, what: str) -> list[str]:
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise StructuredFormatError(f"bundle {what} must be a list of strings")
    return values


def _size(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise StructuredFormatError(f"{what} must be a whole number, not {value!r}")
    if not 0 <= value < _MAX_SIZE:
        raise StructuredFormatError(f"{what} must be non-negative and below 2**62, not {value}")
    return value
