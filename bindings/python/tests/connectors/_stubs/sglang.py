"""SGLang's MooncakeStore of HiCache, and its store of embeddings."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import torch

from connectors._stubs import newer_torch, package, stand_in
from connectors.memory import content

CACHE = "sglang.srt.mem_cache"
STORE = f"{CACHE}.storage.mooncake_store"

PAGE_TOKENS, PART_BYTES = 64, 4096


class HostTensorAllocator:
    """The base of its allocators."""

    def __init__(self) -> None:
        self.dtype = self.dims = None


class StorageMetrics:
    def __init__(self) -> None:
        self.prefetch_pgs: list[int] = []
        self.backup_pgs: list[int] = []
        self.prefetch_bandwidth: list[float] = []
        self.backup_bandwidth: list[float] = []


def provide(root: Path) -> None:
    newer_torch.complete()
    if find_spec("requests") is None:
        stand_in("requests", get=_get)
    package(root, "sglang")
    pools = {"HostKVCache": object, "HostTensorAllocator": HostTensorAllocator}
    package(root, f"{CACHE}.pool_host", **pools)
    stand_in(f"{CACHE}.pool_host.mla", MLATokenToKVPoolHost=type("MLATokenToKVPoolHost", (), {}))
    package(root, f"{CACHE}.hybrid_cache")
    entry = type("DevicePoolEntry", (), {})
    stand_in(f"{CACHE}.hybrid_cache.linker_pool_assembler", DevicePoolEntry=entry)
    package(root, "sglang.srt.observability")
    stand_in("sglang.srt.observability.metrics_collector", StorageMetrics=StorageMetrics)


def _get(url: str, timeout: float) -> SimpleNamespace:
    """The part of the third-party package `requests` that the connector uses."""
    with urlopen(url, timeout=timeout) as response:
        return SimpleNamespace(text=response.read().decode())


class HostPool:
    """Memory of the host with pages, each of keys and of values, allocated by the connector's
    allocator."""

    page_size = PAGE_TOKENS

    def __init__(self, pages: int) -> None:
        self.allocator = _own("mooncake_store").MooncakeHostTensorAllocator()
        self.kv_buffer = self.allocator.allocate((pages, 2, PART_BYTES), torch.uint8)

    def get_ksize_per_token(self) -> int:
        return PART_BYTES // PAGE_TOKENS

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        pages = (indices[::PAGE_TOKENS] // PAGE_TOKENS).tolist()
        places = [self.kv_buffer[page, part].data_ptr() for page in pages for part in (0, 1)]
        return places, [PART_BYTES] * len(places)


class Rank:
    """A rank of HiCache with `pages` pages of host memory; it stores keys and values apart."""

    def __init__(self, settings: dict[str, Any], *, pages: int) -> None:
        storage = importlib.import_module(f"{CACHE}.hicache_storage")
        config = storage.HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=True,
            is_page_first_layout=True,
            model_name="org/m",
            extra_config=settings,
        )
        self._pool = HostPool(pages)
        self._store = _own("mooncake_store").MooncakeStore(config, self._pool)
        self._store.register_mem_pool_host(self._pool)

    def backup(self, pages: dict[int, str]) -> list[bool]:
        """Computes pages and stores them."""
        for page, name in pages.items():
            for part, data in enumerate(_parts(name)):
                self._pool.kv_buffer[page, part] = data
        done: list[bool] = self._store.batch_set_v1(list(pages.values()), _indices(pages))
        return done

    def prefetch(self, pages: dict[int, str]) -> list[bool]:
        """Loads pages."""
        done: list[bool] = self._store.batch_get_v1(list(pages.values()), _indices(pages))
        return done

    def exists(self, names: list[str]) -> int:
        """How many of the first pages are in the store."""
        found: int = self._store.batch_exists(names)
        return found

    def holds(self, page: int, name: str) -> bool:
        return bool(torch.equal(self._pool.kv_buffer[page], torch.stack(_parts(name))))

    def counted(self) -> tuple[list[int], list[int]]:
        """The pages and the parts of each prefetch and each backup since the last call."""
        stats = self._store.get_stats()
        return stats.prefetch_pgs, stats.backup_pgs

    def clear(self) -> None:
        self._store.clear()


class Embeddings:
    """The store of embeddings of images and sounds, with room for `count` of them."""

    def __init__(self, settings: dict[str, Any], *, count: int) -> None:
        own = _own("mooncake_embedding_store")
        self._store = own.MooncakeEmbeddingStore(SimpleNamespace(extra_config=settings))
        self._buffer = torch.zeros(count, PART_BYTES, dtype=torch.uint8)
        self._store.register_buffer(self._buffer)

    def put(self, names: list[str], *, in_parts: bool) -> list[bool]:
        """Puts an embedding for each name, whole or out of two parts."""
        for row, name in zip(self._buffer, names, strict=False):
            row.copy_(_parts(name)[0])
        done: list[bool] = (
            self._store.batch_put_from_multi_buffers(names, *self._halves(names))
            if in_parts
            else self._store.batch_put(names, *self._wholes(names))
        )
        return done

    def get(self, names: list[str], *, in_parts: bool) -> list[bool]:
        """Gets the embeddings: whether each came, and as it was put."""
        self._buffer.zero_()
        came = (
            self._store.batch_get_into_multi_buffers(names, *self._halves(names))
            if in_parts
            else self._store.batch_get(names, *self._wholes(names))
        )
        return [
            done and torch.equal(row, _parts(name)[0])
            for done, row, name in zip(came, self._buffer, names, strict=False)
        ]

    def _wholes(self, names: list[str]) -> tuple[list[int], list[int]]:
        return [row.data_ptr() for row in self._buffer[: len(names)]], [PART_BYTES] * len(names)

    def _halves(self, names: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        half = PART_BYTES // 2
        places = [[place, place + half] for place in self._wholes(names)[0]]
        return places, [[half, half] for _ in names]


def _own(name: str) -> Any:
    return importlib.import_module(f"{STORE}.{name}")


def _indices(pages: dict[int, str]) -> torch.Tensor:
    """The places of the tokens of pages."""
    starts = torch.tensor(list(pages)) * PAGE_TOKENS
    return (starts[:, None] + torch.arange(PAGE_TOKENS)).reshape(-1)


def _parts(name: str) -> list[torch.Tensor]:
    return [
        torch.frombuffer(bytearray(content(f"{name}/{part}", PART_BYTES)), dtype=torch.uint8)
        for part in "kv"
    ]
