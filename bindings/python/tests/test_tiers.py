"""Storage below memory, as engines use it: the shared tier, and a disk of the node."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

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
        nodes=0,
        master_flags=[
            f"--root_fs_dir={tmp_path}",
            "--cluster_id=mc-local-1",
            "--pack_files=false",
        ],
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


def test_values_share_a_file_that_no_put_waits_for(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(nodes=0, master_flags=[f"--root_fs_dir={tmp_path}"])
    store = joined(cluster)
    begun = time.monotonic()
    for number in range(10):
        assert store.put(f"k{number}", value(number)) == 0
    # Each waited for a second.
    assert time.monotonic() - begun < 5
    wait_until(lambda: any(tmp_path.rglob("p,*")))
    store.close()
    reader = joined(cluster, global_segment_size=0)
    for number in range(10):
        assert reader.get(f"k{number}") == value(number)
    reader.close()


def test_values_in_files_are_encrypted_with_the_key_of_their_tenant(
    new_cluster: NewCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, keys = tmp_path / "files", tmp_path / "keys"
    files.mkdir()
    keys.write_text(f"default {'5f' * 32}\n")
    cluster = new_cluster(nodes=0, master_flags=[f"--root_fs_dir={files}"])
    monkeypatch.setenv("MC_STORE_TIER_KEYS", str(keys))
    store = joined(cluster)
    text = b"the text of a prompt"
    assert store.put("k", text * 1000, ReplicateConfig(dfs_replica_num=1)) == 0

    def path() -> Path | None:
        *_, replica = store.get_replica_desc("k")
        is_file = replica.is_disk_replica()
        return Path(replica.get_disk_descriptor().file_path) if is_file else None

    def is_written() -> bool:
        file = path()
        return file is not None and file.is_file()

    wait_until(is_written)
    file = path()
    assert file is not None
    assert text not in file.read_bytes()
    store.close()
    reader = joined(cluster, global_segment_size=0)
    assert reader.get("k") == text * 1000
    reader.close()
    keys.write_text("default 5f\n")
    with pytest.raises(AssertionError):
        joined(cluster)
    monkeypatch.delenv("MC_STORE_TIER_KEYS")
    without = joined(cluster, global_segment_size=0)
    assert without.get("k") == b""
    without.close()


def test_a_store_without_memory_writes_files_while_nothing_is_called(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster(nodes=1, master_flags=[f"--root_fs_dir={tmp_path}", "--pack_files=false"])
    store = joined(cluster, global_segment_size=0)
    for number in range(20):
        assert store.put(f"k{number}", value(number)) == 0

    def written() -> bool:
        return sum(1 for file in tmp_path.rglob("o,*") if file.is_file()) == 20

    wait_until(written)
    store.close()


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


def test_values_that_memory_gave_up_come_back_and_all_can_be_removed(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    flags = ["--enable_offload", "--offload_on_evict", "--promotion_on_hit"]
    cluster = new_cluster(nodes=0, master_flags=flags)
    store = joined(
        cluster,
        global_segment_size=4 * MIB,
        enable_ssd_offload=True,
        ssd_offload_path=str(tmp_path),
    )
    keys = [f"k{number}" for number in range(100)]
    for number, key in enumerate(keys):

        def stored(key: str = key, number: int = number) -> bool:
            return store.put(key, value(number)) == 0

        wait_until(stored)

    def in_memory(key: str) -> bool:
        return any(replica.is_memory_replica() for replica in store.get_replica_desc(key))

    on_disk = next(key for key in keys if not in_memory(key))
    for number, key in enumerate(keys):
        assert store.get(key) == value(number), key
    # Memory has room for what is read again and again.
    for key in keys[-30:]:
        if key != on_disk:
            store.remove(key, force=True)

    def is_back() -> bool:
        assert store.get(on_disk) == value(keys.index(on_disk))
        return in_memory(on_disk)

    wait_until(is_back)
    store.remove_all(force=True)
    assert not any(store.batch_is_exist(keys))

    def is_empty() -> bool:
        with urlopen(f"{cluster.master.http}/metrics/summary") as page:
            return "SSD Storage: 0 B" in page.read().decode()

    wait_until(is_empty)
    store.close()


def test_files_that_the_master_does_not_know_of(
    new_cluster: NewCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONCAKE_STORAGE_ROOT_DIR", str(tmp_path))
    cluster = new_cluster(nodes=0)
    store = joined(cluster)
    for number in range(20):
        assert store.put(f"k{number}", value(number)) == 0
    # It writes what waits.
    store.close()
    files = [file for file in (tmp_path / "mooncake_cluster").rglob("o,*") if file.is_file()]
    assert len(files) == 20
    reader = joined(cluster, global_segment_size=0)
    for number in range(20):
        assert reader.get(f"k{number}") == value(number)
    assert reader.batch_is_exist(["k0", "absent"]) == [1, 0]
    assert reader.get_size("k1") == 100_000
    assert reader.remove("k0") == 0
    assert reader.get("k0") == b""
    assert reader.remove("k0") < 0
    reader.close()
    monkeypatch.delenv("MOONCAKE_STORAGE_ROOT_DIR")
    without = joined(cluster)
    assert without.is_exist("k1") == 0
    without.close()
