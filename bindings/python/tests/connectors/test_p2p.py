"""Connectors that hand blocks over by address: vLLM, SGLang, vllm-omni, and an older vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _cluster import free_port

from connectors.engines import Engine
from connectors.memory import content

if TYPE_CHECKING:
    from connectors.p2p import OlderPipe, OmniStage, SglangEngine, VllmWorker

BLOCK = 16 << 10


def test_vllm_sends_blocks_of_all_layers(prefill: Engine, decode: Engine) -> None:
    layers, blocks = 8, 64
    sender: VllmWorker = prefill.make("connectors.p2p:VllmWorker", layers, blocks * BLOCK)
    receiver: VllmWorker = decode.make("connectors.p2p:VllmWorker", layers, blocks * BLOCK)
    local, remote = [3, 4, 5, 9, 40], [10, 11, 12, 2, 63]
    for layer in range(layers):
        for block in local:
            sender.fill(layer, block * BLOCK, content(f"{layer}/{block}", BLOCK))
    host, port, bases = receiver.metadata()
    assert sender.send_blocks(host, port, bases, local, remote, BLOCK) == 0
    for layer in range(layers):
        for mine, theirs in zip(local, remote, strict=True):
            assert receiver.content(layer, theirs * BLOCK, BLOCK) == content(
                f"{layer}/{mine}", BLOCK
            )
    # A decode worker that has gone.
    assert sender.send_blocks(host, free_port(), bases, local, remote, BLOCK) < 0


@pytest.mark.parametrize("device", [None, "mlx5_bond_0"])
def test_sglang_transfers_synchronously_and_polls(
    prefill: Engine, decode: Engine, device: str | None
) -> None:
    size = 4 << 20
    sender: SglangEngine = prefill.make("connectors.p2p:SglangEngine", size, device)
    receiver: SglangEngine = decode.make("connectors.p2p:SglangEngine", size, device)
    assert (sender.registered(), receiver.registered()) == (0, 0)
    session, mine, theirs = receiver.session_id(), sender.address(), receiver.address()
    data = content("sglang", 1 << 20)
    sender.fill(0, data)
    assert sender.transfer_sync(session, mine, theirs + 5, len(data)) == 0
    assert receiver.content(5, len(data)) == data
    half = len(data) // 2
    batch = ([mine + half, mine], [theirs + (2 << 20), theirs + (3 << 20)], [half, half])
    assert sender.transfer_async(session, *batch) == 0
    assert receiver.content(2 << 20, half) == data[half:]
    assert receiver.content(3 << 20, half) == data[:half]
    assert sender.is_back(session)
    nobody = f"127.0.0.1:{free_port()}"
    assert sender.transfer_sync(nobody, mine, theirs, 1) == -1
    assert sender.transfer_async(nobody, *batch) == -1
    assert not sender.is_back(nobody)
    assert receiver.deregister() == 0
    assert sender.transfer_sync(session, mine, theirs, 1) == -1


def test_omni_writes_out_of_a_pool(prefill: Engine, decode: Engine) -> None:
    first: OmniStage = prefill.make("connectors.p2p:OmniStage", 8 << 20)
    second: OmniStage = decode.make("connectors.p2p:OmniStage", 8 << 20)
    for nth, size in enumerate([1, 4096, 1 << 20, 3_000_001]):
        value = content(f"stage {nth}", size)
        session, address, at = second.room(size)
        assert first.put(session, address, value) == 0
        assert second.get(at, size) == value


@pytest.mark.parametrize("backend", [None, "etcd"])
def test_an_older_pipe_reads_from_managed_buffers(
    prefill: Engine, decode: Engine, backend: str | None
) -> None:
    one, other = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    sender: OlderPipe = prefill.make("connectors.p2p:OlderPipe", one, other, backend)
    receiver: OlderPipe = decode.make("connectors.p2p:OlderPipe", other, one, backend)
    for size in (1, 100_000, 5_000_000):
        data = content(f"pipe {size}", size)
        source, length = sender.send(data)
        assert receiver.receive(source, length) == data
        assert sender.acknowledged(source, length) == 0
