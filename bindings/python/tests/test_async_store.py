"""`MooncakeDistributedStoreAsync`: every method as a coroutine, on threads of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest
from _cluster import Cluster, wait_until
from mc_store.mooncake.async_store import MooncakeDistributedStoreAsync


def setup_arguments(cluster: Cluster) -> tuple[object, ...]:
    return ("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", cluster.address)


def own_threads() -> int:
    return sum(thread.name.startswith("mc-store-async") for thread in threading.enumerate())


def test_whole_life(cluster: Cluster, key: str) -> None:
    async def use() -> None:
        async with MooncakeDistributedStoreAsync() as store:
            assert await store.async_setup(*setup_arguments(cluster)) == 0
            assert await store.async_put(key, b"value") == 0
            assert await store.async_get(key) == b"value"
            assert await store.async_is_exist(key) == 1
            # The methods themselves are there, too.
            assert store.get(key) == b"value"
        assert await store.async_get(key) == b""
        # It can be set up again after the end.
        assert await store.async_setup(*setup_arguments(cluster)) == 0
        assert await store.async_get(key) == b"value"
        assert await store.async_close() == 0

    asyncio.run(use())
    wait_until(lambda: own_threads() == 0, what="the threads to end")


def test_calls_overlap_and_leave_the_loop_free(cluster: Cluster, key: str) -> None:
    met = threading.Barrier(4, timeout=30)

    class Slow(MooncakeDistributedStoreAsync):
        def meet(self) -> int:
            # Passes only if all of them are here at the same time.
            return met.wait()

    async def use() -> None:
        store = Slow()
        turns = 0
        calls = asyncio.gather(*(store.async_meet() for _ in range(3)))
        while own_threads() < 3:
            await asyncio.sleep(0.001)
            turns += 1
        assert not calls.done()
        last = await store.async_meet()
        assert sorted([*await calls, last]) == [0, 1, 2, 3]
        store.close()

    asyncio.run(use())


def test_keyword_arguments_and_errors_pass(cluster: Cluster, key: str) -> None:
    async def use() -> None:
        async with MooncakeDistributedStoreAsync() as store:
            assert await store.async_setup(*setup_arguments(cluster)) == 0
            assert await store.async_put(key, value=b"1") == 0
            assert await store.async_remove(key, force=True) == 0
            with pytest.raises(TypeError):
                await store.async_put(5, b"")

    asyncio.run(use())


def test_unknown_names() -> None:
    store = MooncakeDistributedStoreAsync()
    with pytest.raises(AttributeError, match="no attribute 'async_gett'; did you mean 'async_get"):
        _ = store.async_gett
    with pytest.raises(AttributeError, match="no attribute 'anything'") as raised:
        _ = store.anything
    assert raised.value.name == "anything"
    assert raised.value.obj is store
    for name in ("async_", "async___class__", "async__executor"):
        with pytest.raises(AttributeError):
            getattr(store, name)
    assert hasattr(store, "async_get")
    assert not hasattr(store, "async_nothing")


def test_names_are_listed() -> None:
    store = MooncakeDistributedStoreAsync()
    assert {"async_get", "async_batch_put_from", "get"} <= set(dir(store))
    assert store.async_get.__name__ == "async_get"
    assert inspect.iscoroutinefunction(store.async_get)
