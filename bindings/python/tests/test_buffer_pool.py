"""`BufferPool`: room, waiting, and memory that comes back exactly when it is unreachable."""

from __future__ import annotations

import gc
import mmap
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from _cluster import Cluster, wait_until
from _fixtures import NewStore
from mc_store.mooncake import store as store_module
from mc_store.mooncake.buffer_pool import (
    BufferLease,
    BufferPool,
    PoolExhausted,
    PoolTimeout,
    RegisteredBufferPool,
)
from mc_store.mooncake.store import MooncakeDistributedStore

MB = 1 << 20


class Counting:
    """A store that counts what is registered with it."""

    def __init__(self, store: MooncakeDistributedStore) -> None:
        self._store = store
        self.registered: dict[int, int] = {}
        self.calls = 0

    def register_buffer(self, ptr: int, size: int) -> int:
        self.calls += 1
        code = self._store.register_buffer(ptr, size)
        if code == 0:
            self.registered[ptr] = size
        return code

    def unregister_buffer(self, ptr: int) -> int:
        self.registered.pop(ptr)
        return self._store.unregister_buffer(ptr)

    def health_check(self) -> int:
        return self._store.health_check()


@pytest.fixture
def counting(store: MooncakeDistributedStore) -> Iterator[Counting]:
    counting = Counting(store)
    yield counting
    # Whatever a test did, nothing of it may stay behind.
    gc.collect()
    assert counting.registered == {}


def is_waiting(pool: BufferPool) -> bool:
    """Whether a thread sleeps in `acquire` until something of the pool changes."""
    sleepers: deque[object] = vars(pool._changed)["_waiters"]
    return bool(sleepers)


def test_lease(counting: Counting) -> None:
    with BufferPool(counting) as pool, pool.acquire(100) as lease:
        assert lease.size == 100
        assert lease.ptr % (8 * MB) == 0
        view = lease.buffer
        assert (view.nbytes, view.format, view.readonly, view.shape) == (100, "B", False, (100,))
        view[:5] = b"hello"
        assert bytes(lease.buffer[:5]) == b"hello"
        del view
        assert counting.registered == {lease.ptr: 65536}


def test_objects_travel_through_leases(store: MooncakeDistributedStore, key: str) -> None:
    with BufferPool(store) as pool:
        with pool.buffer(1000) as source:
            source.buffer[:] = bytes(range(250)) * 4
            assert store.put_from(key, source.ptr, source.size) == 0
        with pool.buffer(2000) as target:
            assert store.get_into(key, target.ptr, target.size) == 1000
            assert bytes(target.buffer[:1000]) == bytes(range(250)) * 4


@pytest.mark.parametrize(
    ("size", "region"), [(0, 65536), (1, 65536), (65536, 65536), (65537, 131072), (MB, MB)]
)
def test_size_classes(counting: Counting, size: int, region: int) -> None:
    with BufferPool(counting) as pool, pool.acquire(size) as lease:
        assert lease.size == size
        assert list(counting.registered.values()) == [region]


def test_regions_are_used_again(counting: Counting) -> None:
    with BufferPool(counting, max_size_class=MB) as pool:
        seen = set()
        for _ in range(5):
            with pool.acquire(70_000) as lease:
                seen.add(lease.ptr)
        assert len(seen) == 1
        assert counting.calls == 1
        # Above the largest class, a region goes with its lease.
        with pool.acquire(MB + 1) as lease:
            assert counting.registered[lease.ptr] == MB + mmap.PAGESIZE
        assert list(counting.registered) == list(seen)


def test_idle_regions_make_room(counting: Counting) -> None:
    with BufferPool(counting, max_bytes=4 * MB, block_on_exhaustion=False) as pool:
        leases = [pool.acquire(MB) for _ in range(4)]
        with pytest.raises(PoolExhausted, match="exhausted"):
            pool.acquire(1)
        for lease in leases:
            lease.release()
        with pool.acquire(4 * MB):
            assert sum(counting.registered.values()) == 4 * MB


def test_refused_request_leaves_the_books_right(counting: Counting) -> None:
    with BufferPool(counting, max_bytes=4 * MB, block_on_exhaustion=False) as pool:
        with pool.acquire(2 * MB):
            pool.prewarm(MB, 2)
            with pytest.raises(PoolExhausted):
                pool.acquire(4 * MB)
            # The idle regions were freed in vain.
            assert list(counting.registered.values()) == [2 * MB]
            with pool.acquire(2 * MB):
                assert sum(counting.registered.values()) == 4 * MB


def test_whole_capacity_can_be_leased(counting: Counting) -> None:
    # No multiple of a page, no size class.
    with BufferPool(counting, max_bytes=3_000_001) as pool, pool.acquire(3_000_001) as lease:
        lease.buffer[-1] = 1
        with pytest.raises(RuntimeError, match="exceeds pool capacity"):
            pool.acquire(3_000_002)


def test_local_buffer_is_the_bound_unless_told(cluster: Cluster, new_store: NewStore) -> None:
    with BufferPool(new_store(cluster, local_buffer=2 * MB)) as pool:
        pool.acquire(2 * MB).release()
        with pytest.raises(RuntimeError, match="exceeds pool capacity"):
            pool.acquire(2 * MB + 1)
    with BufferPool(new_store(cluster, local_buffer=0)) as pool:
        pool.acquire(2 * MB + 1).release()


def test_number_of_regions(counting: Counting) -> None:
    with BufferPool(counting, max_regions=2, block_on_exhaustion=False) as pool:
        with pool.acquire(1), pool.acquire(MB), pytest.raises(PoolExhausted):
            pool.acquire(1)
        with pool.acquire(2 * MB):
            assert len(counting.registered) == 2
    with (
        BufferPool(counting, max_regions=0, block_on_exhaustion=False) as pool,
        pytest.raises(PoolExhausted),
    ):
        pool.acquire(1)


def test_alignment(counting: Counting) -> None:
    for alignment in (1, 4096, 2 * MB):
        with BufferPool(counting, alignment=alignment) as pool, pool.acquire(1) as lease:
            assert lease.ptr % alignment == 0


def test_waiting(counting: Counting) -> None:
    with BufferPool(counting, max_bytes=MB, default_timeout=0.05) as pool:
        lease = pool.acquire(MB)
        for timeout in (None, 0, 0.05):
            started = time.monotonic()
            with pytest.raises(PoolTimeout, match="timed out waiting for buffer") as raised:
                pool.acquire(1, timeout=timeout)
            assert isinstance(raised.value, TimeoutError)
            assert time.monotonic() - started >= (0.05 if timeout is None else timeout)
        with pytest.raises(PoolExhausted, match="exhausted") as exhausted:
            pool.acquire(1, block=False)
        assert not isinstance(exhausted.value, TimeoutError)

        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(pool.acquire, 5, timeout=30)
            wait_until(lambda: is_waiting(pool), what="the other thread to wait for room")
            lease.release()
            assert not is_waiting(pool)
            waiting.result(30).release()


def test_closing_wakes_those_who_wait(counting: Counting) -> None:
    pool = BufferPool(counting, max_bytes=MB)
    lease = pool.acquire(MB)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(pool.acquire, 5, timeout=30)
        wait_until(lambda: is_waiting(pool), what="the other thread to wait for room")
        pool.abandon()
        # It was woken; a sleeper looks again for itself, too, but later.
        assert not is_waiting(pool)
        with pytest.raises(RuntimeError, match="closed"):
            waiting.result(30)
    assert list(counting.registered) == [lease.ptr]
    lease.release()
    assert counting.registered == {}


def test_views_keep_the_memory(counting: Counting) -> None:
    with BufferPool(counting, block_on_exhaustion=False, max_regions=1) as pool:
        lease = pool.acquire(10)
        part = lease.buffer[2:5]
        for _ in range(2):
            with pytest.raises(RuntimeError, match="exported views exist"):
                lease.release()
        part[:] = b"abc"
        assert bytes(lease.buffer) == b"\0\0abc\0\0\0\0\0"
        with pytest.raises(PoolExhausted):
            pool.acquire(1)
        part.release()
        lease.release()
        lease.release()
        pool.acquire(1).release()


def test_after_the_release(counting: Counting) -> None:
    with BufferPool(counting) as pool:
        lease = pool.acquire(10)
        lease.release()
        assert lease.size == 10
        with pytest.raises(RuntimeError, match="lease is closed"):
            _ = lease.ptr
        with pytest.raises(BufferError, match="lease is closed"):
            _ = lease.buffer
        lease.release()


def test_forgotten_lease_comes_back_with_its_last_view(counting: Counting) -> None:
    with BufferPool(counting, block_on_exhaustion=False, max_regions=1) as pool:
        view = pool.acquire(10).buffer
        with pytest.raises(PoolExhausted):
            pool.acquire(1)
        view[:] = b"0123456789"
        del view
        pool.acquire(1).release()
        # In a cycle, only the garbage collector finds it.
        cycle: list[Any] = [pool.acquire(10)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        pool.acquire(1).release()


def test_exception_in_the_body_is_the_one_that_is_seen(counting: Counting) -> None:
    views = []

    def fail() -> None:
        with BufferPool(counting) as pool, pool.buffer(10) as lease:
            views.append(lease.buffer)
            raise KeyError("of the body")

    with pytest.raises(KeyError, match="of the body"):
        fail()
    # The view is in use, and the memory stays for it.
    assert len(counting.registered) == 1
    assert views[0][0] == 0
    views.clear()
    assert counting.registered == {}


def test_close(counting: Counting) -> None:
    pool = BufferPool(counting)
    lease = pool.acquire(10)
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    pool.acquire(20).release()
    lease.release()
    pool.close()
    pool.close()
    assert counting.registered == {}
    for use in (lambda: pool.acquire(1), lambda: pool.prewarm(1, 1)):
        with pytest.raises(RuntimeError, match="pool is closed"):
            use()


def test_dropped_pool_unregisters(counting: Counting) -> None:
    pool = BufferPool(counting)
    pool.acquire(10).release()
    assert len(counting.registered) == 1
    del pool
    gc.collect()
    assert counting.registered == {}


def test_prewarm(counting: Counting) -> None:
    with BufferPool(counting, max_bytes=4 * MB, prewarm_size=MB, prewarm_count=2) as pool:
        assert list(counting.registered.values()) == [MB, MB]
        pool.prewarm(MB, 9)
        assert sum(counting.registered.values()) == 4 * MB
        leases = [pool.acquire(MB) for _ in range(4)]
        assert counting.calls == 4
        for lease in leases:
            lease.release()


def test_store_that_is_closed(cluster: Cluster, new_store: NewStore) -> None:
    store = new_store(cluster)
    pool = BufferPool(store, block_on_exhaustion=False)
    lease, kept = pool.acquire(10), pool.acquire(10)
    kept.release()
    store.close()
    # Leased memory stays valid after its store is closed.
    lease.buffer[:] = b"0123456789"
    lease.release()
    with pytest.raises(RuntimeError):
        pool.acquire(MB)
    pool.close()
    with pytest.raises(RuntimeError, match="not initialized"):
        BufferPool(store)


def test_refused_registration_leaves_no_trace(store: MooncakeDistributedStore) -> None:
    class Refusing(Counting):
        refuses = True

        def register_buffer(self, ptr: int, size: int) -> int:
            return -600 if self.refuses else super().register_buffer(ptr, size)

    refusing = Refusing(store)
    with BufferPool(refusing, max_bytes=MB, block_on_exhaustion=False) as pool:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="code -600"):
                pool.acquire(MB)
        refusing.refuses = False
        pool.acquire(MB).release()


def test_memory_that_cannot_be_had(counting: Counting) -> None:
    with BufferPool(counting, max_bytes=1 << 62) as pool:
        for size in (1 << 60, (1 << 62) - 1):
            with pytest.raises(MemoryError):
                pool.acquire(size)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ({"max_bytes": -1}, ValueError),
        ({"max_bytes": "1"}, TypeError),
        ({"max_bytes": True}, TypeError),
        ({"min_size_class": 0}, ValueError),
        ({"max_size_class": -1}, ValueError),
        ({"alignment": 0}, ValueError),
        ({"alignment": 3}, ValueError),
        ({"block_on_exhaustion": 1}, TypeError),
        ({"default_timeout": -1}, ValueError),
        ({"default_timeout": float("nan")}, ValueError),
        ({"default_timeout": "1"}, TypeError),
        ({"max_regions": -1}, ValueError),
        ({"prewarm_size": 1.5}, TypeError),
        ({"prewarm_count": -1}, ValueError),
    ],
)
def test_arguments(counting: Counting, argument: dict[str, Any], problem: type[Exception]) -> None:
    with pytest.raises(problem, match=next(iter(argument))):
        BufferPool(counting, **argument)


def test_arguments_of_acquire(counting: Counting) -> None:
    with BufferPool(counting) as pool:
        for arguments in (("1",), (1.0,), (None,), (1, 1), (1, True, "1")):
            with pytest.raises(TypeError):
                pool.acquire(*arguments)
        for numbers in ((-1,), (1, True, -1)):
            with pytest.raises(ValueError, match="must be"):
                pool.acquire(*numbers)


def test_what_is_no_store() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        BufferPool(None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not initialized"):
        BufferPool(MooncakeDistributedStore())
    with pytest.raises(TypeError, match=r"BufferPool\.acquire"):
        BufferLease()


def test_other_names_are_of_the_same(counting: Counting) -> None:
    assert store_module.RegisteredBufferPool is RegisteredBufferPool is BufferPool
    assert store_module.RegisteredBufferLease is BufferLease
    assert store_module.RegisteredBufferLeaseView is store_module.BufferLeaseView
    with BufferPool(counting) as pool, pool.acquire(1) as lease:
        assert isinstance(lease.buffer, store_module.BufferLeaseView)


def test_many_threads(counting: Counting) -> None:
    rounds, workers = 200, 8
    wrong: list[tuple[int, int]] = []

    def work(number: int) -> None:
        for turn in range(rounds):
            size = 1 + (number * 7919 + turn * 104_729) % 200_000
            with pool.acquire(size, timeout=60) as lease:
                mark = bytes([number]) * min(size, 64)
                lease.buffer[: len(mark)] = mark
                # Another lease of the same memory would write over it.
                threading.Event().wait(0.0001)
                if bytes(lease.buffer[: len(mark)]) != mark:
                    wrong.append((number, turn))

    with BufferPool(counting, max_bytes=MB, alignment=4096) as pool:
        with ThreadPoolExecutor(workers) as threads:
            for done in [threads.submit(work, number) for number in range(workers)]:
                done.result(120)
        assert wrong == []
        assert sum(counting.registered.values()) <= MB
