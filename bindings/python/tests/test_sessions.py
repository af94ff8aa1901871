"""Objects read and written by ranges, in sessions."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from _cluster import Cluster, run_python
from _fixtures import NewStore
from mc_store.mooncake import _sessions
from mc_store.mooncake.store import MooncakeDistributedStore, ReplicateConfig

SIZE = 1 << 20


class Memory:
    """Registered memory of a test."""

    def __init__(self, store: MooncakeDistributedStore) -> None:
        self._store = store
        self.map = mmap.mmap(-1, SIZE)
        self._anchor = ctypes.c_char.from_buffer(self.map)
        self.ptr = ctypes.addressof(self._anchor)
        assert store.register_buffer(self.ptr, SIZE) == 0

    def close(self) -> None:
        assert self._store.unregister_buffer(self.ptr) == 0
        del self._anchor
        self.map.close()


@pytest.fixture
def memory(store: MooncakeDistributedStore) -> Iterator[Memory]:
    memory = Memory(store)
    yield memory
    memory.close()


# ---- reading


def test_ranges_of_objects(store: MooncakeDistributedStore, memory: Memory, key: str) -> None:
    assert store.put(key + "a", b"hello world") == 0
    assert store.put(key + "b", bytes(range(200))) == 0
    keys = [key + "a", key + "b", key + "missing"]
    assert store.batch_get_session_start(keys) == [0, 0, -704]
    got = store.batch_get_into_multi_buffer_ranges(
        keys,
        [[memory.ptr, memory.ptr + 100], [memory.ptr + 200], [memory.ptr]],
        [[5, 3], [50], [1]],
        [[6, 0], [150], [0]],
    )
    assert got == [8, 50, -600]
    assert memory.map[:5] == b"world"
    assert memory.map[100:103] == b"hel"
    assert memory.map[200:250] == bytes(range(150, 200))
    assert store.batch_get_session_end(keys) == 0
    assert store.batch_get_session_end(keys) == 0
    read = store.batch_get_into_multi_buffer_ranges(keys[:1], [[memory.ptr]], [[1]], [[0]])
    assert read == [-600]


def test_ranges_that_are_none(store: MooncakeDistributedStore, memory: Memory, key: str) -> None:
    assert store.put(key, b"0123456789") == 0
    assert store.batch_get_session_start([key]) == [0]

    def read(ptrs: list[int], sizes: list[int], offsets: list[int]) -> int:
        [code] = store.batch_get_into_multi_buffer_ranges([key], [ptrs], [sizes], [offsets])
        return code

    at = memory.ptr
    assert read([at], [10], [0]) == 10
    assert read([at], [0], [10]) == 0
    assert read([], [], []) == 0
    assert read([at], [11], [0]) == -600
    assert read([at], [1], [10]) == -600
    assert read([at], [1], [(1 << 64) - 1]) == -600
    assert read([0], [1], [0]) == -600
    assert read([at], [1, 2], [0]) == -600
    # One bad range, and nothing of the key is read.
    memory.map[:10] = b"." * 10
    assert read([at, at + 5], [2, 9], [0, 5]) == -600
    assert memory.map[:10] == b"." * 10
    assert store.batch_get_into_multi_buffer_ranges([key], [], [], []) == [-600]
    assert store.batch_get_into_multi_buffer_ranges([], [], [], []) == []


def test_object_that_goes_ends_its_session(
    store: MooncakeDistributedStore, memory: Memory, key: str
) -> None:
    assert store.put(key, b"value") == 0
    assert store.batch_get_session_start([key]) == [0]
    assert store.remove(key, force=True) == 0
    arguments = ([key], [[memory.ptr]], [[5]], [[0]])
    assert store.batch_get_into_multi_buffer_ranges(*arguments) == [-707]
    assert store.batch_get_into_multi_buffer_ranges(*arguments) == [-600]


def test_session_begins_anew(store: MooncakeDistributedStore, memory: Memory, key: str) -> None:
    assert store.put(key, b"short") == 0
    assert store.batch_get_session_start([key, key]) == [0, 0]
    assert store.remove(key, force=True) == 0
    assert store.put(key, b"much longer") == 0
    assert store.batch_get_session_start([key]) == [0]
    got = store.batch_get_into_multi_buffer_ranges([key], [[memory.ptr]], [[11]], [[0]])
    assert got == [11]
    assert memory.map[:11] == b"much longer"


def test_number_of_get_sessions_is_bounded(
    store: MooncakeDistributedStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sessions, "_MAX_GET_SESSIONS", 2)
    keys = [f"{key}{number}" for number in range(3)]
    assert store.put_batch(keys, [b"x"] * 3) == 0
    assert store.batch_get_session_start(keys) == [0, 0, -200]
    assert store.batch_get_session_start(keys[:2]) == [0, 0]
    assert store.batch_get_session_end(keys[:1]) == 0
    assert store.batch_get_session_start(keys[2:]) == [0]


# ---- reading while objects are replaced


@pytest.fixture(params=["member", "dummy"])
def reader(
    request: pytest.FixtureRequest, cluster: Cluster, new_store: NewStore
) -> Iterator[MooncakeDistributedStore]:
    """A member of the cluster, and one that has the node agent of its host read."""
    if request.param == "member":
        yield new_store(cluster)
        return
    dummy = MooncakeDistributedStore()
    assert dummy.setup_dummy(SIZE, 16 << 20, cluster.nodes[0].dummy_address) == 0
    yield dummy
    dummy.close()


@pytest.fixture(params=["straight", "by copy", "both"])
def places(
    request: pytest.FixtureRequest, reader: MooncakeDistributedStore
) -> Iterator[tuple[int, int]]:
    """Two addresses of SIZE bytes: memory that `reader` reads straight into, and memory that it
    knows nothing of."""
    known = reader.alloc_from_mem_pool(SIZE)
    registered = None if known else Memory(reader)
    unknown = ctypes.create_string_buffer(SIZE)
    straight = registered.ptr if registered else known
    by_copy = ctypes.addressof(unknown)
    yield {
        "straight": (straight, straight + SIZE // 2),
        "by copy": (by_copy, by_copy + SIZE // 2),
        "both": (straight, by_copy),
    }[request.param]
    if registered:
        registered.close()


def test_object_that_is_replaced_ends_its_session(
    reader: MooncakeDistributedStore,
    store: MooncakeDistributedStore,
    places: tuple[int, int],
    key: str,
) -> None:
    first, second = places
    assert store.put(key, b"old value") == 0
    assert store.put(key + "stays", b"what stays") == 0
    keys = [key, key + "stays"]
    assert reader.batch_get_session_start(keys) == [0, 0]

    def read(offset: int) -> list[int]:
        return reader.batch_get_into_multi_buffer_ranges(
            keys,
            [[first, second], [second + 100]],
            [[2, 2], [4]],
            [[offset, offset + 2], [6]],
        )

    assert read(0) == [4, 4]
    assert ctypes.string_at(first, 2) + ctypes.string_at(second, 2) == b"old "
    # As long as the old one, so that only the put tells them apart.
    assert store.upsert(key, b"new value") == 0
    assert read(4) == [-707, 4]
    assert read(4) == [-600, 4]
    assert reader.batch_get_session_start([key]) == [0]
    assert read(0) == [4, 4]
    assert ctypes.string_at(first, 2) + ctypes.string_at(second, 2) == b"new "
    # Neither is the same value that comes back the one that was there.
    assert store.remove(key, force=True) == 0
    assert store.put(key, b"new value") == 0
    assert read(4) == [-707, 4]
    assert ctypes.string_at(second + 100, 4) == b"tays"
    assert reader.batch_get_session_end(keys) == 0


def test_bytes_of_two_puts_are_never_mixed(
    reader: MooncakeDistributedStore,
    store: MooncakeDistributedStore,
    places: tuple[int, int],
    key: str,
) -> None:
    first, second = places
    size, count = 4096, 4
    assert store.put(key, bytes(size)) == 0
    over = threading.Event()

    def replace() -> None:
        for number in itertools.count(1):
            assert store.upsert(key, bytes([number % 256]) * size) == 0
            # A reader that copies makes a call for each range.
            if over.wait(0.01):
                return

    ptrs = [first, second] * count
    offsets = [number * 100 for number in range(2 * count)]
    sizes = [100 + number for number in range(2 * count)]
    spread = [number * 200 for number in range(2 * count)]

    def found() -> set[int]:
        pieces = zip(ptrs, spread, sizes, strict=True)
        return set(b"".join(ctypes.string_at(ptr + at, length) for ptr, at, length in pieces))

    def read_at_once() -> set[int]:
        starts = [ptr + at for ptr, at in zip(ptrs, spread, strict=True)]
        [codes] = reader._get_ranges_of([key], None, [starts], [offsets], [sizes])
        if codes == sizes:
            return found()
        # Replaced again and again, so that some of it could not be read.
        assert {code for code in codes if code < 0} == {-707}
        return set()

    def read_in_a_session() -> tuple[set[int], bool]:
        values: set[int] = set()
        assert reader.batch_get_session_start([key]) == [0]
        for ptr, size, offset in zip(ptrs, sizes, offsets, strict=True):
            code = reader.batch_get_into_multi_buffer_ranges([key], [[ptr]], [[size]], [[offset]])
            if code == [-707]:
                return values, True
            assert code == [size]
            values.update(ctypes.string_at(ptr, size))
        return values, False

    seen: set[int] = set()
    expired = 0
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(replace)
        try:
            end = time.monotonic() + 60
            while (len(seen) < 10 or expired < 10) and time.monotonic() < end:
                values = read_at_once()
                assert len(values) <= 1
                seen |= values
                values, is_over = read_in_a_session()
                assert len(values) <= 1
                expired += is_over
        finally:
            over.set()
        writing.result()
    assert len(seen) >= 10
    assert expired >= 10


# ---- writing


def test_object_is_seen_whole_or_not(
    cluster: Cluster,
    new_store: NewStore,
    store: MooncakeDistributedStore,
    memory: Memory,
    key: str,
) -> None:
    other = new_store(cluster)
    memory.map[:10] = b"0123456789"
    assert store.batch_put_session_start([key], [10]) == [0]
    put = store.batch_put_from_multi_buffer_ranges
    assert put([key], [[memory.ptr]], [[4]], [[6]]) == [4]
    # The memory can be used again at once.
    memory.map[:4] = b"...."
    assert (other.is_exist(key), store.is_exist(key)) == (0, 0)
    assert put([key], [[memory.ptr + 4, memory.ptr + 8]], [[4, 2]], [[0, 4]]) == [6]
    assert other.is_exist(key) == 0
    assert store.batch_put_session_end([key]) == [0]
    assert other.get(key) == b"4567890123"
    assert store.batch_put_session_end([key]) == [-600]
    assert put([key], [[memory.ptr]], [[1]], [[0]]) == [-600]


def test_revoke_leaves_nothing(store: MooncakeDistributedStore, memory: Memory, key: str) -> None:
    assert store.batch_put_session_start([key], [10]) == [0]
    arguments = ([key], [[memory.ptr]], [[10]], [[0]])
    assert store.batch_put_from_multi_buffer_ranges(*arguments) == [10]
    assert store.batch_put_session_revoke([key, key, key + "other"]) == [0, 0, -600]
    assert store.batch_put_session_revoke([key]) == [-600]
    assert store.batch_put_session_end([key]) == [-600]
    assert store.is_exist(key) == 0
    assert store.put(key, b"direct") == 0
    assert store.get(key) == b"direct"


def test_keys_that_cannot_be_started(store: MooncakeDistributedStore, key: str) -> None:
    assert store.put(key + "there", b"1") == 0
    keys = [key + "new", key + "there", "", key + "empty", key + "new"]
    assert store.batch_put_session_start(keys, [8, 8, 8, 0, 8]) == [0, -705, -600, -600, -600]
    assert store.batch_put_session_start([key + "new"], [8]) == [-600]
    assert store.batch_put_session_start([key], [1, 2]) == [-600]
    assert store.batch_put_session_start([], []) == []
    assert store.batch_put_session_revoke([key + "new"]) == [0]


def test_ranges_beyond_what_there_is(
    store: MooncakeDistributedStore, memory: Memory, key: str
) -> None:
    assert store.batch_put_session_start([key], [10]) == [0]

    def write(ptrs: list[int], sizes: list[int], offsets: list[int]) -> int:
        [code] = store.batch_put_from_multi_buffer_ranges([key], [ptrs], [sizes], [offsets])
        return code

    at = memory.ptr
    stranger = ctypes.create_string_buffer(64)
    assert write([at], [0], [0]) == 0
    assert write([], [], []) == -702
    assert write([at], [11], [0]) == -600
    assert write([at], [1], [10]) == -600
    assert write([at], [1], [(1 << 64) - 1]) == -600
    assert write([0], [1], [0]) == -600
    assert write([1], [1], [0]) == -600
    assert write([at + SIZE - 1], [2], [0]) == -600
    assert write([at - 1], [2], [0]) == -600
    assert write([ctypes.addressof(stranger)], [4], [0]) == -600
    assert write([at], [1, 2], [0]) == -600
    assert store.batch_put_from_multi_buffer_ranges([key], [], [], []) == [-600]
    # None of these wrote anything; unwritten bytes are zero.
    memory.map[:3] = b"abc"
    assert write([at, at], [3, 9], [4, 5]) == -600
    assert write([at], [3], [4]) == 3
    assert store.batch_put_session_end([key]) == [0]
    assert store.get(key) == b"\0\0\0\0abc\0\0\0"


def test_what_nobody_wrote_is_zero_in_used_memory(
    store: MooncakeDistributedStore, memory: Memory, key: str
) -> None:
    memory.map[:100] = b"s" * 100
    assert store.batch_put_session_start([key + "1"], [100]) == [0]
    arguments = ([key + "1"], [[memory.ptr]], [[100]], [[0]])
    assert store.batch_put_from_multi_buffer_ranges(*arguments) == [100]
    assert store.batch_put_session_end([key + "1"]) == [0]
    assert store.batch_put_session_start([key + "2"], [100]) == [0]
    assert store.batch_put_session_end([key + "2"]) == [0]
    assert store.get(key + "2") == bytes(100)


def test_somebody_else_was_first(
    cluster: Cluster, new_store: NewStore, store: MooncakeDistributedStore, key: str
) -> None:
    assert store.batch_put_session_start([key], [5]) == [0]
    assert new_store(cluster).put(key, b"first") == 0
    # As for any put: the key has a value, which is not replaced.
    assert store.batch_put_session_end([key]) == [0]
    assert store.get(key) == b"first"


def test_configs_are_those_of_the_start(
    store: MooncakeDistributedStore, memory: Memory, key: str
) -> None:
    both = ReplicateConfig()
    both.replica_num = 2
    keys = [key + "1", key + "2"]
    assert store.batch_put_session_start(keys[:1], [100]) == [0]
    assert store.batch_put_session_start(keys[1:], [100], both) == [0]
    both.replica_num = 1
    assert store.batch_put_session_end(keys) == [0, 0]
    assert [len(store.get_replica_desc(one)) for one in keys] == [1, 2]


def test_staged_bytes_are_bounded(
    cluster: Cluster, new_store: NewStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sessions, "_MAX_STAGED_BYTES", 1 << 20)
    store = new_store(cluster)
    keys = [f"{key}{number}" for number in range(3)]
    assert store.batch_put_session_start(keys, [1 << 19] * 3) == [0, 0, -200]
    assert store.batch_put_session_start([key + "large"], [1 << 50]) == [-200]
    assert store.batch_put_session_revoke(keys[:1]) == [0]
    assert store.batch_put_session_start(keys[2:], [1 << 19]) == [0]
    assert store.batch_put_session_end(keys) == [-600, 0, 0]
    assert store.batch_put_session_start(keys[:1], [1 << 20]) == [0]


def test_pool_that_is_full(
    new_cluster: Callable[..., Cluster], new_store: NewStore, key: str
) -> None:
    store = new_store(new_cluster(nodes=1, size="16MB"))
    stays = ReplicateConfig()
    stays.with_hard_pin = True
    keys = [key + "1", key + "2"]
    assert store.batch_put_session_start(keys, [12 << 20] * 2, stays) == [0, 0]
    assert store.batch_put_session_end(keys) == [0, -200]
    assert store.batch_is_exist(keys) == [1, 0]
    assert store.batch_put_session_end(keys) == [-600, -600]


def test_many_writers_of_one_object(
    store: MooncakeDistributedStore, memory: Memory, key: str
) -> None:
    value = bytes(range(256)) * (SIZE // 256)
    memory.map[:] = value
    piece = SIZE // 64
    assert store.batch_put_session_start([key], [SIZE]) == [0]

    def write(number: int) -> int:
        at = number * piece
        arguments = ([key], [[memory.ptr + at]], [[piece]], [[at]])
        [code] = store.batch_put_from_multi_buffer_ranges(*arguments)
        return code

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(write, range(64))) == [piece] * 64
        # The first call ends the session.
        ends = list(threads.map(lambda _: store.batch_put_session_end([key])[0], range(8)))
    assert sorted(ends) == [-600] * 7 + [0]
    assert store.get(key) == value


# ---- both


def test_sessions_end_with_the_store(cluster: Cluster, new_store: NewStore, key: str) -> None:
    store = new_store(cluster)
    assert store.put(key, b"value") == 0
    assert store.batch_get_session_start([key]) == [0]
    assert store.batch_put_session_start([key + "new"], [8]) == [0]
    store.close()
    nothing = ([key], [[1]], [[1]], [[0]])
    assert store.batch_get_session_start([key]) == [-600]
    assert store.batch_get_into_multi_buffer_ranges(*nothing) == [-600]
    assert store.batch_put_session_start([key], [8]) == [-600]
    assert store.batch_put_from_multi_buffer_ranges(*nothing) == [-600]
    assert store.batch_put_session_end([key + "new"]) == [-600]
    assert store.batch_put_session_revoke([key + "new"]) == [-600]
    assert new_store(cluster).is_exist(key + "new") == 0


def test_sessions_end_with_a_new_setup(cluster: Cluster, new_store: NewStore, key: str) -> None:
    store = new_store(cluster)
    memory = Memory(store)
    assert store.batch_put_session_start([key], [8]) == [0]
    again = ("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", cluster.address)
    assert store.setup(*again) == 0
    write = ([key], [[memory.ptr]], [[8]], [[0]])
    assert store.batch_put_from_multi_buffer_ranges(*write) == [-600]
    assert store.batch_put_session_end([key]) == [-600]
    # The memory is to be registered again, too.
    assert store.batch_put_session_start([key], [8]) == [0]
    assert store.batch_put_from_multi_buffer_ranges(*write) == [-600]
    assert store.register_buffer(memory.ptr, SIZE) == 0
    assert store.batch_put_from_multi_buffer_ranges(*write) == [8]
    assert store.batch_put_session_end([key]) == [0]
    memory.close()


def test_setup_tells_its_arguments() -> None:
    for setup in (MooncakeDistributedStore.setup, MooncakeDistributedStore().setup):
        assert "enable_ssd_offload" in inspect.signature(setup).parameters
        assert "enable_ssd_offload" in (setup.__doc__ or "")


def test_forked_child_ends_quietly(cluster: Cluster) -> None:
    done = run_python(
        """
import os, sys
from mc_store.mooncake.buffer_pool import BufferPool
from mc_store.mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", sys.argv[1]) == 0
pool = BufferPool(store)
pool.acquire(5).release()
lease = pool.acquire(10)
lease.buffer[:] = b"0123456789"
assert store.batch_put_session_start(["forked"], [10]) == [0]
child = os.fork()
if child == 0:
    assert store.close() == 0
    lease.buffer[:] = b"of a child"
    lease.release()
    pool.close()
    sys.exit()
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert bytes(lease.buffer) == b"0123456789"
assert store.batch_put_session_end(["forked"]) == [0]
assert store.get("forked") == bytes(10)
""",
        cluster.address,
    )
    assert done.stderr == ""


def test_types(store: MooncakeDistributedStore, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.batch_get_session_start(key),
        lambda: store.batch_get_session_start([1]),  # type: ignore[list-item]
        lambda: store.batch_put_session_start([key], ["8"]),  # type: ignore[list-item]
        lambda: store.batch_put_session_start([key], [8.0]),  # type: ignore[list-item]
        lambda: store.batch_put_session_start([key], 8),  # type: ignore[arg-type]
        lambda: store.batch_put_session_start([key], [8], 5),  # type: ignore[arg-type]
        lambda: store.batch_get_into_multi_buffer_ranges(
            [key],
            [1],  # type: ignore[list-item]
            [[1]],
            [[1]],
        ),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    for number in (-1, 1 << 64):
        with pytest.raises(OverflowError):
            store.batch_put_session_start([key], [number])
        with pytest.raises(OverflowError):
            store.batch_get_into_multi_buffer_ranges([key], [[1]], [[number]], [[0]])
