"""Callers that give up and use their memory for something else: what is stored under a key are the
bytes of the call or nothing, and nothing is written to memory whose get has ended."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import mc_store
import pytest
from _cluster import PATIENCE, Cluster, Program, run_python, suspend, wait_until
from mc_store.mooncake.store import MooncakeDistributedStore

MEGABYTE = 1 << 20

#: More than the sockets' buffers hold.
LARGE = 32 * MEGABYTE

#: Seconds after which a caller gives up, as LMCache's connector does. Long enough to begin.
GIVES_UP = 1.0

OLD, NEW = 0x41, 0x42


class Memory:
    """Anonymous memory, as an engine's buffer pool has."""

    def __init__(self, size: int, address: int = 0) -> None:
        array = ctypes.c_ubyte * size
        if address:
            self.bytes = array.from_address(address)
        else:
            self.bytes = array.from_buffer(mmap.mmap(-1, size))
        self.address, self.size = ctypes.addressof(self.bytes), size

    def fill(self, byte: int) -> None:
        ctypes.memset(self.address, byte, self.size)

    def count(self, byte: int) -> int:
        return bytes(self.bytes).count(byte)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(size="256MB", node_flags=["--host=127.0.0.1"]) as cluster:
        yield cluster


@contextmanager
def member(cluster: Cluster) -> Iterator[MooncakeDistributedStore]:
    store = MooncakeDistributedStore()
    # Values pass the socket of the node, and not shared memory.
    os.environ["MC_STORE_SHARED_MEMORY"] = "false"
    try:
        assert store.setup("127.0.0.1", "", 0, 64 * MEGABYTE, "tcp", "", cluster.address) == 0
        assert store.put("first", b"value") == 0
        yield store
    finally:
        del os.environ["MC_STORE_SHARED_MEMORY"]
        store.close()


def store_only_the_old(
    put: Callable[[Memory], int], get: Callable[[], bytes], stopped: Program, memory: Memory
) -> None:
    """Puts in a thread while a program stands still, and changes the memory after a second."""
    memory.fill(OLD)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(put(memory)))
    suspend(stopped.pid)
    try:
        thread.start()
        thread.join(GIVES_UP)
        memory.fill(NEW)
    finally:
        stopped.signal(signal.SIGCONT)
    thread.join(PATIENCE)
    assert codes, "the put has not ended"
    value = get()
    # A small value lay in the socket's buffers, and is stored.
    assert value.count(OLD) == len(value), f"{value.count(NEW)} of {len(value)} foreign bytes"
    assert (codes[0] == 0) == (len(value) > 0), codes


PUTS: dict[str, Callable[[MooncakeDistributedStore, str, Memory], int]] = {
    "put": lambda store, key, memory: store.put(key, memoryview(memory.bytes).cast("B")),
    "put_parts": lambda store, key, memory: store.put_parts(
        key, b"A" * 28, memoryview(memory.bytes).cast("B")
    ),
    "put_from": lambda store, key, memory: store.put_from(key, memory.address, memory.size),
    "batch_put_from": lambda store, key, memory: store.batch_put_from(
        [key], [memory.address], [memory.size]
    )[0],
    "upsert_from": lambda store, key, memory: store.upsert_from(key, memory.address, memory.size),
}


@pytest.mark.parametrize("size", [MEGABYTE, LARGE])
@pytest.mark.parametrize("what", ["master", "node"])
@pytest.mark.parametrize("call", PUTS)
def test_a_put_stores_the_bytes_of_the_call_or_nothing(
    cluster: Cluster, call: str, what: str, size: int
) -> None:
    stopped = cluster.master if what == "master" else cluster.nodes[0]
    with member(cluster) as store:
        memory, key = Memory(size), f"{call} {what} {size}"
        assert store.register_buffer(memory.address, size) == 0
        store_only_the_old(
            lambda memory: PUTS[call](store, key, memory), lambda: store.get(key), stopped, memory
        )
        assert store.unregister_buffer(memory.address) == 0
        store.remove(key, True)


def put_and_get(
    store: MooncakeDistributedStore, stopped: Program, memory: Memory, key: str
) -> None:
    def put(memory: Memory) -> int:
        return store.put_from(key, memory.address, memory.size)

    store_only_the_old(put, lambda: store.get(key), stopped, memory)


@pytest.mark.parametrize("what", ["master", "node"])
def test_a_thin_client_puts_the_bytes_of_the_call_or_nothing(what: str) -> None:
    # The node agent has no room itself: it stands still once, and what it needs the other time.
    with Cluster.start(nodes=0) as apart:
        node, agent = apart.add_node("256MB"), apart.add_node("1MB")
        store = MooncakeDistributedStore()
        assert store.setup_dummy(2 * LARGE, 2 * LARGE, agent.dummy_address) == 0
        try:
            memory = Memory(LARGE, store.alloc_from_mem_pool(LARGE))
            assert store.register_buffer(memory.address, LARGE) == 0
            for stopped in [agent, apart.master if what == "master" else node]:
                put_and_get(store, stopped, memory, f"thin {what} {stopped.pid}")
        finally:
            store.close()


def test_a_put_that_was_cancelled_stores_nothing(cluster: Cluster) -> None:
    async def main() -> None:
        config = {"shared_memory": False}
        async with mc_store.AsyncClient(cluster.address, config=config) as client:
            await client.put("warm", b"value")
            for size in (1024, MEGABYTE):
                value, key = bytearray([OLD]) * size, f"cancelled {size}"
                suspend(cluster.master.pid)
                try:
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(client.put(key, value), GIVES_UP)
                    value[:] = bytes([NEW]) * size
                finally:
                    cluster.master.signal(signal.SIGCONT)
                # Until the abandoned put is revoked, the put of another client is under way.
                deadline = time.monotonic() + PATIENCE
                while not await client.put(key, b"next"):
                    assert await client.get(key, None) is None
                    assert time.monotonic() < deadline
                assert bytes(await client.get(key)) == b"next"
                await client.remove(key, force=True)

    asyncio.run(main())


def test_a_get_that_was_cancelled_writes_nowhere(cluster: Cluster) -> None:
    async def main() -> None:
        config = {"shared_memory": False}
        async with mc_store.AsyncClient(cluster.address, config=config) as client:
            await client.put("large", bytes([OLD]) * LARGE)
            target = bytearray(LARGE)
            node = cluster.nodes[0]
            suspend(node.pid)
            try:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.get_into("large", target), GIVES_UP)
                target[:] = bytes([NEW]) * LARGE
            finally:
                node.signal(signal.SIGCONT)
            # Behind it on the same connection.
            assert len(await client.get("large")) == LARGE
            assert target.count(NEW) == LARGE, f"{target.count(OLD)} late bytes"
            await client.remove("large", force=True)

    asyncio.run(main())


#: Ends a call with memory of a pool by a signal whose handler raises, takes the memory again, if
#: the pool lends it, and fills it. Prints how many bytes of it are foreign then, and of the value.
INTERRUPTED = """
import ctypes, os, signal, sys
from mc_store.mooncake.buffer_pool import BufferPool
from mc_store.mooncake.store import MooncakeDistributedStore

address, node, call, size = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "", 0, 64 << 20, "tcp", "", address) == 0
key = "interrupted " + call
if call == "get_into":
    assert store.put(key, b"A" * size) == 0
else:
    assert store.put("first", b"value") == 0

class GivenUp(Exception):
    pass

def give_up(number, frame):
    raise GivenUp

signal.signal(signal.SIGALRM, give_up)
with BufferPool(store, max_bytes=size, alignment=4096) as pool:
    os.kill(node, signal.SIGSTOP)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pool.acquire(size) as lease:
            ctypes.memset(lease.ptr, 0x41, size)
            if call == "get_into":
                store.get_into(key, lease.ptr, size)
            else:
                store.put_from(key, lease.ptr, size)
        print("ended")
    except GivenUp:
        pass
    # The only region of the pool.
    try:
        lease = pool.acquire(size, timeout=1.0)
        print("lent", end=" ")
    except TimeoutError:
        os.kill(node, signal.SIGCONT)
        lease = pool.acquire(size, timeout=60.0)
        print("waited", end=" ")
    ctypes.memset(lease.ptr, 0x42, size)
    os.kill(node, signal.SIGCONT)
    value = store.get(key)
    print(size - ctypes.string_at(lease.ptr, size).count(b"B"), value.count(b"B"), end="")
    lease.release()
store.remove(key, True)
store.close()
"""


@pytest.mark.parametrize("call", ["get_into", "put_from"])
def test_a_pool_lends_no_memory_that_an_interrupted_call_still_uses(
    cluster: Cluster, call: str
) -> None:
    done = run_python(
        INTERRUPTED,
        cluster.address,
        str(cluster.nodes[0].pid),
        call,
        str(LARGE),
        env={"MC_STORE_SHARED_MEMORY": "false"},
        seconds=4 * PATIENCE,
    )
    _, late, foreign = done.stdout.split()
    assert (late, foreign) == ("0", "0"), str(done)


def test_a_put_ends_at_its_time_limit(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_STORE_PUT_TIMEOUT_MS", "500")
    node = cluster.nodes[0]
    with member(cluster) as store:
        memory = Memory(LARGE)
        memory.fill(OLD)
        assert store.register_buffer(memory.address, LARGE) == 0
        suspend(node.pid)
        try:
            assert store.put_from("limited", memory.address, LARGE) == -901
            # The node still stands still, and nothing reads the memory any more.
            wait_until(lambda: store._is_idle(memory.address, 0.1), what="the end of the transfer")
        finally:
            node.signal(signal.SIGCONT)
        assert store.unregister_buffer(memory.address) == 0
        assert store.get("limited") == b""


def test_a_target_that_cannot_take_a_value_is_refused_before_anything_is_read(
    cluster: Cluster,
) -> None:
    with member(cluster) as store:
        value = bytes([OLD]) * LARGE
        assert store.put("long", value) == 0
        node = cluster.nodes[0]
        # Nothing can be read.
        suspend(node.pid)
        try:
            small = Memory(4096)
            small.fill(NEW)
            assert store.get_into("long", small.address, small.size) == -600
            assert small.count(NEW) == small.size
            # As the addresses of device memory, they are reserved and cannot be used.
            libc = ctypes.CDLL(None)
            libc.mmap.restype = ctypes.c_void_p
            address = libc.mmap(None, ctypes.c_size_t(LARGE), 0, 0x22, -1, ctypes.c_long(0))
            assert store.get_into("long", address, LARGE) == -600
            assert store.batch_get_into(["long"], [address], [LARGE]) == [-600]
        finally:
            node.signal(signal.SIGCONT)
        store.remove("long", True)
