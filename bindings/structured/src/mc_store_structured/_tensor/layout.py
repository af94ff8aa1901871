"""How a tensor lies in an object: a fixed header of 304 bytes, then its elements in row-major
order.

All fields are little-endian. The header names the element type, the shape of the whole tensor and
of the part that this object holds, and how the part was cut out (its layout axes). Beside shards
lies a manifest of 96 bytes that says how many there are. Both layouts are those of the reference
system, byte for byte.

Nothing here allocates by what a header claims: `parse` compares the claims with the bytes that are
there.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
Shape: TypeAlias = tuple[int, ...]

METADATA_SIZE = 304
MANIFEST_SIZE = 96
MAX_DIMS = 8
MAX_AXES = 4

_TENSOR_MAGIC = 0x4D4F4F4E
_MANIFEST_MAGIC = 0x574D414E
_VERSION = 1
_PADDING = -1  # in the places of a shape that the tensor has no dimension for

_HEADER = struct.Struct("<IHHiiIIQQ")
_SHAPE = struct.Struct(f"<{MAX_DIMS}q")
_AXIS_COUNT = struct.Struct("<II")
_AXIS = struct.Struct("<6iq")
_MANIFEST = struct.Struct("<IHHiiiii4x8q")

_SHAPES_AT = _HEADER.size
_AXIS_COUNT_AT = _SHAPES_AT + 2 * _SHAPE.size
_AXES_AT = _AXIS_COUNT_AT + _AXIS_COUNT.size
assert _AXES_AT + MAX_AXES * _AXIS.size == METADATA_SIZE
assert _MANIFEST.size == MANIFEST_SIZE


class TensorError(ValueError):
    """A tensor, a request or a stored object that is refused, and why."""


class ElementType(NamedTuple):
    """One type of elements: its code in a header, its name in torch and numpy, its bytes."""

    code: int
    name: str
    size: int


ELEMENT_TYPES = tuple(
    ElementType(code, name, size)
    for code, (name, size) in enumerate(
        [
            ("float32", 4),
            ("float64", 8),
            ("int8", 1),
            ("uint8", 1),
            ("int16", 2),
            ("uint16", 2),
            ("int32", 4),
            ("uint32", 4),
            ("int64", 8),
            ("uint64", 8),
            ("bool", 1),
            ("float16", 2),
            ("bfloat16", 2),
            ("float8_e4m3fn", 1),
            ("float8_e5m2", 1),
        ]
    )
)
_BY_NAME = {element.name: element for element in ELEMENT_TYPES}


def element_type(name: str) -> ElementType:
    """The element type that torch and numpy call `name`; `TensorError` if the layout has none."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise TensorError(f"no layout for elements of type {name}") from None


class AxisKind:
    """The unit that a layout axis counts: data replicas, slices, experts, stages of a pipeline."""

    DATA = 0
    TENSOR = 1
    EXPERT = 2
    PIPELINE = 3
    RESERVED = 4


class LayoutAxis(NamedTuple):
    """One axis along which the writers shared the work: this object has `rank` among `size`."""

    kind: int
    place: int
    rank: int
    size: int
    split_dim: int  # -1: this axis cuts no dimension
    unit: int  # the expert or the stage
    extent: int  # of the split dimension in this object


class TensorMetadata(NamedTuple):
    """The header of a tensor object."""

    element: ElementType
    global_shape: Shape
    local_shape: Shape
    is_shard: bool
    axes: tuple[LayoutAxis, ...]
    data_offset: int
    data_bytes: int

    @classmethod
    def whole(cls, element: ElementType, shape: Shape) -> TensorMetadata:
        """The header of an object that holds all of a tensor."""
        return cls._new(element, shape, shape, False, ())

    @classmethod
    def shard(
        cls,
        element: ElementType,
        global_shape: Shape,
        local_shape: Shape,
        axes: tuple[LayoutAxis, ...],
    ) -> TensorMetadata:
        """The header of an object that holds a part of a tensor of `global_shape`."""
        return cls._new(element, global_shape, local_shape, True, axes)

    @classmethod
    def _new(
        cls,
        element: ElementType,
        global_shape: Shape,
        local_shape: Shape,
        is_shard: bool,
        axes: tuple[LayoutAxis, ...],
    ) -> TensorMetadata:
        if len(global_shape) > MAX_DIMS:
            raise TensorError(
                f"{len(global_shape)} dimensions, and at most {MAX_DIMS} have a place"
            )
        data_bytes = math.prod(local_shape) * element.size
        return cls(element, global_shape, local_shape, is_shard, axes, METADATA_SIZE, data_bytes)

    def pack(self) -> bytes:
        """The 304 bytes of the header; `TensorError` if a number does not fit its field."""
        try:
            axes = b"".join(_AXIS.pack(*axis) for axis in self.axes)
            return b"".join(
                (
                    _HEADER.pack(
                        _TENSOR_MAGIC,
                        _VERSION,
                        METADATA_SIZE,
                        self.element.code,
                        len(self.global_shape),
                        self.is_shard,
                        0,
                        self.data_offset,
                        self.data_bytes,
                    ),
                    _SHAPE.pack(*_padded(self.global_shape)),
                    _SHAPE.pack(*_padded(self.local_shape)),
                    _AXIS_COUNT.pack(len(self.axes), 0),
                    axes.ljust(MAX_AXES * _AXIS.size, b"\0"),
                )
            )
        except struct.error as error:
            raise TensorError(f"a number does not fit the header: {error}") from None


def parse(head: Buffer, total: int) -> TensorMetadata:
    """The header at the start of an object of `total` bytes, of which `head` has at least the
    header.

    Raises `TensorError` if these are not the bytes of a tensor, or if the header claims anything
    else than exactly the elements that follow it.
    """
    if len(head) < METADATA_SIZE or total < METADATA_SIZE:
        raise TensorError(f"{total} bytes are too few for a tensor")
    magic, version, size, code, ndim, kind, _, data_offset, data_bytes = _HEADER.unpack_from(head)
    if (magic, version, size) != (_TENSOR_MAGIC, _VERSION, METADATA_SIZE):
        raise TensorError("not a tensor, or one of an unknown version")
    if not 0 <= code < len(ELEMENT_TYPES):
        raise TensorError(f"unknown element type {code}")
    if not 0 <= ndim <= MAX_DIMS:
        raise TensorError(f"{ndim} dimensions")
    if kind > 1:
        raise TensorError(f"unknown kind of layout {kind}")
    global_shape = _shape(head, _SHAPES_AT, ndim)
    local_shape = _shape(head, _SHAPES_AT + _SHAPE.size, ndim)
    axes = _axes(head, ndim)
    element = ELEMENT_TYPES[code]
    if not METADATA_SIZE <= data_offset <= total or data_bytes != total - data_offset:
        raise TensorError("the elements do not lie where the header says")
    if data_bytes != math.prod(local_shape) * element.size:
        raise TensorError("the shape needs another number of bytes than there are")
    return TensorMetadata(
        element, global_shape, local_shape, kind == 1, axes, data_offset, data_bytes
    )


def _axes(head: Buffer, ndim: int) -> tuple[LayoutAxis, ...]:
    count, _ = _AXIS_COUNT.unpack_from(head, _AXIS_COUNT_AT)
    if count > MAX_AXES:
        raise TensorError(f"{count} layout axes")
    axes = tuple(
        LayoutAxis(*_AXIS.unpack_from(head, _AXES_AT + place * _AXIS.size))
        for place in range(count)
    )
    for axis in axes:
        if not AxisKind.DATA <= axis.kind <= AxisKind.RESERVED:
            raise TensorError(f"unknown kind of layout axis {axis.kind}")
        if not 0 <= axis.rank < axis.size or not -1 <= axis.split_dim < ndim:
            raise TensorError("a layout axis is out of its bounds")
    return axes


def _padded(shape: Shape) -> Shape:
    return shape + (_PADDING,) * (MAX_DIMS - len(shape))


def _shape(head: Buffer, offset: int, ndim: int) -> Shape:
    dims = _SHAPE.unpack_from(head, offset)
    if any(dim < 0 for dim in dims[:ndim]) or any(dim != _PADDING for dim in dims[ndim:]):
        raise TensorError("a shape with impossible dimensions")
    return dims[:ndim]


class Manifest(NamedTuple):
    """The record beside the shards of a tensor: its type and shape, and the cut."""

    element: ElementType
    global_shape: Shape
    split_dim: int
    size: int

    def pack(self) -> bytes:
        """The 96 bytes of the manifest; `TensorError` if a number does not fit its field."""
        try:
            return _MANIFEST.pack(
                _MANIFEST_MAGIC,
                _VERSION,
                MANIFEST_SIZE,
                self.element.code,
                len(self.global_shape),
                self.split_dim,
                self.size,
                0,
                *_padded(self.global_shape),
            )
        except struct.error as error:
            raise TensorError(f"a number does not fit the manifest: {error}") from None


def parse_manifest(data: Buffer) -> Manifest:
    """The manifest in `data`, whatever follows it; `TensorError` if there is none."""
    if len(data) < MANIFEST_SIZE:
        raise TensorError("too few bytes for a manifest")
    magic, version, length, code, ndim, split_dim, size, _, *dims = _MANIFEST.unpack_from(data)
    if (magic, version, length) != (_MANIFEST_MAGIC, _VERSION, MANIFEST_SIZE):
        raise TensorError("not a manifest, or one of an unknown version")
    if not 0 <= code < len(ELEMENT_TYPES):
        raise TensorError(f"unknown element type {code}")
    if not 0 <= ndim <= MAX_DIMS or not 0 <= split_dim < ndim or size <= 0:
        raise TensorError("a manifest with impossible numbers")
    shape = tuple(dims[:ndim])
    if any(dim < 0 for dim in shape):
        raise TensorError("a shape with impossible dimensions")
    return Manifest(ELEMENT_TYPES[code], shape, split_dim, size)
