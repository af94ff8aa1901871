"""`MooncakeDistributedStore`: joining and leaving clusters, segments, replicas, tasks."""

from __future__ import annotations

import ctypes
import inspect
import os
import pickle
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mc_store
import mc_store.mooncake.store as module
import pytest
from _cluster import Cluster, Master, free_port, run_python, wait_until
from _fixtures import NewStore
from mc_store import _native
from mc_store.mooncake.store import (
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ObjectDataType,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
    TaskStatus,
    TaskType,
)

INTERNAL = -1
SEGMENT_NOT_FOUND = -101
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
REPLICA_IS_NOT_READY = -703
OBJECT_NOT_FOUND = -704
TRANSFER_FAIL = -800
RPC_FAIL = -900
TASK_NOT_FOUND = -1400

#: What calls may answer when a node, or this store, goes while they are under way.
AWAY = {TRANSFER_FAIL, NO_AVAILABLE_HANDLE, REPLICA_IS_NOT_READY, OBJECT_NOT_FOUND, RPC_FAIL}


NewCluster = Callable[..., Cluster]


def settings(cluster: Cluster) -> dict[str, object]:
    return {
        "local_hostname": "127.0.0.1",
        "metadata_server": "http://127.0.0.1:8080/metadata",
        "global_segment_size": "16MB",
        "local_buffer_size": 16 << 20,
        "protocol": "tcp",
        "rdma_devices": "",
        "master_server_addr": cluster.address,
    }


def test_a_store_is_set_up_by_arguments_and_by_a_dict(cluster: Cluster, key: str) -> None:
    given = settings(cluster)
    store = MooncakeDistributedStore()
    assert store.setup(given) == 0
    assert store.put(key, b"x") == 0
    assert store.close() == 0
    given["global_segment_size"] = 16 << 20
    assert store.setup(**given) == 0  # type: ignore[call-overload]
    host, port = store.get_hostname().split(":")
    assert host == "127.0.0.1"
    assert 12300 <= int(port) <= 14300
    assert store.setup(*given.values(), None) == 0  # type: ignore[call-overload]
    assert store.health_check() == 0
    assert store.close() == 0


def test_what_setup_does_not_know_is_named(cluster: Cluster) -> None:
    store = MooncakeDistributedStore()
    with pytest.raises(TypeError, match="no_such_keyword"):
        store.setup(**settings(cluster), no_such_keyword=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="metadata_server"):
        store.setup("127.0.0.1")  # type: ignore[call-overload]
    assert store.setup({"local_hostname": "127.0.0.1"}) == INVALID_PARAMS
    assert store.setup(settings(cluster) | {"protocol": "carrier pigeon"}) == INTERNAL
    assert store.setup(settings(cluster) | {"master_server_addr": "127.0.0.1:1"}) == RPC_FAIL
    assert store.health_check() == 1
    for word in ["enable_ssd_offload", "tenant_id", "client_http_port"]:
        assert word in (MooncakeDistributedStore.setup.__doc__ or "")
        assert word in inspect.signature(MooncakeDistributedStore.setup).parameters


@pytest.mark.parametrize("size", ["5 parsecs", -1, "-1", "10%", "", 1, 1023, "1023", 1.5, True, []])
@pytest.mark.parametrize("name", ["global_segment_size", "local_buffer_size"])
def test_sizes_of_a_dict_that_cannot_be_used_are_refused(
    cluster: Cluster, name: str, size: object
) -> None:
    store = MooncakeDistributedStore()
    assert store.setup(settings(cluster) | {name: size}) == INVALID_PARAMS
    assert store.health_check() == 1


def test_sizes_by_position_that_cannot_be_used_are_refused(cluster: Cluster) -> None:
    store = MooncakeDistributedStore()

    def setup(segment: Any, local_buffer: Any) -> int:
        return store.setup("127.0.0.1", "", segment, local_buffer, "tcp", "", cluster.address)

    for sizes in [(1, 1 << 20), (1023, 1 << 20), ("a lot", 1 << 20), (0, (1 << 40) + 1)]:
        assert setup(*sizes) == INVALID_PARAMS, sizes
    for sizes in [(-1, 1 << 20), (1 << 20, -1), (1 << 64, 0), (1.5, 0)]:
        with pytest.raises(TypeError):
            setup(*sizes)
    usable: list[tuple[object, object]] = [(0, 1), (1 << 20, 1 << 10), ("1MB", "1MB")]
    for segment, local_buffer in usable:
        assert setup(segment, local_buffer) == 0
        assert store.close() == 0


def test_whatever_can_be_called_is_described() -> None:
    for owner in [_native.Store, ReplicateConfig, module.StoreEventInfo, module.BufferHandle]:
        assert owner.__doc__
        for name, method in vars(owner).items():
            if callable(method) and not name.startswith("_"):
                assert method.__doc__, name
    for name, method in inspect.getmembers(MooncakeDistributedStore, callable):
        if not name.startswith("_"):
            assert "self" in inspect.signature(method).parameters, name
    assert "store_event_infos" in inspect.signature(MooncakeDistributedStore.put).parameters
    assert "group_ids" in inspect.signature(ReplicateConfig).parameters


def test_rdma_means_tcp(cluster: Cluster, key: str) -> None:
    store = MooncakeDistributedStore()
    given = settings(cluster) | {"protocol": "rdma", "rdma_devices": "mlx5_0,mlx5_1"}
    assert store.setup(given) == 0
    assert store.put(key, b"x") == 0
    assert store.get(key) == b"x"
    store.close()


def test_rdma_without_a_device_is_warned_of(cluster: Cluster) -> None:
    done = run_python(
        """
import sys
from mc_store.mooncake.store import MooncakeDistributedStore

for _ in range(2):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "", 0, 1 << 20, "rdma", "", sys.argv[1]) == 0
    assert store.init_all("rdma", "", 0) == 0
    store.close()
""",
        cluster.address,
    )
    # Once by a package without RDMA; by one that has it for each store, on a host without a device.
    is_missing = done.stderr.count("rdma is not part of this build") == 1
    is_off = done.stderr.count("RDMA is off; bytes travel over the other transports") == 2
    assert is_missing != is_off, done
    assert " WARN " in done.stderr


def test_nothing_works_before_setup_and_after_close(cluster: Cluster) -> None:
    memory = ctypes.create_string_buffer(8)
    address = ctypes.addressof(memory)
    store = MooncakeDistributedStore()
    for _ in range(2):
        assert store.put("key", b"x") == INVALID_PARAMS
        assert store.put_parts("key") == INVALID_PARAMS
        assert store.put_batch(["key"], [b"x"]) == INVALID_PARAMS
        assert store.put_from("key", address, 8) == INVALID_PARAMS
        assert store.batch_put_from(["key"], [address], [8]) == [INVALID_PARAMS]
        assert store.batch_put_from_multi_buffers(["key"], [[8]], [[8]]) == [INVALID_PARAMS]
        assert store.get("key") == b""
        assert store.get_batch(["a", "b"]) == [b"", b""]
        assert store.get_buffer("key") is None
        assert store.batch_get_buffer(["key"]) == [None]
        assert store.get_into("key", address, 8) == INVALID_PARAMS
        assert store.batch_get_into(["key"], [address], [8]) == [INVALID_PARAMS]
        assert store.get_into_ranges([8], [["key"]], [[[0]]], [[[0]]], [[[1]]]) == [
            [[INVALID_PARAMS]]
        ]
        assert store.get_size("key") == INVALID_PARAMS
        assert store.is_exist("key") == INVALID_PARAMS
        assert store.batch_is_exist(["key", "other"]) == [INVALID_PARAMS] * 2
        assert store.remove("key") == store.remove_all() == INVALID_PARAMS
        assert store.batch_remove(["key"]) == [INVALID_PARAMS]
        assert store.remove_by_regex("key") == INVALID_PARAMS
        assert store.get_replica_desc("key") == []
        assert store.batch_get_replica_desc(["key"]) == {}
        assert store.batch_replica_clear(["key"]) == []
        assert store.create_copy_task("key", ["a"]) == ((0, 0), INVALID_PARAMS)
        assert store.create_move_task("key", "a", "b") == ((0, 0), INVALID_PARAMS)
        assert store.query_task((0, 0)) == (None, INVALID_PARAMS)
        assert store.register_buffer(address, 8) == INVALID_PARAMS
        assert store.unregister_buffer(address) == INVALID_PARAMS
        assert store.alloc_from_mem_pool(8) == 0
        assert store.mount_segment("/dev/null", 8)["ret"] == INVALID_PARAMS
        assert store.allocate_and_mount_segment(8)["ret"] == INVALID_PARAMS
        assert store.unmount_segment(["1-1"]) == INVALID_PARAMS
        assert store.unmount_local_disk_segment() == INVALID_PARAMS
        assert store.init_all("tcp", "") == INVALID_PARAMS
        assert store.health_check() == 1
        assert store.get_hostname() == ""
        assert store.get_offload_rpc_read_count() == 0
        assert store.setup(settings(cluster)) == 0
        assert store.health_check() == 0
        assert store.close() == 0
        assert store.close() == 0


def test_older_spellings_work(cluster: Cluster, key: str) -> None:
    store = MooncakeDistributedStore()
    given = settings(cluster) | {"global_segment_size": 0}
    assert store.setup(given) == 0
    assert store.initAll(protocol="tcp", device_name="") == 0
    assert store.put(key, b"12345") == 0
    assert store.isExist(key) == 1
    assert store.batchIsExist([key]) == [1]
    assert store.getSize(key) == 5
    assert store.getHostname() == store.get_hostname()
    assert store.removeByRegex("no such key") == 0
    assert store.removeAll() >= 0
    assert store.tearDownAll() == 0
    assert store.health_check() == 1


def test_a_port_that_is_taken_is_replaced(cluster: Cluster, new_store: NewStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        store = MooncakeDistributedStore()
        assert store.setup(settings(cluster) | {"local_hostname": f"127.0.0.1:{port}"}) == 0
        other = store.get_hostname()
        assert other.startswith("127.0.0.1:")
        assert other != f"127.0.0.1:{port}"
        store.close()
    assert store.setup(settings(cluster) | {"local_hostname": other}) == 0
    assert store.get_hostname() == other
    assert store.setup(settings(cluster) | {"local_hostname": other}) == 0, "its own port is free"
    assert store.get_hostname() == other
    store.close()


def test_roles(cluster: Cluster, new_store: NewStore, key: str) -> None:
    reader = new_store(cluster)
    assert reader.put(key, b"x") == 0
    for segment in ["16MB", 0]:
        store = MooncakeDistributedStore()
        sizes = {"global_segment_size": segment, "local_buffer_size": 0}
        assert store.setup(settings(cluster) | sizes) == 0
        without_values(store, key)
        assert store.close() == 0


def without_values(store: MooncakeDistributedStore, key: str) -> None:
    """A store without a local buffer makes every call but those with values."""
    other = f"{key}other"
    for code in [
        store.put(other, b"x"),
        store.upsert(other, b"x"),
        store.put_parts(other, b"x", b"y"),
        store.put_batch([other], [b"x"]),
        store.upsert_batch([other], [b"x"]),
    ]:
        assert code == INVALID_PARAMS
    assert store.get(key) == b""
    assert store.get_batch([key]) == [b""]
    assert store.get_buffer(key) is None
    assert store.batch_get_buffer([key]) == [None]
    assert (store.is_exist(key), store.is_exist(other), store.get_size(key)) == (1, 0, 1)
    assert store.batch_is_exist([key, other]) == [1, 0]
    assert len(store.get_replica_desc(key)) == 1
    memory = ctypes.create_string_buffer(64)
    address = ctypes.addressof(memory)
    assert store.register_buffer(address, 64) == 0
    assert store.get_into(key, address, 64) == 1
    assert memory.raw[:2] == b"x\0"
    assert store.put_from(other, address, 64) == 0
    assert store.batch_put_from([f"{other}2"], [address], [64]) == [0]
    assert store.batch_get_into([other], [address], [64]) == [64]
    assert store.batch_put_from_multi_buffers([f"{other}3"], [[address, address]], [[8, 8]]) == [0]
    assert store.batch_get_into_multi_buffers([f"{other}3"], [[address]], [[64]]) == [16]
    assert store.unregister_buffer(address) == 0
    # Memory that is not registered is copied, as everywhere.
    assert store.get_into(other, address, 64) == 64
    keys = [other, f"{other}2", f"{other}3"]
    assert [store.remove(one, True) for one in keys] == [0, 0, 0]


def test_what_one_process_puts_another_gets(cluster: Cluster, key: str) -> None:
    code = f"""
import sys
from mc_store.mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "", 0, 16 << 20, "tcp", "", {cluster.address!r}) == 0
keys = [{key!r} + str(n) for n in range(20)]
values = [b"%d" % n * 100_000 for n in range(20)]
if sys.argv[1] == "put":
    assert store.put_batch(keys, values) == 0
else:
    assert store.get_batch(keys) == values
    assert store.batch_remove(keys, True) == [0] * 20
"""
    run_python(code, "put")
    run_python(code, "get")


def test_large_values_are_read_into_the_bytes_that_are_returned(
    store: MooncakeDistributedStore, key: str
) -> None:
    sizes = [1, (64 << 10) - 1, 64 << 10, (1 << 20) + 3]
    values = [os.urandom(size) for size in sizes]
    keys = [f"{key}{size}" for size in sizes]
    assert store.put_batch(keys, values) == 0
    assert store.get_batch([*keys, f"{key}none", keys[-1]]) == [*values, b"", values[-1]]
    tracemalloc.start()
    try:
        # The interpreter knows of one object as long as the value.
        assert store.get(keys[-1]) == values[-1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sizes[-1] < peak < 1.5 * sizes[-1]


def test_bytes_do_not_change_when_their_key_has_another_value(
    store: MooncakeDistributedStore, key: str
) -> None:
    values = [bytes([number]) * (300 << 10) for number in range(4)]
    assert store.put(key, values[0]) == 0
    read: list[bytes] = []

    def reads() -> None:
        for _ in range(25):
            read.append(store.get(key))

    readers = [threading.Thread(target=reads) for _ in range(4)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        for value in values:
            store.upsert(key, value)
    for reader in readers:
        reader.join()
    # One that was replaced too often while it was read is not there.
    assert set(read) <= {*values, b""}
    assert len(set(read)) > 1


def test_segments_come_and_go(new_cluster: NewCluster, new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(new_cluster(nodes=0))
    assert store.put("a", b"x") == NO_AVAILABLE_HANDLE, "there is no segment yet"
    mounted = store.allocate_and_mount_segment(5 << 20)
    assert mounted["ret"] == 0
    assert mounted["allocated_size"] == 8 << 20
    assert store.put("a", b"x") == 0

    file = tmp_path / "segment"
    file.write_bytes(bytes(4 << 20))
    from_file = store.mount_segment(str(file), 4 << 20)
    assert from_file["ret"] == 0
    assert len(from_file["segment_ids"]) == 1
    assert store.mount_segment(str(file), 0) == {"ret": 0, "segment_ids": []}
    for path, size, offset in [
        (str(file), 8 << 20, 0),
        (str(file), 1 << 20, 4096),
        (str(tmp_path / "none"), 4096, 0),
        (str(tmp_path), 4096, 0),
        ("", 4096, 0),
        ("a\0b", 4096, 0),
    ]:
        refused = store.mount_segment(path, size, offset)
        assert refused == {"ret": INVALID_PARAMS, "segment_ids": []}, path
    for impossible in [0, 1 << 60, (1 << 64) - 1]:
        refused = store.allocate_and_mount_segment(impossible)
        assert refused["ret"] < 0
        assert (refused["segment_ids"], refused["allocated_size"]) == ([], 0)

    assert store.unmount_segment(from_file["segment_ids"]) == 0
    assert store.unmount_segment(from_file["segment_ids"]) == SEGMENT_NOT_FOUND
    assert store.unmount_segment([]) == 0
    for wrong in ["", "1", "x-y", "-1--1"]:
        assert store.unmount_segment([wrong]) == INVALID_PARAMS
    with pytest.raises(TypeError):
        store.unmount_segment(["1-1"], -1)
    assert store.get("a") == b"x"
    assert store.unmount_and_free_segment(mounted["segment_ids"], 0) == 0
    assert store.get("a") == b""
    assert store.unmount_local_disk_segment() == 0


def test_a_store_that_goes_takes_its_objects_along(
    new_cluster: NewCluster, new_store: NewStore
) -> None:
    cluster = new_cluster(nodes=0)
    reader = new_store(cluster)
    node = new_store(cluster, segment=16 << 20)
    assert reader.put("a", b"x") == 0
    node.close()
    assert reader.is_exist("a") == 0

    owner = MooncakeDistributedStore()
    assert owner.setup(settings(cluster)) == 0
    assert reader.put("b", b"x") == 0
    del owner
    wait_until(lambda: reader.is_exist("b") == 0)


def test_the_end_of_the_interpreter_is_a_close(
    new_cluster: NewCluster, new_store: NewStore
) -> None:
    cluster = new_cluster(nodes=0)
    reader = new_store(cluster)
    run_python(f"""
from mc_store.mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "", 16 << 20, 16 << 20, "tcp", "", {cluster.address!r}) == 0
assert store.put("a", b"x") == 0
""")
    assert reader.is_exist("a") == 0, "its segment was withdrawn at once"


def test_a_child_process_is_told(cluster: Cluster, key: str) -> None:
    code = f"""
import os, sys
from mc_store.mooncake.store import MooncakeDistributedStore
unused, store = MooncakeDistributedStore(), MooncakeDistributedStore()
arguments = "127.0.0.1", "", 16 << 20, 16 << 20, "tcp", "", {cluster.address!r}
assert store.setup(*arguments) == 0
assert store.put({key!r}, b"x") == 0
child = os.fork()
if child == 0:
    try:
        store.get({key!r})
    except RuntimeError as error:
        assert "fork" in str(error)
    else:
        raise AssertionError("the child used the connections of its parent")
    assert unused.is_exist({key!r}) == -600
    for here in [unused, store]:
        assert here.close() == 0
        assert here.setup(*arguments) == 0
        assert here.get({key!r}) == b"x"
    del here
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert store.get({key!r}) == b"x"
child = os.fork()
if child == 0:
    del store
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert store.get({key!r}) == b"x"
"""
    run_python(code)


def test_a_close_ends_calls_of_other_threads(cluster: Cluster, key: str) -> None:
    store = MooncakeDistributedStore()
    codes: set[int] = set()
    stop = threading.Event()

    def work(name: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            codes.add(store.put(f"{key}{name}/{n % 10}", b"x" * 1000))
            codes.add(store.is_exist(f"{key}{name}/{n % 10}"))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        codes.clear()
        assert store.setup(settings(cluster)) == 0
        wait_until(lambda: {0, 1} <= codes)
        assert store.close() == 0
        wait_until(lambda: INVALID_PARAMS in codes)
        allowed = {0, 1, INVALID_PARAMS, *AWAY}
        assert codes <= allowed, codes - allowed
    closers = [threading.Thread(target=store.close) for _ in range(3)]
    setters = [threading.Thread(target=store.setup, args=(settings(cluster),)) for _ in range(3)]
    for thread in closers + setters:
        thread.start()
    for thread in closers + setters:
        thread.join()
    stop.set()
    for thread in threads:
        thread.join()
    store.close()


def test_an_interrupt_ends_a_call_that_waits(new_cluster: NewCluster) -> None:
    cluster = new_cluster(nodes=1)
    code = f"""
import os, signal, threading, time
from _cluster import suspend
from mc_store.mooncake.store import MooncakeDistributedStore
# It is ignored below a shell in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "", 0, 16 << 20, "tcp", "", {cluster.address!r}) == 0
assert store.put("a", b"x") == 0
for call in [
    lambda: store.is_exist("a"),
    lambda: store.get("a"),
    lambda: store.put("b", bytearray(b"x" * 100_000)),
    lambda: store.put_batch(["c"], [b"x"]),
]:
    suspend({cluster.master.pid})
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    begun = time.monotonic()
    timer.start()
    try:
        answer = call()
    except KeyboardInterrupt:
        assert time.monotonic() - begun < 5
    else:
        raise AssertionError(f"went on to answer {{answer!r}}")
    finally:
        os.kill({cluster.master.pid}, signal.SIGCONT)
        timer.join()
    assert store.get("a") == b"x"
"""
    run_python(code, cwd=Path(__file__).parent)


def test_objects_are_copied_and_moved(cluster: Cluster, new_store: NewStore, key: str) -> None:
    nodes = [new_store(cluster, segment=16 << 20) for _ in range(3)]
    first, second, third = (node.get_hostname() for node in nodes)
    config = ReplicateConfig(preferred_segment=first)
    store = nodes[0]
    assert store.put(key, b"copied and moved", config) == 0

    def places() -> set[str]:
        replicas = store.get_replica_desc(key)
        complete = [replica for replica in replicas if replica.status == ReplicaStatus.COMPLETE]
        return {
            replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
            for replica in complete
        }

    def is_over(task: tuple[int, int]) -> bool:
        report, code = store.query_task(task)
        assert code == 0
        assert report is not None
        assert report.status != TaskStatus.FAILED, report
        assert report.id == task
        assert report.created_at_ms_epoch <= report.last_updated_at_ms_epoch
        return report.status == TaskStatus.SUCCESS

    task, code = store.create_copy_task(key, [second])
    assert code == 0
    wait_until(lambda: is_over(task))
    assert places() == {first, second}
    report, _ = store.query_task(task)
    assert report is not None
    assert report.type == TaskType.REPLICA_COPY

    task, code = store.create_move_task(key, first, third)
    assert code == 0
    wait_until(lambda: is_over(task))
    assert places() == {second, third}
    assert store.get(key) == b"copied and moved"

    assert store.create_copy_task(f"{key}none", [second]) == ((0, 0), OBJECT_NOT_FOUND)
    assert store.create_copy_task(key, ["no such segment"])[1] < 0
    assert store.create_move_task(key, second, second)[1] < 0
    assert store.query_task((1, 2)) == (None, TASK_NOT_FOUND)
    with pytest.raises(TypeError):
        store.query_task((-1, "2"))  # type: ignore[arg-type]


def test_replicas_are_cleared(new_cluster: NewCluster, new_store: NewStore) -> None:
    cluster = new_cluster(nodes=1, master_flags=["--default_kv_lease_ttl=1"])
    store = new_store(cluster)
    assert store.put_batch(["a", "b"], [b"x", b"y"]) == 0
    wait_until(lambda: store.batch_replica_clear(["a", "none"]) == ["a"])
    assert store.batch_is_exist(["a", "b"]) == [0, 1]
    assert store.batch_replica_clear([]) == []


def test_a_thin_client_uses_memory_that_is_shared(cluster: Cluster, key: str) -> None:
    store = MooncakeDistributedStore()
    server = cluster.nodes[0].dummy_address
    assert store.setup_dummy(1 << 20, 16 << 20, server) == 0
    assert store.health_check() == 0
    assert store.put(key, b"hello") == 0
    assert store.put(f"{key}array", memoryview(b"0123456789")[2:5]) == 0
    assert store.get(key) == b"hello"
    assert store.get_size(key) == 5
    assert store.batch_is_exist([key, f"{key}none"]) == [1, 0]

    pool = store.alloc_from_mem_pool(100_000)
    assert pool != 0
    assert store.alloc_from_mem_pool(1 << 20) == 0, "the pool has no more"
    assert store.register_buffer(pool, 100_000) == 0
    ctypes.memmove(pool, b"from the pool", 13)
    assert store.put_from(f"{key}pool", pool, 13) == 0
    assert store.get_into(f"{key}pool", pool + 1000, 13) == 13
    assert ctypes.string_at(pool + 1000, 13) == b"from the pool"

    allocator = MooncakeHostMemAllocator()
    shared = allocator.alloc(1 << 20)
    assert store.register_buffer(shared, 1 << 20) == 0
    ctypes.memmove(shared, b"shared", 6)
    private = ctypes.create_string_buffer(b"private", 100)
    assert store.register_buffer(ctypes.addressof(private), 100) == 0
    keys = [f"{key}{n}" for n in range(3)]
    addresses = [shared, ctypes.addressof(private), shared]
    assert store.batch_put_from(keys, addresses, [6, 7, 1 << 19]) == [0, 0, 0]
    back = [shared + 1000, ctypes.addressof(private) + 50, shared + (1 << 19)]
    assert store.batch_get_into(keys, back, [6, 7, 1 << 19]) == [6, 7, 1 << 19]
    assert ctypes.string_at(shared + 1000, 6) == b"shared"
    assert ctypes.string_at(shared + (1 << 19), 6) == b"shared"
    assert private.raw[50:57] == b"private"
    assert store.unregister_buffer(shared) == 0
    assert store.unregister_buffer(ctypes.addressof(private)) == 0
    assert allocator.free(shared) == 0

    assert store.allocate_and_mount_segment(1 << 20)["ret"] < 0
    assert len(store.get_replica_desc(key)) == 1
    assert store.remove(key, True) == 0
    assert store.close() == 0
    assert store.health_check() == 1
    assert store.setup_dummy(1 << 20, 1 << 20, "127.0.0.1:1") < 0


def test_the_class_can_be_derived_from(cluster: Cluster, key: str) -> None:
    class Named(MooncakeDistributedStore):
        def __init__(self, name: str, *, size: int) -> None:
            super().__init__()
            self.name, self.size = name, size

    store = Named("mine", size=16 << 20)
    assert store.setup(settings(cluster) | {"local_buffer_size": store.size}) == 0
    assert store.put(f"{key}{store.name}", b"x") == 0
    store.close()
    with pytest.raises(TypeError):
        MooncakeDistributedStore("no arguments")


def test_enumerations_are_those_of_the_reference_system() -> None:
    assert repr(SoftPinAction.ENABLE) == "<SoftPinAction.ENABLE: 1>"
    assert str(SoftPinAction.ENABLE) == "SoftPinAction.ENABLE"
    assert (SoftPinAction.ENABLE.name, SoftPinAction.ENABLE.value) == ("ENABLE", 1)
    assert int(ObjectDataType.GENERAL) == 9
    assert [5, 6, 7][SoftPinAction.DISABLE] == 7
    assert SoftPinAction(2) == SoftPinAction.DISABLE
    assert len({SoftPinAction(1), SoftPinAction.ENABLE}) == 1
    assert SoftPinAction.ENABLE != 1  # type: ignore[comparison-overlap]
    assert pickle.loads(pickle.dumps(TaskStatus.SUCCESS)) == TaskStatus.SUCCESS
    with pytest.raises(ValueError, match="9 is not a SoftPinAction"):
        SoftPinAction(9)
    assert module.PROCESSING == TaskStatus.PROCESSING
    assert module.COMPLETE == ReplicaStatus.COMPLETE
    for name in module.__all__:
        assert hasattr(module, name), name
    assert os.path.basename(module.__file__) == "store.py"


def config(**fields: object) -> ReplicateConfig:
    made = ReplicateConfig()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_soft_pins_last_as_long_as_puts_say(new_cluster: NewCluster, new_store: NewStore) -> None:
    cluster = new_cluster(nodes=0, master_flags=["--max_kv_soft_pin_ttl=1h"])
    store = new_store(cluster, segment=16 << 20)
    hour = 3_600_000
    for refused in [
        config(soft_pin_ttl_ms=1000),
        config(soft_pin_ttl_ms=0),
        config(soft_pin_action=SoftPinAction.DISABLE, soft_pin_ttl_ms=1000),
        config(soft_pin_action=SoftPinAction.DISABLE, soft_pin_ttl_ms=0),
        config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=hour + 1),
        config(replica_num=0),
    ]:
        assert store.put("refused", b"x", refused) == INVALID_PARAMS, refused
        assert store.upsert("refused", b"x", refused) == INVALID_PARAMS, refused
    assert store.is_exist("refused") == 0

    def left(key: str) -> float | None:
        with mc_store.Client(cluster.address) as client:
            return next(
                (it.seconds for it in client.explain(key).kept_by if it.reason == "soft_pin"), None
            )

    enable = SoftPinAction.ENABLE
    assert store.put("hour", b"x", config(soft_pin_action=enable, soft_pin_ttl_ms=hour)) == 0
    assert store.put("usual", b"x", config(with_soft_pin=True)) == 0
    assert store.put("none", b"x", config(soft_pin_action=enable, soft_pin_ttl_ms=0)) == 0
    hours, usual = left("hour"), left("usual")
    assert hours is not None
    assert usual is not None
    assert 3500 < hours <= 3604
    assert 1700 < usual <= 1800
    assert left("none") is None
    assert store.upsert("hour", b"y", config()) == 0
    kept = left("hour")
    assert kept is not None
    assert kept > 3500
    assert store.upsert("hour", b"z", config(soft_pin_action=SoftPinAction.DISABLE)) == 0
    assert left("hour") is None
    assert store.put("many", b"x", config(replica_num=1000)) == 0


def test_a_dead_master_costs_a_few_seconds_once(
    new_cluster: NewCluster, new_store: NewStore
) -> None:
    cluster = new_cluster(nodes=1)
    store = new_store(cluster)
    assert store.put("key", b"x") == 0
    cluster.master.kill()
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: store.is_exist("key"), RPC_FAIL),
        (lambda: store.get("key"), b""),
        (lambda: store.put("other", b"x"), RPC_FAIL),
        (lambda: store.batch_is_exist(["key"]), [RPC_FAIL]),
        (store.health_check, 2),
    ]
    start = time.monotonic()
    assert store.is_exist("key") == RPC_FAIL
    first = time.monotonic() - start
    assert first < 6
    for call, answer in calls * 3:
        start = time.monotonic()
        assert call() == answer
        assert time.monotonic() - start < 1.5
    cluster.master = Master(port=cluster.master.port)
    wait_until(lambda: store.is_exist("no such key") == 0)


def test_a_put_into_a_killed_process_fails(new_cluster: NewCluster, new_store: NewStore) -> None:
    cluster = new_cluster(nodes=1)
    store = new_store(cluster)
    assert store.put("before", b"x" * 100_000) == 0
    cluster.nodes[0].kill()
    # Until the system has taken the process down, milliseconds later, its memory is there.
    deadline = time.monotonic() + 5
    while (code := store.put(f"after{time.monotonic()}", b"x" * 100_000)) == 0:
        assert time.monotonic() < deadline, "bytes vanish"
    assert code in AWAY
    assert store.get("before") == b""


def test_segments_have_the_names_that_setup_is_given(
    new_cluster: NewCluster, new_store: NewStore
) -> None:
    cluster = new_cluster(nodes=0)
    writer = new_store(cluster)
    port = free_port()
    names = ["localhost", f"LOCALHOST:{port}", "127.0.0.1", "[::1]"]
    members = {}
    for name in names:
        member = MooncakeDistributedStore()
        assert member.setup(settings(cluster) | {"local_hostname": name}) == 0
        members[member.get_hostname()] = member
    found = list(members)
    assert found[1] == names[1], "with its port, as it is written"
    for name, hostname in zip(names, found, strict=True):
        assert hostname.startswith(name)
        assert hostname.rpartition(":")[2].isdecimal()
    for name in found:
        assert writer.put(f"in {name}", b"x", config(preferred_segment=name)) == 0
        assert writer.get(f"in {name}") == b"x", "its address is another thing"
        with mc_store.Client(cluster.address) as client:
            assert [it.segment_name for it in client.describe(f"in {name}").replicas] == [name]

    first, second = found[:2]
    _, code = writer.create_copy_task(f"in {first}", [second])
    assert code == 0
    wait_until(lambda: len(writer.get_replica_desc(f"in {first}")) == 2)
    _, code = writer.create_move_task(f"in {second}", second, found[2])
    assert code == 0

    def places(key: str) -> list[str]:
        with mc_store.Client(cluster.address) as client:
            return [it.segment_name for it in client.describe(key).replicas]

    wait_until(lambda: places(f"in {second}") == [found[2]])
    for transfer in [
        writer.create_copy_task(f"in {first}", ["nowhere"]),
        writer.create_move_task(f"in {first}", "nowhere", second),
        writer.create_move_task(f"in {first}", first, "nowhere"),
    ]:
        assert transfer == ((0, 0), INVALID_PARAMS)
    own = members[first]
    assert own.put("cleared", b"x", config(preferred_segment=first)) == 0
    assert own.batch_replica_clear(["cleared"], "nowhere") == []
    assert own.batch_replica_clear(["cleared"], first) == ["cleared"]
    for member in members.values():
        member.close()


def test_a_preferred_segment_that_is_not_there_is_told_of_once(cluster: Cluster) -> None:
    done = run_python(
        """
import sys
from mc_store.mooncake.store import MooncakeDistributedStore, ReplicateConfig

store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "", 0, 1 << 20, "tcp", "", sys.argv[1]) == 0
config = ReplicateConfig()
for name in ["nowhere:1", "nowhere:2"]:
    config.preferred_segment = name
    for n in range(5):
        assert store.upsert(f"misplaced{n}", b"x", config) == 0
assert store.batch_remove([f"misplaced{n}" for n in range(5)], True) == [0] * 5
""",
        cluster.address,
    )
    for name in ["nowhere:1", "nowhere:2"]:
        assert done.stderr.count(name) == 1, done


def other_address() -> str | None:
    """An address of this host that is no loopback one, if it has any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return None if address.startswith("127.") else address


def test_a_loopback_name_far_from_the_master_is_warned_of(new_cluster: NewCluster) -> None:
    address = other_address()
    if address is None:
        pytest.skip("this host has no address but loopback ones")
    cluster = new_cluster(nodes=0, master_flags=[f"--rpc_address={address}"])
    code = """
import sys
from mc_store.mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()
assert store.setup(sys.argv[1], "", 1 << 20, 1 << 20, "tcp", "", sys.argv[2]) == 0
"""
    for name, is_warned in [("localhost", True), ("127.0.0.1", True), (address, False)]:
        done = run_python(code, name, cluster.address)
        assert ("set local_hostname (--host" in done.stderr) == is_warned, done


def test_a_failed_batch_is_one_line_of_the_log(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(
        nodes=1, master_flags=["--enable_multi_tenants", "--default_tenant_quota=64KB"]
    )
    done = run_python(
        """
import ctypes
import sys
from mc_store.mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "", 0, 1 << 20, "tcp", "", sys.argv[1]) == 0
memory = ctypes.create_string_buffer(4096)
address = ctypes.addressof(memory)
assert store.register_buffer(address, 4096) == 0
count = 1000
keys = [f"k{n}" for n in range(count)]
codes = store.batch_put_from(keys, [address] * count, [4096] * count)
assert codes.count(-1700) > 900, set(codes)
for batch in range(20):
    store.batch_put_from([f"{batch}/{key}" for key in keys], [address] * count, [4096] * count)
store.close()
""",
        cluster.address,
    )
    lines = [line for line in done.stderr.splitlines() if "WARN" in line]
    assert "failures of this kind in this call" in lines[0], done
    # A repeated cause is told of at most once a second, not by each of the batches.
    assert len(lines) < 20, done
