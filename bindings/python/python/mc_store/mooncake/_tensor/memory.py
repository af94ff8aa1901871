"""Memory of callers by address: looked at without trust in the address, or as a buffer."""

from __future__ import annotations

import operator
import os
from typing import Any, SupportsIndex

from .layout import TensorError

_ADDRESS_LIMIT = 1 << 64
_STEP = 64 << 20


def checked(address: SupportsIndex, size: SupportsIndex) -> tuple[int, int]:
    """An address and a size as plain integers.

    Raises `TypeError` if one is no integer, `OverflowError` if one is negative or has more than 64
    bits.
    """
    numbers = operator.index(address), operator.index(size)
    if not all(0 <= number < _ADDRESS_LIMIT for number in numbers):
        raise OverflowError("an address or a size is negative or has more than 64 bits")
    return numbers


def peek(address: int, size: int) -> bytes:
    """A copy of `size` bytes at `address`; `TensorError` if this process has no memory there.

    The kernel does the reading, so that a stale or made-up address (or one of a device) is an error
    and not the end of the process.
    """
    if address == 0:
        raise TensorError("the buffer is a null pointer")
    data = bytearray()
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(data) < size:
                step = os.pread(memory, min(size - len(data), _STEP), address + len(data))
                if not step:
                    raise TensorError(f"the memory at {address:#x} ends before {size} bytes")
                data += step
        finally:
            os.close(memory)
    except (OSError, OverflowError) as error:
        raise TensorError(f"cannot read memory at {address:#x}: {error}") from None
    return bytes(data)


def poke(address: int, data: bytes) -> None:
    """Writes `data` at `address`, with the care of `peek`."""
    try:
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            written = os.pwrite(memory, data, address)
        finally:
            os.close(memory)
    except (OSError, OverflowError) as error:
        raise TensorError(f"cannot write memory at {address:#x}: {error}") from None
    if written != len(data):
        raise TensorError(f"the memory at {address:#x} ends before {len(data)} bytes")


def view(address: int, size: int, owner: object = None) -> Any:
    """The `size` bytes at `address` as a writable buffer, which keeps `owner` alive."""
    from ctypes import c_char

    array = (c_char * size).from_address(address)
    array.owner = owner  # type: ignore[attr-defined]
    return array
