"""The own files, unmodified, of connectors that transfer by address: one interpreter writes to the
memory of another one.

As in `test_own_sources.py`, the files are of releases on the package index, and the rest of each
engine is a stand-in.
"""

from __future__ import annotations

from typing import Any

import pytest
from _cluster import free_port, wait_until

from connectors import _releases
from connectors.conftest import StartPair, needs_torch
from connectors.memory import content


def test_sglang_engine(start: StartPair) -> None:
    size = 1 << 20
    sender, receiver = (
        engine.make("connectors._stubs.sglang_transfer:Rank", parts=3, size=size)
        for engine in start("sglang_transfer", _releases.SGLANG)
    )
    assert sender.ib_device() == "mlx5_1"
    session, mine, theirs = receiver.session_id(), sender.addresses(), receiver.addresses()
    assert session != sender.session_id()
    data = [content(f"part {part}", size) for part in range(3)]
    for part, filling in enumerate(data):
        sender.fill(part, filling)
    assert sender.transfer(session, mine[0], theirs[0] + 5, size - 5) == 0
    assert receiver.content(0, 0, size) == bytes(5) + data[0][:-5]
    half = size // 2
    targets = [theirs[2], theirs[1] + half]
    assert sender.transfer_batch(session, [mine[1], mine[2]], targets, [size, half]) == 0
    assert receiver.content(2, 0, size) == data[1]
    assert receiver.content(1, 0, size) == bytes(half) + data[2][:half]
    assert sender.probe(session) == 0
    nobody = f"127.0.0.1:{free_port()}"
    assert sender.probe(nobody) != 0
    assert sender.transfer(nobody, mine[0], theirs[0], 1) < 0
    assert receiver.deregister() == 0
    assert sender.transfer(session, mine[0], theirs[0], 1) < 0
    assert sender.transfer_batch(session, mine[:2], theirs[:2], [1, 1]) < 0
    with pytest.raises(RuntimeError, match="memory deregistration failed"):
        receiver.deregister()


@needs_torch
def test_vllm_omni_connector(start: StartPair) -> None:
    port, pool = free_port(), 8 << 20
    one, other = start("omni_transfer", _releases.OMNI)
    sender = one.make("connectors._stubs.omni_transfer:Stage", pool=pool, port=port)
    receiver = other.make("connectors._stubs.omni_transfer:Stage", pool=pool)
    data, tensor = content("bytes", 3_000_001), content("tensor", 1 << 20)
    structured = {"hidden": content("object", 100_000), "tokens": [1, 2, 3]}
    place = {"source_host": "127.0.0.1", "source_port": port}

    # All is told, only where to ask, and nothing.
    stored, size, metadata = sender.put("bytes", data)
    assert (stored, size, metadata) == (
        True,
        len(data),
        {**place, "data_size": len(data), "is_fast_path": True},
    )
    assert receiver.get("bytes", metadata) == data
    assert sender.put_tensor("tensor", tensor)[0]
    assert receiver.get("tensor", place) == tensor
    receiver.expect_sender("127.0.0.1", port)
    assert sender.put("object", structured)[0]
    assert receiver.get("object") == structured

    # A value that was received is gone.
    assert receiver.get("bytes") is None
    assert receiver.health()["errors"] == sender.health()["errors"] == 0
    assert receiver.get("bytes", metadata) is None
    assert (receiver.health()["gets"], receiver.health()["errors"]) == (3, 1)
    assert sender.pool_is_free()
    assert receiver.pool_is_free()
    receiver.close()
    sender.close()
    assert sender.health()["status"] == receiver.health()["status"] == "unhealthy"


@needs_torch
def test_vllm_worker(start: StartPair) -> None:
    port = free_port()
    one, other = start("vllm_transfer", _releases.VLLM, BOOTSTRAP_PORT=str(port))
    rank = "connectors._stubs.vllm_transfer:Rank"
    prefill = one.make(rank, "prefill", "kv_producer", blocks=16)
    decode = other.make(rank, "decode", "kv_consumer", blocks=16)
    peer = ("prefill", f"http://127.0.0.1:{port}")
    names = [f"block {number}" for number in range(5)]

    prefill.compute("p1", "t1", dict(zip([1, 2, 3, 7, 8], names, strict=True)))
    decode.load("d1", "t1", *peer, [4, 5, 6, 9, 2])
    assert until_loaded(decode, "d1") == set()
    assert all(decode.holds(*held) for held in zip([4, 5, 6, 9, 2], names, strict=True))
    wait_until(lambda: "p1" in prefill.finished()[0], what="the end of the sending")
    assert prefill.transfers() == ([4 * 5 * 4096], 0)

    # Asked for first; the decode worker has the first blocks already.
    decode.load("d2", "t2", *peer, [11, 12])
    prefill.compute("p2", "t2", dict(enumerate(names, 10)))
    assert until_loaded(decode, "d2") == set()
    assert decode.holds(11, names[3])
    assert decode.holds(12, names[4])

    # Memory that was given back takes nothing, and takes again after it was registered again.
    prefill.transfers()
    decode.sleep()
    prefill.compute("p3", "t3", {1: "third"})
    decode.load("d3", "t3", *peer, [13])
    assert until_loaded(decode, "d3") == {13}
    assert prefill.transfers() == ([], 1)
    decode.wake()
    decode.load("d4", "t3", *peer, [14])
    assert until_loaded(decode, "d4") == set()
    assert decode.holds(14, "third")
    assert not decode.holds(13, "third")


def until_loaded(rank: Any, request: str) -> set[int]:
    """Waits until a request was loaded, and returns the blocks that could not be."""
    failed: set[int] = set()

    def loaded() -> bool:
        _, requests, more_failed = rank.finished()
        failed.update(more_failed)
        return request in requests

    wait_until(loaded, what=f"the load of {request}")
    return failed
