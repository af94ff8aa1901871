"""`MooncakeDistributedStore`: values put and got, and the numbers that calls answer with."""

from __future__ import annotations

import array
import ctypes
import mmap
import threading
from collections.abc import Callable
from typing import Any

import pytest
from _cluster import Cluster
from _fixtures import NewStore
from mc_store.mooncake.store import (
    MooncakeDistributedStore,
    ReplicateConfig,
    SoftPinAction,
    StoreEventInfo,
)

INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704
OBJECT_HAS_LEASE = -706


def test_a_value_goes_in_and_out(store: MooncakeDistributedStore, key: str) -> None:
    assert store.is_exist(key) == 0
    assert store.get(key) == b""
    assert store.get_size(key) == OBJECT_NOT_FOUND
    assert store.put(key, b"keys and values") == 0
    assert store.is_exist(key) == 1
    assert store.get(key) == b"keys and values"
    assert store.get_size(key) == 15
    assert store.remove(key) == OBJECT_HAS_LEASE
    assert store.remove(key, force=True) == 0
    assert store.remove(key, True) == OBJECT_NOT_FOUND


def test_a_put_keeps_what_is_there_and_an_upsert_replaces_it(
    store: MooncakeDistributedStore, key: str
) -> None:
    assert store.put(key, b"one") == 0
    assert store.put(key, b"two") == 0
    assert store.get(key) == b"one"
    assert store.upsert(key, b"three") == 0
    assert store.get(key) == b"three"
    assert store.upsert_parts(key, b"fo", b"ur") == 0
    assert store.get(key) == b"four"
    assert store.upsert_batch([key], [b"five"]) == 0
    assert store.get(key) == b"five"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (b"bytes", b"bytes"),
        (bytearray(b"bytearray"), b"bytearray"),
        (memoryview(b"a slice of it")[2:7], b"slice"),
        (memoryview(b"scattered")[::2], b"satrd"),
        (array.array("i", [1, 2, 3]), array.array("i", [1, 2, 3]).tobytes()),
        (memoryview(b"abcdef").cast("B", (2, 3)), b"abcdef"),
        (bytes(3 << 20), bytes(3 << 20)),
        ((ctypes.c_double * 2)(1.5, 2.5), bytes((ctypes.c_double * 2)(1.5, 2.5))),
    ],
    ids=["bytes", "bytearray", "slice", "scattered", "ints", "2d", "large", "ctypes"],
)
def test_whatever_has_bytes_can_be_put(
    store: MooncakeDistributedStore, key: str, value: bytes, stored: bytes
) -> None:
    assert store.put(key, value) == 0
    assert store.get(key) == stored


@pytest.mark.parametrize("value", ["text", 5, None, [b"x"]])
def test_whatever_has_none_is_refused(
    store: MooncakeDistributedStore, key: str, value: bytes
) -> None:
    with pytest.raises(TypeError):
        store.put(key, value)
    with pytest.raises(TypeError):
        store.put_parts(key, b"x", value)
    with pytest.raises(TypeError):
        store.put_batch([key], [value])
    assert store.is_exist(key) == 0


def test_what_is_put_belongs_to_the_caller_again_afterwards(
    store: MooncakeDistributedStore, key: str
) -> None:
    value = bytearray(b"x" * 100_000)
    assert store.put(key, value) == 0
    value.extend(b"a buffer that is exported cannot grow")
    mapped = mmap.mmap(-1, 8192)
    mapped[:5] = b"hello"
    assert store.put_parts(f"{key}mapped", mapped) == 0
    mapped.close()
    assert store.get(f"{key}mapped")[:6] == b"hello\0"


def test_parts_follow_each_other(store: MooncakeDistributedStore, key: str) -> None:
    assert (
        store.put_parts(key, b"a", bytearray(b"b"), memoryview(b""), config=ReplicateConfig()) == 0
    )
    assert store.get(key) == b"ab"
    for number, parts in enumerate([(), (b"",), (b"", bytearray())]):
        assert store.put_parts(f"{key}{number}", *parts) == 0
        assert store.is_exist(f"{key}{number}") == 0, "no bytes are no value"


def test_empty_values_are_refused(store: MooncakeDistributedStore, key: str) -> None:
    assert store.put(key, b"") == INVALID_PARAMS
    assert store.upsert(key, b"") == INVALID_PARAMS
    assert store.is_exist(key) == 0


@pytest.mark.parametrize("empty", [b"", bytearray(), memoryview(b""), array.array("i")])
@pytest.mark.parametrize("method", ["put_batch", "upsert_batch"])
def test_of_a_batch_with_an_empty_value_nothing_is_stored(
    store: MooncakeDistributedStore, key: str, method: str, empty: Any
) -> None:
    batch = getattr(store, method)
    keys = [f"{key}{number}" for number in range(3)]
    assert batch(keys, [b"x", empty, b"y"]) == INVALID_PARAMS
    assert batch(tuple(keys), (empty, b"x", b"y")) == INVALID_PARAMS
    assert store.batch_is_exist(keys) == [0, 0, 0]
    assert batch(keys[:2], [b"x", array.array("i", [1])]) == 0
    assert store.batch_is_exist(keys) == [1, 1, 0]


@pytest.mark.parametrize("method", ["put_from", "upsert_from"])
def test_no_bytes_of_memory_are_stored_without_an_error(
    store: MooncakeDistributedStore, key: str, method: str
) -> None:
    put = getattr(store, method)
    memory = ctypes.create_string_buffer(b"abc")
    assert put(key, ctypes.addressof(memory), 0) == 0
    assert put(key, 0, size=0) == 0
    assert store.is_exist(key) == 0
    assert put(key, buffer_ptr=ctypes.addressof(memory), size=3, config=ReplicateConfig()) == 0
    assert store.get(key) == b"abc"
    assert getattr(MooncakeDistributedStore(), method)(key, 0, 0) == INVALID_PARAMS


def test_a_probe_finds_what_is_there_and_leases_nothing(
    new_cluster: Callable[..., Cluster], new_store: NewStore
) -> None:
    cluster = new_cluster()
    store = new_store(cluster)
    keys = ["a", "b", "c"]
    assert store.put_batch(keys[:2], [b"x", b"y"]) == 0
    for _ in range(3):
        assert store.batch_probe_key(keys) == [1, 1, 0]
        assert store.probe_key("a") == 1
    assert store.batch_probe_key(["c", "a" * 2000]) == [0, 0]
    assert store.batch_probe_key([]) == []
    # A lease would protect it from this.
    assert store.remove("a") == 0
    assert store.batch_probe_key(keys) == [0, 1, 0]
    assert MooncakeDistributedStore().batch_probe_key(keys) == [INVALID_PARAMS] * 3
    cluster.master.kill()
    assert all(code < 0 for code in store.batch_probe_key(keys))


def test_a_value_is_taken_once(store: MooncakeDistributedStore, key: str) -> None:
    keys = [f"{key}{n}" for n in range(3)]
    assert store.put_batch(keys, [b"0", b"1", b"2"]) == 0
    assert store.get(keys[0]) == b"0"
    assert store.get_and_remove(keys[0]) == b"0"
    assert store.get_and_remove(keys[0]) == b""
    assert store.batch_get_and_remove([keys[1], keys[0], keys[2], keys[1]]) == [
        b"1",
        b"",
        b"2",
        b"",
    ]
    assert store.batch_is_exist(keys) == [0, 0, 0]
    assert store.batch_get_and_remove([]) == []
    assert store.get_and_remove("") == b""
    # The key is free again.
    assert store.put(keys[0], b"new") == 0
    assert store.get_and_remove(keys[0]) == b"new"


def test_a_batch_has_one_answer_for_each_key(store: MooncakeDistributedStore, key: str) -> None:
    keys = [f"{key}{n}" for n in range(5)]
    assert store.put_batch(keys[:3], [b"0", b"11", b"222"]) == 0
    assert store.get_batch(keys) == [b"0", b"11", b"222", b"", b""]
    exist = store.batch_is_exist(keys)
    assert exist == [1, 1, 1, 0, 0]
    assert type(exist) is list
    assert all(type(one) is int for one in exist)
    assert store.batch_is_exist(tuple(keys)) == exist
    handles = store.batch_get_buffer(keys)
    assert [None if handle is None else bytes(handle) for handle in handles] == [
        b"0",
        b"11",
        b"222",
        None,
        None,
    ]
    removed = store.batch_remove(keys, force=True)
    assert removed == [0, 0, 0, OBJECT_NOT_FOUND, OBJECT_NOT_FOUND]
    assert store.batch_is_exist([]) == []
    assert store.get_batch([]) == []
    assert store.put_batch([], []) == 0


def test_an_empty_pattern_matches_every_key(
    new_cluster: Callable[..., Cluster], new_store: NewStore
) -> None:
    store = new_store(new_cluster())
    assert store.put_batch(["a", "\n", "ü"], [b"x"] * 3) == 0
    assert store.remove_by_regex("") == 3
    assert store.put("a", b"x") == 0
    assert store.removeByRegex("") == 1
    assert store.remove_by_regex("", force=True) == 0
    with pytest.raises(TypeError):
        store.remove_by_regex(None)  # type: ignore[arg-type]


def test_lists_of_different_lengths_are_refused(store: MooncakeDistributedStore, key: str) -> None:
    assert store.put_batch([key], []) == INVALID_PARAMS
    assert store.batch_put_from([key, key], [0], [1, 1]) == [INVALID_PARAMS] * 2
    assert store.batch_get_into([key], [], []) == [INVALID_PARAMS]
    assert store.batch_put_from_multi_buffers([key], [[1]], []) == [INVALID_PARAMS]
    assert store.batch_put_from_multi_buffers([key], [[1, 2]], [[1]]) == [INVALID_PARAMS]
    assert store.batch_get_into_multi_buffers([key], [[1, 2]], [[1]]) == [INVALID_PARAMS]
    assert store.get_into_ranges([1], [[key, key]], [[[0]]], [[[0]]], [[[1]]]) == [
        [[INVALID_PARAMS], [INVALID_PARAMS]]
    ]


def test_keys_that_are_none_have_no_value(store: MooncakeDistributedStore, key: str) -> None:
    too_long = "x" * 5000
    for bad in ["", too_long]:
        assert store.put(bad, b"x") == INVALID_PARAMS
        assert store.get(bad) == b""
        assert store.is_exist(bad) == 0
        assert store.get_size(bad) == OBJECT_NOT_FOUND
        assert store.remove(bad) == OBJECT_NOT_FOUND
    assert store.put(key, b"x") == 0
    assert store.batch_is_exist(["", key, too_long]) == [0, 1, 0]
    assert store.batch_remove(["", key, too_long], True) == [OBJECT_NOT_FOUND, 0, OBJECT_NOT_FOUND]
    strange = f"{key}/@:\0é漢"
    assert store.put(strange, b"strange") == 0
    assert store.get(strange) == b"strange"
    with pytest.raises(UnicodeEncodeError):
        store.put("\udc80", b"x")
    with pytest.raises(TypeError):
        store.batch_is_exist("a text is no list")


def test_buffers_are_views_of_the_store(store: MooncakeDistributedStore, key: str) -> None:
    assert store.put(key, b"0123456789") == 0
    handle = store.get_buffer(key)
    assert handle is not None
    view = memoryview(handle)
    assert view.readonly
    assert view.format == "B"
    assert view.nbytes == 10
    assert handle.size() == len(handle) == 10
    assert ctypes.string_at(handle.ptr(), handle.size()) == b"0123456789"
    del handle
    store.close()
    assert bytes(view[3:6]) == b"345", "views keep the memory"
    assert store.get_buffer(key) is None


def test_removals_are_counted(new_cluster: Callable[..., Cluster], new_store: NewStore) -> None:
    store = new_store(new_cluster(nodes=1))
    for n in range(20):
        assert store.put(f"layer-{n:02}", b"x") == 0
    assert store.is_exist("layer-00") == 1
    assert store.remove_by_regex("^layer-0") == 9, "one was looked at"
    assert store.remove_by_regex("^layer-0", force=True) == 1
    assert store.remove_by_regex("(") == INVALID_PARAMS
    assert store.remove_by_regex("(?=layer)") == INVALID_PARAMS
    assert store.is_exist("layer-19") == 1
    assert store.remove_all() == 9
    assert store.remove_all(True) == 1
    assert store.remove_all() == 0


def test_a_full_pool_is_said_with_its_number(
    new_cluster: Callable[..., Cluster], new_store: NewStore
) -> None:
    store = new_store(new_cluster(nodes=1))
    pinned = ReplicateConfig(with_hard_pin=True)
    codes = [store.put(f"{n}", bytes(8 << 20), pinned) for n in range(12)]
    assert codes[0] == 0, codes
    assert codes[-1] == -200, codes


def test_configs_are_carried_out(
    cluster: Cluster, new_store: NewStore, store: MooncakeDistributedStore, key: str
) -> None:
    node = new_store(cluster, segment=16 << 20)
    config = ReplicateConfig()
    config.preferred_segment = node.get_hostname()
    assert store.put(key, b"x", config) == 0
    [replica] = store.get_replica_desc(key)
    assert replica.is_memory_replica()
    assert not replica.is_disk_replica()
    place = replica.get_memory_descriptor().buffer_descriptor
    assert (place.size, place.transport_endpoint) == (1, node.get_hostname())

    twice = ReplicateConfig(replica_num=2)
    assert store.put(f"{key}twice", b"x", twice) == 0
    assert len(store.get_replica_desc(f"{key}twice")) == 2
    assert list(store.batch_get_replica_desc([key, f"{key}nowhere"])) == [key]
    assert store.get_replica_desc(f"{key}nowhere") == []

    grouped = ReplicateConfig(group_ids=["a", "b", "a", ""])
    keys = [f"{key}{n}" for n in range(4)]
    assert store.put_batch(keys, [b"0", b"1", b"2", b"3"], grouped) == 0
    assert store.get_batch(keys) == [b"0", b"1", b"2", b"3"]
    assert store.put_batch(keys[:3], [b"0", b"1", b"2"], grouped) == INVALID_PARAMS

    for refused in [
        ReplicateConfig(prefer_alloc_in_same_node=True),
        ReplicateConfig(nof_replica_num=1),
        ReplicateConfig(dfs_replica_num=2),
        ReplicateConfig(replica_num=0),
    ]:
        assert store.put(f"{key}refused", b"x", refused) == INVALID_PARAMS
    # Mooncake's DFS_SERVICE_UNAVAILABLE: this cluster has no files.
    assert store.put(f"{key}refused", b"x", ReplicateConfig(dfs_replica_num=1)) == -1601
    assert store.is_exist(f"{key}refused") == 0
    memory = ctypes.create_string_buffer(b"x", 8)
    together = ReplicateConfig(prefer_alloc_in_same_node=True)
    assert store.put_from(f"{key}from", ctypes.addressof(memory), 8, together) == 0


def test_configs_have_the_fields_of_the_reference_system() -> None:
    config = ReplicateConfig()
    assert config.replica_num == 1
    assert config.soft_pin_ttl_ms is None
    assert config.group_ids is None
    assert config.soft_pin_action == SoftPinAction.PRESERVE
    config.with_soft_pin = True
    config.soft_pin_action = SoftPinAction.ENABLE
    config.preferred_segments = ["a", "b"]
    config.group_ids = ("g",)  # type: ignore[assignment]
    assert config.preferred_segments == ["a", "b"]
    assert config.group_ids == ["g"]
    assert config.media_type is None
    config.media_type = "SSD"
    assert config.media_type == "ssd"
    config.media_type = None
    for field, value in [
        ("replica_num", -1),
        ("replica_num", "1"),
        ("soft_pin_ttl_ms", -1),
        ("soft_pin_ttl_ms", 1 << 64),
        ("soft_pin_action", 1),
        ("with_hard_pin", "yes"),
        ("preferred_segments", "abc"),
        ("preferred_segments", [1]),
        ("group_ids", "abc"),
        ("data_type", SoftPinAction.ENABLE),
        ("media_type", "tape"),
        ("media_type", 1),
    ]:
        with pytest.raises(TypeError):
            setattr(config, field, value)
    with pytest.raises(AttributeError):
        config.no_such_field = 1  # type: ignore[attr-defined]
    assert not hasattr(ReplicateConfig, "no_such_field")
    assert hasattr(ReplicateConfig, "group_ids")
    with pytest.raises(TypeError):
        ReplicateConfig(no_such_field=1)  # type: ignore[call-arg]


def test_events_are_checked(store: MooncakeDistributedStore, key: str) -> None:
    info = StoreEventInfo(model_name="m", block_size=16, block_hash="h", token_ids=[1, 2])
    assert info.token_ids == [1, 2]
    assert info.parent_block_hash == ""
    assert store.put(key, b"x", store_event_infos=info) == 0
    assert (
        store.put_batch([f"{key}a", f"{key}b"], [b"x", b"y"], store_event_infos=[info, info]) == 0
    )
    memory = ctypes.create_string_buffer(b"x", 8)
    pieces = [[ctypes.addressof(memory)]], [[8]]
    span = ctypes.addressof(memory), ctypes.addressof(memory), 4, 4
    assert store.batch_put_from_multi_buffers([f"{key}c"], *pieces, store_event_infos=[info]) == [0]
    with pytest.raises(ValueError, match="1 store_event_infos for 2 objects"):
        store.put_batch([f"{key}d", f"{key}e"], [b"x", b"y"], store_event_infos=[info])
    with pytest.raises(TypeError):
        store.put(f"{key}d", b"x", store_event_infos=[{"model_name": "m"}])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        store.put(f"{key}d", b"x", store_event_infos=5)  # type: ignore[arg-type]
    for field, value, limit in [
        ("model_name", "ü" * 129, 256),
        ("block_hash", "h" * 257, 256),
        ("parent_block_hash", "h" * 257, 256),
        ("token_ids", [0] * 32_769, 32_768),
    ]:
        long = StoreEventInfo()
        setattr(long, field, value)
        keys, values = [f"{key}d", f"{key}e"], [b"x", b"y"]
        match = rf"store_event_infos\[1\]: {field} has length \d+, and at most {limit} are allowed"
        with pytest.raises(ValueError, match=match):
            store.put_batch(keys, values, store_event_infos=[info, long])
        with pytest.raises(ValueError, match=match):
            store.upsert_batch(keys, values, store_event_infos=[info, long])
        with pytest.raises(ValueError, match=field):
            store.batch_put_from_multi_buffers([f"{key}d"], *pieces, store_event_infos=[long])
        with pytest.raises(ValueError, match=field):
            store.put_from_with_metadata(f"{key}d", *span, store_event_infos=[long])
    assert store.batch_is_exist([f"{key}d", f"{key}e"]) == [0, 0]
    longest = StoreEventInfo("ü" * 128, 2**32 - 1, "h" * 256, "h" * 256, [2**32 - 1] * 32_768)
    assert store.upsert(key, b"y", store_event_infos=longest) == 0
    assert store.get(key) == b"y"


def test_threads_share_a_store(store: MooncakeDistributedStore, key: str) -> None:
    failures: list[str] = []

    def work(name: int) -> None:
        for n in range(50):
            mine, value = f"{key}{name}-{n}", f"{name}:{n}".encode() * 100
            if store.put(mine, value) != 0 or store.get(mine) != value:
                failures.append(mine)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
