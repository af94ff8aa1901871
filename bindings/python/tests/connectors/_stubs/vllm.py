"""vLLM's MooncakeStoreWorker, with one group of full attention."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from connectors._stubs import newer_torch, vllm_core
from connectors.memory import content

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store"

LAYERS, PAGE_BYTES, BLOCK_TOKENS = 4, 4096, 16


def provide(root: Path) -> None:
    newer_torch.complete()
    # A third-party package; what is asked of it is in both.
    sys.modules.setdefault("regex", re)
    vllm_core.provide(root)


class Rank:
    """A rank with a cache of `blocks` blocks, each with a page in every layer. Block 0 stands for
    no block, as in the engine."""

    def __init__(self, *, blocks: int) -> None:
        worker = importlib.import_module(f"{CONNECTOR}.worker")
        self._data = importlib.import_module(f"{CONNECTOR}.data")
        config = _configuration(blocks)
        self._worker = worker.MooncakeStoreWorker(config, vllm_core.kv_cache_config(blocks))
        self._lookups = worker.LookupKeyClient(config)
        shape = (LAYERS, blocks, PAGE_BYTES)
        self._layers = [torch.zeros(shape[1:], dtype=torch.uint8) for _ in range(LAYERS)]
        self._worker.register_kv_caches(
            {f"layer.{index}": layer for index, layer in enumerate(self._layers)}
        )
        self._jobs = 0

    def save(self, request: str, blocks: dict[int, str]) -> None:
        """Computes the blocks of a request and has them saved."""
        for block, name in blocks.items():
            for layer, page in zip(self._layers, _pages(name), strict=True):
                layer[block] = torch.frombuffer(bytearray(page), dtype=torch.uint8)
        self._jobs += 1
        self._worker.wait_for_save(
            self._metadata(request, blocks, can_save=True, store_job_id=self._jobs)
        )

    def load(self, request: str, blocks: dict[int, str]) -> None:
        """Has the blocks of a request loaded."""
        spec = self._data.LoadSpec(0, BLOCK_TOKENS * len(blocks), True)
        self._worker.start_load_kv(self._metadata(request, blocks, load_spec=spec))

    def finished(self) -> tuple[int, set[str], set[int]]:
        """The results since the last call: the number of saves, the requests that were loaded,
        and the blocks that could not be."""
        saved = self._worker.build_connector_worker_meta()
        nothing = self._data.MooncakeStoreConnectorMetadata(set(), set())
        _, loaded = self._worker.get_finished(set(), nothing)
        return (
            len(saved.completed_saves) if saved else 0,
            loaded,
            self._worker.get_block_ids_with_load_errors(),
        )

    def lookup(self, names: list[str]) -> int:
        """How many of the first blocks are in the store, as the scheduler asks. One token more than
        they have is asked for: the last one is always computed."""
        tokens = BLOCK_TOKENS * len(names) + 1
        hashes = [_hash(name) for name in names]
        found: int = self._lookups.lookup("request", tokens, hashes).hit_length
        return found // BLOCK_TOKENS

    def reset(self) -> bool:
        """Empties the store, as the scheduler does."""
        done: bool = self._lookups.reset()
        return done

    def holds(self, block: int, name: str) -> bool:
        return [bytes(layer[block].numpy()) for layer in self._layers] == _pages(name)

    def operations(self) -> dict[str, Any]:
        """The connector's counters of its operations since the last call."""
        stats: dict[str, Any] = self._worker.get_kv_connector_stats().reduce()
        return stats

    def close(self) -> None:
        self._lookups.close()
        self._worker.close()

    def _metadata(self, request: str, blocks: dict[int, str], **more: object) -> Any:
        metadata = self._data.MooncakeStoreConnectorMetadata({request}, set())
        metadata.add_request(
            self._data.ReqMeta(
                req_id=request,
                token_len_chunk=BLOCK_TOKENS * len(blocks),
                block_ids=(list(blocks),),
                block_hashes=[_hash(name) for name in blocks.values()],
                **more,
            )
        )
        return metadata


def _configuration(blocks: int) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="org/m",
            get_num_layers=lambda parallel: LAYERS,
            get_total_num_kv_heads=lambda: 1,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            pipeline_parallel_size=1,
            rank=0,
            decode_context_parallel_size=1,
        ),
        kv_transfer_config=SimpleNamespace(kv_role="kv_both", kv_connector_extra_config={}),
        cache_config=SimpleNamespace(num_gpu_blocks=blocks),
        speculative_config=None,
        kv_events_config=None,
    )


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _pages(name: str) -> list[bytes]:
    return [content(f"{name}/{layer}", PAGE_BYTES) for layer in range(LAYERS)]
