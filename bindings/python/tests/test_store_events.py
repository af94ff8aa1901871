"""The block information of a put reaches the subscribers of the master's events."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import msgpack
import zmq
from _cluster import PATIENCE, Cluster
from _fixtures import NewStore
from mc_store import Client
from mc_store.mooncake.store import StoreEventInfo

FLAGS = (
    "--enable_kv_event_publish",
    "--kv_event_publisher_endpoint=tcp://127.0.0.1:0",
    "--kv_event_publisher_replay_endpoint=tcp://127.0.0.1:0",
)


def info(number: int) -> StoreEventInfo:
    return StoreEventInfo(
        model_name="llama-ü",
        block_size=16,
        block_hash=f"0x{number:x}",
        parent_block_hash=f"0x{number - 1:x}",
        token_ids=[number, 2**32 - 1],
    )


def published(cluster: Cluster) -> dict[str, list[Any]]:
    """The metadata of each stored key, from the messages that the master keeps."""
    endpoint = cluster.master.expect(r"replay at (\S+)")[1]
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        dealer.send(bytes(8))
        found = {}
        while (message := dealer.recv_multipart())[0] != b"\xff" * 8:
            for event in msgpack.unpackb(message[1])[1]:
                if event[0] == "BlockStoreEvent":
                    found[event[1]] = event[3:]
        return found


def test_every_put_tells_subscribers_of_its_block(
    new_cluster: Callable[..., Cluster], new_store: NewStore
) -> None:
    cluster = new_cluster(master_flags=FLAGS)
    store = new_store(cluster)
    data = ctypes.create_string_buffer(b"0123456789abcdef")
    span, part = (ctypes.addressof(data), 16), (ctypes.addressof(data), 8)
    assert store.register_buffer(*span) == 0
    assert store.put("put", b"x", store_event_infos=info(1)) == 0
    assert store.upsert("upsert", b"x", store_event_infos=[info(2)]) == 0
    assert store.put_parts("parts", b"x", b"y", store_event_infos=info(3)) == 0
    assert store.put_batch(["a", "b"], [b"x", b"y"], store_event_infos=[info(4), info(5)]) == 0
    assert store.put_from("from", *span, store_event_infos=info(6)) == 0
    one, other = [[part[0]]], [[part[1]]]
    assert store.batch_put_from(["c"], [part[0]], [8], store_event_infos=[info(7)]) == [0]
    assert store.batch_put_from_multi_buffers(["d"], one, other, store_event_infos=[info(8)]) == [0]
    assert store.put("without", b"x") == 0
    with Client(cluster.address) as client:
        client.put("client", b"x", event_info=info(9))
    keys = ["put", "upsert", "parts", "a", "b", "from", "c", "d", "client"]
    expected = {
        key: ["llama-ü", 16, f"0x{number:x}", f"0x{number - 1:x}", [number, 2**32 - 1]]
        for number, key in enumerate(keys, 1)
    }
    assert published(cluster) == expected | {"without": ["", 0, "", "", []]}
