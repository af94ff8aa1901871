"""lmdeploy's MooncakeStoreWorker."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import torch

from connectors._stubs import newer_torch, package, stand_in
from connectors.memory import content

STORE = "lmdeploy.pytorch.kv_connector.mooncake.store"

ROWS, BLOCK_BYTES = 3, 2048


class DeviceRow(torch.Tensor):  # type: ignore[misc]
    """Memory of this host, where the engine has that of a GPU: the connector takes no other."""

    is_cuda = True


def provide(root: Path) -> None:
    newer_torch.complete()
    package(root, "lmdeploy")
    # Its own imports the connector, and with it the scheduler's part.
    package(root, STORE)
    stand_in("lmdeploy.utils", get_logger=logging.getLogger)


class Rank:
    """A worker with a cache of blocks, each with a part in every row."""

    def __init__(self, *, blocks: int) -> None:
        worker = importlib.import_module(f"{STORE}.worker")
        self._data = importlib.import_module(f"{STORE}.data")
        transfer = SimpleNamespace(
            kv_role="kv_both",
            kv_connector_extra_config={
                "model_name": "m",
                "lookup_rpc_path": f"ipc://{os.environ['SOCKETS']}/lookup",
            },
        )
        cache_config = SimpleNamespace(
            kv_transfer_config=transfer,
            states_shapes=(),
            window_size=-1,
            block_size=16,
            num_gpu_blocks=blocks,
        )
        self._worker = worker.MooncakeStoreWorker(cache_config)
        self._rows = torch.zeros(ROWS, blocks * BLOCK_BYTES, dtype=torch.uint8)
        rows = [row.as_subclass(DeviceRow) for row in self._rows]
        self._worker.register_kv_caches({"key": rows[0], "value": rows[1:]})
        self._saves = 0

    def save(self, blocks: dict[int, str]) -> None:
        """Computes blocks and has them saved."""
        for block, name in blocks.items():
            for row, part in enumerate(_parts(name)):
                data = torch.frombuffer(bytearray(part), dtype=torch.uint8)
                self._rows[row][block * BLOCK_BYTES :][:BLOCK_BYTES] = data
        self._saves += 1
        request = self._data.MooncakeStoreSaveRequest(
            save_id=self._saves,
            request_id=1,
            start_block=0,
            block_ids=tuple(blocks),
            logical_block_ids=tuple(blocks),
            block_hashes=tuple(map(_hash, blocks.values())),
        )
        metadata = self._data.MooncakeStoreConnectorMetadata(save_requests=(request,))
        self._worker.start_save_kv(metadata)

    def load(self, blocks: dict[int, str]) -> None:
        """Has blocks loaded."""
        request = self._data.MooncakeStoreLoadRequest(
            request_id=2,
            block_ids=tuple(blocks),
            block_hashes=tuple(map(_hash, blocks.values())),
        )
        metadata = self._data.MooncakeStoreConnectorMetadata(load_requests=(request,))
        self._worker.start_load_kv(metadata)

    def finished(self) -> tuple[int, int, set[int]]:
        """How many saves and loads have ended since the last call, and the blocks not loaded."""
        output = self._worker.get_finished()
        return (
            len(output.completed_save_ids or ()),
            len(output.finished_receiving or ()),
            output.invalid_block_ids,
        )

    def lookup(self, names: list[str]) -> int:
        """How many of the first blocks are in the store."""
        tokens: int = self._worker.lookup(16 * len(names), [_hash(name) for name in names])
        return tokens // 16

    def holds(self, block: int, name: str) -> bool:
        rows = self._rows[:, block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
        return [bytes(row.numpy()) for row in rows] == _parts(name)

    def close(self) -> None:
        self._worker.shutdown()


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _parts(name: str) -> list[bytes]:
    return [content(f"{name}/{row}", BLOCK_BYTES) for row in range(ROWS)]
