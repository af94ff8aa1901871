"""Masters that are found in etcd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import mc_store
import pytest
from _cluster import Master, Node, Program, free_port, wait_until
from mc_store.mooncake.mooncake_config import MooncakeConfig
from mc_store.mooncake.store import MooncakeDistributedStore

pytestmark = pytest.mark.skipif(
    not (shutil.which("etcd") and shutil.which("etcdctl")),
    reason="etcd is not installed (on Debian: apt-get install etcd-server etcd-client)",
)


class Etcd(Program):
    """An etcd with one member."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        peers = f"http://127.0.0.1:{free_port()}"
        clients = f"http://{self.endpoint}"
        super().__init__(
            [
                "etcd",
                f"--data-dir={folder}",
                f"--listen-client-urls={clients}",
                f"--advertise-client-urls={clients}",
                f"--listen-peer-urls={peers}",
                f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=default={peers}",
            ]
        )
        wait_until(lambda: self._ctl("endpoint", "health") == 0, what="etcd to serve")

    def _ctl(self, *arguments: str) -> int:
        command = ["etcdctl", f"--endpoints={self.endpoint}", *arguments]
        environment = os.environ | {"ETCDCTL_API": "3"}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    def put(self, key: str, value: object) -> None:
        assert self._ctl("put", key, json.dumps(value)) == 0

    def elect(self, cluster: str, epoch: int, address: str) -> None:
        """Records a leader, as `mc-ha/src/election/etcd.rs` documents the keys."""
        keys = f"/mc-store/{cluster}"
        leader = {"epoch": epoch, "id": "m", "rpc_address": address, "lease_ms": 2000, "nonce": 1}
        self.put(f"{keys}/members/m", {"rpc_address": address, "epoch": epoch, "sequence": 0})
        self.put(f"{keys}/leader", leader)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    program = Etcd(tmp_path / "etcd")
    yield program
    program.kill()


@pytest.fixture
def masters() -> Iterator[list[Master]]:
    started = [Master(), Master()]
    yield started
    for master in started:
        master.kill()


def test_clients_find_the_leader_and_follow_it(etcd: Etcd, masters: list[Master]) -> None:
    address = f"etcd://{etcd.endpoint}/blue"
    etcd.elect("blue", 1, masters[0].address)
    nodes = [Node(master.address) for master in masters]
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", address) == 0
    # The other forms of the settings.
    config = MooncakeConfig("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", address)
    by_dict = MooncakeDistributedStore()
    assert by_dict.setup(config.setup_arguments()) == 0
    with mc_store.Client(config={"master": address}) as client:
        for epoch, master in enumerate(masters, start=1):
            etcd.elect("blue", epoch, master.address)
            if epoch > 1:
                masters[0].kill()
            key = f"k{epoch}"
            assert store.put(key, b"value") == 0
            with mc_store.Client(master.address) as direct:
                assert bytes(direct.get(key)) == b"value"
            assert bytes(client.get(key)) == b"value"
            assert by_dict.get(key) == b"value"
    for each in (store, by_dict):
        each.close()
    for node in nodes:
        node.kill()


def test_a_list_of_masters(masters: list[Master]) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    for separator in ";,":
        with mc_store.Client(separator.join([nowhere, masters[0].address])) as client:
            assert not client.exists("k")


def test_what_is_wrong_is_said(etcd: Etcd) -> None:
    with pytest.raises(mc_store.StoreError, match='no master leads the cluster "nobody"'):
        mc_store.Client(f"etcd://{etcd.endpoint}/nobody")
    with pytest.raises(mc_store.StoreError, match=r"127\.0\.0\.1:1: .*refused"):
        mc_store.Client("etcd://127.0.0.1:1")
    for misspelt in ("etcd://", "etcd:///x", "etcd://host:port:1"):
        with pytest.raises(mc_store.StoreError, match="etcd endpoint"):
            mc_store.Client(misspelt)
    config = MooncakeDistributedStore()
    assert config.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", "etcd://") != 0
