"""A process with a transfer engine, for tests that drive it from outside."""

from __future__ import annotations

import os
from typing import Any

from connectors.memory import HostMemory

P2P = "P2PHANDSHAKE"


class Peer:
    """A transfer engine with some memory, which is registered unless told otherwise."""

    def __init__(
        self,
        hostname: str = "127.0.0.1",
        size: int = 1 << 20,
        *,
        protocol: str = "tcp",
        metadata_server: str = P2P,
        register: bool = True,
        environment: dict[str, str] | None = None,
    ) -> None:
        os.environ.update(environment or {})
        from mc_store.mooncake.engine import TransferEngine

        self._engine = TransferEngine()
        code = self._engine.initialize(hostname, metadata_server, protocol, "")
        assert code == 0, f"initialize answered {code}"
        self._host = hostname.partition(":")[0]
        self._memory = HostMemory(size)
        if register:
            assert self._engine.register_memory(self._memory.address, size) == 0

    def session(self) -> str:
        """The name of this engine for other engines."""
        return f"{self._host}:{self._engine.get_rpc_port()}"

    def address(self) -> int:
        """Where the memory begins."""
        return self._memory.address

    def pid(self) -> int:
        """The process."""
        return os.getpid()

    def write(self, at: int, data: bytes) -> None:
        """Writes the memory, from the offset `at` on."""
        self._memory.write(at, data)

    def read(self, at: int, size: int) -> bytes:
        """Reads the memory, from the offset `at` on."""
        return self._memory.read(at, size)

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Calls a method of the engine."""
        return getattr(self._engine, method)(*arguments, **keywords)

    def notifies(self) -> list[tuple[str, str]]:
        """The notifies that have come, as names and messages."""
        return [(notify.name, notify.msg) for notify in self._engine.get_notifies()]
