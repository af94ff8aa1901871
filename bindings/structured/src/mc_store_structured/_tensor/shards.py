"""Where the shards of a row-major tensor lie in its bytes, and how bytes move between them.

A shard is a range of one dimension. In the bytes of the whole it is a series of equal rows at equal
distances.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .arrays import byte_library
from .layout import Shape, TensorError

# Far beyond any deployment: what bounds the work that a request or a manifest can ask for.
MAX_SHARDS = 1 << 16


def shard_range(shape: Shape, dim: int, rank: int, count: int) -> range:
    """The indices of dimension `dim` that shard `rank` of `count` holds.

    Raises `TensorError` if there is no such dimension or rank, if the shards would not be equal, or
    if they are more than `MAX_SHARDS`.
    """
    if not 0 <= dim < len(shape):
        raise TensorError(f"no dimension {dim} among {len(shape)}")
    if not 0 <= rank < count:
        raise TensorError(f"no shard {rank} of {count}")
    if count > MAX_SHARDS or shape[dim] % count:
        raise TensorError(f"{shape[dim]} is not divisible into {count} equal shards")
    extent = shape[dim] // count
    return range(rank * extent, (rank + 1) * extent)


def with_dim(shape: Shape, dim: int, extent: int) -> Shape:
    """`shape` with another extent of one dimension."""
    return (*shape[:dim], extent, *shape[dim + 1 :])


class Rows(NamedTuple):
    """`runs` rows of `size` bytes, one every `stride` bytes, the first at `offset`."""

    runs: int
    size: int
    stride: int
    offset: int

    @classmethod
    def of(cls, shape: Shape, element_size: int, dim: int, indices: range) -> Rows:
        """Where `indices` of dimension `dim` lie in the bytes of a row-major tensor."""
        inner = math.prod(shape[dim + 1 :]) * element_size
        return cls(
            runs=math.prod(shape[:dim]),
            size=len(indices) * inner,
            stride=shape[dim] * inner,
            offset=indices.start * inner,
        )

    @property
    def total(self) -> int:
        """Bytes in all rows."""
        return self.runs * self.size

    def offsets(self) -> range:
        """Where each row begins."""
        return range(self.offset, self.offset + self.runs * self.stride, self.stride)

    def of_array(self, flat: Any) -> Any:
        """The rows in a flat array of bytes, as a two-dimensional array over that memory."""
        whole = flat[: self.runs * self.stride].reshape(self.runs, self.stride)
        return whole[:, self.offset : self.offset + self.size]


def flat_bytes(data: Any) -> Any:
    """The buffer `data`, which is not empty, as a flat array of bytes over the same memory."""
    library = byte_library()
    if library.__name__ == "torch" and memoryview(data).readonly:
        data = bytearray(data)  # torch has no read-only arrays
    return library.frombuffer(data, dtype=library.uint8)


def new_buffer(size: int) -> Any:
    """A writable buffer of `size` bytes with no particular content."""
    library = byte_library()
    return (
        library.empty(size, dtype=library.uint8) if library.__name__ == "numpy" else bytearray(size)
    )
