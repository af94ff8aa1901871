"""LMCache's MooncakestoreConnector."""

from __future__ import annotations

import asyncio
import enum
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from connectors._stubs import newer_torch, package, stand_in
from connectors.memory import content

LAYERS, TOKENS, HIDDEN = 2, 8, 64
#: Keys and values of a chunk.
SHAPE = torch.Size([2, LAYERS, TOKENS, HIDDEN])
DTYPE = torch.float16


class MemoryFormat(enum.Enum):
    UNDEFINED = 0
    KV_2LTD = enum.auto()
    KV_MLA_FMT = enum.auto()
    BINARY = enum.auto()
    BINARY_BUFFER = enum.auto()


class MemoryObj:
    """A chunk in the engine's buffer."""

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw_data = raw
        self.meta = SimpleNamespace(shape=SHAPE, dtype=DTYPE)
        self.references = 1

    @property
    def raw_tensor(self) -> torch.Tensor:
        return self.raw_data

    @property
    def data_ptr(self) -> int:
        address: int = self.raw_data.data_ptr()
        return address

    @property
    def byte_array(self) -> memoryview:
        return memoryview(self.raw_data.numpy())

    def get_size(self) -> int:
        size: int = self.raw_data.numel()
        return size

    def get_shapes(self) -> list[torch.Size]:
        return [self.meta.shape]

    def get_dtypes(self) -> list[torch.dtype]:
        return [self.meta.dtype]

    def get_memory_format(self) -> MemoryFormat:
        return MemoryFormat.KV_2LTD

    def ref_count_down(self) -> None:
        self.references -= 1


class LocalCPUBackend:
    """Allocates chunks, one after the other, of a buffer that the connector registers."""

    def __init__(self, *, chunks: int, save_chunk_meta: bool) -> None:
        self.chunk_bytes = SHAPE.numel() * DTYPE_BYTES
        buffer = torch.zeros(chunks * self.chunk_bytes, dtype=torch.uint8)
        self._free = list(buffer.split(self.chunk_bytes))
        self.memory_allocator = SimpleNamespace(pin_allocator=SimpleNamespace(buffer=buffer))
        extra = {"save_chunk_meta": save_chunk_meta}
        self.config = SimpleNamespace(extra_config=extra, use_layerwise=False)
        self.metadata = SimpleNamespace(
            get_shapes=lambda: [SHAPE],
            get_dtypes=lambda: [DTYPE],
            get_num_groups=lambda: 1,
            use_mla=False,
            chunk_size=TOKENS,
        )

    def allocate(self, shapes: object, dtypes: object, fmt: object) -> MemoryObj:
        assert (shapes, dtypes, fmt) == ([SHAPE], [DTYPE], MemoryFormat.KV_2LTD)
        return MemoryObj(self._free.pop())


DTYPE_BYTES = torch.tensor([], dtype=DTYPE).element_size()


@dataclass(frozen=True)
class CacheEngineKey:
    name: str

    def to_string(self) -> str:
        return self.name


def provide(root: Path) -> None:
    newer_torch.complete()
    package(root, "lmcache", torch_dev=torch.cuda)
    stand_in("lmcache.utils", CacheEngineKey=CacheEngineKey, parse_cache_key=CacheEngineKey)
    stand_in("lmcache.v1.config", LMCacheEngineConfig=object)
    stand_in("lmcache.v1.metadata", LMCacheMetadata=object)
    stand_in("lmcache.v1.memory_management", MemoryFormat=MemoryFormat, MemoryObj=MemoryObj)
    stand_in("lmcache.v1.storage_backend.local_cpu_backend", LocalCPUBackend=LocalCPUBackend)
    detector = SimpleNamespace(get_numa_mapping=lambda config: None)
    stand_in("lmcache.v1.system_detection", NUMADetector=detector)
    stand_in(
        "lmcache.integration.vllm.utils",
        get_size_bytes=lambda shapes, dtypes: sum(shape.numel() for shape in shapes) * DTYPE_BYTES,
    )
    for name in ("lmcache.integration", "lmcache.integration.vllm"):
        package(root, name)


class Rank:
    """A rank with the connector, configured by the file that MOONCAKE_CONFIG_PATH names."""

    def __init__(self, *, save_chunk_meta: bool) -> None:
        name = "lmcache.v1.storage_backend.connector.mooncakestore_connector"
        self._backend = LocalCPUBackend(chunks=32, save_chunk_meta=save_chunk_meta)
        self._loop = asyncio.new_event_loop()
        own = importlib.import_module(name)
        self._connector = own.MooncakestoreConnector(self._loop, self._backend, None)

    def is_registered(self) -> bool:
        return self._connector.registered_buffer_ptr is not None

    def put(self, names: list[str], *, at_once: bool) -> None:
        """Puts a chunk for each name, alone or all in one batch."""
        chunks = []
        for name in names:
            chunk = self._backend.allocate([SHAPE], [DTYPE], MemoryFormat.KV_2LTD)
            data = bytearray(content(name, self._backend.chunk_bytes))
            chunk.raw_data.copy_(torch.frombuffer(data, dtype=torch.uint8))
            chunks.append(chunk)
        keys = [CacheEngineKey(name) for name in names]
        if at_once:
            self._run(self._connector.batched_put(keys, chunks))
        else:
            for key, chunk in zip(keys, chunks, strict=True):
                self._run(self._connector.put(key, chunk))

    def get(self, names: list[str]) -> list[bool | None]:
        """Gets the chunks of names: whether each is as it was put, `None` for a miss."""
        got = self._run(self._connector.batched_get([CacheEngineKey(name) for name in names]))
        size = self._backend.chunk_bytes
        return [
            None if chunk is None else bytes(chunk.byte_array) == content(name, size)
            for name, chunk in zip(names, got, strict=True)
        ]

    def contains(self, names: list[str]) -> int:
        """How many of the first names are there."""
        keys = [CacheEngineKey(name) for name in names]
        found: int = self._run(self._connector.batched_async_contains("lookup", keys))
        assert [self._connector.exists_sync(key) for key in keys][:found] == [1] * found
        return found

    def close(self) -> None:
        self._run(self._connector.close())
        self._loop.close()

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)
