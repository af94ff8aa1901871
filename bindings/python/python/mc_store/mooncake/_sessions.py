"""Objects read and written range by range: get sessions and put sessions.

A *get session* keeps the put and the size of a key's object; every range read looks the object up
again and reads only from that put. If the object was removed, evicted or replaced in the meantime,
the read returns ``LEASE_EXPIRED``, which ends the session.

A *put session* collects an object in memory that is registered with the store, and puts the whole
object at the end: readers see no part of it before, and a revoke leaves nothing behind. The space
in the pool is allocated at the end, which may therefore return ``NO_AVAILABLE_HANDLE``. Bytes that
were not written are zero.

Codes are per key: 0 or a count of bytes, or a negative error code.
"""

from __future__ import annotations

import functools
import threading
from bisect import bisect_right, insort
from collections.abc import Sequence
from copy import copy
from operator import index
from typing import TYPE_CHECKING, Any

from mc_store import _native
from mc_store._native import ReplicateConfig
from mc_store.mooncake._buffer_pool import BufferLease, BufferPool
from mc_store.mooncake._fork import own_lock

_NO_AVAILABLE_HANDLE = -200
_INVALID_PARAMS = -600
_INVALID_REPLICA = -702
_REPLICA_IS_NOT_READY = -703
_OBJECT_NOT_FOUND = -704
_OBJECT_ALREADY_EXISTS = -705
_LEASE_EXPIRED = -707

# Limits of the sessions of one store; further keys get NO_AVAILABLE_HANDLE.
_MAX_GET_SESSIONS = 1 << 20
_MAX_STAGED_BYTES = 1 << 30

_STAGING_ALIGNMENT = 4096

# The ranges of one key: address, bytes, offset in the object.
_Ranges = list[tuple[int, int, int]]

# Keys with their ranges; `None` where the lists about a key do not match.
_Batch = list[tuple[str, _Ranges | None]]


class SessionMethods(_native.Store):
    """The sessions of ``MooncakeDistributedStore``.

    Overrides methods of the native class to track registered memory, and ends its sessions with the
    store.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._get_sessions = _GetSessions()
        self._put_sessions = _PutSessions()
        self._registered = _Registered()

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        code = super().register_buffer(buffer_ptr, size)
        if code == 0:
            self._registered.add(index(buffer_ptr), index(size))
        return code

    def unregister_buffer(self, buffer_ptr: int) -> int:
        # First of all, so that no session begins to copy from memory that is going.
        self._registered.discard(index(buffer_ptr))
        return super().unregister_buffer(buffer_ptr)

    def close(self) -> int:
        code = super().close()
        # No memory is registered any more, and new sessions are rejected.
        self._forget()
        return code

    def _forget(self) -> None:
        self._registered.clear()
        self._get_sessions.clear()
        self._put_sessions.clear()

    if not TYPE_CHECKING:  # Their types are those of the native class.
        # An open store may be set up anew, which closes it first.

        @functools.wraps(_native.Store.setup)
        def setup(self, *args, **kwargs):
            self._forget()
            return super().setup(*args, **kwargs)

        @functools.wraps(_native.Store.setup_dummy)
        def setup_dummy(self, *args, **kwargs):
            self._forget()
            return super().setup_dummy(*args, **kwargs)

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Begin to read objects by ranges: per key 0, or ``OBJECT_NOT_FOUND``.

        A session that is there already begins anew.
        """
        return self._get_sessions.start(self, _names(keys))

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Read ranges of objects that have a get session: per key the bytes read, or a code.

        The lists have one list per key, and these one number per range: where to, how many
        bytes, from which byte of the object.

        ``INVALID_PARAMS``: no session, a range beyond the object, or lists of different lengths.
        All bytes that a session reads are of one put. ``LEASE_EXPIRED``: the object is gone, or
        was replaced, and its session has ended.
        """
        batch = _batch(_names(keys), all_buffer_ptrs, all_sizes, all_src_offsets)
        return self._get_sessions.read(self, batch)

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """End get sessions, those that are there; 0."""
        return self._get_sessions.end(_names(keys))

    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """Begin to write objects of ``sizes`` bytes by ranges: per key 0, or a code.

        ``OBJECT_ALREADY_EXISTS``: the key has a value, which stays. ``INVALID_PARAMS``: an empty
        key, no bytes, or a session that is there already. ``NO_AVAILABLE_HANDLE``: it would be
        more than the sessions of one store may hold.
        """
        names = _names(keys)
        numbers = _numbers(sizes)
        if config is not None and not isinstance(config, ReplicateConfig):
            raise TypeError(f"config must be a ReplicateConfig, not {type(config).__name__}")
        if len(names) != len(numbers):
            return [_INVALID_PARAMS] * len(names)
        return self._put_sessions.start(self, names, numbers, config)

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Write ranges of objects that have a put session: per key the bytes written, or a code.

        The lists have one list per key, and these one number per range: where from, how many
        bytes, to which byte of the object. The memory must be registered; it can be used again
        when this returns.

        ``INVALID_PARAMS``: no session, a range beyond the object, memory that is not registered,
        or lists of different lengths; nothing of the key was written. ``INVALID_REPLICA``: no
        ranges.
        """
        batch = _batch(_names(keys), all_buffer_ptrs, all_sizes, all_dst_offsets)
        return self._put_sessions.write(batch, self._registered)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Put the objects, which ends their sessions: per key 0, or the code of the put."""
        return self._put_sessions.end(self, _names(keys))

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """End put sessions without a put: per key 0, or ``INVALID_PARAMS`` if there is none."""
        return self._put_sessions.revoke(_names(keys))


class _GetSessions:
    """Which keys have a get session, with the size and the put's generation of each object."""

    _lock: threading.Lock

    def __init__(self) -> None:
        own_lock(self, "_lock", threading.Lock)
        self._objects: dict[str, tuple[int, int]] = {}

    def start(self, store: SessionMethods, keys: list[str]) -> list[int]:
        # Also leases the objects, so that they stay for a while.
        found = store._batch_stat(keys)
        return [self._start(key, *answer) for key, answer in zip(keys, found, strict=True)]

    def _start(self, key: str, size: int, generation: int) -> int:
        if size < 0:
            # An object that cannot be read now is reported as not found.
            return _OBJECT_NOT_FOUND if size == _REPLICA_IS_NOT_READY else size
        with self._lock:
            if len(self._objects) >= _MAX_GET_SESSIONS and key not in self._objects:
                return _NO_AVAILABLE_HANDLE
            self._objects[key] = size, generation
        return 0

    def read(self, store: SessionMethods, batch: _Batch) -> list[int]:
        with self._lock:
            objects = [self._objects.get(key) for key, _ in batch]
        codes = [_INVALID_PARAMS] * len(batch)
        asked = [
            (position, key, found, ranges)
            for position, ((key, ranges), found) in enumerate(zip(batch, objects, strict=True))
            if found is not None and ranges is not None and _fit(ranges, found[0])
        ]
        if not asked:
            return codes
        answers = store._get_ranges_of(
            [key for _, key, _, _ in asked],
            [generation for _, _, (_, generation), _ in asked],
            [[ptr for ptr, _, _ in ranges] for *_, ranges in asked],
            [[offset for _, _, offset in ranges] for *_, ranges in asked],
            [[size for _, size, _ in ranges] for *_, ranges in asked],
        )
        for (position, key, found, _), lengths in zip(asked, answers, strict=True):
            code = next((length for length in lengths if length < 0), sum(lengths))
            if _OBJECT_NOT_FOUND in lengths or _LEASE_EXPIRED in lengths:
                self._expire(key, found)
            codes[position] = _LEASE_EXPIRED if code == _OBJECT_NOT_FOUND else code
        return codes

    def _expire(self, key: str, found: tuple[int, int]) -> None:
        with self._lock:
            # It may have begun anew meanwhile.
            if self._objects.get(key) == found:
                del self._objects[key]

    def end(self, keys: list[str]) -> int:
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)
        return 0

    def clear(self) -> None:
        with self._lock:
            self._objects.clear()


class _PutSessions:
    """The objects that are being written."""

    _lock: threading.Lock

    def __init__(self) -> None:
        own_lock(self, "_lock", threading.Lock)
        self._staged: dict[str, _Staged] = {}
        self._pool: BufferPool | None = None

    def start(
        self,
        store: SessionMethods,
        keys: list[str],
        sizes: list[int],
        config: ReplicateConfig | None,
    ) -> list[int]:
        pool = self._staging(store)
        if pool is None:
            return [_INVALID_PARAMS] * len(keys)
        # The caller may change its own afterwards.
        config = copy(config)
        found = store.batch_is_exist(keys)
        codes = []
        for key, size, exists in zip(keys, sizes, found, strict=True):
            if not key or size == 0 or exists < 0:
                codes.append(min(exists, 0) or _INVALID_PARAMS)
            elif exists:
                codes.append(_OBJECT_ALREADY_EXISTS)
            else:
                codes.append(self._start(pool, key, size, config))
        return codes

    def _start(self, pool: BufferPool, key: str, size: int, config: ReplicateConfig | None) -> int:
        try:
            lease = pool.acquire(size)
        except (MemoryError, RuntimeError):
            return _NO_AVAILABLE_HANDLE
        session = _Staged(lease, config)
        with self._lock:
            if self._staged.setdefault(key, session) is session:
                return 0
        lease.release()
        return _INVALID_PARAMS

    def write(self, batch: _Batch, registered: _Registered) -> list[int]:
        codes = []
        for key, ranges in batch:
            with self._lock:
                session = self._staged.get(key)
            if session is None or ranges is None:
                codes.append(_INVALID_PARAMS)
            elif not ranges:
                codes.append(_INVALID_REPLICA)
            elif not all(registered.has(ptr, size) for ptr, size, _ in ranges if size > 0):
                codes.append(_INVALID_PARAMS)
            else:
                codes.append(session.write(ranges))
        return codes

    def end(self, store: SessionMethods, keys: list[str]) -> list[int]:
        codes = [_INVALID_PARAMS] * len(keys)
        # A put of many has one config; sessions started together share theirs.
        by_config: dict[int, list[tuple[int, _Staged]]] = {}
        for position, session in enumerate(self._take(keys)):
            if session is not None and session.finish():
                by_config.setdefault(id(session.config), []).append((position, session))
        for group in by_config.values():
            leases = [session.lease for _, session in group]
            config = group[0][1].config
            try:
                puts = store.batch_put_from(
                    [keys[position] for position, _ in group],
                    [lease.ptr for lease in leases],
                    [lease.size for lease in leases],
                    *(() if config is None else (config,)),
                )
            finally:
                for lease in leases:
                    lease.release()
            for (position, _), code in zip(group, puts, strict=True):
                codes[position] = code
        return codes

    def revoke(self, keys: list[str]) -> list[int]:
        # A key named twice has been revoked by the first.
        revoked: set[str] = set()
        for key, session in zip(keys, self._take(keys), strict=True):
            if session is not None and session.finish():
                session.lease.release()
                revoked.add(key)
        return [0 if key in revoked else _INVALID_PARAMS for key in keys]

    def clear(self) -> None:
        with self._lock:
            keys = list(self._staged)
            pool, self._pool = self._pool, None
        self.revoke(keys)
        if pool is not None:
            pool.abandon()

    def _take(self, keys: list[str]) -> list[_Staged | None]:
        with self._lock:
            return [self._staged.pop(key, None) for key in keys]

    def _staging(self, store: SessionMethods) -> BufferPool | None:
        """The pool of memory for objects, or ``None`` without a store that is set up."""
        with self._lock:
            if self._pool is None:
                try:
                    self._pool = BufferPool(
                        store,
                        max_bytes=_MAX_STAGED_BYTES,
                        alignment=_STAGING_ALIGNMENT,
                        block_on_exhaustion=False,
                    )
                except RuntimeError:
                    return None
            return self._pool


class _Staged:
    """One object that is being written."""

    _lock: threading.Lock

    def __init__(self, lease: BufferLease, config: ReplicateConfig | None) -> None:
        self.lease = lease
        self.config = config
        own_lock(self, "_lock", threading.Lock)
        self._finished = False
        self._written: list[tuple[int, int]] = []

    def write(self, ranges: _Ranges) -> int:
        """Copy ``ranges``, all of them or none: the bytes copied, or a code."""
        from ctypes import memmove  # Late: this module comes with every import of the store.

        if not _fit(ranges, self.lease.size):
            return _INVALID_PARAMS
        with self._lock:
            if self._finished:
                return _INVALID_PARAMS
            for ptr, size, offset in ranges:
                if size > 0:
                    code = _native.Store._copy_from_device(self.lease.ptr + offset, ptr, size)
                    if code is None:
                        memmove(self.lease.ptr + offset, ptr, size)
                    elif code != 0:
                        return code
                    insort(self._written, (offset, offset + size))
        return sum(size for _, size, _ in ranges)

    def finish(self) -> bool:
        """End all writing and zero the unwritten bytes. Return whether this call was the first."""
        with self._lock:
            if self._finished:
                return False
            self._finished = True
        from ctypes import memset

        end = 0
        for start, stop in [*self._written, (self.lease.size, self.lease.size)]:
            if start > end:
                memset(self.lease.ptr + end, 0, start - end)
            end = max(end, stop)
        return True


class _Registered:
    """The memory that the application has registered."""

    _lock: threading.Lock

    def __init__(self) -> None:
        own_lock(self, "_lock", threading.Lock)
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def add(self, start: int, size: int) -> None:
        with self._lock:
            if start not in self._sizes:
                insort(self._starts, start)
            self._sizes[start] = size

    def discard(self, start: int) -> None:
        with self._lock:
            if self._sizes.pop(start, None) is not None:
                self._starts.remove(start)

    def clear(self) -> None:
        with self._lock:
            self._starts.clear()
            self._sizes.clear()

    def has(self, ptr: int, size: int) -> bool:
        """Whether all of ``size`` bytes at ``ptr`` lie in one registered piece."""
        with self._lock:
            # Nearly always the nearest one below, but registered pieces may overlap.
            for position in range(bisect_right(self._starts, ptr) - 1, -1, -1):
                start = self._starts[position]
                if ptr + size <= start + self._sizes[start]:
                    return True
        return False


def _fit(ranges: _Ranges, size: int) -> bool:
    """Whether they lie within ``size`` bytes."""
    return all(
        offset + length <= size and (ptr != 0 or length == 0) for ptr, length, offset in ranges
    )


def _names(keys: Sequence[str]) -> list[str]:
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
        raise TypeError("keys must be a list of str")
    return list(keys)


def _numbers(values: Sequence[int]) -> list[int]:
    numbers = [index(value) for value in values]
    for number in numbers:
        if not 0 <= number < 1 << 64:
            raise OverflowError(f"{number} does not fit into 64 bits without a sign")
    return numbers


def _batch(keys: list[str], *columns: Sequence[Sequence[int]]) -> _Batch:
    rows = [[_numbers(row) for row in column] for column in columns]
    if any(len(column) != len(keys) for column in rows):
        return [(key, None) for key in keys]
    return [
        (key, list(zip(*row, strict=True)) if len({len(numbers) for numbers in row}) == 1 else None)
        for key, *row in zip(keys, *rows, strict=True)
    ]
