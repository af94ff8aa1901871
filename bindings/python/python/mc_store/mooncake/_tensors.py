"""What `mooncake.store` has for tensors beside the methods of the store."""

from __future__ import annotations

from typing import Any

from ._tensor.arrays import Like, elements_of, read_tensor
from ._tensor.layout import METADATA_SIZE, TensorError
from ._tensor.parallelism import ParallelAxis, ReadTarget, TensorParallelism

__all__ = [
    "ParallelAxis",
    "ReadTarget",
    "TensorParallelism",
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
]


def _tensor_metadata_size() -> int:
    """Bytes before the elements in a tensor object."""
    return METADATA_SIZE


def _serialize_tensor(tensor: object) -> tuple[bytes, int, int, object]:
    """The header of a tensor, and the address, the bytes and the owner of its elements.

    The elements stay where they are while the owner lives. Raises `ValueError` for what is no
    tensor that can be stored.
    """
    try:
        found = elements_of(tensor)
        return found.metadata().pack(), found.address, found.size, found.owner
    except TensorError as error:
        raise ValueError(f"unsupported tensor for Mooncake tensor serialization: {error}") from None


def _deserialize_tensor(
    data: bytes | bytearray | memoryview, /, *, like: Like | None = None
) -> Any:
    """The tensor in the bytes of an object, in memory of its own (see `get_tensor` for `like`).

    Raises `ValueError` if they are not exactly those of a tensor.
    """
    with memoryview(data) as buffer:
        try:
            return read_tensor(buffer.cast("B"), like)
        except TensorError as error:
            raise ValueError(f"invalid serialized Mooncake tensor payload: {error}") from None
