"""`MooncakeDistributedStore`: memory by its address."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from _cluster import Cluster, run_python
from mc_store.mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator

INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704

#: No process has memory at these.
NOWHERE = [0, 8, 4095, 1 << 47, (1 << 64) - 4096, (1 << 64) - 1]


class Block:
    """Bytes that stay where they are."""

    def __init__(self, size: int) -> None:
        self._bytes = bytearray(size)
        self.address = ctypes.addressof((ctypes.c_char * size).from_buffer(self._bytes))
        self.size = size

    def __setitem__(self, where: slice, value: bytes) -> None:
        memoryview(self._bytes)[where] = value

    def __getitem__(self, where: slice) -> bytes:
        return bytes(self._bytes[where])


@pytest.fixture
def block() -> Block:
    return Block(1 << 20)


@contextmanager
def registered(store: MooncakeDistributedStore, block: Block) -> Iterator[None]:
    assert store.register_buffer(block.address, block.size) == 0
    try:
        yield
    finally:
        assert store.unregister_buffer(block.address) == 0


def test_bytes_move_between_memory_and_the_store(
    store: MooncakeDistributedStore, block: Block, key: str
) -> None:
    block[0:5] = b"hello"
    with registered(store, block):
        assert store.put_from(key, block.address, 5) == 0
        assert store.get_into(key, block.address + 100, 5) == 5
        assert store.get_into(key, block.address + 200, 50) == 5
        assert store.get_into(key, block.address, 4) == INVALID_PARAMS
        assert store.get_into(f"{key}none", block.address, 4) == OBJECT_NOT_FOUND
    assert block[100:106] == b"hello\0"
    assert block[200:206] == b"hello\0"


def test_memory_that_is_not_registered_is_copied(
    store: MooncakeDistributedStore, block: Block, key: str
) -> None:
    block[0:5] = b"hello"
    assert store.put_from(key, block.address, 5) == 0
    assert store.get_into(key, block.address + 100, 50) == 5
    assert store.get_into(key, block.address, 4) == INVALID_PARAMS
    assert block[100:106] == b"hello\0"
    pieces = [[block.address + 200, block.address + 300]], [[2, 3]]
    assert store.batch_get_into_multi_buffers([key], *pieces) == [5]
    assert (block[200:203], block[300:304]) == (b"he\0", b"llo\0")


def test_one_batch_may_have_both(store: MooncakeDistributedStore, block: Block, key: str) -> None:
    other = Block(1 << 16)
    block[0:3], other[0:3] = b"abc", b"def"
    keys = [f"{key}{n}" for n in range(4)]
    with registered(store, block):
        addresses = [block.address, other.address, 8, other.address]
        assert store.batch_put_from(keys, addresses, [3, 3, 3, 0]) == [
            0,
            0,
            INVALID_PARAMS,
            INVALID_PARAMS,
        ]
        both = [other.address + 10, block.address + 10]
        assert store.batch_get_into(keys, [*both, 8, 8], [3, 3, 3, 3]) == [
            3,
            3,
            # Refused before the master is asked for the key.
            INVALID_PARAMS,
            INVALID_PARAMS,
        ]
        assert (other[10:13], block[10:13]) == (b"abc", b"def")
        mixed = [[block.address + 50, other.address + 50]] * 2
        assert store.batch_put_from_multi_buffers(
            [f"{key}m0", f"{key}m1"], mixed, [[1, 2], [0, 1]]
        ) == [0, 0]
        assert store.batch_get_into_multi_buffers([keys[0]], mixed[:1], [[1, 2]]) == [3]
    assert (block[50:51], other[50:52]) == (b"a", b"bc")


def test_ranges_go_where_they_are_wanted(
    store: MooncakeDistributedStore, block: Block, key: str
) -> None:
    assert store.put_batch([f"{key}a", f"{key}b"], [b"0123456789", b"abcdefghij"]) == 0
    wanted = (
        [[f"{key}a", f"{key}b"], [f"{key}none"]],
        [[[0, 5], [10, 20, 30]], [[0]]],
        [[[2, 8], [0, 9, 5]], [[0]]],
        [[[3, 2], [2, 5, 0]], [[1]]],
    )
    answer = [[[3, 2], [2, INVALID_PARAMS, 0]], [[OBJECT_NOT_FOUND]]]
    refused = [[[INVALID_PARAMS] * 2, [INVALID_PARAMS] * 2 + [0]], [[INVALID_PARAMS]]]
    assert store.get_into_ranges([block.address] * 2, *wanted) == refused
    assert block[0:30] == bytes(30), "nothing is written where nothing is registered"
    with registered(store, block):
        assert store.get_into_ranges([block.address] * 2, *wanted) == answer
    assert block[0:12] == b"234\0\x0089\0\0\0ab"


def test_metadata_stands_before_the_bytes(
    store: MooncakeDistributedStore, block: Block, key: str
) -> None:
    block[0:3], block[100:104] = b"abc", b"meta"
    address = block.address
    assert store.put_from_with_metadata(key, address, address + 100, 3, 4) == 0
    assert store.get(key) == b"metaabc"
    assert store.put_from_with_metadata(f"{key}0", address, 0, 3, 0) == 0
    assert store.get(f"{key}0") == b"abc"


def test_registrations_do_not_overlap(store: MooncakeDistributedStore, block: Block) -> None:
    address, size = block.address, block.size
    with registered(store, block):
        for other, length in [
            (address, size),
            (address, 1),
            (address + 4096, 4096),
            (address + size - 1, 1),
        ]:
            assert store.register_buffer(other, length) == INVALID_PARAMS
        assert store.unregister_buffer(address + 4096) == INVALID_PARAMS
    assert store.unregister_buffer(address) == INVALID_PARAMS
    assert store.register_buffer(address, size // 2) == 0
    assert store.register_buffer(address + size // 2, size // 2) == 0
    assert store.unregister_buffer(address) == 0
    assert store.unregister_buffer(address + size // 2) == 0


def test_addresses_that_mean_nothing_are_refused(
    store: MooncakeDistributedStore, block: Block, key: str
) -> None:
    assert store.put(key, b"x") == 0
    for address in NOWHERE:
        assert store.register_buffer(address, 4096) == INVALID_PARAMS, hex(address)
        assert store.put_from(f"{key}bad", address, 10) == INVALID_PARAMS, hex(address)
        assert store.get_into(key, address, 10) == INVALID_PARAMS, hex(address)
    for size in [0, 1 << 40, 1 << 62, (1 << 64) - 1]:
        assert store.register_buffer(block.address, size) == INVALID_PARAMS
        # No bytes are put without an error, and nothing is stored.
        code = INVALID_PARAMS if size else 0
        assert store.put_from(f"{key}bad", block.address, size) == code
    for wrong in [-1, 1 << 64, 1.0, "0", None, b"0"]:
        with pytest.raises(TypeError):
            store.register_buffer(wrong, 10)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            store.get_into(key, block.address, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            store.batch_put_from([key], [wrong], [10])  # type: ignore[list-item]
    assert store.is_exist(f"{key}bad") == 0


def test_memory_that_ends_early_is_refused(cluster: Cluster, key: str) -> None:
    code = f"""
import ctypes, mmap
from mc_store.mooncake.store import MooncakeDistributedStore
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "", 0, 16 << 20, "tcp", "", {cluster.address!r}) == 0
page = mmap.PAGESIZE
base = libc.mmap(None, 3 * page, mmap.PROT_READ | mmap.PROT_WRITE,
                 mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
assert libc.mprotect(ctypes.c_void_p(base + page), page, 0) == 0
assert libc.mprotect(ctypes.c_void_p(base + 2 * page), page, mmap.PROT_READ) == 0
assert store.put({key!r}, b"x" * page) == 0
for size, readable in [(page, True), (page + 1, False), (3 * page, False)]:
    assert (store.put_from({key!r} + str(size), base, size) == 0) == readable, size
    assert (store.register_buffer(base, size) == 0) == readable, size
assert store.unregister_buffer(base) == 0
for register in [False, True]:
    if register:
        assert store.register_buffer(base + 2 * page, page) == 0
    assert store.get_into({key!r}, base + 2 * page, page) == -600
    assert store.put_from({key!r} + "ro" + str(register), base + 2 * page, page) == 0
assert store.get_into({key!r}, base + 1, page) == -600
print("unharmed")
"""
    assert run_python(code).stdout == "unharmed\n"


def test_a_file_mapped_for_reading_can_be_put(
    store: MooncakeDistributedStore, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "values"
    path.write_bytes(b"values of a file" * 1000)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert store.put(key, mapped) == 0
    assert store.get(key) == b"values of a file" * 1000


def test_an_unregistered_buffer_is_not_touched_any_more(
    store: MooncakeDistributedStore, key: str
) -> None:
    """Threads read into memory that is taken from under them again and again."""
    value = b"\xaa" * 100_000
    assert store.put(key, value) == 0
    block, rounds = Block(len(value)), 30
    stop = threading.Event()
    failures: list[int] = []

    def read() -> None:
        while not stop.is_set():
            code = store.get_into(key, block.address, block.size)
            if code != block.size:
                failures.append(code)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for _ in range(rounds):
        assert store.register_buffer(block.address, block.size) == 0
        if not readers[0].is_alive():
            for reader in readers:
                reader.start()
        assert store.unregister_buffer(block.address) == 0
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []


def test_memory_for_sharing_outlives_its_free(store: MooncakeDistributedStore, key: str) -> None:
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(100_000)
    assert address % mmap.PAGESIZE == 0
    ctypes.memmove(address, b"hello", 5)
    assert store.register_buffer(address, 100_000) == 0
    assert store.put_from(key, address, 100_000) == 0
    assert store.get_into(key, address, 100_000) == 100_000
    assert allocator.free(address) == 0
    assert allocator.free(address) == -1
    assert store.put_from(f"{key}again", address, 100_000) == 0, "the store keeps it"
    assert store.unregister_buffer(address) == 0
    assert store.put_from(f"{key}gone", address, 100_000) == INVALID_PARAMS
    with pytest.raises(RuntimeError):
        allocator.alloc(0)
    with pytest.raises(RuntimeError):
        allocator.alloc(1 << 60)
    with pytest.raises(TypeError):
        allocator.alloc(-1)
