"""Columns: one Python value for each row, in few payloads.

A column is an array of objects of which the rows have a common type. Its encoding (``codec``) says
which payloads it has: the bytes of all rows one after the other in ``data``, the places where rows
begin in ``offsets``, the rows that are ``None`` in ``nulls``, and so on. The encodings are
Mooncake's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .errors import StructuredFormatError
from .memory import require_numpy
from .slices import Rows

#: numpy's common type is a float then, which has fewer digits.
NO_INTEGER_TYPE = "no integer type of 64 bits holds all of the integers"


@dataclass
class EncodedColumn:
    """A column as payloads.

    payloads: the members by their short names, as ``data``: bytes, or an array.
    metadata: JSON that decoding needs.
    """

    codec: str
    rows: int
    payloads: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)


class ColumnSource(Protocol):
    """The payloads of one stored column."""

    @property
    def rows(self) -> int:
        """The number of rows that the column has."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    def array(self, name: str, dtype: str | None = None) -> Any:
        """The array ``name``. Raises ``StructuredFormatError`` if it has another dtype."""

    def size(self, name: str) -> int:
        """The number of elements of the payload ``name``, as :meth:`spans` counts them."""

    def spans(self, name: str, spans: Sequence[tuple[int, int]]) -> list[Any]:
        """The parts of the payload ``name`` from a first to before a last element, for each span:
        views of bytes, or arrays of a payload that is an array. The memory is writable and new."""


class Codec(Protocol):
    """One encoding of columns."""

    def encode(self, values: Sequence[Any]) -> EncodedColumn:
        """Encodes one value for each row. Raises ``TypeError`` or ``ValueError`` for others."""

    def decode(self, source: ColumnSource, rows: Rows) -> list[Any]:
        """The values of ``rows``."""


def nulls_of(values: Sequence[Any]) -> Any:
    """Which of ``values`` are ``None``, as an array of bool."""
    numpy = require_numpy()
    return numpy.fromiter((value is None for value in values), bool, len(values))


def offsets_of(sizes: Sequence[int]) -> Any:
    """Where each of the parts with these sizes begins, and where the last one ends."""
    numpy = require_numpy()
    offsets = numpy.zeros(len(sizes) + 1, "<i8")
    numpy.cumsum(sizes, out=offsets[1:])
    return offsets


def read_nulls(source: ColumnSource) -> Any:
    """The payload ``nulls``, with one bool for each row."""
    nulls = source.array("nulls", "|b1")
    check_length(nulls, source.rows, "nulls")
    return nulls


def read_offsets(source: ColumnSource, name: str, count: int, end: int) -> Any:
    """The payload ``name``: ``count + 1`` places from 0 to ``end``, none before the one ahead of
    it."""
    offsets = source.array(name, "<i8")
    check_length(offsets, count + 1, name)
    numpy = require_numpy()
    if offsets[0] != 0 or offsets[-1] != end or bool(numpy.any(offsets[1:] < offsets[:-1])):
        raise StructuredFormatError(f"column {name} are no offsets of {end} elements")
    return offsets


def read_bytes(source: ColumnSource, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
    """Parts of the payload ``data``, which must be bytes and no array."""
    parts = source.spans("data", spans)
    if not all(isinstance(part, memoryview) for part in parts):
        raise StructuredFormatError("column data is an array, expected bytes")
    return parts


def check_length(array: Any, length: int, name: str) -> None:
    """Raises ``StructuredFormatError`` if ``array`` has not one dimension of ``length``."""
    if array.shape != (length,):
        raise StructuredFormatError(f"column {name} has shape {array.shape}, expected {(length,)}")


def is_integral(value: object) -> bool:
    """Whether ``value`` is an integer or a bool, an array of them, or a list of all these."""
    if isinstance(value, list | tuple):
        return all(map(is_integral, value))
    numpy = require_numpy()
    if isinstance(value, numpy.ndarray | numpy.generic):
        return value.dtype.kind in "biu"
    return isinstance(value, int)


def object_array(values: Sequence[Any]) -> Any:
    """``values`` as an array of objects with one dimension, also if they are sequences."""
    array = require_numpy().empty(len(values), dtype=object)
    for place, value in enumerate(values):
        array[place] = value
    return array


class TextLike:
    """Rows that become bytes, each by itself."""

    def __init__(
        self, codec: str, dump: Callable[[Any], bytes], load: Callable[[bytes], Any]
    ) -> None:
        self._codec = codec
        self._dump = dump
        self._load = load

    def encode(self, values: Sequence[Any]) -> EncodedColumn:
        """As :meth:`Codec.encode`."""
        encoded = [b"" if value is None else self._dump(value) for value in values]
        payloads = {
            "data": b"".join(encoded),
            "offsets": offsets_of([len(row) for row in encoded]),
            "nulls": nulls_of(values),
        }
        return EncodedColumn(self._codec, len(values), payloads)

    def decode(self, source: ColumnSource, rows: Rows) -> list[Any]:
        """As :meth:`Codec.decode`."""
        return [None if row is None else self._row(row) for row in _read_bytes(source, rows)]

    def _row(self, row: memoryview) -> Any:
        try:
            return self._load(bytes(row))
        except (ValueError, RecursionError) as error:
            raise StructuredFormatError(f"a row of a {self._codec} column: {error}") from None


def _read_bytes(source: ColumnSource, rows: Rows) -> Iterator[memoryview | None]:
    nulls = read_nulls(source)
    offsets = read_offsets(source, "offsets", source.rows, source.size("data"))
    spans = [(int(offsets[row]), int(offsets[row + 1])) for row in rows]
    for row, data in zip(rows, read_bytes(source, spans), strict=True):
        yield None if nulls[row] else data


class Scalars:
    """Rows that are numbers of one type."""

    def __init__(self, dtype: str | None = None) -> None:
        self._dtype = dtype

    def encode(self, values: Sequence[Any]) -> EncodedColumn:
        """As :meth:`Codec.encode`."""
        numpy = require_numpy()
        given = [value for value in values if value is not None]
        dtype = numpy.dtype(self._dtype) if self._dtype else numpy.array(given).dtype
        if dtype.kind not in "biuf":
            raise ValueError(f"numbers of type {dtype} have no encoding")
        if dtype.kind == "f" and not self._dtype and all(map(is_integral, given)):
            raise ValueError(NO_INTEGER_TYPE)
        data = numpy.array([0 if value is None else value for value in values], dtype)
        if data.ndim != 1:
            raise ValueError("a row is no number")
        return EncodedColumn(
            "ndarray",
            len(values),
            {"data": data, "nulls": nulls_of(values)},
            {"dtype": dtype.name, "shape": [len(values)]},
        )

    def decode(self, source: ColumnSource, rows: Rows) -> list[Any]:
        """As :meth:`Codec.decode`."""
        data = source.array("data")
        check_length(data, source.rows, "data")
        nulls = read_nulls(source)
        return [None if nulls[row] else data[row].item() for row in rows]
