"""The calls of vLLM's MooncakeStoreConnector, `kv_connector/v1/mooncake/store/worker.py`.

A block of the cache is stored as one object, gathered from one place for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from connectors.memory import DeviceMemory, GpuMemory, HostMemory, content
from connectors.outcomes import Loaded, Saved
from connectors.settings import StoreSettings

NO_AVAILABLE_HANDLE = -200


class Worker:
    """One rank, with a cache of `blocks` blocks in host memory, one region for each layer."""

    def __init__(
        self,
        config_path: str,
        *,
        blocks: int,
        layers: int = 2,
        layer_bytes: int = 4096,
        preferred_segment: str | None = None,
        model: str = "Qwen2.5-7B-Instruct",
        cache_prefix: str = "",
        on_device: bool = False,
        gpu: str | None = None,
    ) -> None:
        settings = StoreSettings.from_file(config_path)
        self.store = MooncakeDistributedStore()
        if self.store.setup(*settings.positional()) != 0:
            raise RuntimeError("Initialize MooncakeDistributedStore failed.")
        self.replicate_config = ReplicateConfig()
        if preferred_segment is not None:
            self.replicate_config.preferred_segment = preferred_segment
        self._layer_bytes = layer_bytes
        size = layers * blocks * layer_bytes
        self._cache: DeviceMemory | GpuMemory | HostMemory
        if gpu is not None:
            self._cache = GpuMemory(size, gpu)
        else:
            self._cache = DeviceMemory(size) if on_device else HostMemory(size)
        # Anything but 0 is logged there, and the transfers are tried nevertheless.
        self._registration = self.store.register_buffer(self._cache.address, self._cache.size)
        self._layers = [layer * blocks * layer_bytes for layer in range(layers)]
        prefix = f"{cache_prefix}@" if cache_prefix else ""
        self._key_prefix = f"{prefix}{model}@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0"

    def registration(self) -> int:
        return self._registration

    def key(self, block_hash: str) -> str:
        return f"{self._key_prefix}@{block_hash}"

    def compute(self, block: int, block_hash: str) -> None:
        """Fills a block with what a model would have computed for its tokens."""
        assert not isinstance(self._cache, DeviceMemory)
        whole = content(block_hash, len(self._layers) * self._layer_bytes)
        for index, layer in enumerate(self._layers):
            part = whole[index * self._layer_bytes : (index + 1) * self._layer_bytes]
            self._cache.write(layer + block * self._layer_bytes, part)

    def holds(self, block: int, block_hash: str) -> bool:
        """Whether a block has that content."""
        assert not isinstance(self._cache, DeviceMemory)
        parts = [
            self._cache.read(layer + block * self._layer_bytes, self._layer_bytes)
            for layer in self._layers
        ]
        return b"".join(parts) == content(block_hash, len(self._layers) * self._layer_bytes)

    def lookup(self, block_hashes: Sequence[str]) -> int:
        """How many blocks from the first on can be loaded."""
        present = self.store.batch_is_exist([self.key(block_hash) for block_hash in block_hashes])
        return next((at for at, found in enumerate(present) if found != 1), len(present))

    def save(self, blocks: dict[int, str]) -> Saved:
        """Puts the blocks, given with their hashes, that the store does not have."""
        keys = [self.key(block_hash) for block_hash in blocks.values()]
        present = self.store.batch_is_exist(keys)
        missing = [at for at, found in enumerate(present) if found != 1]
        if not missing:
            return Saved(0, len(keys), [], False)
        places = [self._places(block) for block in blocks]
        results = self.store.batch_put_from_multi_buffers(
            [keys[at] for at in missing],
            [places[at][0] for at in missing],
            [places[at][1] for at in missing],
            self.replicate_config,
        )
        codes = [result for result in results if result < 0]
        return Saved(
            stored=len(results) - len(codes),
            present=len(keys) - len(missing),
            codes=codes,
            under_pressure=NO_AVAILABLE_HANDLE in codes,
        )

    def load(self, blocks: dict[int, str], *, layer_bytes: int | None = None) -> Loaded:
        """Gets the blocks; `layer_bytes` is how much it wants of each layer, all without it."""
        keys = [self.key(block_hash) for block_hash in blocks.values()]
        descriptors = self.store.batch_get_replica_desc(keys)
        tiers = [_tier(descriptors.get(key)) for key in keys]
        places = [self._places(block, layer_bytes) for block in blocks]
        results = self.store.batch_get_into_multi_buffers(
            keys, [addresses for addresses, _ in places], [sizes for _, sizes in places]
        )
        failed = {block for block, result in zip(blocks, results, strict=True) if result < 0}
        return Loaded(results, failed, tiers)

    def load_in_threads(self, requests: Sequence[dict[int, str]], threads: int) -> list[Loaded]:
        """Loads several requests as a pool of receiving threads does."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self.load, requests))

    def reset(self) -> None:
        """Forgets everything, as after new weights."""
        self.store.remove_all(force=True)

    def close(self) -> None:
        self.store.close()

    def _places(self, block: int, size: int | None = None) -> tuple[list[int], list[int]]:
        offset = self._cache.address + block * self._layer_bytes
        sizes = [self._layer_bytes if size is None else size] * len(self._layers)
        return [offset + layer for layer in self._layers], sizes


def _tier(replicas: Sequence[object] | None) -> str:
    """As for VLLM_MOONCAKE_STORE_TIER_LOG: the kind of the first replica."""
    if not replicas:
        return "unknown"

    def answers(name: str) -> bool:
        question = getattr(replicas[0], name, None)
        return question is not None and bool(question())

    if answers("is_memory_replica"):
        return "memory"
    if answers("is_disk_replica") or answers("is_local_disk_replica"):
        return "disk"
    return "unknown"
