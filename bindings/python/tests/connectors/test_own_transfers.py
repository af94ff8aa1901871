"""The own files, unmodified, of connectors that transfer by address: one interpreter writes to the
memory of another one.

As in `test_own_sources.py`, the files are of releases on the package index, and the rest of each
engine is a stand-in.
"""

from __future__ import annotations

import pytest
from _cluster import free_port

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

    # What was got is gone.
    assert receiver.get("bytes") is None
    assert receiver.health()["errors"] == sender.health()["errors"] == 0
    assert receiver.get("bytes", metadata) is None
    assert (receiver.health()["gets"], receiver.health()["errors"]) == (3, 1)
    assert sender.pool_is_free()
    assert receiver.pool_is_free()
    receiver.close()
    sender.close()
    assert sender.health()["status"] == receiver.health()["status"] == "unhealthy"
