"""Stand-ins of connectors that hand blocks over by address, through `mooncake.engine`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mooncake.engine import TransferEngine

from connectors.memory import HostMemory


class VllmWorker:
    """vLLM's `MooncakeConnector`: the prefill worker writes blocks of all layers to the decode
    worker, whose addresses it was told. Both register each layer in one batch."""

    def __init__(self, layers: int, layer_size: int, protocol: str = "rdma") -> None:
        self._engine = TransferEngine()
        self._host = "127.0.0.1"
        code = self._engine.initialize(self._host, "P2PHANDSHAKE", protocol, "")
        if code != 0:
            raise RuntimeError("the engine does not start")
        self._port = self._engine.get_rpc_port()
        self._layers = [HostMemory(layer_size) for _ in range(layers)]
        pointers = [layer.address for layer in self._layers]
        if self._engine.batch_register_memory(pointers, [layer_size] * layers) != 0:
            raise RuntimeError("the memory of the layers is not registered")

    def metadata(self) -> tuple[str, int, list[int]]:
        """The message of the decode worker to the prefill worker: host, port, and the layers."""
        return self._host, self._port, [layer.address for layer in self._layers]

    def fill(self, layer: int, at: int, data: bytes) -> None:
        """Computes a block."""
        self._layers[layer].write(at, data)

    def content(self, layer: int, at: int, size: int) -> bytes:
        """Returns a block."""
        return self._layers[layer].read(at, size)

    def send_blocks(
        self,
        host: str,
        port: int,
        bases: Sequence[int],
        local_blocks: Sequence[int],
        remote_blocks: Sequence[int],
        block_size: int,
    ) -> int:
        """Sends blocks of all layers in one batch, adjacent ones as one; returns the code."""
        sources: list[int] = []
        targets: list[int] = []
        lengths: list[int] = []
        for layer, base in zip(self._layers, bases, strict=True):
            for mine, theirs in zip(local_blocks, remote_blocks, strict=True):
                source, target = layer.address + mine * block_size, base + theirs * block_size
                if (
                    sources
                    and sources[-1] + lengths[-1] == source
                    and targets[-1] + lengths[-1] == target
                ):
                    lengths[-1] += block_size
                    continue
                sources.append(source)
                targets.append(target)
                lengths.append(block_size)
        session = f"{host}:{port}"
        return self._engine.batch_transfer_sync_write(session, sources, targets, lengths)


class SglangEngine:
    """SGLang's `MooncakeTransferEngine` and what its disaggregation does with it: one or many
    transfers, asynchronous ones that are polled where the engine can, and sessions that failed
    and are probed until they are back."""

    def __init__(self, size: int, ib_device: str | None = None) -> None:
        self.engine = TransferEngine()
        self.hostname = "127.0.0.1"
        code = self.engine.initialize(
            self.hostname, "P2PHANDSHAKE", "rdma", ib_device if ib_device is not None else ""
        )
        if code != 0:
            raise RuntimeError("the engine does not start")
        self._session_id = f"{self.hostname}:{self.engine.get_rpc_port()}"
        self._memory = HostMemory(size)
        self._registered = self.engine.register_memory(self._memory.address, size)

    def session_id(self) -> str:
        """The name of this engine for its peers."""
        return self._session_id

    def registered(self) -> int:
        """The code of the registration, which is only logged."""
        return self._registered

    def address(self) -> int:
        """Where the memory begins."""
        return self._memory.address

    def fill(self, at: int, data: bytes) -> None:
        """Writes the memory."""
        self._memory.write(at, data)

    def content(self, at: int, size: int) -> bytes:
        """Reads the memory."""
        return self._memory.read(at, size)

    def transfer_sync(self, session: str, buffer: int, peer: int, length: int) -> int:
        """One transfer; what is raised counts as a failure."""
        try:
            code = self.engine.transfer_sync_write(session, buffer, peer, length)
        except Exception:
            code = -1
        return code

    def transfer_async(
        self, session: str, buffers: list[int], peers: list[int], lengths: list[int]
    ) -> int:
        """Several transfers, polled with pauses that grow."""
        batch = self.engine.batch_transfer_async_write(session, buffers, peers, lengths)
        if batch == 0:
            return -1
        assert hasattr(self.engine, "batch_transfer_poll")
        pause = 50e-6
        while (state := self.engine.batch_transfer_poll([batch])[0]) == 1:
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)
        self.engine.batch_transfer_free([batch])
        return state

    def is_back(self, session: str) -> bool:
        """Whether a session that has failed may be used again."""
        return self.engine.send_probe(session) == 0

    def deregister(self) -> int:
        """Gives the memory back."""
        return self.engine.unregister_memory(self._memory.address)


class OmniStage:
    """vllm-omni's `MooncakeTransferEngineConnector`: a pool that is registered as a whole, out of
    which one stage writes to the place that the other one has made room at."""

    def __init__(self, pool_size: int) -> None:
        self._engine = TransferEngine()
        assert self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self._port = self._engine.get_rpc_port()
        self._pool = HostMemory(pool_size)
        self._used = 0
        assert self._engine.register_memory(self._pool.address, pool_size) == 0

    def room(self, size: int) -> tuple[str, int, int]:
        """Makes room for a value; returns the session, the address, and the place in the pool."""
        at, self._used = self._used, self._used + size
        return f"127.0.0.1:{self._port}", self._pool.address + at, at

    def put(self, session: str, address: int, value: bytes) -> int:
        """Copies a value to the pool and writes it to the other stage."""
        _, source, at = self.room(len(value))
        self._pool.write(at, value)
        return self._engine.batch_transfer_sync_write(session, [source], [address], [len(value)])

    def get(self, at: int, size: int) -> bytes:
        """Returns a value that has come."""
        return self._pool.read(at, size)


class OlderPipe:
    """vLLM's former `mooncake_pipe`: a sender writes bytes to a managed buffer and tells where, and
    a receiver reads them from there. It names the engines by the URLs of its configuration."""

    def __init__(self, local_url: str, remote_url: str, backend: str | None) -> None:
        import mooncake_vllm_adaptor as mva

        self._engine = mva.mooncake_vllm_adaptor()
        self._remote_url = remote_url
        if backend is None:
            code = self._engine.initialize(local_url, "127.0.0.1:2379", "tcp", "")
        else:
            code = self._engine.initializeExt(local_url, "127.0.0.1:2379", "tcp", "", backend)
        assert code == 0

    def send(self, data: bytes) -> tuple[int, int]:
        """Makes bytes available; returns their address and number."""
        source = self._engine.allocateManagedBuffer(len(data))
        if source <= 0:
            raise RuntimeError("no managed buffer")
        self._engine.writeBytesToBuffer(source, data, len(data))
        return source, len(data)

    def receive(self, source: int, length: int) -> bytes:
        """Reads bytes of the other side."""
        target = self._engine.allocateManagedBuffer(length)
        if target <= 0:
            raise RuntimeError("no managed buffer")
        if self._engine.transferSync(self._remote_url, target, source, length) < 0:
            raise RuntimeError("not transferred")
        data: bytes = self._engine.readBytesFromBuffer(target, length)
        self._engine.freeManagedBuffer(target, length)
        return data

    def acknowledged(self, source: int, length: int) -> int:
        """The other side has read them."""
        freed: int = self._engine.freeManagedBuffer(source, length)
        return freed
