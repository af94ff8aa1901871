"""Pools of memory that is registered with a store.

Registering memory costs system calls, and with RDMA milliseconds; a pool does it once per region
and hands the same regions out again. A region belongs to a size class: the smallest of
``min_size_class``, twice that, four times that, ... which holds the request.

A lease's memory returns to the pool when the lease is released, or when the lease and all its views
have been garbage-collected. It never returns while a view could still write to it, nor while a
transfer of an abandoned call, as by a signal's handler, could still read or write it.
"""

from __future__ import annotations

import gc
import math
import mmap
import os
import sys
import threading
import time
import weakref
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from mc_store.mooncake._fork import own_lock

if TYPE_CHECKING:
    import ctypes

_FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()

_PAGE = mmap.PAGESIZE
_NOT_SET_UP = 1  # of `health_check`
_INVALID_PARAMS = -600  # of `unregister_buffer`: there is no such memory

# The interval at which a waiting thread checks the pool again. Every release wakes it, except that
# of a lease that the garbage collector ends on the waiting thread itself between check and sleep.
_LOOK_AGAIN_SECONDS = 1.0

# How long a waiting thread lets transfers of abandoned calls run, between two checks.
_LET_END_SECONDS = 0.05


class RegistersMemory(Protocol):
    """The methods of a store that a pool uses, as of ``MooncakeDistributedStore``."""

    def register_buffer(self, buffer_ptr: int, size: int, /) -> int: ...
    def unregister_buffer(self, buffer_ptr: int, /) -> int: ...
    def health_check(self) -> int: ...


class PoolExhausted(RuntimeError):
    """The pool has not enough space for the request now."""


class PoolTimeout(PoolExhausted, TimeoutError):
    """The pool did not get enough space for the request within the time limit."""


class _Region:
    """One piece of page-aligned anonymous memory, registered while the pool has it."""

    __slots__ = ("_map", "_offset", "ptr", "size")

    def __init__(self, size: int, alignment: int) -> None:
        import ctypes  # Late: this module comes with every import of the store.

        slack = max(0, alignment - _PAGE)
        try:
            # Private, for a forked child must not write into what its parent sends.
            self._map = mmap.mmap(-1, size + slack, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no {size} bytes for a buffer: {error}") from error
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._map))
        self._offset = -start % alignment
        self.ptr = start + self._offset
        self.size = size

    def exporter(self, length: int) -> ctypes.Array[ctypes.c_ubyte]:
        """An object that lives as long as anything can reach this memory through it."""
        import ctypes

        return (ctypes.c_ubyte * length).from_buffer(self._map, self._offset)


# Regions that a transfer of the store would not let go of. Unmapping one would let it read or write
# memory that has become something else.
_never_unmapped: list[_Region] = []


class BufferLease:
    """Memory on loan from a :class:`BufferPool`, made by :meth:`BufferPool.acquire`.

    As a context manager, it is released on leaving.
    """

    __slots__ = ("__weakref__", "_exporter", "_pool", "_ptr", "_size")

    _exporter: ctypes.Array[ctypes.c_ubyte] | None
    _pool: BufferPool
    _ptr: int
    _size: int

    def __init__(self) -> None:
        raise TypeError("leases are made by BufferPool.acquire")

    @classmethod
    def _of(cls, pool: BufferPool, region: _Region, size: int) -> BufferLease:
        lease = cls.__new__(cls)
        exporter = region.exporter(size)
        # The end of the exporter, by `release` or by the garbage collector, ends the loan.
        weakref.finalize(exporter, pool._take_back, region).atexit = False
        lease._pool = pool
        lease._exporter = exporter
        lease._ptr = region.ptr
        lease._size = size
        return lease

    @property
    def ptr(self) -> int:
        """The address of the first byte. Raises ``RuntimeError`` after the release."""
        if self._exporter is None:
            raise RuntimeError("buffer lease is closed")
        return self._ptr

    @property
    def size(self) -> int:
        """Bytes asked for, which may be fewer than the region has."""
        return self._size

    @property
    def buffer(self) -> memoryview:
        """A new writable view of the memory. Raises ``BufferError`` after the release."""
        if self._exporter is None:
            raise BufferError("buffer lease is closed")
        return memoryview(self._exporter).cast("B")

    def release(self) -> None:
        """Give the memory back; doing so again does nothing.

        Raises ``RuntimeError`` while a view of ``buffer`` is in use, and releases nothing.
        """
        with self._pool._changed:
            if self._exporter is None:
                return
            still_viewed = weakref.ref(self._exporter)
            self._exporter = None
            if _FREE_THREADED and still_viewed() is not None:
                # Without the lock of the interpreter, what another thread made may outlive its
                # last reference until there is a collection.
                gc.collect()
            self._exporter = still_viewed()
            viewed = self._exporter is not None
        if viewed:
            raise RuntimeError("cannot release buffer while exported views exist")
        self._pool._tidy()

    def __enter__(self) -> BufferLease:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.release()
        else:
            # The exception's frames may hold views; the last of them ends the loan.
            self._exporter = None


class BufferPool:
    """Registered memory by size classes, for many threads.

    ``store``
        A store that is set up; memory is registered with it.
    ``max_bytes``
        Bytes that the pool may have registered at one time; 0 for as many as the store's local
        buffer has, or 1 GiB if it has no local buffer that is worth the name.
    ``min_size_class``
        Bytes of the smallest region.
    ``max_size_class``
        Largest region that is kept for the next request of its class; larger requests get a
        region of their own, which goes when they do. ``None``: all are kept.
    ``alignment``
        Of every region's first byte; a power of two.
    ``block_on_exhaustion``, ``default_timeout``
        What :meth:`acquire` does unless told: wait for room, and for how many seconds (``None``:
        for ever).
    ``max_regions``
        Regions that the pool may have at one time; ``None``: any number.
    ``prewarm_size``, ``prewarm_count``
        Arguments for a first :meth:`prewarm`.

    Raises ``TypeError`` or ``ValueError`` for arguments that cannot be meant, and
    ``RuntimeError`` if the store is not set up.
    """

    _changed: threading.Condition

    def __init__(
        self,
        store: RegistersMemory,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8 << 20,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        # First of all, for `__del__` after a refused argument.
        self._closed = True
        self._home = os.getpid()
        for method in ("register_buffer", "unregister_buffer", "health_check"):
            if not callable(getattr(store, method, None)):
                raise TypeError(f"store must be a store, not {type(store).__name__}")
        _whole("max_bytes", max_bytes)
        _whole("min_size_class", min_size_class, least=1)
        _whole("alignment", alignment, least=1)
        if alignment & (alignment - 1):
            raise ValueError(f"alignment must be a power of two, got {alignment}")
        if max_size_class is not None:
            _whole("max_size_class", max_size_class)
        if max_regions is not None:
            _whole("max_regions", max_regions)
        if prewarm_size is not None:
            _whole("prewarm_size", prewarm_size)
        _whole("prewarm_count", prewarm_count)
        _truth("block_on_exhaustion", block_on_exhaustion)
        _seconds("default_timeout", default_timeout)
        if store.health_check() == _NOT_SET_UP:
            raise RuntimeError("MooncakeDistributedStore is not initialized")

        self._store = store
        self._max_bytes = max_bytes or _default_bound(store)
        self._min_size_class = min_size_class
        self._max_size_class = math.inf if max_size_class is None else max_size_class
        self._alignment = alignment
        self._block = block_on_exhaustion
        self._timeout = default_timeout
        self._max_regions = math.inf if max_regions is None else max_regions

        # A reentrant lock: `_take_back` may be run by the garbage collector inside of any method.
        own_lock(self, "_changed", lambda: threading.Condition(threading.RLock()))
        self._changes = 0
        self._come_back: deque[_Region] = deque()
        self._idle: dict[int, list[_Region]] = {}
        # Regions whose leases have ended, and which transfers still use.
        self._used: list[_Region] = []
        self._bytes = 0
        self._regions = 0
        self._leases = 0
        self._closed = False
        if prewarm_size is not None:
            self.prewarm(prewarm_size, prewarm_count)

    def acquire(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """Return a lease of ``size`` bytes, with undefined content.

        ``block`` and ``timeout`` (seconds) override the pool's own.

        Raises :class:`PoolExhausted` if there is no room and ``block`` is false,
        :class:`PoolTimeout` if there was none in ``timeout`` seconds, ``RuntimeError`` if there
        never can be, if the pool is closed or if the store refuses the memory.
        """
        _whole("size", size)
        if block is None:
            block = self._block
        else:
            _truth("block", block)
        timeout = self._timeout if timeout is None else _seconds("timeout", timeout)
        deadline = math.inf if timeout is None else time.monotonic() + timeout

        region_size = self._region_size(size)
        region = self._admit(size, region_size, block, deadline)
        try:
            if region is None:
                region = self._new_region(region_size)
            return BufferLease._of(self, region, size)
        except BaseException:
            with self._changed:
                if region is None:
                    self._leases -= 1
                else:
                    self._come_back.append(region)
            raise

    def buffer(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """The same as :meth:`acquire`, which reads better after ``with``."""
        return self.acquire(size, block, timeout)

    def prewarm(self, size: int, count: int) -> None:
        """Register regions for ``count`` requests of ``size`` bytes, as many as there is room for.

        Raises ``RuntimeError`` if the pool is closed or the store refuses the memory.
        """
        _whole("size", size)
        _whole("count", count)
        region_size = self._region_size(size)
        for _ in range(count):
            with self._changed:
                self._check_open()
                if region_size > self._max_size_class or not self._has_room(region_size):
                    return
                self._count_in(region_size)
                self._leases += 1
            try:
                region = self._new_region(region_size)
            except BaseException:
                with self._changed:
                    self._leases -= 1
                raise
            # As if it had been leased.
            self._take_back(region)
            self._tidy()

    def close(self) -> None:
        """Unregister everything; doing so again does nothing.

        Raises ``RuntimeError`` while leases are out; the pool stays open.
        """
        victims: list[_Region] = []
        with self._changed:
            self._settle(victims)
            refused = self._leases > 0 and not self._closed
            if not refused:
                self._shut(victims)
        self._unregister(victims)
        if refused:
            raise RuntimeError("cannot close buffer pool with active leases")

    def abandon(self) -> None:
        """Close although leases may be out; each unregisters its memory as it ends."""
        victims: list[_Region] = []
        with self._changed:
            self._shut(victims)
        self._unregister(victims)

    def __enter__(self) -> BufferPool:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.close()
        else:
            # The exception's frames may hold leases.
            self.abandon()

    def __del__(self) -> None:
        # No lease is left: each of them refers to its pool. In a forked child nothing
        # is registered.
        if not self._closed and self._home == os.getpid():
            self.abandon()

    def _admit(self, size: int, region_size: int, block: bool, deadline: float) -> _Region | None:
        """Count one more lease: of the idle region returned, or of a new one if there is none."""
        while True:
            victims: list[_Region] = []
            try:
                with self._changed:
                    self._settle(victims)
                    self._check_open()
                    if size > self._max_bytes:
                        raise RuntimeError("requested buffer size exceeds pool capacity")
                    seen = self._changes
                    region = self._idle_region(region_size)
                    admitted = region is not None or self._reserve(region_size, victims)
                    if admitted:
                        self._leases += 1
            finally:
                self._unregister(victims)
            if admitted:
                return region
            if not block:
                raise PoolExhausted("buffer pool is exhausted")
            left = deadline - time.monotonic()
            if left <= 0:
                raise PoolTimeout("timed out waiting for buffer")
            with self._changed:
                used = self._used[0] if self._used else None
                if used is None and self._changes == seen:
                    self._changed.wait(min(left, _LOOK_AGAIN_SECONDS))
            if used is not None:
                self._is_idle(used, min(left, _LET_END_SECONDS))

    # The methods up to `_region_size` are called with the lock held. Regions to be unregistered
    # are added to `victims`; that happens when the lock is free again, for the kernel may be long
    # about it.

    def _settle(self, victims: list[_Region]) -> None:
        """Count the regions whose leases have ended, and keep those that can serve again."""
        while True:
            try:
                region = self._come_back.popleft()
            except IndexError:
                break
            self._leases -= 1
            self._used.append(region)
        self._used, ended = [], self._used
        for region in ended:
            if self._closed or region.size > self._max_size_class:
                # Unregistering waits for transfers.
                self._count_out(region)
                victims.append(region)
            elif self._is_idle(region):
                self._idle.setdefault(region.size, []).append(region)
            else:
                self._used.append(region)

    def _is_idle(self, region: _Region, wait: float = 0.0) -> bool:
        """Whether no transfer uses the region, after waiting up to ``wait`` seconds for that."""
        is_idle = getattr(self._store, "_is_idle", None)
        try:
            return is_idle is None or is_idle(region.ptr, wait)
        except RuntimeError:
            return True  # A forked child has a copy of the memory, and no transfers.

    def _shut(self, victims: list[_Region]) -> None:
        self._closed = True
        self._settle(victims)
        for idle in self._idle.values():
            victims += idle
        self._idle.clear()
        self._announce()

    def _announce(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("buffer pool is closed")

    def _idle_region(self, region_size: int) -> _Region | None:
        idle = self._idle.get(region_size)
        return idle.pop() if idle else None

    def _reserve(self, region_size: int, victims: list[_Region]) -> bool:
        """Count a new region in, in the place of idle ones of other classes if need be."""
        while not self._has_room(region_size):
            largest = max((size for size, idle in self._idle.items() if idle), default=None)
            if largest is None:
                return False
            victim = self._idle[largest].pop()
            self._count_out(victim)
            victims.append(victim)
        self._count_in(region_size)
        return True

    def _has_room(self, region_size: int) -> bool:
        # Regions are whole pages, bounds need not be.
        fits = self._bytes + region_size < self._max_bytes + _PAGE
        return fits and self._regions < self._max_regions

    def _count_in(self, region_size: int) -> None:
        self._bytes += region_size
        self._regions += 1

    def _count_out(self, region: _Region) -> None:
        self._bytes -= region.size
        self._regions -= 1

    def _region_size(self, size: int) -> int:
        """Bytes of the region that serves a request of ``size``."""
        size_class = self._min_size_class
        while size_class < size:
            size_class *= 2
        if size_class > min(self._max_size_class, self._max_bytes):
            size_class = size
        return max(1, -(-size_class // _PAGE)) * _PAGE

    def _new_region(self, region_size: int) -> _Region:
        """Map and register a region that is counted in already."""
        try:
            region = _Region(region_size, self._alignment)
            code = self._store.register_buffer(region.ptr, region.size)
            if code != 0:
                raise RuntimeError(f"the store refused to register memory (code {code})")
            return region
        except BaseException:
            with self._changed:
                self._bytes -= region_size
                self._regions -= 1
                self._announce()
            raise

    def _unregister(self, regions: list[_Region]) -> None:
        for region in regions:
            try:
                code = self._store.unregister_buffer(region.ptr)
                # A store that was closed or set up anew has let go of everything.
                if code not in (0, _INVALID_PARAMS):
                    _never_unmapped.append(region)
            except RuntimeError:
                pass  # A forked child has a copy of the memory, and no store.

    def _take_back(self, region: _Region) -> None:
        """The end of a lease, wherever it happens: in `release`, or in the garbage collector."""
        self._come_back.append(region)
        if self._home != os.getpid():
            return
        with self._changed:
            self._announce()
        if self._closed:
            self._tidy()

    def _tidy(self) -> None:
        victims: list[_Region] = []
        with self._changed:
            self._settle(victims)
        self._unregister(victims)


# Other names that Mooncake has. A view is there what a lease's memory is seen through.
RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
BufferLeaseView = RegisteredBufferLeaseView = memoryview


def _default_bound(store: RegistersMemory) -> int:
    local_buffer = getattr(store, "_local_buffer_size", 0)
    return local_buffer if local_buffer >= _PAGE else 1 << 30


def _whole(name: str, value: object, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _truth(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")


def _seconds(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds or None, not {type(value).__name__}")
    if not value >= 0:
        raise ValueError(f"{name} must be non-negative, got {value}")
    return value


__all__ = [
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "PoolExhausted",
    "PoolTimeout",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
]
