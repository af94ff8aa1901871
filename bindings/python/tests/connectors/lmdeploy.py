"""lmdeploy's MooncakeStoreConnector: as vLLM's, but it trusts no answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mooncake.store import MooncakeDistributedStore

from connectors.memory import HostMemory, content
from connectors.settings import StoreSettings


class Worker:
    """One rank; a block has a part in each of the cache's rows."""

    def __init__(
        self, config_path: str, *, blocks: int, rows: int = 3, row_block_bytes: int = 2048
    ) -> None:
        settings = StoreSettings.from_file(config_path)
        self.store = MooncakeDistributedStore()
        code = self.store.setup(*settings.positional())
        if code != 0:
            self.close()
            raise RuntimeError(f"MooncakeDistributedStore.setup failed with return code {code}")
        self._row_block_bytes = row_block_bytes
        self._rows = [HostMemory(blocks * row_block_bytes) for _ in range(rows)]
        for index, row in enumerate(self._rows):
            code = self.store.register_buffer(row.address, row.size)
            if code != 0:
                raise RuntimeError(
                    f"Mooncake register_buffer failed for row {index} with return code {code}"
                )

    def compute(self, block: int, key: str) -> None:
        for index, row in enumerate(self._rows):
            data = content(f"{key}/{index}", self._row_block_bytes)
            row.write(block * self._row_block_bytes, data)

    def holds(self, block: int, key: str) -> bool:
        return all(
            row.read(block * self._row_block_bytes, self._row_block_bytes)
            == content(f"{key}/{index}", self._row_block_bytes)
            for index, row in enumerate(self._rows)
        )

    def exists(self, keys: Sequence[str]) -> list[int]:
        return self._checked(keys, self.store.batch_is_exist(list(keys)))

    def save(self, blocks: dict[int, str]) -> list[int]:
        keys = list(blocks.values())
        return self._checked(
            keys, self.store.batch_put_from_multi_buffers(keys, *self._places(blocks))
        )

    def load(self, blocks: dict[int, str]) -> set[int]:
        """Returns the blocks that were not loaded."""
        keys = list(blocks.values())
        results = self._checked(
            keys, self.store.batch_get_into_multi_buffers(keys, *self._places(blocks))
        )
        return {block for block, result in zip(blocks, results, strict=True) if result < 0}

    def close(self) -> None:
        code = self.store.close()
        if code not in (None, 0):
            raise RuntimeError(f"MooncakeDistributedStore.close returned {code}")

    def _places(self, blocks: dict[int, str]) -> tuple[list[list[int]], list[list[int]]]:
        addresses = [
            [row.address + block * self._row_block_bytes for row in self._rows] for block in blocks
        ]
        return addresses, [[self._row_block_bytes] * len(self._rows) for _ in blocks]

    @staticmethod
    def _checked(keys: Sequence[str], answers: Iterable[int]) -> list[int]:
        results = list(answers)
        if len(results) != len(keys):
            raise ValueError(f"{len(results)} results for {len(keys)} keys")
        if any(isinstance(result, bool) or not isinstance(result, int) for result in results):
            raise TypeError("a result is not an integer")
        return results
