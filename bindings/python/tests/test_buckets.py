"""The shared tier in a bucket of a real S3 server."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from _cluster import Cluster, Program, free_port, wait_until
from mc_store.mooncake.store import MooncakeDistributedStore

NewCluster = Callable[..., Cluster]

MIB = 1 << 20
BUCKET = "kv-cache"
KEY, SECRET = "admin", "the-secret-of-the-administrator"
USERS = {
    "identities": [
        {
            "name": "admin",
            "actions": ["Admin"],
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        }
    ]
}


def answers(url: str, method: str = "GET") -> bytes:
    """The answer of a server; empty as long as there is none."""
    try:
        with urlopen(Request(url, method=method), timeout=30) as answer:
            body: bytes = answer.read()
            return body or b"nothing"
    except (URLError, OSError):
        return b""


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Where SeaweedFS serves a bucket."""
    weed = Path(sysconfig.get_path("scripts")) / "weed"
    if not weed.is_file():
        pytest.skip("SeaweedFS is not there; run: pip install -r tests/requirements.txt")
    (tmp_path / "users.json").write_text(json.dumps(USERS))
    (tmp_path / "data").mkdir()
    names = ["master", "volume", "filer", "s3"]
    ports = {f"{name}.port{grpc}": free_port() for name in names for grpc in ("", ".grpc")}
    # Nothing that listens elsewhere, and nothing that talks to others.
    flags = ports | {"s3.port.iceberg": 0, "s3.port.lance": 0, "master.telemetry": "false"}
    flags |= {"dir": tmp_path / "data", "ip": "127.0.0.1", "ip.bind": "127.0.0.1"}
    flags |= {"filer": "true", "s3": "true", "s3.config": tmp_path / "users.json"}
    flags |= {"s3.iam": "false", "master.volumeSizeLimitMB": 64, "volume.max": 100}
    flags |= {f"{name}.localSocket": tmp_path / f"{name}.sock" for name in ("filer", "s3")}
    server = Program([weed, "server", *(f"-{name}={value}" for name, value in flags.items())])

    def url(name: str) -> str:
        return f"http://127.0.0.1:{ports[f'{name}.port']}"

    try:
        wait_until(lambda: answers(f"{url('s3')}/status"), what="S3 to answer")
        wait_until(lambda: answers(f"{url('filer')}/"), what="the filer to answer")
        wait_until(lambda: answers(f"{url('filer')}/buckets/{BUCKET}/", "POST"), what="a bucket")
        place = f"{url('master')}/dir/assign?collection={BUCKET}"
        wait_until(lambda: b'"fid"' in answers(place), what="a place for the bucket's bytes")
        yield url("s3")
    finally:
        server.stop()
        for name in names:
            # Otherwise only a server that ends by itself removes it.
            Path(f"/tmp/seaweedfs-{name}-grpc-{ports[f'{name}.port.grpc']}.sock").unlink(True)


def joined(cluster: Cluster, segment: int) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    given = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": segment,
        "local_buffer_size": 16 * MIB,
        "master_server_addr": cluster.address,
    }
    assert store.setup(given) == 0
    return store


def value(number: int) -> bytes:
    return bytes([number % 251]) * 100_000


def test_values_outlast_their_node_in_a_bucket(
    new_cluster: NewCluster, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/prod?endpoint={endpoint}&region=us-east-1"
    cluster = new_cluster(nodes=0, master_flags=[f"--shared_tier={url}"])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    store = joined(cluster, 16 * MIB)
    for number in range(20):
        assert store.put(f"k{number}", value(number)) == 0

    def in_bucket(number: int) -> bool:
        return any(replica.is_disk_replica() for replica in store.get_replica_desc(f"k{number}"))

    wait_until(lambda: all(map(in_bucket, range(20))), what="the objects to be in the bucket")
    store.close()
    reader = joined(cluster, 0)
    for number in range(20):
        assert reader.get(f"k{number}") == value(number)
    assert reader.remove("k0", force=True) == 0
    assert reader.get("k0") == b""
    reader.close()
    # With a wrong secret there is memory all the same.
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    other = joined(cluster, 16 * MIB)
    assert other.put("of-memory", value(1)) == 0
    assert other.get("of-memory") == value(1)
    other.close()
