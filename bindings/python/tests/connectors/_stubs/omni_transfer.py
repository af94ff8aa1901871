"""vllm-omni's MooncakeTransferEngineConnector."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from connectors._stubs import newer_torch, omni, structs


def provide(root: Path) -> None:
    newer_torch.complete()
    structs.provide()
    omni.provide(root)


class Stage:
    """A stage with a pool of `pool` bytes: a sender, which answers at `port`, or a receiver."""

    def __init__(self, *, pool: int, port: int | None = None) -> None:
        name = f"{omni.CONNECTORS}.connectors.mooncake_transfer_engine_connector"
        config = {
            "host": "127.0.0.1",
            "role": "receiver" if port is None else "sender",
            "zmq_port": port,
            "memory_pool_size": pool,
        }
        self._connector = importlib.import_module(name).MooncakeTransferEngineConnector(config)

    def put(self, key: str, value: Any) -> tuple[bool, int, dict[str, Any] | None]:
        """Makes a value available; returns whether it is, its size, and what a receiver is told."""
        done: tuple[bool, int, dict[str, Any] | None] = self._connector.put("0", "1", key, value)
        return done

    def put_tensor(self, key: str, data: bytes) -> tuple[bool, int, dict[str, Any] | None]:
        """As `put`, with a tensor of two columns that is not contiguous."""
        columns = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(2, -1)
        return self.put(key, columns.T.contiguous().T)

    def get(self, key: str, metadata: dict[str, Any] | None = None) -> Any:
        """Gets a value: bytes out of the pool, an object, or None."""
        got = self._connector.get("0", "1", key, metadata)
        if got is None:
            return None
        value, size = got
        if not hasattr(value, "release"):
            return value
        with value:
            data = value.to_bytes()
        assert len(data) == size
        return data

    def expect_sender(self, host: str, port: int) -> None:
        """Whom to ask for values of which nothing is told."""
        self._connector.update_sender_info(host, port)

    def pool_is_free(self) -> bool:
        allocator = self._connector.allocator
        free: bool = allocator.free_blocks == [(0, allocator.total_size)]
        return free

    def health(self) -> dict[str, Any]:
        health: dict[str, Any] = self._connector.health()
        return health

    def close(self) -> None:
        self._connector.close()
