"""SGLang's MooncakeTransferEngine, which its disaggregation shares in a process."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from connectors._stubs import package, stand_in
from connectors.memory import HostMemory

OWN = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"


@dataclass(frozen=True)
class NetworkAddress:
    host: str
    port: int

    def to_host_port_str(self) -> str:
        return f"{self.host}:{self.port}"


def run_with_deadline(call: Callable[[], int], *, timeout_s: float, what: str) -> int:
    """Its own ends the process when the time is over."""
    return call()


def provide(root: Path) -> None:
    package(root, "sglang")
    moe = SimpleNamespace(
        elastic_ep_backend=None, enable_elastic_expert_backup=False, mooncake_ib_device=None
    )
    memory = SimpleNamespace(enable_hierarchical_cache=False)
    disaggregation = SimpleNamespace(
        disaggregation_mode="prefill",
        disaggregation_transfer_backend="mooncake",
        disaggregation_ib_device='{"0": "mlx5_0", "1": "mlx5_1"}',
    )
    stand_in(
        "sglang.srt.runtime_context",
        get_disagg=lambda: disaggregation,
        get_exec=lambda: SimpleNamespace(moe=moe),
        get_memory=lambda: memory,
    )
    stand_in("sglang.srt.utils.common", run_with_deadline=run_with_deadline)
    stand_in(
        "sglang.srt.utils.network",
        NetworkAddress=NetworkAddress,
        get_free_port=None,
        get_local_ip_auto=lambda: "127.0.0.1",
    )


class Rank:
    """A rank of a prefill or a decode worker, with `parts` parts of memory, `size` bytes each.
    The first one is registered alone, the other ones together."""

    def __init__(self, *, parts: int, size: int) -> None:
        own = importlib.import_module(OWN)
        own.maybe_init_shared_mooncake_transfer_engine(gpu_id=1)
        self._engine = own.get_mooncake_transfer_engine()
        self._parts = [HostMemory(size) for _ in range(parts)]
        first, *others = self.addresses()
        self._engine.register(first, size)
        assert self._engine.batch_register(others, [size] * len(others)) == 0

    def session_id(self) -> str:
        session: str = self._engine.get_session_id()
        return session

    def addresses(self) -> list[int]:
        """Where the parts begin."""
        return [part.address for part in self._parts]

    def ib_device(self) -> str | None:
        """The device that the settings name for the rank."""
        device: str | None = self._engine.get_ib_device()
        return device

    def fill(self, part: int, data: bytes) -> None:
        self._parts[part].write(0, data)

    def content(self, part: int, at: int, size: int) -> bytes:
        return self._parts[part].read(at, size)

    def transfer(self, session: str, source: int, target: int, length: int) -> int:
        code: int = self._engine.transfer_sync(session, source, target, length)
        return code

    def transfer_batch(
        self, session: str, sources: list[int], targets: list[int], lengths: list[int]
    ) -> int:
        code: int = self._engine.batch_transfer_sync(session, sources, targets, lengths)
        return code

    def probe(self, session: str) -> int:
        """0 if the engine of a session lives."""
        code: int = self._engine.send_probe(session)
        return code

    def deregister(self) -> int:
        """Gives the memory back, as it was registered; returns the code of the parts that were
        registered together.

        Raises:
            RuntimeError: the first part is not registered.
        """
        first, *others = self.addresses()
        self._engine.deregister(first)
        code: int = self._engine.batch_deregister(others)
        return code
