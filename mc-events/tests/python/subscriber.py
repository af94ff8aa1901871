"""A subscriber of every encoding, with the sockets and decoders that real ones use.

    subscriber.py decode [{"encoding": "s4", "endpoint": "tcp://…", "replay": "tcp://…"}, …]

expects a store, a removal and a removal of everything, and checks the live messages, the replay and
the snapshot. With `restart` in place of `decode`, 50 subscribers expect a message from the publisher at
the first endpoint, and one from the next publisher there.
"""

import json
import sys
from typing import Any, Union

import msgpack
import msgspec
import zmq

HASH = 0x1122334455667788
KEY = "0x1122334455667788"
END = b"\xff" * 8
TIMEOUT_MS = 20_000
Hash = Union[bytes, int]


# vLLM's events, from vllm/distributed/kv_events.py: maps since 0.24, arrays before.
def structs(array_like: bool):
    options = {"array_like": array_like, "omit_defaults": True, "gc": False, "tag": True}
    stored = msgspec.defstruct(
        "BlockStored",
        [
            ("block_hashes", list[Hash]),
            ("parent_block_hash", Union[Hash, None]),
            ("token_ids", list[int]),
            ("block_size", int),
            ("lora_id", Union[int, None]),
            ("medium", Union[str, None]),
            ("lora_name", Union[str, None]),
        ],
        **options,
    )
    removed = msgspec.defstruct(
        "BlockRemoved", [("block_hashes", list[Hash]), ("medium", Union[str, None])], **options
    )
    cleared = msgspec.defstruct("AllBlocksCleared", [], **options)
    return msgspec.defstruct(
        "KVEventBatch",
        [
            ("ts", float),
            ("events", list[Union[stored, removed, cleared]]),
            ("data_parallel_rank", Union[int, None], None),
        ],
        array_like=True,
        gc=False,
    )


def check_s4(payloads):
    stored, removed, cleared = (msgpack.unpackb(payload) for payload in payloads)
    assert isinstance(stored[0], float) and len(stored) == 2, stored
    assert stored[1] == [
        ["BlockStoreEvent", KEY, [["memory", "10.0.0.1:1"]], "llama", 4, KEY, "7", [1, 2, 3, 4]]
    ], stored
    assert removed[1] == [["BlockUpdateEvent", KEY, []]], removed
    assert cleared[1] == [["RemoveAllEvent"]], cleared


def check_mooncake(payloads):
    types = []
    for number, payload in enumerate(payloads, 1):
        time, [event], rank = msgpack.unpackb(payload)
        assert isinstance(time, int) and rank == 0 and event["dp_rank"] == 0, event
        assert event["timestamp"] == time and event["event_id"] == number, event
        assert event["backend_id"] == "mooncake-0" and event["tenant_id"] == "default", event
        types.append(event["event_type"])
        if event["event_type"] != "cleared":
            assert event["object_key"] == KEY and event["seq_hashes"] == [HASH], event
            assert event["medium"] == "cpu", event
    assert types == ["stored", "removed", "cleared"], types


def check_vllm(payloads, array_like):
    decoder = msgspec.msgpack.Decoder(type=structs(array_like))
    batches = [decoder.decode(payload) for payload in payloads]
    assert all(batch.data_parallel_rank == 0 and len(batch.events) == 1 for batch in batches)
    stored, removed, cleared = (batch.events[0] for batch in batches)
    assert stored.block_hashes == removed.block_hashes == [HASH], stored
    assert stored.parent_block_hash == 7 and stored.block_size == 4, stored
    assert stored.token_ids == [1, 2, 3, 4] and stored.medium == "CPU", stored
    assert type(cleared).__name__ == "AllBlocksCleared"


CHECKS = {
    "s4": check_s4,
    "mooncake": check_mooncake,
    "vllm": lambda payloads: check_vllm(payloads, array_like=False),
    "vllm-positional": lambda payloads: check_vllm(payloads, array_like=True),
}


def open_socket(context, kind, endpoint):
    socket = context.socket(kind)
    socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
    socket.setsockopt(zmq.LINGER, 0)
    if kind == zmq.SUB:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    return socket


def replay_dealer(socket, start):
    socket.send(start.to_bytes(8, "big"))
    messages = []
    while (message := socket.recv_multipart()) != [END, b""]:
        messages.append((int.from_bytes(message[0], "big"), message[1]))
    return messages


def replay_req(context, endpoint, start):
    """A REQ socket gets the first message of each answer. What follows it may arrive after the socket
    has sent its next request, and would be taken for the answer to that: a socket for each request."""
    messages = []
    while True:
        socket = open_socket(context, zmq.REQ, endpoint)
        socket.send(start.to_bytes(8, "big"))
        number, payload = socket.recv_multipart()
        socket.close()
        if number == END:
            return messages
        messages.append((int.from_bytes(number, "big"), payload))
        start = messages[-1][0] + 1


def ask_info(context, endpoint):
    req = open_socket(context, zmq.REQ, endpoint)
    req.send(b"INFO")
    name, info = req.recv_multipart()
    assert name == b"INFO"
    req.close()
    return msgpack.unpackb(info)


def restart(context, endpoints):
    endpoint, replay = endpoints[0]["endpoint"], endpoints[0]["replay"]
    first = ask_info(context, replay)
    live = [open_socket(context, zmq.SUB, endpoint) for _ in range(50)]
    for _ in range(2):
        # One poll for all: libzmq sends subscriptions again while the socket is polled.
        poller = zmq.Poller()
        for socket in live:
            poller.register(socket, zmq.POLLIN)
        while poller.sockets:
            ready = poller.poll(TIMEOUT_MS)
            assert ready, f"{len(poller.sockets)} subscribers got nothing"
            for socket, _ in ready:
                assert socket.recv_multipart()[1] == bytes(8)
                poller.unregister(socket)
    second = ask_info(context, replay)
    assert first["incarnation"] != second["incarnation"] and second["next"] == 1, (first, second)


def decode(context, endpoints: list[dict[str, Any]]):
    live = [open_socket(context, zmq.SUB, each["endpoint"]) for each in endpoints]
    for each, socket in zip(endpoints, live):
        frames = [socket.recv_multipart() for _ in range(3)]
        assert all(topic == each["encoding"].encode() for topic, _, _ in frames), frames
        messages = [(int.from_bytes(number, "big"), payload) for _, number, payload in frames]
        expected = [1, 2, 4] if each["encoding"] == "mooncake" else [0, 1, 2]
        assert [number for number, _ in messages] == expected, messages
        CHECKS[each["encoding"]]([payload for _, payload in messages])

        dealer = open_socket(context, zmq.DEALER, each["replay"])
        assert replay_dealer(dealer, 0) == messages
        assert replay_req(context, each["replay"], 0) == messages
        assert replay_dealer(dealer, expected[-1] + 1) == []
        info = ask_info(context, each["replay"])
        assert info["encoding"] == each["encoding"], info
        assert info["oldest"] == expected[0] and info["next"] == expected[-1] + 1, info
        dealer.send(b"SNAPSHOT:")
        name, incarnation, number, cursor, page = dealer.recv_multipart()
        assert name == b"SNAPSHOT:" and cursor == b"", (name, cursor)
        assert int.from_bytes(incarnation, "big") == info["incarnation"]
        assert int.from_bytes(number, "big") == info["next"]
        assert len(msgpack.unpackb(page)[1]) == 1, page


context = zmq.Context()
{"decode": decode, "restart": restart}[sys.argv[1]](context, json.loads(sys.argv[2]))
context.destroy(linger=0)
