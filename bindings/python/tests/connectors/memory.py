"""Memory of an engine, by address."""

from __future__ import annotations

import ctypes
import hashlib
import mmap


class HostMemory:
    """Page-aligned memory of this process, for as long as it runs."""

    def __init__(self, size: int) -> None:
        pages = mmap.mmap(-1, size)
        self._bytes = memoryview((ctypes.c_ubyte * size).from_buffer(pages)).cast("B")
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(pages))
        self.size = size

    def write(self, at: int, data: bytes) -> None:
        self._bytes[at : at + len(data)] = data

    def read(self, at: int, size: int) -> bytes:
        return bytes(self._bytes[at : at + size])


def content(name: str, size: int) -> bytes:
    """Bytes that only `name` has, so that what was mixed up is seen."""
    return hashlib.shake_128(name.encode()).digest(size)
