"""Memory of callers by address: looked at without trust in the address, or as a buffer."""

from __future__ import annotations

import operator
import os
from functools import cache
from typing import Any, Literal, SupportsIndex

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
    """A copy of `size` bytes at `address`; `TensorError` if this process cannot read memory there.

    The kernel does the reading, so that a stale or made-up address (or one of a device) is an error
    and not the end of the process.
    """
    if address == 0:
        raise TensorError("the buffer is a null pointer")
    data = bytearray()
    while len(data) < size:
        part = bytearray(min(size - len(data), _STEP))
        _move("read", part, address + len(data))
        data += part
    return bytes(data)


def poke(address: int, data: bytes) -> None:
    """Writes `data` at `address`, with the care of `peek`; `TensorError` also if the memory is
    read-only, of which nothing changes."""
    _move("write", bytearray(data), address)


def _move(direction: Literal["read", "write"], local: bytearray, address: int) -> None:
    """Copies all bytes between `local` and the memory at `address`.

    By a call that heeds the protection of pages, which `/proc/self/mem` does not, and that every
    process may make of itself, also one that cannot be dumped.
    """
    from ctypes import addressof, byref, c_char, get_errno

    system = _system()
    call = system.read if direction == "read" else system.write
    done = 0
    if local:
        first = c_char.from_buffer(local)  # Keeps the bytes where they are.
        while done < len(local):
            size = len(local) - done
            near = system.Span(addressof(first) + done, size)
            far = system.Span(address + done, size)
            moved = call(os.getpid(), byref(near), 1, byref(far), 1, 0)
            if moved <= 0:
                reason = os.strerror(get_errno()) if moved else "no byte was moved"
                raise TensorError(
                    f"cannot {direction} memory at {address + done:#x}: {reason}; memory of a GPU "
                    "must be copied to the host first"
                )
            done += moved


@cache
def _system() -> Any:
    """The calls `read` and `write` of the kernel, and `Span`, the memory that they take."""
    import ctypes
    from types import SimpleNamespace

    class Span(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))

    library = ctypes.CDLL(None, use_errno=True)
    pointer, number = ctypes.POINTER(Span), ctypes.c_ulong
    read, write = library.process_vm_readv, library.process_vm_writev
    for call in (read, write):
        call.argtypes = (ctypes.c_int, pointer, number, pointer, number, number)
        call.restype = ctypes.c_ssize_t
    return SimpleNamespace(Span=Span, read=read, write=write)


def view(address: int, size: int, owner: object = None) -> Any:
    """The `size` bytes at `address` as a writable buffer, which keeps `owner` alive."""
    from ctypes import c_char

    array = (c_char * size).from_address(address)
    array.owner = owner  # type: ignore[attr-defined]
    return array
