"""The functions of `mooncake.store` for tensors."""

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
    """Return the length of the header of a tensor object."""
    return METADATA_SIZE


def _serialize_tensor(tensor: object) -> tuple[bytes, int, int, object]:
    """Return a tensor's header, and the address, the length and the owner of its elements.

    The elements stay at the address while the owner lives. Raises `ValueError` for an object that
    cannot be stored as a tensor.
    """
    try:
        found = elements_of(tensor)
        return found.metadata().pack(), found.address, found.size, found.owner
    except TensorError as error:
        raise ValueError(f"unsupported tensor for Mooncake tensor serialization: {error}") from None


def _deserialize_tensor(
    data: bytes | bytearray | memoryview, /, *, like: Like | None = None
) -> Any:
    """Return the tensor in an object's bytes, with its own memory (see `get_tensor` for `like`).

    Raises `ValueError` if the bytes are not exactly those of a tensor.
    """
    with memoryview(data) as buffer:
        try:
            return read_tensor(buffer.cast("B"), like)
        except TensorError as error:
            raise ValueError(f"invalid serialized Mooncake tensor payload: {error}") from None
