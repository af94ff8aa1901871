"""`distributed_object_store` and `mooncake_vllm_adaptor`: the store as older releases name it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator

import pytest
from _cluster import Cluster, Program, run_python
from mc_store.mooncake import mooncake_vllm_adaptor as mva
from mc_store.mooncake.distributed_object_store import DistributedObjectStore
from mc_store.mooncake.engine import TransferEngine
from mc_store.mooncake.store import MooncakeDistributedStore
from test_shim import INSTALL

LEASED = -706
INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704

#: Joins the cluster as a role of the sample program does, with seven arguments by position.
ROLE = (
    INSTALL
    + """
import sys
from distributed_object_store import DistributedObjectStore

store = DistributedObjectStore()
retcode = store.setup(
    "127.0.0.1", "127.0.0.1:2379", 32 << 20, 16 << 20, "tcp", "ibp6s0", sys.argv[1]
)
assert retcode == 0, retcode
"""
)

PREFILL = (
    ROLE
    + """
import signal
for number in range(16):
    assert store.put(f"{sys.argv[2]}{number}", bytes([number]) * (1 << 20)) == 0
print("stored", flush=True)
signal.pause()
"""
)

DECODE = (
    ROLE
    + """
for number in range(16):
    key = f"{sys.argv[2]}{number}"
    assert store.isExist(key) == 1
    assert store.getSize(key) == 1 << 20
    assert store.get(key) == bytes([number]) * (1 << 20)
assert store.close() == 0
"""
)


def join(cluster: Cluster, store: DistributedObjectStore) -> DistributedObjectStore:
    code = store.setup("127.0.0.1", "127.0.0.1:2379", 0, 16 << 20, "tcp", "", cluster.address)
    assert code == 0, f"setup answered {code}"
    return store


@pytest.fixture
def older(cluster: Cluster) -> Iterator[DistributedObjectStore]:
    """A store of the older name that uses the shared cluster and contributes no memory."""
    store = join(cluster, DistributedObjectStore())
    yield store
    store.close()


def test_one_process_stores_and_another_reads(
    new_cluster: Callable[..., Cluster], key: str
) -> None:
    # The two processes are the whole pool, so the first one stays while the second one reads.
    cluster = new_cluster(nodes=0)
    prefill = Program([sys.executable, "-c", PREFILL, cluster.address, key])
    try:
        prefill.expect("stored")
        run_python(DECODE, cluster.address, key)
    finally:
        prefill.kill()


def test_usage_of_the_oldest_description(cluster: Cluster, key: str) -> None:
    run_python(
        INSTALL
        + """
import pickle, sys
import mooncake_vllm_adaptor as mva

store = mva.MooncakeDistributedStore()
assert store.setup(
    local_hostname="127.0.0.1:12355",
    metadata_server="etcd://127.0.0.1:2379",
    protocol="rdma",
    master_server_addr=sys.argv[1],
) == 0
assert store.initAll(protocol="rdma", device_name="mlx5_0") == 0
data = {"layer": [1.5, 2.5]}
assert store.put(sys.argv[2], pickle.dumps(data)) == 0
assert pickle.loads(store.get(sys.argv[2])) == data
assert store.close() == 0
""",
        cluster.address,
        key,
    )


def test_methods_answer_as_described(older: DistributedObjectStore, key: str) -> None:
    assert older.initAll(protocol="tcp", device_name="", mount_segment_size=0) == 0
    assert older.put(key, b"12345") == older.put(key, bytearray(b"12345")) == 0
    assert older.isExist(f"{key}none") == 0
    assert older.getSize(f"{key}none") == OBJECT_NOT_FOUND
    assert older.remove(key) == 0
    assert older.isExist(key) == 0
    assert older.remove(key) != 0
    assert older.put(key, b"123") == 0
    assert older.isExist(key) == 1
    assert older.getSize(key) == 3
    assert older.get(key) == b"123"
    assert older.remove(key) == LEASED
    assert older.close() == older.tearDownAll() == 0


def test_an_error_of_is_exist_is_minus_one() -> None:
    store = DistributedObjectStore()
    assert store.isExist("key") == -1
    assert store.is_exist("key") == INVALID_PARAMS, "the newer spelling has the newer number"


def test_a_miss_is_empty_or_a_key_error(
    cluster: Cluster, older: DistributedObjectStore, key: str
) -> None:
    assert older.get(key) == b""
    strict = join(cluster, DistributedObjectStore(raise_key_error=True))
    with pytest.raises(KeyError, match="none"):
        strict.get(f"{key}none")
    assert strict.put(key, b"value") == 0
    assert strict.get(key) == b"value"
    assert strict.get_batch([key, f"{key}none"]) == [b"value", b""], "not an older method"
    assert strict.close() == 0
    with pytest.raises(KeyError):
        strict.get(key)


def test_signatures_are_those_of_the_oldest_description() -> None:
    described = {
        "setup": [
            *("local_hostname", "metadata_server", "global_segment_size", "local_buffer_size"),
            *("protocol", "rdma_devices", "master_server_addr"),
        ],
        "initAll": ["protocol", "device_name", "mount_segment_size"],
        "put": ["key", "value"],
        "get": ["key"],
        "remove": ["key"],
        "isExist": ["key"],
        "close": [],
    }
    for name, names in described.items():
        parameters = list(inspect.signature(getattr(DistributedObjectStore, name)).parameters)
        assert parameters[: len(names) + 1] == ["self", *names], name


def test_it_is_the_store_under_another_name() -> None:
    assert issubclass(DistributedObjectStore, MooncakeDistributedStore)
    assert mva.MooncakeDistributedStore is DistributedObjectStore
    with pytest.raises(TypeError):
        DistributedObjectStore(no_such_keyword=1)  # type: ignore[call-arg]


def test_oldest_name_of_the_class(cluster: Cluster, key: str) -> None:
    run_python(
        INSTALL
        + """
import sys
from distributed_object_store import distributed_object_store
from mooncake import MooncakeDistributedStore

store = distributed_object_store()
assert isinstance(store, MooncakeDistributedStore)
assert store.setup("127.0.0.1", "127.0.0.1:2379", 0, 1 << 20, "tcp", "", sys.argv[1]) == 0
assert store.put(sys.argv[2], b"Hello, World!") == 0
assert store.get(sys.argv[2]) == b"Hello, World!"
""",
        cluster.address,
        key,
    )


def test_transfer_engine_has_the_older_methods() -> None:
    engine = mva.mooncake_vllm_adaptor()
    assert isinstance(engine, TransferEngine)
    assert engine.allocateManagedBuffer(8) == 0, "it is not initialized"
    assert engine.initializeExt("127.0.0.1", "127.0.0.1:2379", "tcp", "", "p2p") == 0
    buffer = engine.allocateManagedBuffer(64)
    assert engine.writeBytesToBuffer(buffer, b"sixteen bytes are", 16) == 0
    session = f"127.0.0.1:{engine.get_rpc_port()}"
    # A read, unless the opcode says otherwise.
    assert engine.transferSync(session, buffer + 16, buffer, 16) == 0
    assert engine.readBytesFromBuffer(buffer + 16, 16) == b"sixteen bytes ar"
    assert engine.writeBytesToBuffer(buffer, b"others", 6) == 0
    assert engine.transferSync(session, buffer, buffer + 32, 6, 1) == 0
    assert engine.readBytesFromBuffer(buffer + 32, 6) == b"others"
    assert engine.transferSync(session, 8, buffer, 16) < 0
    assert engine.freeManagedBuffer(buffer, 64) == 0
