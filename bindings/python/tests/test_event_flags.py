"""The flags of mc-master for KV events: each does what the event manual says."""

from __future__ import annotations

import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from _cluster import PATIENCE, Cluster, binary, wait_until
from _fixtures import NewStore
from mc_store.mooncake.store import StoreEventInfo

ANY_PORT = "--kv_event_publisher_endpoint=tcp://127.0.0.1:0"
PUBLISHED = r"KV events \((\S+)\) published at ([^\s,]+)(?:, replay at (\S+))?"

NewCluster = Callable[..., Cluster]


@contextmanager
def subscriber(
    cluster: Cluster, at: str = PUBLISHED, high_water: int = 1000
) -> Iterator[zmq.Socket[bytes]]:
    """A subscriber whose subscription the master knows."""
    endpoint = cluster.master.expect(at)[2]
    with zmq.Context() as context, context.socket(zmq.SUB) as live:
        live.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
        live.setsockopt(zmq.LINGER, 0)
        live.setsockopt(zmq.RCVHWM, high_water)
        live.setsockopt(zmq.SUBSCRIBE, b"")
        live.connect(endpoint)
        wait_until(lambda: figure(cluster, "subscribers") > 0, what="the subscription")
        yield live


def figure(cluster: Cluster, name: str) -> int:
    with urllib.request.urlopen(f"{cluster.http}/metrics") as page:
        lines = page.read().decode().splitlines()
    prefix = f"master_kv_events_{name} "
    return int(next(line for line in lines if line.startswith(prefix)).removeprefix(prefix))


def events(live: zmq.Socket[bytes], count: int) -> list[list[Any]]:
    """The events of each message, until there were `count` of them."""
    batches: list[list[Any]] = []
    while sum(map(len, batches)) < count:
        batches.append(msgpack.unpackb(live.recv_multipart()[2])[1])
    return batches


def test_nothing_is_published_unless_asked_for(new_cluster: NewCluster) -> None:
    cluster = new_cluster(nodes=0, master_flags=[ANY_PORT])
    assert "KV events" not in cluster.master.output
    cluster = new_cluster(nodes=0, master_flags=[ANY_PORT, "--enable_kv_event_publish=false"])
    assert "KV events" not in cluster.master.output


@pytest.mark.parametrize("dash", ["-", "--"])
def test_the_endpoints_and_the_topic_are_those_of_the_flags(
    new_cluster: NewCluster, new_store: NewStore, tmp_path: Path, dash: str
) -> None:
    flags = [
        f"{dash}enable_kv_event_publish",
        f"{dash}kv_event_publisher_endpoint=ipc://{tmp_path}/events",
        f"{dash}kv_event_publisher_replay_endpoint=ipc://{tmp_path}/replay",
        f"{dash}kv_event_publisher_topic=kv@pod a@model",
    ]
    cluster = new_cluster(master_flags=flags)
    published = cluster.master.expect(PUBLISHED)
    assert published.groups() == ("s4", f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    with subscriber(cluster) as live:
        assert new_store(cluster).put("k", b"x") == 0
        topic, _, payload = live.recv_multipart()
    assert topic == b"kv@pod a@model"
    assert msgpack.unpackb(payload)[1][0][:2] == ["BlockStoreEvent", "k"]


def test_a_message_has_as_many_events_as_the_flags_allow(
    new_cluster: NewCluster, new_store: NewStore
) -> None:
    keys = [f"k{number}" for number in range(120)]
    for flags, most, fewest in (
        (["--kv_event_publisher_max_batch_size=1"], 1, 120),
        (["--kv_event_publisher_send_interval_ms=300"], 50, 3),
    ):
        cluster = new_cluster(master_flags=["--enable_kv_event_publish", ANY_PORT, *flags])
        with subscriber(cluster) as live:
            assert new_store(cluster).put_batch(keys, [b"x"] * len(keys)) == 0
            batches = events(live, len(keys))
        assert max(map(len, batches)) == most
        # The first may be sent at once.
        assert fewest <= len(batches) <= max(fewest + 1, most)
        assert sorted(event[1] for batch in batches for event in batch) == sorted(keys)


def test_a_slow_subscriber_has_as_many_messages_waiting_as_the_flag_allows(
    new_cluster: NewCluster, new_store: NewStore
) -> None:
    flags = ["--kv_event_publisher_hwm=1", "--kv_event_publisher_max_batch_size=1"]
    cluster = new_cluster(master_flags=["--enable_kv_event_publish", ANY_PORT, *flags])
    store = new_store(cluster)
    large = StoreEventInfo(token_ids=[2**32 - 1] * 20_000)
    # It takes nothing, so the system's buffers fill.
    with subscriber(cluster, high_water=1):
        for number in range(400):
            assert store.put(f"k{number}", b"x", store_event_infos=large) == 0
        wait_until(lambda: figure(cluster, "skipped_messages_total") > 0, what="a skipped message")
        assert figure(cluster, "waiting_bytes") < 2**20


def test_a_port_in_use_is_an_error_or_another_one_is_taken(new_cluster: NewCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [
            "--enable_kv_event_publish",
            f"--kv_event_publisher_endpoint=tcp://127.0.0.1:{port}",
        ]
        cluster = new_cluster(nodes=0, master_flags=flags)
        assert cluster.master.expect(PUBLISHED)[2] != f"tcp://127.0.0.1:{port}"
        cluster.master.expect("the port is in use; another one is taken")
        command = [str(binary("mc-master")), "--rpc_port=0", "--metrics_port=0", *flags]
        refused = subprocess.run(
            [*command, "--kv_event_publisher_auto_port=false"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert refused.returncode == 1
    assert f"tcp://127.0.0.1:{port} is in use by another process" in refused.stderr


@pytest.mark.parametrize(
    ("flag", "refusal"),
    [
        ("endpoint=foo", '"foo" is not an endpoint: the scheme is unknown'),
        ("endpoint=tcp://127.0.0.1", "is not an endpoint"),
        ("endpoint=tcp://192.0.2.1:5555", "cannot listen on tcp://192.0.2.1:5555"),
        ("endpoint=ipc:///nowhere/events", "cannot listen on ipc:///nowhere/events"),
        ("replay_endpoint=udp://127.0.0.1:1", "is not an endpoint"),
        ("topic=a\nb", "has control characters"),
        ("topic=" + "t" * 256, "more than 255 bytes"),
        ("hwm=0", "expected at least 1"),
        ("hwm=-1", "expected a whole number"),
        ("send_interval_ms=61s", "choose at most 60s"),
        ("max_batch_size=many", "expected a whole number"),
        ("auto_port=maybe", "expected true or false"),
        ("removal_reasons=maybe", "expected true or false"),
        (
            "also=encoding=vllm-positional,endpoint=tcp://*:0,removal_reasons=true",
            "choose vllm",
        ),
        ("encoding=json", "choose s4, mooncake, vllm or vllm-positional"),
        ("also=topic=x", "endpoint is missing"),
        ("info_memory=0", "at least one byte"),
    ],
)
def test_what_a_flag_cannot_be_is_refused(flag: str, refusal: str) -> None:
    command = [
        str(binary("mc-master")),
        "--rpc_port=0",
        "--metrics_port=0",
        "--enable_kv_event_publish",
    ]
    refused = subprocess.run(
        [*command, ANY_PORT, f"--kv_event_publisher_{flag}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert refused.returncode != 0
    assert refusal in refused.stderr


def test_removals_tell_why_where_a_flag_asks_for_it(
    new_cluster: NewCluster, new_store: NewStore
) -> None:
    cluster = new_cluster(
        master_flags=[
            "--enable_kv_event_publish",
            ANY_PORT,
            "--kv_event_publisher_removal_reasons",
            "--kv_event_publisher_also=encoding=mooncake,endpoint=tcp://127.0.0.1:0,topic=m",
            "--kv_event_publisher_also=encoding=vllm,endpoint=tcp://127.0.0.1:0,removal_reasons=true",
        ]
    )
    with (
        subscriber(cluster) as reasons,
        subscriber(cluster, PUBLISHED.replace(r"(\S+)", "(mooncake)", 1)) as mooncake,
        subscriber(cluster, PUBLISHED.replace(r"(\S+)", "(vllm)", 1)) as vllm,
    ):
        wait_until(lambda: figure(cluster, "subscribers") == 3, what="three subscriptions")
        store = new_store(cluster)
        info = StoreEventInfo(block_size=2, block_hash="17", token_ids=[1, 2])
        assert store.put("k", b"x", store_event_infos=info) == 0
        assert store.remove("k") == 0
        _, removed = (event for batch in events(reasons, 2) for event in batch)
        assert removed == ["BlockUpdateEvent", "k", [], "removed"]
        _, removed = (event for batch in events(mooncake, 2) for event in batch)
        assert "removal_reason" not in removed
        _, removed = (event for batch in events(vllm, 2) for event in batch)
        assert removed["removal_reason"] == "removed"


def test_each_endpoint_has_its_encoding_and_its_tenant(
    new_cluster: NewCluster, new_store: NewStore
) -> None:
    cluster = new_cluster(
        master_flags=[
            "--enable_kv_event_publish",
            ANY_PORT,
            "--kv_event_publisher_encoding=mooncake",
            "--kv_event_publisher_backend_id=store-7",
            "--kv_event_publisher_also=encoding=vllm,endpoint=tcp://127.0.0.1:0,topic=kv-events",
            "--kv_event_publisher_also=endpoint=tcp://127.0.0.1:0,tenant=nobody,topic=t",
        ]
    )
    vllm = PUBLISHED.replace(r"(\S+)", "(vllm)", 1)
    with (
        subscriber(cluster) as mooncake,
        subscriber(cluster, vllm) as tokens,
        subscriber(cluster, PUBLISHED.replace(r"(\S+)", "(s4)", 1)) as nobody,
    ):
        wait_until(lambda: figure(cluster, "subscribers") == 3, what="three subscriptions")
        store = new_store(cluster)
        info = StoreEventInfo(block_size=2, block_hash="17", token_ids=[1, 2])
        assert store.put("k", b"x", store_event_infos=info) == 0
        assert store.remove("k") == 0
        stored, removed = (event for batch in events(mooncake, 2) for event in batch)
        assert (stored["event_type"], stored["backend_id"]) == ("stored", "store-7")
        assert (removed["event_type"], removed["object_key"]) == ("removed", "k")
        stored, removed = (event for batch in events(tokens, 2) for event in batch)
        assert (stored["type"], stored["block_hashes"]) == ("BlockStored", [17])
        assert (removed["type"], removed["block_hashes"]) == ("BlockRemoved", [17])
        assert nobody.poll(0) == 0
