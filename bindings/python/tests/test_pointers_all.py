"""Every call that takes a pointer, with memory that the caller may not use."""

from __future__ import annotations

import ctypes
import inspect
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from mc_store.mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator

np = pytest.importorskip("numpy")

INVALID_PARAMS = -600
#: Bytes that a call is about: those of the object that there is to read.
ELEMENTS = 1024
PAGE = mmap.PAGESIZE
LENGTH = 8 * PAGE

Call = Callable[[Any, str, int, int], Any]

READS: dict[str, Call] = {
    "get_into": lambda s, k, p, n: s.get_into(k, p, n),
    "batch_get_into": lambda s, k, p, n: s.batch_get_into([k], [p], [n]),
    "batch_get_into_multi_buffers": lambda s, k, p, n: s.batch_get_into_multi_buffers(
        [k], [[p]], [[n]]
    ),
    "get_into_ranges": lambda s, k, p, n: s.get_into_ranges([p], [[k]], [[[0]]], [[[0]]], [[[n]]]),
    "batch_get_into_multi_buffer_ranges": lambda s, k, p, n: in_session(s, k, p, n),
    "get_tensor_into": lambda s, k, p, n: s.get_tensor_into(k, p, n),
    "batch_get_tensor_into": lambda s, k, p, n: s.batch_get_tensor_into([k], [p], [n]),
    "get_tensor_with_tp_into": lambda s, k, p, n: s.get_tensor_with_tp_into(k, p, n),
    "batch_get_tensor_with_tp_into": lambda s, k, p, n: s.batch_get_tensor_with_tp_into(
        [k], [p], [n]
    ),
    "get_tensor_with_parallelism_into": lambda s, k, p, n: s.get_tensor_with_parallelism_into(
        k, p, n
    ),
    "batch_get_tensor_with_parallelism_into": lambda s, k, p, n: (
        s.batch_get_tensor_with_parallelism_into([k], [p], [n])
    ),
}

WRITES: dict[str, Call] = {
    "put_from": lambda s, k, p, n: s.put_from(k, p, n),
    "upsert_from": lambda s, k, p, n: s.upsert_from(k, p, n),
    "batch_put_from": lambda s, k, p, n: s.batch_put_from([k], [p], [n]),
    "batch_upsert_from": lambda s, k, p, n: s.batch_upsert_from([k], [p], [n]),
    "put_from_with_metadata": lambda s, k, p, n: s.put_from_with_metadata(k, p, p, n, n),
    "batch_put_from_multi_buffers": lambda s, k, p, n: s.batch_put_from_multi_buffers(
        [k], [[p]], [[n]]
    ),
    "batch_put_from_multi_buffer_ranges": lambda s, k, p, n: out_of_session(s, k, p, n),
    "put_tensor_from": lambda s, k, p, n: s.put_tensor_from(k, p, n),
    "upsert_tensor_from": lambda s, k, p, n: s.upsert_tensor_from(k, p, n),
    "batch_put_tensor_from": lambda s, k, p, n: s.batch_put_tensor_from([k], [p], [n]),
    "batch_upsert_tensor_from": lambda s, k, p, n: s.batch_upsert_tensor_from([k], [p], [n]),
    "put_tensor_with_tp_from": lambda s, k, p, n: s.put_tensor_with_tp_from(k, p, n),
    "batch_put_tensor_with_tp_from": lambda s, k, p, n: s.batch_put_tensor_with_tp_from(
        [k], [p], [n]
    ),
    "put_tensor_with_parallelism_from": lambda s, k, p, n: s.put_tensor_with_parallelism_from(
        k, p, n
    ),
    "upsert_tensor_with_parallelism_from": lambda s, k, p, n: s.upsert_tensor_with_parallelism_from(
        k, p, n
    ),
    "batch_put_tensor_with_parallelism_from": lambda s, k, p, n: (
        s.batch_put_tensor_with_parallelism_from([k], [p], [n])
    ),
    "batch_upsert_tensor_with_parallelism_from": lambda s, k, p, n: (
        s.batch_upsert_tensor_with_parallelism_from([k], [p], [n])
    ),
}

#: These say what memory is the caller's.
NAMES = {"register_buffer", "unregister_buffer"}


def in_session(store: MooncakeDistributedStore, key: str, ptr: int, size: int) -> object:
    assert store.batch_get_session_start([key]) == [0]
    try:
        return store.batch_get_into_multi_buffer_ranges([key], [[ptr]], [[size]], [[0]])
    finally:
        store.batch_get_session_end([key])


def out_of_session(store: MooncakeDistributedStore, key: str, ptr: int, size: int) -> object:
    assert store.batch_put_session_start([key], [LENGTH]) == [0]
    try:
        return store.batch_put_from_multi_buffer_ranges([key], [[ptr]], [[size]], [[0]])
    finally:
        store.batch_put_session_revoke([key])


def test_the_table_has_every_call_that_takes_a_pointer() -> None:
    taking = set()
    for name in dir(MooncakeDistributedStore):
        member = getattr(MooncakeDistributedStore, name)
        if name.startswith("_") or not callable(member):
            continue
        parameters = inspect.signature(member).parameters
        if any("ptr" in parameter or "address" in parameter for parameter in parameters):
            taking.add(name)
    taking.discard("setup_dummy")  # Takes the address of a server.
    assert taking == READS.keys() | WRITES.keys() | NAMES


@dataclass
class Ground:
    """Pages that can be used, of which the bytes from `start` on are for calls, before pages that
    cannot be touched."""

    base: int
    start: int
    #: Bytes of the tensor object that there is to read, and of the same in memory.
    size: int
    object: bytes

    def bytes(self) -> bytes:
        return ctypes.string_at(self.base, LENGTH)


@pytest.fixture
def ground(store: MooncakeDistributedStore, key: str) -> Iterator[Ground]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    base = libc.mmap(None, LENGTH + PAGE, rights, anonymous, -1, 0)
    assert libc.mprotect(base + LENGTH, PAGE, 0) == 0
    assert store.put_tensor(key, np.arange(ELEMENTS, dtype=np.int32)) == 0
    tensor = store.get(key)
    # A tensor is put from here, as far as it goes.
    ctypes.memset(base, 0x67, LENGTH)
    ctypes.memmove(base + PAGE, tensor, len(tensor))
    yield Ground(base, base + PAGE, len(tensor), tensor)
    store.unregister_buffer(base + PAGE)
    libc.munmap(base, LENGTH + PAGE)


#: Where, how many bytes, and what of it is registered before.
BAD: dict[str, Callable[[Ground], tuple[int, int, int]]] = {
    "one byte beyond its registration": lambda g: (g.start, g.size, g.size - 1),
    "a byte before its registration": lambda g: (g.start - 1, g.size + 1, g.size),
    "never registered, and not there": lambda g: (g.base + LENGTH, g.size, 0),
    "in part not there": lambda g: (g.base + LENGTH - 1, g.size, 0),
    "null": lambda _: (0, 4096, 0),
    "beyond all addresses": lambda _: (2**64 - 16, 4096, 0),
    "longer than all addresses": lambda g: (g.start, 2**63, g.size),
    "freed": lambda g: (g.start, g.size, -1),
}


def refused(answer: object) -> bool:
    """Whether an answer, or all that a list has, is a refusal: the code, or no tensor."""
    if isinstance(answer, list):
        return bool(answer) and all(map(refused, answer))
    return answer is None or (isinstance(answer, int) and answer == INVALID_PARAMS)


def attempt(call: Call, *arguments: Any) -> bool:
    try:
        return refused(call(*arguments))
    except (ValueError, OverflowError):
        return True


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", READS | WRITES)
def test_memory_that_is_not_the_callers_is_refused(
    store: MooncakeDistributedStore, ground: Ground, key: str, name: str, bad: str
) -> None:
    call = (READS | WRITES)[name]
    ptr, size, registered = BAD[bad](ground)
    if registered > 0:
        assert store.register_buffer(ground.start, registered) == 0
    elif registered < 0:
        ptr = freed(store, ground)
    target = key if name in READS else f"{key}other"
    before = ground.bytes()
    assert attempt(call, store, target, ptr, size), f"{name} of memory that is {bad}"
    # Of a target of which the system finds too late that it ends early, the beginning may change.
    end = LENGTH - 1 if bad == "in part not there" else LENGTH
    assert ground.bytes()[:end] == before[:end], f"{name} wrote to memory that is {bad}"
    if name in WRITES:
        assert store.is_exist(f"{key}other") == 0
        assert store.is_exist(f"{key}other_tp_0") == 0
    assert store.get(key) == ground.object


def freed(store: MooncakeDistributedStore, ground: Ground) -> int:
    """The address of memory that was registered, and is neither registered nor there any more."""
    memory = MooncakeHostMemAllocator()
    ptr = memory.alloc(ground.size)
    assert store.register_buffer(ptr, ground.size) == 0
    assert store.unregister_buffer(ptr) == 0
    assert memory.free(ptr) == 0
    assert memory.free(ptr) == -1, "freed twice"
    return ptr


@pytest.mark.parametrize("name", READS | WRITES)
def test_memory_that_is_registered_is_used(
    store: MooncakeDistributedStore, ground: Ground, key: str, name: str
) -> None:
    """Each call of the table does something where nothing is wrong."""
    assert store.register_buffer(ground.start, ground.size) == 0
    target = key if name in READS else f"{key}other"
    assert not attempt((READS | WRITES)[name], store, target, ground.start, ground.size)


def test_registrations_that_make_no_sense_are_refused(
    store: MooncakeDistributedStore, ground: Ground
) -> None:
    for ptr, size in [
        (0, 4096),
        (ground.start, 0),
        (ground.start, 2**63),
        (2**64 - 16, 4096),
        (ground.base + LENGTH, 1),
        (ground.base, LENGTH + 1),
    ]:
        assert store.register_buffer(ptr, size) == INVALID_PARAMS, (ptr, size)
        assert store.unregister_buffer(ptr) == INVALID_PARAMS, ptr
    assert store.register_buffer(ground.start, ground.size) == 0
    assert store.register_buffer(ground.start + ground.size - 1, 2) == INVALID_PARAMS, "overlaps"
    assert store.unregister_buffer(ground.start + 1) == INVALID_PARAMS, "begins elsewhere"
    allocator = MooncakeHostMemAllocator()
    assert allocator.free(0) == -1
    assert allocator.free(ground.start) == -1, "memory that is not an allocator's"
