"""Storage below memory, as engines use it: the shared tier, and a disk of the node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from _cluster import Cluster, wait_until
from mc_store.mooncake.store import MooncakeDistributedStore, ReplicateConfig

NewCluster = Callable[..., Cluster]

MIB = 1 << 20


def joined(cluster: Cluster, **settings: object) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    given: dict[str, object] = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": 16 * MIB,
        "local_buffer_size": 16 * MIB,
        "master_server_addr": cluster.address,
    }
    assert store.setup(given | settings) == 0
    return store


def value(number: int) -> bytes:
    return bytes([number % 251]) * 100_000


def test_values_outlast_their_node_in_files(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(
        nodes=0, master_flags=[f"--root_fs_dir={tmp_path}", "--cluster_id=mc-local-1"]
    )
    store = joined(cluster)
    config = ReplicateConfig(dfs_replica_num=1)
    for number in range(20):
        assert store.put(f"k{number}", value(number), config) == 0

    def written() -> bool:
        return sum(1 for file in (tmp_path / "mc-local-1").rglob("o,*") if file.is_file()) == 20

    wait_until(written)

    def is_told() -> bool:
        *_, replica = store.get_replica_desc("k1")
        return bool(replica.is_disk_replica())

    wait_until(is_told)
    memory, file = store.get_replica_desc("k1")
    assert memory.is_memory_replica()
    assert not memory.is_disk_replica()
    assert Path(file.get_disk_descriptor().file_path).is_file()
    assert file.get_disk_descriptor().object_size == 100_000
    with pytest.raises(RuntimeError):
        file.get_memory_descriptor()
    store.close()
    reader = joined(cluster, global_segment_size=0)
    for number in range(20):
        assert reader.get(f"k{number}") == value(number)
    assert reader.remove("k0", force=True) == 0
    assert reader.get("k0") == b""
    reader.close()


def test_values_outlast_their_node_on_its_disk(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(nodes=0, master_flags=["--enable_offload", "--offload_on_evict"])
    store = joined(
        cluster,
        global_segment_size=4 * MIB,
        enable_ssd_offload=True,
        ssd_offload_path=str(tmp_path),
    )
    put: set[int] = set()
    for number in range(100):

        def stored(number: int = number) -> bool:
            return store.put(f"k{number}", value(number)) == 0

        wait_until(stored)
        put.add(number)
    described = store.batch_get_replica_desc([f"k{number}" for number in put])
    firsts = [replicas[0] for replicas in described.values()]
    assert any(replica.is_local_disk_replica() for replica in firsts)
    for number in put:
        assert store.get(f"k{number}") == value(number), number
    store.close()
    again = joined(cluster, enable_ssd_offload=True, ssd_offload_path=str(tmp_path))
    wait_until(lambda: again.get("k0") == value(0))
    again.close()
