"""Columns whose rows are arrays or tensors of one element type, each with a shape of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._tensor import arrays
from .columns import (
    NO_INTEGER_TYPE,
    ColumnSource,
    EncodedColumn,
    check_length,
    is_integral,
    nulls_of,
    offsets_of,
    read_nulls,
    read_offsets,
)
from .errors import StructuredFormatError
from .memory import check_unmasked, require_numpy
from .slices import Rows

_MAX_NDIM = 32


class TypedRagged:
    """Rows that are arrays, or nested lists of numbers; each comes back as what it was, a tuple as
    a list. Lists of one row have the same length at each depth.

    dtype: the element type; by default the one that holds all rows.
    """

    def __init__(self, dtype: str | None = None) -> None:
        self._dtype = dtype

    def encode(self, values: Sequence[Any]) -> EncodedColumn:
        """As :meth:`Codec.encode`."""
        numpy = require_numpy()
        chosen = numpy.dtype(self._dtype) if self._dtype else None
        given = [None if value is None else _array(value, chosen) for value in values]
        rows = [row for row in given if row is not None]
        dtype = _common_type(rows) if chosen is None else chosen
        if dtype.kind not in "biufcSU":
            raise ValueError("typed_ragged codec requires non-object dtype")
        is_array = [isinstance(value, numpy.ndarray) for value in values if value is not None]
        form = "ndarray" if all(is_array) else "mixed" if any(is_array) else "list"
        arrays_of = [isinstance(value, numpy.ndarray) for value in values]
        column = _encode(given, dtype, "typed_ragged", dtype.name)
        if dtype.kind in "SU":
            column.metadata["dtype"] = dtype.str
        column.metadata |= {
            "row_format": form,
            "ndarray_rows": arrays_of if form == "mixed" else None,
        }
        if form == "ndarray":
            column.metadata["physical_layout"] = "contiguous_flat"
        return column

    def decode(self, source: ColumnSource, rows: Rows) -> list[Any]:
        """As :meth:`Codec.decode`."""
        form = source.metadata.get("row_format", "ndarray")
        marks: Any = source.metadata.get("ndarray_rows")
        if form not in ("ndarray", "list", "mixed"):
            raise StructuredFormatError(f"typed_ragged column with rows of format {form!r}")
        if form == "mixed" and (not isinstance(marks, list) or len(marks) != source.rows):
            raise StructuredFormatError("typed_ragged column does not say which rows are arrays")
        found = _decode(source, rows)
        for place, row in enumerate(rows):
            keeps = form == "ndarray" or (form == "mixed" and marks[row])
            if found[place] is not None and not keeps:
                found[place] = found[place].tolist()
        return found


class RaggedTensors:
    """Rows that are torch tensors of one element type, or arrays that become such. A reader without
    torch gets arrays."""

    def encode(self, values: Sequence[Any]) -> EncodedColumn:
        """As :meth:`Codec.encode`."""
        numpy, torch = require_numpy(), arrays.imported("torch")
        if torch is None:
            raise TypeError("ragged_tensor codec needs torch, which is not installed")
        values = [None if value is None else _tensor(value, torch) for value in values]
        types = {str(value.dtype) for value in values if value is not None}
        if len(types) > 1:
            raise ValueError(f"mixed tensor dtype: {sorted(types)}")
        name = types.pop() if types else "torch.float32"
        try:
            rows = [None if value is None else value.detach().cpu().numpy() for value in values]
            dtype = numpy.dtype(name.removeprefix("torch."))
        except TypeError:
            raise ValueError(f"ragged tensor codec does not support {name}") from None
        column = _encode(rows, dtype, "ragged_tensor", name)
        column.metadata |= {
            "row_format": "ndarray",
            "ndarray_rows": None,
            "physical_layout": "contiguous_flat",
        }
        return column

    def decode(self, source: ColumnSource, rows: Rows) -> list[Any]:
        """As :meth:`Codec.decode`."""
        found = _decode(source, rows)
        torch = arrays.imported("torch")
        if torch is None:
            return found
        try:
            return [None if row is None else torch.from_numpy(row) for row in found]
        except TypeError as error:  # Of an element type that torch does not have.
            raise StructuredFormatError(f"a ragged_tensor column: {error}") from None


def _tensor(value: Any, torch: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, require_numpy().ndarray):
        raise TypeError("ragged_tensor codec requires rows that are torch tensors or arrays")
    # torch warns of memory that it could write and must not.
    return torch.as_tensor(value if value.flags.writeable else value.copy())


def _array(value: Any, dtype: Any) -> Any:
    """The row as an array, of ``dtype`` if that is a type of numbers and the row is no array."""
    numpy = require_numpy()
    if isinstance(value, numpy.ndarray):
        check_unmasked(value, "a row")
        return numpy.asarray(value)
    if dtype is not None and dtype.kind in "biufc":
        return numpy.asarray(value, dtype)
    row = numpy.asarray(value)
    if row.dtype.kind == "f" and row.size and is_integral(value):
        raise ValueError(NO_INTEGER_TYPE)
    return row


def _common_type(rows: Sequence[Any]) -> Any:
    numpy = require_numpy()
    types = {row.dtype for row in rows if row.size} or {row.dtype for row in rows}
    common = numpy.result_type(*types) if types else numpy.dtype("int64")
    if common.kind == "f" and all(dtype.kind in "biu" for dtype in types):
        raise ValueError(NO_INTEGER_TYPE)
    return common


def _encode(rows: Sequence[Any], dtype: Any, codec: str, name: str) -> EncodedColumn:
    numpy = require_numpy()
    max_ndim = max((row.ndim for row in rows if row is not None), default=0)
    shapes = numpy.zeros((len(rows), max_ndim), "<i8")
    ndims = numpy.zeros(len(rows), "<i2")
    for place, row in enumerate(rows):
        if row is not None:
            ndims[place] = row.ndim
            shapes[place, : row.ndim] = row.shape
    flat = [row.reshape(-1) for row in rows if row is not None and row.size]
    data = numpy.empty(sum(row.size for row in flat), dtype)
    if flat:
        numpy.concatenate(flat, out=data, casting="unsafe" if dtype.kind in "biufc" else "safe")
    payloads = {
        "data": data,
        "offsets": offsets_of([0 if row is None else row.size for row in rows]),
        "shapes": shapes,
        "ndims": ndims,
        "nulls": nulls_of(rows),
    }
    metadata = {"dtype": name, "max_ndim": max_ndim, "shape_policy": "ragged"}
    return EncodedColumn(codec, len(rows), payloads, metadata)


def _decode(source: ColumnSource, rows: Rows) -> list[Any]:
    nulls = read_nulls(source)
    offsets = read_offsets(source, "offsets", source.rows, source.size("data"))
    ndims = source.array("ndims", "<i2")
    check_length(ndims, source.rows, "ndims")
    shapes = source.array("shapes", "<i8")
    if shapes.ndim != 2 or shapes.shape[0] != source.rows or shapes.shape[1] > _MAX_NDIM:
        raise StructuredFormatError(f"column shapes have shape {shapes.shape}")
    wanted = []
    spans = []
    for row in rows:
        ndim = int(ndims[row])
        if not 0 <= ndim <= shapes.shape[1]:
            raise StructuredFormatError(f"column row {row} has {ndim} dimensions")
        shape = tuple(map(int, shapes[row, :ndim]))
        start, end = int(offsets[row]), int(offsets[row + 1])
        if not nulls[row] and (min(shape, default=0) < 0 or math.prod(shape) != end - start):
            raise StructuredFormatError(
                f"column row {row} of shape {shape} has {end - start} elements"
            )
        wanted.append(None if nulls[row] else shape)
        spans.append((start, end))
    parts = source.spans("data", spans)
    try:
        return [
            None if shape is None else part.reshape(shape)
            for shape, part in zip(wanted, parts, strict=True)
        ]
    except (ValueError, AttributeError) as error:
        raise StructuredFormatError(f"column of arrays: {error}") from None
