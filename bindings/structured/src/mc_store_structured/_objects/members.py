"""Members of a structured object: arrays, tensors and bytes, as payloads with a description.

A description is JSON: ``{"encoding": "bytes"}``, ``{"encoding": "ndarray", "dtype": "<i4", "shape":
[3, 4]}``, or ``{"encoding": "torch_tensor", "dtype": "torch.int64", "shape": [3], "element_size":
8}``, whose payload is a tensor object of Mooncake: a header of 304 bytes and the elements. A tensor
that is nested has several (:mod:`.jagged`).
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from .._tensor import memory
from .._tensor.arrays import array_of, elements_of
from .._tensor.layout import METADATA_SIZE, TensorError, TensorMetadata, parse
from .bundle import Source
from .errors import StructuredFormatError
from .jagged import JaggedParts, encode_jagged, is_jagged, is_nested
from .manifest import Payload
from .memory import RawDestination, TensorObjectBuffer, check_unmasked, require_numpy
from .reads import Range, Reader
from .slices import Rows

#: What `numpy.dtype` is given. No objects, no records, nothing that names code.
_DTYPE = re.compile(r"[<>|=][biufcSUV][1-9]\d{0,8}|[<>|=][mM]8(\[\d{0,9}[a-zA-Z]{1,2}\])?")

_MAX_NUMPY_DIMS = 32


def encode(value: object, name: str) -> tuple[dict[str, Any], Source]:
    """The description and the bytes of a member. Raises ``TypeError`` for other objects."""
    if isinstance(value, TensorObjectBuffer):
        return {"encoding": "torch_tensor"}, Source(memory=value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _encode_tensor(value, name)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        # Records and types of other packages have the text of another type: they would come back
        # as that.
        dtype = value.dtype
        if not _DTYPE.fullmatch(dtype.str) or numpy.dtype(dtype.str) != dtype:
            raise TypeError(f"{name}: an array of {dtype} cannot be stored as bytes")
        check_unmasked(value, name)
        spec = {"encoding": "ndarray", "dtype": value.dtype.str, "shape": list(value.shape)}
        return spec, Source.of_bytes(value, name)
    return {"encoding": "bytes"}, Source.of_bytes(value, name)


def _encode_tensor(tensor: Any, name: str) -> tuple[dict[str, Any], Source]:
    if is_nested(tensor):
        spec, content = encode_jagged(tensor, name)
        return spec, Source(memoryview(content))
    try:
        elements = elements_of(tensor)
        header = elements.metadata().pack()
    except TensorError as error:
        raise TypeError(f"{name}: {error}") from None
    spec = {
        "encoding": "torch_tensor",
        "dtype": f"torch.{elements.element.name}",
        "shape": list(elements.shape),
        "element_size": elements.element.size,
    }
    if not elements.size:
        return spec, Source(memoryview(header), memoryview(b""))
    data = memory.view(elements.address, elements.size, elements.owner)
    return spec, Source(memoryview(header), memoryview(data).cast("B"))


class Member:
    """A stored member: its description and its payload."""

    def __init__(self, name: str, spec: object, payload: Payload) -> None:
        if not isinstance(spec, Mapping) or not isinstance(spec.get("encoding"), str):
            raise StructuredFormatError(f"structured member {name} has no description")
        self.name = name
        self.spec = spec
        self.payload = payload

    @property
    def encoding(self) -> str:
        """``bytes``, ``ndarray`` or ``torch_tensor``; anything else cannot be read."""
        encoding: str = self.spec["encoding"]
        return encoding

    def decode(self, data: memoryview) -> Any:
        """The member in ``data``, which is writable and holds the payload: bytes, or an array over
        that very memory."""
        if self.encoding == "bytes":
            return bytes(data)
        if self.encoding == "ndarray":
            dtype, shape = self.array_type()
            return _array_over(data, dtype, shape)
        self._check_encoding("torch_tensor")
        if is_jagged(self.spec):
            return JaggedParts.parse(data, self.spec, self.name).tensor()
        try:
            metadata = parse(data, data.nbytes)
        except TensorError as error:
            raise StructuredFormatError(f"structured tensor {self.name}: {error}") from None
        return array_of(metadata, data[metadata.data_offset :], None)

    def elements(self, data: memoryview) -> Any:
        """``data``, some bytes of an ndarray, as an array of one dimension."""
        dtype, _ = self.array_type()
        return _array_over(data, dtype, (data.nbytes // dtype.itemsize,))

    def row_count(self, reader: Reader) -> int:
        """The first dimension of an array or a tensor."""
        if is_jagged(self.spec):
            return len(self._jagged(reader))
        is_array = self.encoding == "ndarray"
        shape = self.array_type()[1] if is_array else self._header(reader).local_shape
        if not shape:
            raise ValueError(f"structured member {self.name} has no dimension, and no rows")
        return shape[0]

    def read_rows(self, reader: Reader, rows: Rows) -> Any:
        """The rows of an array or a tensor, read without the others unless it is jagged."""
        if self.encoding == "bytes":
            raise ValueError(f"structured bytes member {self.name} does not support slicing")
        if self.encoding == "ndarray":
            dtype, shape = self.array_type()
            wanted = self._row_ranges(rows, shape, dtype.itemsize, 0)
            return _array_over(reader.ranges(self.payload, wanted), dtype, (len(rows), *shape[1:]))
        if is_jagged(self.spec):
            parts = self._jagged(reader)
            rows.check(len(parts), self.name)
            return parts.select(rows).tensor()
        metadata = self._header(reader)
        shape = metadata.local_shape
        wanted = self._row_ranges(rows, shape, metadata.element.size, metadata.data_offset)
        data = reader.ranges(self.payload, wanted)
        part = TensorMetadata.whole(metadata.element, (len(rows), *shape[1:]))
        return array_of(part, data, None)

    def read_into(self, reader: Reader, rows: Rows | None, destination: Any) -> Any:
        """Reads the member, or its rows, into the caller's memory, and returns ``destination``.

        Raises ``ValueError`` if the memory does not suit.
        """
        if self.encoding == "bytes":
            raise ValueError(
                f"structured bytes member {self.name} does not support materialize_into"
            )
        if is_jagged(self.spec):
            raise ValueError(
                f"structured nested tensor member {self.name} does not support destinations"
            )
        if isinstance(destination, TensorObjectBuffer):
            self._tensor_object_into(reader, rows, destination)
        elif isinstance(destination, RawDestination):
            self._elements_into(reader, rows, destination)
        else:
            self._array_into(reader, rows, destination)
        return destination

    def array_type(self) -> tuple[Any, tuple[int, ...]]:
        """The dtype and the shape of an ndarray, which account for exactly the payload's bytes."""
        self._check_encoding("ndarray")
        numpy = require_numpy()
        text, shape = self.spec.get("dtype"), self.spec.get("shape")
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise StructuredFormatError(f"structured ndarray {self.name} has dtype {text!r}")
        if (
            not isinstance(shape, list)
            or len(shape) > _MAX_NUMPY_DIMS
            or not all(type(length) is int and 0 <= length < 1 << 62 for length in shape)
        ):
            raise StructuredFormatError(f"structured ndarray {self.name} has shape {shape!r:.200}")
        try:
            dtype = numpy.dtype(text)
        except TypeError as error:
            raise StructuredFormatError(f"structured ndarray {self.name}: {error}") from None
        if math.prod(shape) * dtype.itemsize != self.payload.size:
            raise StructuredFormatError(
                f"structured ndarray {self.name} of {text} {shape!r:.200} has "
                f"{self.payload.size} bytes"
            )
        return dtype, tuple(shape)

    def _check_encoding(self, expected: str) -> None:
        if self.encoding != expected:
            raise StructuredFormatError(
                f"structured member {self.name} has encoding {self.encoding!r}, not {expected!r}"
            )

    def _jagged(self, reader: Reader) -> JaggedParts:
        self._check_encoding("torch_tensor")
        (data,) = reader.whole([self.payload])
        return JaggedParts.parse(data, self.spec, self.name)

    def _header(self, reader: Reader) -> TensorMetadata:
        self._check_encoding("torch_tensor")
        try:
            if self.payload.size < METADATA_SIZE:
                raise TensorError(f"{self.payload.size} bytes are too few for a tensor")
            head = reader.ranges(self.payload, [Range(0, METADATA_SIZE)])
            return parse(head, self.payload.size)
        except TensorError as error:
            raise StructuredFormatError(f"structured tensor {self.name}: {error}") from None

    def _row_ranges(
        self, rows: Rows, shape: tuple[int, ...], item_size: int, offset: int
    ) -> list[Range]:
        if not shape:
            raise ValueError(f"structured member {self.name} has no dimension, and no rows")
        rows.check(shape[0], self.name)
        row_size = math.prod(shape[1:]) * item_size
        return [Range(offset + start * row_size, count * row_size) for start, count in rows.runs()]

    def _whole_range(self) -> list[Range]:
        return [Range(0, self.payload.size)]

    def _array_into(self, reader: Reader, rows: Rows | None, array: Any) -> None:
        if self.encoding != "ndarray":
            raise ValueError(
                f"structured tensor member {self.name} only supports tensor_object_buffer or "
                "raw_destination destinations"
            )
        numpy = require_numpy()
        if not isinstance(array, numpy.ndarray):
            raise ValueError(
                f"structured ndarray field {self.name} destination must be an ndarray, not "
                f"{type(array).__name__}"
            )
        dtype, shape = self.array_type()
        ranges = self._whole_range()
        if rows is not None:
            ranges = self._row_ranges(rows, shape, dtype.itemsize, 0)
            shape = (len(rows), *shape[1:])
        problem = _unsuitable(array, dtype, shape)
        if problem:
            raise ValueError(f"structured ndarray field {self.name} destination {problem}")
        if array.nbytes:
            view = memoryview(array.reshape(-1).view(numpy.uint8))
            reader.ranges_into(self.payload, ranges, view)

    def _elements_into(
        self, reader: Reader, rows: Rows | None, destination: RawDestination
    ) -> None:
        if self.encoding == "ndarray":
            dtype, shape = self.array_type()
            item_size, offset = dtype.itemsize, 0
        else:
            metadata = self._header(reader)
            shape, item_size, offset = (
                metadata.local_shape,
                metadata.element.size,
                metadata.data_offset,
            )
        ranges = [Range(offset, self.payload.size - offset)]
        if rows is not None:
            ranges = self._row_ranges(rows, shape, item_size, offset)
        self._ranges_into_memory(reader, ranges, destination)

    def _tensor_object_into(
        self, reader: Reader, rows: Rows | None, destination: TensorObjectBuffer
    ) -> None:
        self._check_encoding("torch_tensor")
        if rows is None:
            self._ranges_into_memory(reader, self._whole_range(), destination)
            return
        metadata = self._header(reader)
        ranges = self._row_ranges(
            rows, metadata.local_shape, metadata.element.size, metadata.data_offset
        )
        part = TensorMetadata.whole(metadata.element, (len(rows), *metadata.local_shape[1:]))
        self._ranges_into_memory(reader, ranges, destination, header=part.pack())

    def _ranges_into_memory(
        self,
        reader: Reader,
        ranges: list[Range],
        destination: RawDestination | TensorObjectBuffer,
        header: bytes = b"",
    ) -> None:
        size = len(header) + sum(part.size for part in ranges)
        if size > destination.size:
            raise ValueError(
                f"structured member {self.name} needs {size} bytes, and its destination has "
                f"{destination.size}"
            )
        if not size:
            return
        if header:
            memory.poke(destination.ptr, header)  # Unlike a view, it survives a wrong address.
        view = memoryview(memory.view(destination.ptr, size, destination.owner)).cast("B")
        reader.ranges_into(self.payload, ranges, view[len(header) :])


def _unsuitable(array: Any, dtype: Any, shape: tuple[int, ...]) -> str:
    if array.shape != shape:
        return f"shape mismatch: expected {shape}, got {array.shape}"
    if array.dtype != dtype:
        return f"dtype mismatch: expected {dtype.str}, got {array.dtype.str}"
    if not array.flags.c_contiguous:
        return "must be C-contiguous"
    return "" if array.flags.writeable else "must be writeable"


def _array_over(data: memoryview, dtype: Any, shape: tuple[int, ...]) -> Any:
    numpy = require_numpy()
    try:
        if not data.nbytes:
            return numpy.empty(shape, dtype)
        return numpy.frombuffer(data, numpy.uint8).view(dtype).reshape(shape)
    except ValueError as error:  # Of a shape with too many elements, none of which exist.
        raise StructuredFormatError(f"no array of shape {shape}: {error}") from None
