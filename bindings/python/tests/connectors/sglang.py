"""SGLang's HiCache storage: `…/mem_cache/storage/mooncake_store/mooncake_store.py`.

A page of the cache is stored as two objects, of keys and of values, or as one that is gathered
from all layers.
"""

from __future__ import annotations

import ctypes
import time
import urllib.request
import uuid
from collections.abc import Sequence
from typing import Any

from connectors.memory import HostMemory, content
from connectors.settings import StoreSettings

DEFAULT_LOCAL_BUFFER_SIZE = 16 << 20
#: Seconds in which it expects the master to answer; it gives it ten minutes.
SETUP_TIMEOUT = 30


class AllocatedMemory:
    """Memory from the store's own allocator, which a store service can map."""

    def __init__(self, size: int) -> None:
        from mooncake.store import MooncakeHostMemAllocator

        self.allocator = MooncakeHostMemAllocator()
        self.address = self.allocator.alloc(size)
        self.size = size
        self._bytes = memoryview((ctypes.c_ubyte * size).from_address(self.address)).cast("B")

    def write(self, at: int, data: bytes) -> None:
        self._bytes[at : at + len(data)] = data

    def read(self, at: int, size: int) -> bytes:
        return bytes(self._bytes[at : at + size])


class HiCacheStore:
    """One rank, with a host pool of `pages` pages in host memory."""

    def __init__(
        self,
        config_path: str,
        *,
        pages: int = 16,
        half_bytes: int = 8192,
        model: str = "Qwen/Qwen2.5-7B",
        group_semantics: bool = False,
        check_server: str | None = None,
        setup_kwargs: dict[str, Any] | None = None,
        standalone: str | None = None,
    ) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._replicate_config, supported = _group_semantics()
        self._groups = group_semantics and supported
        self.store = MooncakeDistributedStore()
        self._half_bytes = half_bytes
        self._prefix = "-".join(model.split("/"))
        self._unsupported: list[str] = []
        size = pages * 2 * half_bytes
        self._pool: HostMemory | AllocatedMemory
        if check_server is not None:
            _check_server(check_server)
        if standalone is None:
            self._pool = HostMemory(size)
            code = self._setup(StoreSettings.from_file(config_path), dict(setup_kwargs or {}))
        else:
            self._pool = AllocatedMemory(size)
            code = self.store.setup_dummy(size, DEFAULT_LOCAL_BUFFER_SIZE, standalone)
        if code:
            raise RuntimeError(f"Failed to setup Mooncake store, error code: {code}")
        self._warm_up()
        code = self.store.register_buffer(self._pool.address, self._pool.size)
        if code != 0:
            raise RuntimeError(f"Failed to register buffer to Mooncake Store, error code: {code}")

    def _setup(self, settings: StoreSettings, keywords: dict[str, Any]) -> int:
        """Leaves out keywords that the message of a TypeError names, as old releases make it."""
        while True:
            try:
                # The eighth is a transfer engine to share, if there is one.
                return self.store.setup(*settings.positional(), None, **keywords)
            except TypeError as error:
                unsupported = [name for name in keywords if name in str(error)]
                if not unsupported:
                    raise
                if "tenant_id" in unsupported:
                    raise RuntimeError("tenant_id is not supported") from error
                self._unsupported.extend(unsupported)
                for name in unsupported:
                    del keywords[name]

    def _warm_up(self) -> None:
        key = f"sglang_mooncake_store_warmup_key{uuid.uuid4().hex}"
        value = bytes(4096)
        code = self.store.put(key, value)
        if code != 0:
            raise RuntimeError(f"Warmup put failed: {code}")
        if self.store.is_exist(key) != 1 or self.store.get(key) != value:
            raise RuntimeError("Warmup get failed")

    def unsupported(self) -> list[str]:
        """The keywords of `setup` that it had to leave out."""
        return self._unsupported

    def uses_groups(self) -> bool:
        return self._groups

    def compute(self, page: int, key: str) -> None:
        self._pool.write(page * 2 * self._half_bytes, self._content(key))

    def holds(self, page: int, key: str) -> bool:
        found = self._pool.read(page * 2 * self._half_bytes, 2 * self._half_bytes)
        return found == self._content(key)

    def batch_exists(self, keys: Sequence[str]) -> int:
        """How many pages from the first on are there, with both halves."""
        present = self.store.batch_is_exist(self._halves(keys))
        missing = next((at for at, found in enumerate(present) if found != 1), len(present))
        return missing // 2

    def batch_set(self, pages: dict[int, str]) -> list[bool]:
        """Puts the halves that are not there; whether each page is there afterwards."""
        keys = self._halves(pages.values())
        addresses, sizes = self._places(pages)
        present = self.store.batch_is_exist(keys)
        missing = [at for at, found in enumerate(present) if found != 1]
        results = [0 if found == 1 else -1 for found in present]
        if missing:
            arguments: list[Any] = [
                [part[at] for at in missing] for part in (keys, addresses, sizes)
            ]
            if self._groups:
                groups = [f"sglang-hicache:{key}" for key in pages.values() for _ in range(2)]
                arguments.append(self._replicate_config())
                arguments[-1].group_ids = [groups[at] for at in missing]
            for at, code in zip(missing, self.store.batch_put_from(*arguments), strict=True):
                results[at] = code
        return [keys_code == values_code == 0 for keys_code, values_code in _pairs(results)]

    def batch_get(self, pages: dict[int, str]) -> list[bool]:
        results = self.store.batch_get_into(self._halves(pages.values()), *self._places(pages))
        return [keys_size > 0 and values_size > 0 for keys_size, values_size in _pairs(results)]

    # The same for a layout where a page is one object with several places.

    def batch_set_gathered(self, pages: dict[int, str]) -> list[int]:
        return self.store.batch_put_from_multi_buffers(
            self._wholes(pages.values()), *self._gathered(pages), self._replicate_config()
        )

    def batch_get_scattered(self, pages: dict[int, str]) -> list[int]:
        return self.store.batch_get_into_multi_buffers(
            self._wholes(pages.values()), *self._gathered(pages)
        )

    def clear(self) -> None:
        self.store.remove_all()

    def close(self) -> None:
        # SGLang leaves it to the end of the process.
        self.store.close()

    def _content(self, key: str) -> bytes:
        return content(key, 2 * self._half_bytes)

    def _halves(self, keys: Any) -> list[str]:
        return [f"{self._prefix}_{key}_0_{half}" for key in keys for half in "kv"]

    def _wholes(self, keys: Any) -> list[str]:
        return [f"{self._prefix}_{key}__k" for key in keys]

    def _places(self, pages: dict[int, str]) -> tuple[list[int], list[int]]:
        begin = self._pool.address
        addresses = [
            begin + (2 * page + half) * self._half_bytes for page in pages for half in range(2)
        ]
        return addresses, [self._half_bytes] * len(addresses)

    def _gathered(self, pages: dict[int, str]) -> tuple[list[list[int]], list[list[int]]]:
        addresses, sizes = self._places(pages)
        return _pairs(addresses), _pairs(sizes)


def _group_semantics() -> tuple[Any, bool]:
    from mooncake.store import ReplicateConfig

    # First the class, then an object of it.
    if hasattr(ReplicateConfig, "group_ids"):
        return ReplicateConfig, True
    return ReplicateConfig, hasattr(ReplicateConfig(), "group_ids")


def _check_server(pages: str) -> None:
    """Waits until the master names its segments, whatever they are."""
    deadline = time.monotonic() + SETUP_TIMEOUT
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{pages}/get_all_segments", timeout=3) as answer:
            if answer.status == 200 and answer.read().decode():
                return
        time.sleep(0.05)
    raise ValueError("Launch mooncake store server timeout")


def _pairs(numbers: Sequence[int]) -> list[list[int]]:
    return [list(numbers[at : at + 2]) for at in range(0, len(numbers), 2)]
