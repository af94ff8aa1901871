"""Memory: of payloads that are written, of results, and of callers by address."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

from .._tensor import arrays

Buffer: TypeAlias = bytes | bytearray | memoryview

#: Results below this size take ordinary memory, also of a transfer with a pool.
_SMALLEST_LEASE = 64 << 10


@dataclass(frozen=True)
class TensorObjectBuffer:
    """Memory with a tensor object (header and elements), made by ``tensor_object_buffer``."""

    ptr: int
    size: int
    owner: Any = None
    batch_size: int | None = None


@dataclass(frozen=True)
class RawDestination:
    """Memory for the elements of one member, made by ``raw_destination``."""

    ptr: int
    size: int
    owner: Any = None
    pre_registered: bool = False


def tensor_object_buffer(
    ptr: int, size: int, owner: Any = None, batch_size: int | None = None
) -> TensorObjectBuffer:
    """Memory that has, or is to get, a tensor object: the header of 304 bytes and the elements.

    As a member it is stored from where it lies, without a copy if it is registered with the store.
    As a destination it receives such an object.

    ptr, size: the address and the number of bytes.
    owner: kept alive as long as the result.
    batch_size: the first dimension of the tensor, which a field of a batch needs.
    """
    return TensorObjectBuffer(*_range(ptr, size), owner, batch_size)


def raw_destination(
    ptr: int, size: int, owner: Any = None, *, pre_registered: bool = False
) -> RawDestination:
    """Memory for the elements of an array or tensor, without a header.

    ptr, size: the address and the number of bytes, which may be more than the member has.
    owner: kept alive as long as the result.
    pre_registered: the memory is registered with the store. It has no effect here: the store knows.
    """
    return RawDestination(*_range(ptr, size), owner, pre_registered)


def _range(ptr: int, size: int) -> tuple[int, int]:
    if ptr < 0 or size < 0 or ptr + size >= 1 << 64:
        raise ValueError(f"there is no memory of {size} bytes at {ptr:#x}")
    return ptr, size


def bytes_view(value: object, name: str) -> memoryview:
    """The bytes of ``value``, in memory of its own only if ``value`` is not contiguous.

    Raises ``TypeError`` that names the member ``name`` if it has no buffer protocol.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        # Through bytes: the elements may be of a type that memoryview does not know.
        flat = numpy.ascontiguousarray(value).reshape(-1)
        return memoryview(flat.view(numpy.uint8)) if flat.nbytes else memoryview(b"")
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be bytes-like, got {type(value).__name__}") from None
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


class Results:
    """Gives memory for results: of the pool, if there is one with space, or else ordinary."""

    def __init__(self, pool: Any = None) -> None:
        self._pool = pool

    def allocate(self, size: int) -> memoryview:
        """A new writable buffer of ``size`` bytes. Their content is undefined."""
        if self._pool is not None and size >= _SMALLEST_LEASE:
            try:
                # The lease ends when the last view of its memory is garbage.
                view: memoryview = self._pool.acquire(size, block=False).buffer
                return view
            except RuntimeError:
                pass  # Exhausted or closed: the result needs no registered memory.
        numpy = arrays.imported("numpy")
        return memoryview(bytearray(size) if numpy is None else numpy.empty(size, numpy.uint8))


def address_of(view: memoryview) -> int:
    """The address of a writable buffer."""
    from ctypes import addressof, c_char

    return addressof(c_char.from_buffer(view)) if view.nbytes else 0


def check_unmasked(array: Any, name: str) -> None:
    """Raises ``TypeError`` that names the member ``name`` for a masked array of numpy, whose mask
    would be lost."""
    if isinstance(array, require_numpy().ma.MaskedArray):
        raise TypeError(f"{name}: masked arrays are not stored; store the mask as another field")


def require_numpy() -> Any:
    """numpy. Raises ``ImportError``, which says how to get it, if it is not installed."""
    numpy = arrays.imported("numpy")
    if numpy is None:
        raise ImportError(
            "arrays of structured objects need numpy: pip install 'mc-store[structured]'"
        )
    return numpy
