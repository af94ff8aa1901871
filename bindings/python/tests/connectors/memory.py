"""Memory of an engine, by address."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import tempfile


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


class DeviceMemory:
    """Stands for memory of an accelerator: its addresses are listed as this process's, readable
    and writable, and a process that touches them is ended by a signal. Here they lie behind the
    end of a file."""

    def __init__(self, size: int) -> None:
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            pages = mmap.mmap(file.fileno(), size)
            file.truncate(0)
        self._pages = (ctypes.c_ubyte * size).from_buffer(pages)
        self.address = ctypes.addressof(self._pages)
        self.size = size


class GpuMemory:
    """Memory of a GPU, by the driver whose library this is."""

    def __init__(self, size: int, library: str) -> None:
        self._driver = ctypes.CDLL(library)
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._context = context
        address = ctypes.c_uint64()
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.address, self.size = address.value, size

    def write(self, at: int, data: bytes) -> None:
        # Calls come from any thread.
        self._call("cuCtxSetCurrent", self._context)
        target = ctypes.c_uint64(self.address + at)
        self._call("cuMemcpyHtoD_v2", target, data, ctypes.c_size_t(len(data)))
        self._call("cuCtxSynchronize")

    def read(self, at: int, size: int) -> bytes:
        self._call("cuCtxSetCurrent", self._context)
        data = ctypes.create_string_buffer(size)
        source = ctypes.c_uint64(self.address + at)
        self._call("cuMemcpyDtoH_v2", data, source, ctypes.c_size_t(size))
        return data.raw

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} answered {code}")
