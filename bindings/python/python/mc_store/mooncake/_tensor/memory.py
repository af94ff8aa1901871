"""Memory of callers by address: looked at without trust in the address, or as a buffer."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from functools import cache
from typing import SupportsIndex, cast

from .layout import TensorError

_ADDRESS_LIMIT = 1 << 64
_WRITABLE = 0x200  # PyBUF_WRITE


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
    and not the end of the process. For headers: it costs three system calls.
    """
    if address == 0:
        raise TensorError("the buffer is a null pointer")
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(memory, size, address)
        finally:
            os.close(memory)
    except (OSError, OverflowError) as error:
        raise TensorError(f"cannot read memory at {address:#x}: {error}") from None
    if len(data) != size:
        raise TensorError(f"the memory at {address:#x} ends before {size} bytes")
    return data


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


def view(address: int, size: int) -> memoryview:
    """The `size` bytes at `address` as a writable buffer that keeps nothing alive."""
    if size == 0:
        return memoryview(bytearray())
    return _view_function()(address, size, _WRITABLE)


@cache
def _view_function() -> Callable[[int, int, int], memoryview]:
    from ctypes import PYFUNCTYPE, c_int, c_ssize_t, c_void_p, py_object, pythonapi

    prototype = PYFUNCTYPE(py_object, c_void_p, c_ssize_t, c_int)
    return cast(
        "Callable[[int, int, int], memoryview]",
        prototype(("PyMemoryView_FromMemory", pythonapi)),
    )
