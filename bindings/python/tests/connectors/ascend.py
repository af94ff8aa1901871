"""vllm-ascend's MooncakeBackend, and its put and get sessions for one layer after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from connectors.memory import HostMemory, content
from connectors.settings import StoreSettings


def supports_ssd_offload() -> bool:
    """How it finds out whether `setup` knows these settings."""
    setup = MooncakeDistributedStore.setup
    try:
        return "enable_ssd_offload" in inspect.signature(setup).parameters
    except (TypeError, ValueError):
        return "enable_ssd_offload" in (setup.__doc__ or "")


class Backend:
    """One rank, without a local buffer, over a cache of `blocks` blocks of `layers` pages."""

    def __init__(
        self, config_path: str, *, blocks: int, layers: int = 4, page_bytes: int = 4096
    ) -> None:
        settings = StoreSettings.from_file(config_path)
        self.store = MooncakeDistributedStore()
        if self.store.setup(*settings.positional()) != 0:
            raise RuntimeError("Initialize mooncake failed.")
        self._page_bytes = page_bytes
        self._layers = layers
        self._cache = HostMemory(blocks * layers * page_bytes)
        code = self.store.register_buffer(self._cache.address, self._cache.size)
        if code != 0:
            raise RuntimeError(f"Mooncake memory registration failed: {code}")

    def compute(self, block: int, key: str) -> None:
        self._cache.write(block * self._block_bytes, content(key, self._block_bytes))

    def holds(self, block: int, key: str) -> bool:
        found = self._cache.read(block * self._block_bytes, self._block_bytes)
        return found == content(key, self._block_bytes)

    def exists(self, keys: Sequence[str]) -> list[int]:
        return self.store.batch_is_exist(list(keys))

    def put(self, keys: Sequence[str]) -> list[int]:
        """Puts blocks 0, 1, …; with three arguments, so that nothing is said of replicas."""
        return self.store.batch_put_from_multi_buffers(list(keys), *self._pages(len(keys)))

    def get(self, keys: Sequence[str]) -> list[int]:
        return self.store.batch_get_into_multi_buffers(list(keys), *self._pages(len(keys)))

    # The session calls have the names of the store's, as in its backend.

    def batch_put_session_start(self, keys: Sequence[str]) -> list[int]:
        sizes = [self._block_bytes] * len(keys)
        return self.store.batch_put_session_start(list(keys), sizes, ReplicateConfig())

    def put_layer(self, keys: Sequence[str], layer: int) -> list[int]:
        return self._layer(self.store.batch_put_from_multi_buffer_ranges, keys, layer)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        return self.store.batch_put_session_end(list(keys))

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        return self.store.batch_put_session_revoke(list(keys))

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        return self.store.batch_get_session_start(list(keys))

    def get_layer(self, keys: Sequence[str], layer: int) -> list[int]:
        return self._layer(self.store.batch_get_into_multi_buffer_ranges, keys, layer)

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        return self.store.batch_get_session_end(list(keys))

    def close(self) -> None:
        self.store.close()

    @property
    def _block_bytes(self) -> int:
        return self._layers * self._page_bytes

    def _pages(self, blocks: int) -> tuple[list[list[int]], list[list[int]]]:
        places = [
            [
                self._cache.address + block * self._block_bytes + layer * self._page_bytes
                for layer in range(self._layers)
            ]
            for block in range(blocks)
        ]
        return places, [[self._page_bytes] * self._layers for _ in range(blocks)]

    def _layer(
        self,
        transfer: Callable[
            [list[str], list[list[int]], list[list[int]], list[list[int]]], list[int]
        ],
        keys: Sequence[str],
        layer: int,
    ) -> list[int]:
        """Moves a page of each block in two halves, keys and values."""
        half = self._page_bytes // 2
        begin = layer * self._page_bytes
        places = [self._cache.address + block * self._block_bytes for block in range(len(keys))]
        return transfer(
            list(keys),
            [[place + begin, place + begin + half] for place in places],
            [[half, half] for _ in keys],
            [[begin, begin + half] for _ in keys],
        )
