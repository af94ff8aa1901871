"""Fields of a batch with one Python value for each row: from a caller's array to payloads, and
back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import recursive
from .codecs import RECURSIVE, codec_of
from .columns import EncodedColumn, object_array
from .errors import StructuredFormatError
from .inference import decide
from .members import Member
from .reads import Range, Reader
from .slices import Rows

_AUTO = "auto"


@dataclass(frozen=True)
class FieldSchema:
    """How a field is stored, in place of what its values suggest.

    codec: ``"auto"``, ``"ndarray"`` (numbers), ``"typed_ragged"`` (arrays or lists of numbers),
        ``"ragged_tensor"``, ``"ragged_tensor_dict"`` (dicts of tensors), ``"utf8_ragged"``,
        ``"bytes_ragged"``, ``"json_ragged"``, ``"msgpack_ragged"``, ``"media_bytes"`` or
        ``"media_list_ragged"``.
    nullable: rows may be ``None``.
    metadata: ``"section"`` (``"batch"``, ``"non_tensor_batch"`` or ``"meta_info"``) for a field of
        a dict; ``"dtype"``, the element type of ``ndarray`` and ``typed_ragged``; ``"keys"``, all
        keys that a row of ``ragged_tensor_dict`` may have.
    """

    codec: str
    nullable: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)


def encode_column(path: str, values: Sequence[Any], schema: FieldSchema | None) -> EncodedColumn:
    """The rows of the field ``path`` (as ``non_tensor_batch.NAME``) as payloads.

    Raises ``ValueError`` that names the field if they cannot be stored.
    """
    if schema is not None:
        if not schema.nullable and any(value is None for value in values):
            raise ValueError(f"FieldSchema for {path!r} is not nullable, and a row is None")
        if schema.codec != _AUTO:
            return _with_schema(path, values, schema)
    decision = decide(values)
    try:
        if decision.accepted:
            column = codec_of(decision.codec).encode(values)
            column.metadata |= decision.metadata()
            return column
        if any(isinstance(value, dict | list | tuple) for value in values):
            return recursive.encode(path, values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"unsupported structured non-tensor field {path!r}: {error}") from error
    raise ValueError(f"unsupported structured non-tensor field {path!r}: {decision.reason}")


def _with_schema(path: str, values: Sequence[Any], schema: FieldSchema) -> EncodedColumn:
    if schema.codec == "ndarray" and decide(values).codec != "ndarray":
        return encode_column(path, values, None)  # As Mooncake: it stands for "not ragged".
    dtype = schema.metadata.get("dtype")
    try:
        keys = schema.metadata.get("keys")
        return codec_of(schema.codec, None if dtype is None else str(dtype), keys).encode(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"failed to encode field {path!r} with FieldSchema codec {schema.codec!r}: {error}"
        ) from error


@dataclass(frozen=True)
class ColumnDescription:
    """The description, in a reference, of a field with its own column."""

    codec: str
    rows: int
    metadata: Mapping[str, Any]
    payload_members: Mapping[str, str]

    @classmethod
    def parse(cls, content: object, name: str) -> ColumnDescription:
        """Reads it from JSON. Raises ``StructuredFormatError`` that names the field."""
        if isinstance(content, Mapping):
            codec, rows = content.get("codec"), content.get("rows")
            metadata, members = content.get("metadata"), content.get("payload_members")
            if (
                isinstance(codec, str)
                and type(rows) is int
                and rows >= 0
                and isinstance(metadata, Mapping)
                and isinstance(members, Mapping)
                and all(isinstance(member, str) for member in members.values())
            ):
                return cls(codec, rows, metadata, members)
        raise StructuredFormatError(f"field {name!r} has no valid description of its column")


def decode_column(source: StoredColumn, description: ColumnDescription, rows: Rows) -> Any:
    """The values of ``rows``, as an array of objects."""
    if description.codec == RECURSIVE:
        return object_array(recursive.decode(source, rows))
    try:
        codec = codec_of(description.codec)
    except ValueError as error:
        raise StructuredFormatError(str(error)) from None
    return object_array(codec.decode(source, rows))


class StoredColumn:
    """The payloads of one column in a store, or those that were read already.

    prefetched: decoded members by name. Others are read when they are wanted.
    """

    def __init__(
        self,
        description: ColumnDescription,
        members: Mapping[str, Member],
        prefetched: Mapping[str, Any],
        reader: Reader,
    ) -> None:
        self.rows = description.rows
        self.metadata = description.metadata
        self._names = description.payload_members
        self._members = members
        self._found = dict(prefetched)
        self._reader = reader

    def array(self, name: str, dtype: str | None = None) -> Any:
        member = self._member(name)
        found, shape = member.array_type()
        if dtype is not None and found.str != dtype:
            raise StructuredFormatError(f"{member.name} has dtype {found.str}, expected {dtype}")
        if member.name not in self._found:
            (data,) = self._reader.whole([member.payload])
            self._found[member.name] = member.decode(data)
        return self._found[member.name].reshape(shape)

    def size(self, name: str) -> int:
        if name not in self._names:
            return 0  # Mooncake leaves out a payload without bytes.
        return self._size(self._member(name))

    def spans(self, name: str, spans: Sequence[tuple[int, int]]) -> list[Any]:
        if name not in self._names:
            return [memoryview(b"") for _ in spans]
        member = self._member(name)
        whole = self._found.get(member.name)
        if whole is not None and len(whole) == self._size(member):
            view = memoryview(whole) if isinstance(whole, bytes) else whole
            return [view[start:end] for start, end in spans]
        return self._read(member, spans)

    def _read(self, member: Member, spans: Sequence[tuple[int, int]]) -> list[Any]:
        dtype = None if member.encoding == "bytes" else member.array_type()[0]
        width = 1 if dtype is None else dtype.itemsize
        ranges = [Range(start * width, (end - start) * width) for start, end in spans]
        data = self._reader.ranges(member.payload, ranges)
        elements = data if dtype is None else member.elements(data)
        found, place = [], 0
        for start, end in spans:
            found.append(elements[place : place + end - start])
            place += end - start
        return found

    def _size(self, member: Member) -> int:
        if member.encoding == "bytes":
            return member.payload.size
        _, shape = member.array_type()
        if len(shape) != 1:
            raise StructuredFormatError(f"{member.name} has shape {shape}, not one dimension")
        return shape[0]

    def _member(self, name: str) -> Member:
        member = self._members.get(self._names.get(name, ""))
        if member is None:
            raise StructuredFormatError(f"a column has no payload {name!r}")
        return member
