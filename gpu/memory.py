"""Memory of every kind that an engine may hand to the store, from the driver or from PyTorch."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

POISON = 0xA5
PORTABLE_AND_MAPPED = 3
NON_BLOCKING = 1

_LIBC = ctypes.CDLL(None)
_LIBC.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class NoGpu(Exception):
    """There is no driver, or no GPU that it can use."""


class Driver:
    """NVIDIA's driver, and the primary context of a GPU, which PyTorch uses as well."""

    def __init__(self, ordinal: int = 0) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoGpu(f"libcuda.so.1, NVIDIA's driver, is missing: {error}") from None
        # A stand-in for the driver counts what a program does wrong.
        self.is_standin = hasattr(self.library, "mc_standin_violations")
        code = self.library.cuInit(0)
        if code != 0:
            raise NoGpu(f"the driver finds no GPU that it can use: cuInit returned {code}")
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.device = device.value
        self.make_current()

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver, and raises `RuntimeError` for a code of failure."""
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name} returned {code} ({(text.value or b'?').decode()})")

    def make_current(self) -> None:
        """Makes the context the one of this thread."""
        self.call("cuCtxSetCurrent", self.context)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def stream(self) -> ctypes.c_void_p:
        """A new stream that does not wait for the legacy one."""
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), NON_BLOCKING)
        return made

    def facts(self) -> dict[str, object]:
        """The GPU and the driver, for the report."""
        name, version, bytes_ = (
            ctypes.create_string_buffer(128),
            ctypes.c_int(),
            ctypes.c_size_t(),
        )
        self.call("cuDeviceGetName", name, 128, self.device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.call("cuDeviceTotalMem_v2", ctypes.byref(bytes_), self.device)
        major, minor = divmod(version.value, 1000)
        return {
            "gpu": name.value.decode()
            + (" (a stand-in for the driver)" if self.is_standin else ""),
            "standin": self.is_standin,
            "gpu_bytes": bytes_.value,
            "cuda": f"{major}.{minor // 10}",
        }

    def violations(self) -> str:
        """The violations that a stand-in counted; empty for a real driver."""
        if not self.is_standin:
            return ""
        text = ctypes.create_string_buffer(4096)
        count = self.library.mc_standin_violations(text, ctypes.c_size_t(4096))
        return f"{count}: {text.value.decode(errors='replace')}" if count else ""


class Block(ABC):
    """A range of memory; offsets count from its beginning."""

    def __init__(self, driver: Driver, size: int) -> None:
        self.driver, self.size = driver, size
        self.address = self._take()
        self.fill()

    @abstractmethod
    def _take(self) -> int:
        """Takes the memory and returns its address."""

    @abstractmethod
    def free(self) -> None:
        """Gives the memory back."""

    def fill(self, byte: int = POISON) -> None:
        """Makes every byte this one."""
        ctypes.memset(self.address, byte, self.size)

    def write(self, data: bytes, at: int = 0) -> None:
        ctypes.memmove(self.address + at, data, len(data))

    def read(self, at: int, size: int) -> bytes:
        return ctypes.string_at(self.address + at, size)

    def holds(self, data: bytes, at: int) -> bool:
        """Whether these bytes, and no others, are here."""
        return self.read(at, len(data)) == data

    def as_array(self, at: int, size: int) -> Any:
        """The range as a value for calls that take objects."""
        return memoryview((ctypes.c_ubyte * size).from_address(self.address + at)).cast("B")


class _Array:
    """A range of a GPU's memory as arrays of other libraries describe theirs."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }


class Device(Block):
    """Memory of a GPU, which the processor cannot touch."""

    def _take(self) -> int:
        address = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.size))
        return address.value

    def free(self) -> None:
        self.driver.call("cuMemFree_v2", ctypes.c_uint64(self.address))

    def fill(self, byte: int = POISON) -> None:
        address, size = ctypes.c_uint64(self.address), ctypes.c_size_t(self.size)
        self.driver.call("cuMemsetD8_v2", address, ctypes.c_ubyte(byte), size)
        self.driver.synchronize()

    def write(self, data: bytes, at: int = 0) -> None:
        address = ctypes.c_uint64(self.address + at)
        self.driver.call("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(len(data)))
        # A copy of pageable memory may return before it has been made.
        self.driver.synchronize()

    def read(self, at: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        address = ctypes.c_uint64(self.address + at)
        self.driver.call("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(size))
        return data.raw

    def as_array(self, at: int, size: int) -> Any:
        return _Array(self.address + at, size)


class Managed(Device):
    """Managed memory, whose pages migrate between the host and the GPU."""

    def _take(self) -> int:
        address, for_all = ctypes.c_uint64(), ctypes.c_uint(1)
        size = ctypes.c_size_t(self.size)
        self.driver.call("cuMemAllocManaged", ctypes.byref(address), size, for_all)
        return address.value


class TorchTensor(Device):
    """A tensor of PyTorch, inside an allocation of its caching allocator."""

    def _take(self) -> int:
        import torch

        self.tensor = torch.empty(self.size, dtype=torch.uint8, device=f"cuda:{self.driver.device}")
        torch.cuda.synchronize()
        return int(self.tensor.data_ptr())

    def free(self) -> None:
        del self.tensor

    def as_array(self, at: int, size: int) -> Any:
        return self.tensor[at : at + size]


class HostAlloc(Block):
    """Pinned memory of the host that the driver allocated."""

    def _take(self) -> int:
        base, size = ctypes.c_void_p(), ctypes.c_size_t(self.size)
        flags = ctypes.c_uint(PORTABLE_AND_MAPPED)
        self.driver.call("cuMemHostAlloc", ctypes.byref(base), size, flags)
        return base.value or 0

    def free(self) -> None:
        self.driver.call("cuMemFreeHost", ctypes.c_void_p(self.address))


class Plain(Block):
    """Memory of the host of which the driver knows nothing."""

    def _take(self) -> int:
        self._pages = mmap.mmap(-1, self.size)
        return ctypes.addressof(ctypes.c_char.from_buffer(self._pages))

    def free(self) -> None:
        # Its pages go with the mapping, when nothing refers to it.
        del self._pages


class HostRegister(Plain):
    """Memory of the host that was pinned where it is."""

    def _take(self) -> int:
        address, size = super()._take(), ctypes.c_size_t(self.size)
        flags = ctypes.c_uint(PORTABLE_AND_MAPPED)
        self.driver.call("cuMemHostRegister_v2", ctypes.c_void_p(address), size, flags)
        return address

    def free(self) -> None:
        self.driver.call("cuMemHostUnregister", ctypes.c_void_p(self.address))
        super().free()


#: The kinds whose bytes are compared; the last one needs PyTorch.
KINDS: dict[str, Callable[[Driver, int], Block]] = {
    "device": Device,
    "managed": Managed,
    "host-alloc": HostAlloc,
    "host-register": HostRegister,
    "plain": Plain,
    "torch": TorchTensor,
}


def torch_version() -> str | None:
    """The version of a PyTorch that can use the GPU."""
    try:
        import torch
    except ImportError:
        return None
    return str(torch.__version__) if torch.cuda.is_available() else None


def large_device_block(driver: Driver, size: int) -> Block:
    """Memory of a GPU from PyTorch's allocator, as an engine has it, or else from the driver."""
    return TorchTensor(driver, size) if torch_version() else Device(driver, size)


def same(one: int, other: int, size: int) -> bool:
    """Whether two ranges of the host have the same bytes."""
    return bool(_LIBC.memcmp(one, other, size) == 0)


class Copies:
    """Copies between a GPU and one pinned block, in a stream of their own: the best possible."""

    def __init__(self, driver: Driver, device: Block, host: Block) -> None:
        self.driver, self.device, self.host = driver, device, host
        self.stream = driver.stream()

    def to_host(self, size: int, at: int = 0) -> None:
        host, device = ctypes.c_void_p(self.host.address), ctypes.c_uint64(self.device.address + at)
        self.driver.call("cuMemcpyDtoHAsync_v2", host, device, ctypes.c_size_t(size), self.stream)
        self.driver.call("cuStreamSynchronize", self.stream)

    def to_device(self, size: int, at: int = 0) -> None:
        host, device = ctypes.c_void_p(self.host.address), ctypes.c_uint64(self.device.address + at)
        self.driver.call("cuMemcpyHtoDAsync_v2", device, host, ctypes.c_size_t(size), self.stream)
        self.driver.call("cuStreamSynchronize", self.stream)


def host_facts() -> dict[str, object]:
    """The host, for the report."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "host_bytes": pages,
        "kernel": os.uname().release,
        "python": platform.python_version(),
    }
