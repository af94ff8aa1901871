"""The tensor methods of a store, over a cluster."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator
from mmap import MAP_ANON, MAP_PRIVATE, PAGESIZE, PROT_READ, PROT_WRITE
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _tensors import GOLDENS, Partition, full, part, shard, slices

from mc_store_structured.tensors import ParallelAxis, ReadTarget

if TYPE_CHECKING:
    from mc_store.mooncake.store import MooncakeDistributedStore as Store

numpy = pytest.importorskip("numpy")

INVALID = -600
MISSING = -704
NO_FILE = -1100
HEADER = 304
WHOLE = numpy.arange(24, dtype="f4").reshape(4, 6)


class Room:
    """Memory that is registered with a store."""

    def __init__(self, store: Store, size: int) -> None:
        self._memory = ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self._memory)
        self.size = size
        assert store.register_buffer(self.address, size) == 0

    def hold(self, data: bytes) -> tuple[int, int]:
        """Puts `data` there: where it lies, and how long it is."""
        ctypes.memmove(self.address, data, len(data))
        return self.address, len(data)

    def bytes(self, size: int) -> bytes:
        """The bytes at this place."""
        return self._memory.raw[:size]


@pytest.fixture
def room(store: Store) -> Iterator[Room]:
    room = Room(store, 1 << 16)
    yield room
    store.unregister_buffer(room.address)


def same(found: Any, expected: Any) -> bool:
    """Whether a tensor that was read has the type, the shape and the numbers of an array."""
    assert found is not None
    return (
        str(found.dtype).removeprefix("torch.") == str(expected.dtype)
        and tuple(found.shape) == expected.shape
        and bool((numpy.asarray(found) == expected).all())
    )


def test_a_tensor_is_stored_as_the_reference_stores_it(store: Store, key: str) -> None:
    assert store.put_tensor(key, WHOLE) == 0

    assert store.get(key) == GOLDENS["shape 4x6"]


@pytest.mark.parametrize("name", [name for name in GOLDENS if name.startswith("shape")])
def test_what_the_reference_stored_is_read(store: Store, key: str, name: str) -> None:
    assert store.put(key, GOLDENS[name]) == 0

    found = store.get_tensor(key, like="numpy")

    assert store.put_tensor(f"{key}again", found) == 0
    assert store.get(f"{key}again") == GOLDENS[name]


def test_torch_is_the_default_where_it_is(store: Store, key: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)

    assert store.put_tensor(key, tensor.t()) == 0
    found = store.get_tensor(key)

    assert found.dtype == torch.bfloat16
    assert torch.equal(found, tensor.t())
    found[0, 0] = 9
    assert store.get_tensor(key)[0, 0] == 0


def test_a_tensor_larger_than_the_local_buffer_is_stored(store: Store, key: str) -> None:
    large = numpy.arange(6 << 20, dtype="u4")

    assert store.put_tensor(key, large) == 0

    assert same(store.get_tensor(key, like="numpy"), large)


def test_an_existing_tensor_stays_and_is_upserted(store: Store, key: str) -> None:
    assert store.put_tensor(key, WHOLE) == 0
    assert store.put_tensor(key, WHOLE[0]) == 0
    assert same(store.get_tensor(key, like="numpy"), WHOLE)

    assert store.upsert_tensor(key, WHOLE[0]) == 0
    assert same(store.get_tensor(key, like="numpy"), WHOLE[0])
    assert store.upsert_tensor(f"{key}new", WHOLE) == 0
    assert same(store.get_tensor(f"{key}new", like="numpy"), WHOLE)


@pytest.mark.parametrize("tensor", [None, "text", [1.0], 3, numpy.ones((1,) * 9), 1j * WHOLE])
def test_what_is_no_tensor_is_refused_and_not_stored(store: Store, key: str, tensor: Any) -> None:
    from mc_store.mooncake.store import ReplicateConfig

    calls: list[Callable[[], int]] = [
        lambda: store.put_tensor(key, tensor),
        lambda: store.pub_tensor(key, tensor, ReplicateConfig()),
        lambda: store.upsert_tensor(key, tensor),
        lambda: store.upsert_pub_tensor(key, tensor, ReplicateConfig()),
        lambda: store.put_tensor_with_tp(key, tensor, 0, 2, 0),
        lambda: store.put_tensor_with_parallelism(key, tensor, part(slices(0, 2, 0))),
        lambda: store.upsert_tensor_with_parallelism(key, tensor, part(slices(0, 2, 0))),
        lambda: store.put_tensor_with_parallelism(key, tensor, writer_partition=Partition(0, 2, 0)),
    ]
    assert [call() for call in calls] == [INVALID] * len(calls)

    names = [key, f"{key}_tp_0", f"{key}__parallelism_manifest", f"{key}__writer_manifest"]
    assert [store.is_exist(name) for name in names] == [0] * len(names)


def test_missing_tensors_are_none(store: Store, key: str, room: Room) -> None:
    found = [
        store.get_tensor(key),
        store.get_tensor_into(key, room.address, room.size),
        store.get_tensor_with_tp(key, 0, 2),
        store.get_tensor_with_tp_into(key, room.address, room.size, 0, 2),
        store.get_tensor_with_parallelism(key),
        store.get_tensor_with_parallelism(key, full()),
        store.get_tensor_with_parallelism(key, full(slices(0, 2, 0))),
        store.get_tensor_with_parallelism(key, shard(slices(0, 2, 0))),
        store.get_tensor_with_parallelism(key, shard(ParallelAxis("dp", 0, 2))),
        store.get_tensor_with_parallelism_into(key, room.address, room.size, full(slices(0, 2, 0))),
        store.load_tensor_from_safetensor(key, "/nowhere/at all"),
    ]

    assert found == [None] * len(found)
    assert store.save_tensor_to_safetensor(key) == NO_FILE


def test_batches_answer_for_each(store: Store, key: str) -> None:
    keys = [f"{key}{place}" for place in range(4)]

    assert store.batch_put_tensor(keys, [WHOLE, None, WHOLE[1], WHOLE[:, ::2]]) == [
        0,
        INVALID,
        0,
        0,
    ]
    first, second, third, fourth = store.batch_get_tensor(keys, like="numpy")

    assert second is None
    assert same(first, WHOLE)
    assert same(third, WHOLE[1])
    assert same(fourth, WHOLE[:, ::2])
    assert store.batch_upsert_tensor(keys, [WHOLE[2], WHOLE, "", WHOLE]) == [0, 0, INVALID, 0]
    first, second, third, fourth = store.batch_get_tensor(keys, like="numpy")
    assert same(first, WHOLE[2])
    assert same(second, WHOLE)
    assert same(third, WHOLE[1])
    assert same(fourth, WHOLE)


def test_batches_of_nothing_and_of_unequal_lists(store: Store, key: str, room: Room) -> None:
    assert store.batch_put_tensor([], []) == []
    assert store.batch_upsert_tensor([], []) == []
    assert store.batch_get_tensor([]) == []
    assert store.batch_get_tensor_into([], [], []) == []
    assert store.batch_put_tensor_from([], [], []) == []
    assert store.batch_put_tensor_with_tp([], [], 0, 2, 0) == []
    assert store.batch_put_tensor_with_parallelism([], [], []) == []
    assert store.batch_get_tensor_with_parallelism_into([], [], [], []) == []
    assert store.batch_get_tensor_into_cuda([], []) == []

    assert store.batch_put_tensor([key, key], [WHOLE]) == [INVALID] * 2
    assert store.batch_upsert_tensor([key], []) == [INVALID]
    assert store.batch_get_tensor_into([key, key], [room.address], [9]) == [INVALID] * 2
    assert store.batch_put_tensor_from([key, key], [room.address], [9]) == [INVALID] * 2
    assert store.batch_put_tensor_with_tp([key, key], [WHOLE], 0, 2, 0) == [INVALID] * 2
    assert (
        store.batch_put_tensor_with_tp_from([key, key], [room.address], [9], 0, 2) == [INVALID] * 2
    )
    assert store.batch_put_tensor_with_parallelism([key], [WHOLE], []) == [INVALID]
    assert store.batch_put_tensor_with_parallelism([key], [WHOLE], [None], None, [None]) == [
        INVALID
    ]
    assert store.batch_get_tensor_with_parallelism([key], []) == [None]
    assert store.batch_get_tensor_with_parallelism_into([key], [room.address], [9], []) == [None]
    assert store.batch_get_tensor_into_cuda([key], []) == [INVALID]


def test_arguments_of_other_types_are_type_errors(store: Store, key: str, room: Room) -> None:
    wrong: list[Callable[[Any], object]] = [
        lambda any_store: any_store.put_tensor(3, WHOLE),
        lambda any_store: any_store.get_tensor(3),
        lambda any_store: any_store.batch_get_tensor("key"),
        lambda any_store: any_store.batch_get_tensor([1]),
        lambda any_store: any_store.batch_put_tensor(key, [WHOLE]),
        lambda any_store: any_store.batch_put_tensor([key], WHOLE),
        lambda any_store: any_store.pub_tensor(key, WHOLE, 3),
        lambda any_store: any_store.get_tensor_into(key, "0", 1),
        lambda any_store: any_store.put_tensor_from(key, 1.5, 1),
        lambda any_store: any_store.get_tensor_with_tp(3, 0, 2),
        lambda any_store: any_store.get_tensor_with_tp(key, 0, "2"),
        lambda any_store: any_store.put_tensor_with_tp(key, WHOLE, 0, 2, "0"),
        lambda any_store: any_store.get_tensor_with_parallelism(3, full()),
        lambda any_store: any_store.put_tensor_with_parallelism(3, WHOLE, part(slices(0, 2, 0))),
        lambda any_store: any_store.save_tensor_to_safetensor(key, 3),
        lambda any_store: any_store.load_tensor_from_safetensor(3, "file"),
        lambda any_store: any_store.load_tensor_from_safetensor(),
    ]
    for call in wrong:
        with pytest.raises(TypeError):
            call(store)
    with pytest.raises(OverflowError):
        store.get_tensor_into(key, -1, 1)
    with pytest.raises(OverflowError):
        store.put_tensor_from(key, room.address, -1)


def test_an_unknown_library_is_an_error_even_where_nothing_is_found(
    store: Any, key: str, room: Room
) -> None:
    place = (room.address, room.size)
    calls: list[Callable[[], object]] = [
        lambda: store.get_tensor(key, like="jax"),
        lambda: store.batch_get_tensor([], like="jax"),
        lambda: store.get_tensor_into(key, *place, like="jax"),
        lambda: store.batch_get_tensor_into([], [], [], like="jax"),
        lambda: store.get_tensor_with_tp(key, 0, 2, like="jax"),
        lambda: store.get_tensor_with_parallelism(key, like="jax"),
        lambda: store.get_tensor_with_parallelism_into(key, *place, like="jax"),
        lambda: store.load_tensor_from_safetensor(key, "/nowhere", like="jax"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="like"):
            call()


def test_configurations_go_with_the_tensors(store: Store, key: str) -> None:
    from mc_store.mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    config.replica_num = 2

    assert store.pub_tensor(f"{key}0", WHOLE, config) == 0
    assert store.batch_pub_tensor([f"{key}1", f"{key}2"], [WHOLE, WHOLE], config) == [0, 0]
    assert store.upsert_pub_tensor(f"{key}3", WHOLE, config) == 0
    assert store.batch_upsert_pub_tensor([f"{key}4"], [WHOLE], config) == [0]
    assert store.pub_tensor_with_tp(f"{key}5", WHOLE, config) == 0

    for place in range(6):
        assert len(store.get_replica_desc(f"{key}{place}")) == 2
        assert same(store.get_tensor(f"{key}{place}", like="numpy"), WHOLE)


def test_group_ids_are_one_for_each_key(store: Store, key: str) -> None:
    from mc_store.mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    config.group_ids = ["left", "right"]
    keys = [f"{key}left", f"{key}right"]

    assert store.batch_pub_tensor(keys, [None, WHOLE], config) == [INVALID, 0]
    assert store.batch_upsert_pub_tensor(keys, [WHOLE, WHOLE], config) == [0, 0]
    assert store.batch_pub_tensor_with_tp(keys, [WHOLE, WHOLE], config, 0, 2, 0) == [0, 0]
    parts = [part(slices(0, 2, 0))] * 2
    assert store.batch_put_tensor_with_parallelism(keys, [WHOLE, WHOLE], parts, config) == [0, 0]
    assert store.pub_tensor_with_tp(f"{key}shards", WHOLE, config, 0, 2, 0) == 0
    assert store.pub_tensor_with_tp(f"{key}shards", WHOLE, config, 0, 4, 0) == INVALID
    assert config.group_ids == ["left", "right"]

    assert store.pub_tensor(f"{key}one", WHOLE, config) == INVALID
    assert store.batch_pub_tensor(["one"], [WHOLE], config) == [INVALID]
    assert store.put_tensor_with_parallelism(f"{key}one", WHOLE, None, config) == INVALID
    assert store.is_exist(f"{key}one") == 0


def test_a_tensor_is_read_into_memory_of_the_caller(store: Store, key: str, room: Room) -> None:
    store.put_tensor(key, WHOLE)

    found = store.get_tensor_into(key, room.address, room.size, like="numpy")

    assert same(found, WHOLE)
    assert room.bytes(400) == GOLDENS["shape 4x6"]
    found[0, 0] = 1
    assert room.bytes(HEADER + 4)[HEADER:] == b"\0\0\x80\x3f"
    assert same(store.get_tensor_into(key, room.address, 400, like="numpy"), WHOLE)
    assert store.get_tensor_into(key, room.address, 399) is None
    assert store.get_tensor_into(key, 0, 400) is None


def test_tensors_are_read_into_memory_of_the_caller(store: Store, key: str, room: Room) -> None:
    keys = [f"{key}0", f"{key}missing", f"{key}1", f"{key}0"]
    store.batch_put_tensor([keys[0], keys[2]], [WHOLE, WHOLE[1]])
    places = [room.address + 1024 * place for place in range(4)]

    found = store.batch_get_tensor_into(keys, places, [1024, 1024, 1024, 10], like="numpy")

    assert same(found[0], WHOLE)
    assert same(found[2], WHOLE[1])
    assert found[1] is found[3] is None
    assert store.batch_get_tensor_into([key], [0], [1024]) == [INVALID]


def test_tensor_objects_are_stored_from_memory(store: Store, key: str, room: Room) -> None:
    address, size = room.hold(GOLDENS["shape 4x6"])

    assert store.put_tensor_from(key, address, size) == 0
    assert store.batch_put_tensor_from([f"{key}0", f"{key}1"], [address] * 2, [size] * 2) == [0, 0]
    assert store.get(key) == store.get(f"{key}0") == store.get(f"{key}1") == room.bytes(400)

    address, size = room.hold(GOLDENS["shape none"])
    assert store.upsert_tensor_from(key, address, size) == 0
    assert store.batch_upsert_tensor_from([f"{key}0"], [address], [size]) == [0]
    assert store.get(key) == store.get(f"{key}0") == GOLDENS["shape none"]


@pytest.mark.parametrize("address_is", ["null", "wild"])
def test_memory_that_is_not_there_is_refused(store: Store, key: str, address_is: str) -> None:
    address = 0 if address_is == "null" else (1 << 46) + 4096

    assert store.put_tensor_from(key, address, 400) == INVALID
    assert store.upsert_tensor_from(key, address, 400) == INVALID
    assert store.batch_put_tensor_from([key], [address], [400]) == [INVALID]
    assert store.put_tensor_with_tp_from(key, address, 400, 0, 2, 0) == INVALID
    assert store.batch_put_tensor_with_tp_from([key], [address], [400], 0, 2, 0) == [INVALID]
    assert store.put_tensor_with_parallelism_from(key, address, 400) == INVALID
    whole_room = part(slices(0, 2, 0))
    assert store.put_tensor_with_parallelism_from(key, address, 400, whole_room) == INVALID


def test_memory_that_ends_before_the_tensor_is_refused(store: Store, key: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    pages = libc.mmap(None, 2 * PAGESIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0)
    assert libc.munmap(pages + PAGESIZE, PAGESIZE) == 0
    golden = GOLDENS["shape 4x6"]
    address = pages + PAGESIZE - 320
    ctypes.memmove(address, golden[:320], 320)

    codes = [
        store.put_tensor_from(key, address, 400),
        store.put_tensor_with_tp_from(key, address, 400, 0, 2, 0),
        store.put_tensor_with_tp_from(key, address, 400, 0, 2, 1),
        store.put_tensor_with_parallelism_from(
            key, address, 400, writer_partition=Partition(1, 2, 1)
        ),
    ]

    assert all(code < 0 for code in codes)
    assert libc.munmap(pages, PAGESIZE) == 0


def test_memory_without_a_tensor_is_refused(store: Store, key: str, room: Room) -> None:
    address, size = room.hold(GOLDENS["shape 4x6"])

    for wrong in (0, 10, HEADER, size - 1, size + 1):
        assert store.put_tensor_from(key, address, wrong) == INVALID
        assert store.upsert_tensor_from(key, address, wrong) == INVALID
        assert store.put_tensor_with_tp_from(key, address, wrong, 0, 2, 0) == INVALID
        assert store.put_tensor_with_parallelism_from(key, address, wrong) == INVALID
    assert store.batch_put_tensor_from([key, key], [address] * 2, [size, 10]) == [INVALID] * 2
    assert store.is_exist(key) == 0


def test_shards_of_ranks_are_those_of_the_reference(store: Store, key: str, room: Room) -> None:
    assert store.put_tensor_with_tp(f"{key}0", WHOLE, 0, 3, 1) == 0
    assert store.batch_put_tensor_with_tp([f"{key}1"], [WHOLE], 0, 3, 1) == [0]
    address, size = room.hold(GOLDENS["shape 4x6"])
    assert store.put_tensor_with_tp_from(f"{key}2", address, size, 0, 3, 1) == 0
    assert store.batch_put_tensor_with_tp_from([f"{key}3"], [address], [size], 0, 3, 1) == [0]

    for place in range(4):
        for rank in range(3):
            assert store.get(f"{key}{place}_tp_{rank}") == GOLDENS[f"rank_tp_{rank}"]
        assert store.is_exist(f"{key}{place}") == 0


def test_shards_of_ranks_are_read(store: Store, key: str, room: Room) -> None:
    store.put_tensor_with_tp(key, WHOLE, 0, 2, 1)

    for rank in range(2):
        expected = WHOLE[:, 3 * rank : 3 * rank + 3]
        assert same(store.get_tensor_with_tp(key, rank, 2, 1, like="numpy"), expected)
        found = store.batch_get_tensor_with_tp([key, "missing"], rank, 2, like="numpy")
        assert same(found[0], expected)
        assert found[1] is None
        into = store.get_tensor_with_tp_into(key, room.address, room.size, rank, 2, 1, like="numpy")
        assert same(into, expected)
        (into,) = store.batch_get_tensor_with_tp_into(
            [key], [room.address], [room.size], rank, 2, like="numpy"
        )
        assert same(into, expected)
    assert store.get_tensor_with_tp(key, 2, 2) is None
    assert store.get_tensor_with_tp(key, -1, 2) is None


def test_one_rank_is_no_shard(store: Store, key: str) -> None:
    for size in (1, 0, -1):
        assert store.put_tensor_with_tp(f"{key}{size}", WHOLE, 0, size, 9) == 0
        assert store.get(f"{key}{size}") == GOLDENS["shape 4x6"]
        assert same(store.get_tensor_with_tp(f"{key}{size}", 5, size, like="numpy"), WHOLE)


def test_long_rows_are_cut_where_they_lie(store: Store, key: str, room: Room) -> None:
    whole = numpy.arange(4 * 3000, dtype="f4").reshape(2, 2, 3000)
    size = HEADER + whole.nbytes
    assert store.put_tensor(key, whole) == 0
    assert store.get_into(key, room.address, room.size) == size

    assert store.put_tensor_with_tp(key, whole, 0, 2, 2) == 0
    assert store.put_tensor_with_tp_from(f"{key}from", room.address, size, 0, 2, 2) == 0
    for rank in range(2):
        writer = Partition(rank, 2, 2)
        code = store.put_tensor_with_parallelism(f"{key}writers", whole, writer_partition=writer)
        assert code == 0

    for name in (key, f"{key}from"):
        for rank in range(2):
            found = store.get_tensor_with_tp(name, rank, 2, like="numpy")
            assert same(found, cut(whole, 2, rank, 2))
    assert same(store.get_tensor_with_parallelism(f"{key}writers", full(), like="numpy"), whole)


@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (2, 0, 6)])
def test_tensors_of_nothing_are_cut_and_put_together(
    store: Store, key: str, shape: tuple[int, ...], room: Room
) -> None:
    whole = numpy.zeros(shape, dtype="f4")
    dim = len(shape) - 1
    for rank in range(2):
        given = cut(whole, dim, rank, 2)
        assert store.put_tensor_with_parallelism(key, given, part(slices(rank, 2, dim))) == 0
        writer = Partition(rank, 2, dim)
        assert store.upsert_tensor_with_parallelism(key, whole, writer_partition=writer) == 0
    assert store.put_tensor_with_tp(f"{key}ranks", whole, 0, 2, dim) == 0

    assert same(store.get_tensor_with_tp(f"{key}ranks", 1, 2, like="numpy"), given)
    for target, expected in (
        (full(slices(0, 2, dim)), whole),
        (full(slices(0, 1, dim)), whole),
        (shard(slices(1, 2, dim)), given),
        (full(), whole),
    ):
        found = store.get_tensor_with_parallelism(key, target, like="numpy")
        assert same(found, expected)
        into = store.get_tensor_with_parallelism_into(
            key, room.address, room.size, target, like="numpy"
        )
        assert same(into, expected)


@pytest.mark.parametrize(("size", "split_dim"), [(3, 0), (2, 2), (2, -1), (8, 0), (1 << 30, 0)])
def test_tensors_are_not_cut_unequally(
    store: Store, key: str, room: Room, size: int, split_dim: int
) -> None:
    address, length = room.hold(GOLDENS["shape 4x6"])

    assert store.put_tensor_with_tp(key, WHOLE, 0, size, split_dim) == INVALID
    assert store.batch_put_tensor_with_tp([key], [WHOLE], 0, size, split_dim) == [INVALID]
    assert store.put_tensor_with_tp_from(key, address, length, 0, size, split_dim) == INVALID
    request = part(slices(0, size, split_dim))
    assert store.put_tensor_with_parallelism_from(key, address, length, request) == INVALID
    writer = Partition(0, size, split_dim)
    assert store.put_tensor_with_parallelism(key, WHOLE, writer_partition=writer) == INVALID
    assert store.is_exist(f"{key}_tp_0") == 0


def test_one_bad_tensor_does_not_hold_up_the_others(store: Store, key: str) -> None:
    keys = [f"{key}{place}" for place in range(3)]

    codes = store.batch_put_tensor_with_tp(keys, [WHOLE, None, WHOLE[:3]], 0, 2, 0)

    assert codes == [0, INVALID, INVALID]
    assert store.is_exist(f"{keys[0]}_tp_1") == 1
    assert store.is_exist(f"{keys[2]}_tp_0") == 0


def test_parts_are_those_of_the_reference(store: Store, key: str) -> None:
    for rank in range(2):
        given = WHOLE[2 * rank : 2 * rank + 2]
        assert store.put_tensor_with_parallelism(key, given, part(slices(rank, 2, 0))) == 0
    every = part(
        ParallelAxis("pp", 0, 1, stage_id=0),
        ParallelAxis("ep", 0, 2, expert_id=1),
        slices(1, 2, 0),
        ParallelAxis("dp", 1, 2),
    )
    assert store.put_tensor_with_parallelism(key, WHOLE, every) == 0
    expert = part(ParallelAxis("ep", 1, 4, expert_id=3))
    assert store.put_tensor_with_parallelism(key, WHOLE, expert) == 0
    writer = Partition(1, 2, 1)
    assert store.put_tensor_with_parallelism(key, WHOLE, writer_partition=writer) == 0

    for name in GOLDENS:
        for prefix in ("part_", "axes__dp", "expert", "writer"):
            if name.startswith(prefix):
                suffix = name[name.index("_") :]
                assert store.get(f"{key}{suffix}") == GOLDENS[name], suffix


def test_parts_that_the_reference_wrote_are_put_together(store: Store, key: str) -> None:
    for name in ("part_tp_0", "part_tp_1", "part__parallelism_manifest"):
        store.put(key + name.removeprefix("part"), GOLDENS[name])
    for name in ("rank_tp_0", "rank_tp_1", "rank_tp_2"):
        store.put(f"{key}other" + name.removeprefix("rank"), GOLDENS[name])

    for target in (full(slices(0, 2, 0)), full(slices(3, 4, 0)), shard(slices(0, 1, 0))):
        assert same(store.get_tensor_with_parallelism(key, target, like="numpy"), WHOLE)
    found = store.get_tensor_with_parallelism(f"{key}other", full(slices(0, 2, 1)), like="numpy")
    assert same(found, WHOLE)


def cut(whole: Any, dim: int, rank: int, size: int) -> Any:
    return numpy.split(whole, size, axis=dim)[rank]


@pytest.mark.parametrize("verb", ["put", "upsert"])
@pytest.mark.parametrize("replicas", [False, True])
def test_parts_are_read_in_any_other_parts(
    store: Store, key: str, verb: str, replicas: bool, room: Room
) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    others = [ParallelAxis("dp", 0, 2)] if replicas else []
    write = getattr(store, f"{verb}_tensor_with_parallelism")
    for place in range(8):
        name = f"{key}{place}"
        shape = tuple(chance.choice([1, 2, 3]) for _ in range(chance.randrange(1, 4)))
        dim = chance.randrange(len(shape))
        shape = (*shape[:dim], 12, *shape[dim + 1 :])
        whole = numpy.arange(numpy.prod(shape), dtype=chance.choice(["u1", "f2", "f8"]))
        whole = whole.reshape(shape)
        stored = chance.choice([1, 2, 3, 4, 6, 12])
        for rank in range(stored):
            given = whole if replicas else cut(whole, dim, rank, stored)
            assert write(name, given, part(*others, slices(rank, stored, dim))) == 0
        for size in (1, 2, 3, 4, 6, 12):
            rank = chance.randrange(size)
            wanted = [*others, slices(rank, size, dim)]
            chance.shuffle(wanted)
            for target, expected in (
                (shard(*wanted), cut(whole, dim, rank, size)),
                (full(*wanted), whole),
            ):
                found = store.get_tensor_with_parallelism(name, target, like="numpy")
                assert same(found, expected)
                into = store.get_tensor_with_parallelism_into(
                    name, room.address, room.size, target, like="numpy"
                )
                assert same(into, expected)
        assert store.get_tensor_with_parallelism(name, full(*others, slices(0, 5, dim))) is None
        assert store.get_tensor_with_parallelism(name, shard(*others, slices(0, 5, dim))) is None


def test_a_part_that_is_read_into_memory_is_an_object(store: Store, key: str, room: Room) -> None:
    for rank in range(2):
        given = WHOLE[2 * rank : 2 * rank + 2]
        store.put_tensor_with_parallelism(key, given, part(slices(rank, 2, 0)))

    target = full(slices(0, 2, 0))
    store.get_tensor_with_parallelism_into(key, room.address, room.size, target)
    assert room.bytes(400) == GOLDENS["shape 4x6"]

    target = shard(slices(3, 4, 0))
    store.get_tensor_with_parallelism_into(key, room.address, room.size, target)
    assert store.put_tensor_from(f"{key}again", room.address, HEADER + 24) == 0
    found = store.get_tensor(f"{key}again", like="numpy")
    assert same(found, WHOLE[3:])
    for size in (0, HEADER, HEADER + 23):
        found = store.get_tensor_with_parallelism_into(key, room.address, size, target)
        assert found is None


def test_a_missing_part_is_missed_only_by_those_who_need_it(store: Store, key: str) -> None:
    for rank in (0, 1, 3):
        store.put_tensor_with_parallelism(key, WHOLE[rank : rank + 1], part(slices(rank, 4, 0)))

    found = store.get_tensor_with_parallelism(key, shard(slices(0, 2, 0)), like="numpy")

    assert same(found, WHOLE[:2])
    assert store.get_tensor_with_parallelism(key, shard(slices(1, 2, 0))) is None
    assert store.get_tensor_with_parallelism(key, full(slices(0, 4, 0))) is None


def test_parts_of_another_cut_are_not_given_out(store: Store, key: str) -> None:
    store.put_tensor_with_tp(key, WHOLE, 0, 2, 0)

    assert store.get_tensor_with_parallelism(key, shard(slices(1, 2, 1))) is None
    assert store.get_tensor_with_parallelism(key, shard(slices(1, 3, 0))) is None
    assert store.get_tensor_with_parallelism(key, shard(ParallelAxis("dp", 0, 2))) is None


def test_whole_objects_under_the_name_of_a_rank_are_its_part(store: Store, key: str) -> None:
    store.put_tensor(f"{key}_tp_1", WHOLE)

    found = store.get_tensor_with_parallelism(key, shard(slices(1, 2, 0)), like="numpy")

    assert same(found, WHOLE)


@pytest.mark.parametrize("verb", ["put", "upsert"])
def test_writers_share_a_tensor(store: Store, key: str, verb: str, room: Room) -> None:
    write = getattr(store, f"{verb}_tensor_with_parallelism")
    write_from = getattr(store, f"{verb}_tensor_with_parallelism_from")
    address, size = room.hold(GOLDENS["shape 4x6"])
    for rank in range(3):
        assert write(key, WHOLE, writer_partition=Partition(rank, 3, 1)) == 0
        writer = Partition(rank, 3, 1)
        assert write_from(f"{key}from", address, size, writer_partition=writer) == 0

    for name in (key, f"{key}from"):
        assert same(store.get_tensor_with_parallelism(name, full(), like="numpy"), WHOLE)
        into = store.get_tensor_with_parallelism_into(
            name, room.address + 4096, 4096, full(), like="numpy"
        )
        assert same(into, WHOLE)
        target = shard(slices(2, 3, 1))
        found = store.get_tensor_with_parallelism(name, target, like="numpy")
        assert same(found, WHOLE[:, 4:])
        assert store.get_tensor_with_parallelism(name) is None


def test_a_target_without_parts_is_the_object_itself(store: Store, key: str, room: Room) -> None:
    store.put_tensor(key, WHOLE)

    for target in (None, ReadTarget(), full()):
        assert same(store.get_tensor_with_parallelism(key, target, like="numpy"), WHOLE)
        into = store.get_tensor_with_parallelism_into(
            key, room.address, room.size, target, like="numpy"
        )
        assert same(into, WHOLE)
    assert store.get_tensor_with_parallelism(key, ReadTarget("shard")) is None
    assert store.get_tensor_with_parallelism(key, ReadTarget("as_stored", part())) is None
    assert store.get_tensor_with_parallelism(key, "full") is None


def test_objects_in_memory_are_cut_for_all_ranks(store: Store, key: str, room: Room) -> None:
    address, size = room.hold(GOLDENS["shape 4x6"])
    dp = ParallelAxis("dp", 0, 3)

    assert store.put_tensor_with_parallelism_from(key, address, size, part(slices(0, 2, 0))) == 0
    request = part(dp, slices(0, 2, 0))
    assert store.upsert_tensor_with_parallelism_from(key, address, size, request) == 0
    assert store.put_tensor_with_parallelism_from(key, address, size, part(dp)) == 0
    assert store.put_tensor_with_parallelism_from(key, address, size) == 0

    assert store.get(key) == GOLDENS["shape 4x6"]
    assert store.get(f"{key}_tp_1") == GOLDENS["part_tp_1"]
    found = store.get_tensor_with_parallelism(key, full(dp, slices(0, 2, 0)), like="numpy")
    assert same(found, WHOLE)
    assert same(store.get_tensor_with_parallelism(key, shard(dp), like="numpy"), WHOLE)

    address, size = room.hold(GOLDENS["part_tp_1"])
    request = part(slices(0, 2, 0))
    assert store.put_tensor_with_parallelism_from(f"{key}part", address, size, request) == INVALID


def test_batches_of_parts(store: Store, key: str, room: Room) -> None:
    keys = [f"{key}{place}" for place in range(4)]
    parts = [part(slices(0, 1, 0)), part(ParallelAxis("dp", 0, 2)), None, part(slices(0, 2, 9))]
    targets = [full(slices(0, 1, 0)), shard(ParallelAxis("dp", 0, 2)), None, full()]

    assert store.batch_put_tensor_with_parallelism(keys, [WHOLE] * 4, parts) == [0, 0, 0, INVALID]
    found = store.batch_get_tensor_with_parallelism(keys, targets, like="numpy")
    assert all(same(tensor, WHOLE) for tensor in found[:3])
    assert found[3] is None
    places = [room.address + 1024 * place for place in range(4)]
    found = store.batch_get_tensor_with_parallelism_into(
        keys, places, [1024] * 4, targets, like="numpy"
    )
    assert all(same(tensor, WHOLE) for tensor in found[:3])
    assert found[3] is None

    address, size = room.hold(GOLDENS["shape 4x6"])
    again = [f"{key}again{place}" for place in range(2)]
    writers = [Partition(0, 1, 0), None]
    codes = store.batch_upsert_tensor_with_parallelism_from(
        again, [address] * 2, [size] * 2, writer_partitions=writers
    )
    assert codes == [0, 0]
    found = store.batch_get_tensor_with_parallelism(again, [full(), full()], like="numpy")
    assert all(same(tensor, WHOLE) for tensor in found)
    assert store.batch_upsert_tensor_with_parallelism(again[1:], [WHOLE[0]]) == [0]
    assert same(store.get_tensor(again[1], like="numpy"), WHOLE[0])
    codes = store.batch_put_tensor_with_parallelism_from(again, [address] * 2, [size, 9])
    assert codes == [INVALID] * 2


def test_hostile_objects_are_no_tensors(store: Store, key: str, room: Room) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = ["part_tp_0", "part_tp_1", "part__parallelism_manifest"]
    read = 0
    for place in range(150):
        name = f"{key}{place}"
        hurt = chance.choice(names)
        for golden in names:
            data = bytearray(GOLDENS[golden])
            if golden == hurt:
                at = 4 * chance.randrange(min(len(data), HEADER) // 4)
                value = chance.choice([0, 1, 2, 1 << 30, (1 << 32) - 1, chance.getrandbits(32)])
                data[at : at + 4] = value.to_bytes(4, "little")
            assert store.put(name + golden.removeprefix("part"), bytes(data)) == 0
        for target in (full(slices(0, 2, 0)), shard(slices(1, 2, 0)), shard(slices(3, 4, 0))):
            for tensor in (
                store.get_tensor_with_parallelism(name, target, like="numpy"),
                store.get_tensor_with_parallelism_into(
                    name, room.address, room.size, target, like="numpy"
                ),
                store.get_tensor(f"{name}_tp_0", like="numpy"),
            ):
                read += tensor is not None
                assert tensor is None or tensor.nbytes <= WHOLE.nbytes
    assert read


def test_a_manifest_of_many_parts_costs_no_more_than_those_that_exist(
    store: Store, key: str
) -> None:
    data = bytearray(GOLDENS["writer__writer_manifest"])
    data[20:24] = (1 << 16).to_bytes(4, "little")
    data[40:48] = (1 << 40).to_bytes(8, "little")
    store.put(f"{key}__writer_manifest", bytes(data))

    assert store.get_tensor_with_parallelism(key, full()) is None


def test_tensors_go_to_files_and_back(store: Store, key: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    store.put_tensor("shape 4x6", WHOLE)

    assert store.save_tensor_to_safetensor("shape 4x6", file) == 0
    assert file.read_bytes() == GOLDENS["safetensors shape 4x6"]

    found = store.load_tensor_from_safetensor(key, str(file), like="numpy")
    assert same(found, WHOLE)
    assert same(store.get_tensor(key, like="numpy"), WHOLE)
    found = store.load_tensor_from_safetensor(file_name=str(file), like="numpy")
    assert same(found, WHOLE)
    assert store.get(str(file)) == GOLDENS["shape 4x6"]


def test_objects_that_are_no_tensors_do_not_go_to_files(
    store: Store, key: str, tmp_path: Path
) -> None:
    store.put(key, b"no tensor")

    assert store.save_tensor_to_safetensor(key, tmp_path / "file") == NO_FILE
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_are_refused(store: Store, key: str, tmp_path: Path) -> None:
    store.put_tensor(key, WHOLE)
    (tmp_path / "bad").write_bytes(b"\xff" * 100)

    assert store.save_tensor_to_safetensor(key, tmp_path / "no" / "file") == INVALID
    assert store.save_tensor_to_safetensor(key, "\0") == INVALID
    assert store.load_tensor_from_safetensor(key, tmp_path / "bad") is None
    assert store.load_tensor_from_safetensor(key, "\0") is None


def test_a_key_names_a_file_below_the_working_directory_only(
    store: Store, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "below").mkdir(parents=True)
    (work / "link").symlink_to(tmp_path)
    monkeypatch.chdir(work)
    # Keys are shared with other tests; these are not absolute, and have no slash.
    name = key.replace("/", "-")
    for inside in (name, f"below/{name}", f"./below/{name}.."):
        store.put_tensor(inside, WHOLE)
        assert store.save_tensor_to_safetensor(inside) == 0
        assert (work / inside).stat().st_size
    for outside in (
        f"../{name}",
        f"below/../../{name}",
        f"{tmp_path}/{name}",
        f"link/{name}",
        "..",
    ):
        store.put_tensor(outside, WHOLE)
        assert store.save_tensor_to_safetensor(outside) == INVALID
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work"]
    # A caller who names the file knows where it goes.
    assert store.save_tensor_to_safetensor(f"../{name}", f"../{name[:20]}") == 0


def test_targets_that_are_not_in_a_device_are_refused(store: Store, key: str) -> None:
    torch = pytest.importorskip("torch")
    store.put_tensor(key, WHOLE)

    for target in (torch.zeros(4, 6), WHOLE, None):
        assert store.get_tensor_into_cuda(key, target) == INVALID
    assert store.batch_get_tensor_into_cuda([key, key], [torch.zeros(4, 6), None]) == [INVALID] * 2


def test_tensors_are_read_into_a_device(store: Store, key: str) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    store.put_tensor(key, torch.from_numpy(WHOLE).cuda())

    target = torch.zeros(4, 6, device="cuda")
    assert store.get_tensor_into_cuda(key, target) == 0
    assert same(target.cpu(), WHOLE)
    assert store.get_tensor_into_cuda(f"{key}missing", target) == MISSING
    assert store.get_tensor_into_cuda(key, target[0]) == INVALID


def test_threads_share_a_store(store: Store, key: str) -> None:
    wrong: list[object] = []

    def work(worker: int) -> None:
        for turn in range(20):
            mine = WHOLE + worker
            name = f"{key}{worker}/{turn}"
            codes = store.batch_put_tensor([name, f"{name}/row"], [mine, mine[1]])
            found = store.batch_get_tensor([name, f"{name}/row"], like="numpy")
            if codes != [0, 0] or not (same(found[0], mine) and same(found[1], mine[1])):
                wrong.append((worker, turn, codes, found))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)
