"""SGLang's connectors for weights: tensors, raw tensors with strings beside them, and files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from connectors.memory import HostMemory, content
from connectors.settings import StoreSettings

if TYPE_CHECKING:
    import torch


class TensorConnector:
    """Puts and gets tensors as such; the model's name is part of the keys."""

    def __init__(self, master: str, model: str, segment: int = 16 << 20) -> None:
        self.store = MooncakeDistributedStore()
        code = self.store.setup(
            local_hostname="0.0.0.0",
            metadata_server=master,
            global_segment_size=segment,
            local_buffer_size=16 << 20,
            protocol="tcp",
            rdma_devices="",
            master_server_addr=master,
        )
        if code != 0:
            raise RuntimeError(f"Failed to setup Mooncake store, return code: {code}")
        self._model = model

    def save(self, rank: int, weights: int) -> None:
        for name, tensor in _tensors(self._model, weights).items():
            code = self.store.put_tensor(f"{self._model}/keys/rank_{rank}/{name}", tensor)
            if code != 0:
                raise RuntimeError(f"Failed to put tensor for key {name}: {code}")

    def save_batch(self, rank: int, weights: int) -> list[int]:
        tensors = _tensors(self._model, weights)
        keys = [f"{self._model}/keys/rank_{rank}/{name}" for name in tensors]
        return self.store.batch_put_tensor(keys, list(tensors.values()))

    def load(self, rank: int, weights: int) -> list[bool]:
        """Whether each weight of a model with so many was there, and what it should be."""
        expected = _tensors(self._model, weights)
        found = dict(self._weights(rank, weights))
        return [name in found and _are_equal(found[name], expected[name]) for name in expected]

    def load_batch(self, rank: int, weights: int) -> list[bool]:
        expected = _tensors(self._model, weights)
        keys = [f"{self._model}/keys/rank_{rank}/{name}" for name in expected]
        found = self.store.batch_get_tensor(keys)
        return [
            tensor is not None and _are_equal(tensor, expected[name])
            for name, tensor in zip(expected, found, strict=True)
        ]

    def setstr(self, key: str, text: str) -> None:
        code = self.store.put(key, text.encode())
        if code != 0:
            raise RuntimeError(f"Failed to put string for key {key}: {code}")

    def getstr(self, key: str) -> str | None:
        data = self.store.get(key)
        return data.decode() if data else None

    def close(self) -> None:
        self.store.close()

    def _weights(self, rank: int, count: int) -> Iterator[tuple[str, torch.Tensor]]:
        prefix = f"{self._model}/keys/rank_{rank}/"
        for index in range(count):
            tensor = self.store.get_tensor(f"{prefix}weight_{index}")
            if tensor is not None:
                yield f"weight_{index}", tensor


class RawConnector:
    """Puts the bytes of tensors from where they are, and strings with an index of them."""

    def __init__(self, config_path: str, model: str, preferred_segments: str | None = None) -> None:
        self.store = MooncakeDistributedStore()
        code = self.store.setup(*StoreSettings.from_file(config_path).positional())
        if code:
            raise RuntimeError(f"Failed to setup Mooncake store, error code: {code}")
        self._config = ReplicateConfig()
        self._config.replica_num = 1
        if preferred_segments is not None:
            self._config.preferred_segments = preferred_segments.split(",")
        self._model = model
        # Tensors of a model stay where they are, registered, as long as it lives.
        self._memories: list[HostMemory] = []

    def batch_put(self, sizes: dict[str, int]) -> None:
        """Puts tensors of these sizes, each with what belongs to its name."""
        keys = [f"{self._model}/{name}" for name in sizes]
        memories = [self._register(size) for size in sizes.values()]
        for name, memory in zip(sizes, memories, strict=True):
            memory.write(0, content(name, memory.size))
        results = self.store.batch_put_from(
            keys, [memory.address for memory in memories], list(sizes.values()), self._config
        )
        _require(keys, results, [0] * len(keys))

    def batch_get(self, sizes: dict[str, int]) -> bool:
        """Gets tensors into memory of these sizes; whether all are what belongs to their names."""
        keys = [f"{self._model}/{name}" for name in sizes]
        memories = [self._register(size) for size in sizes.values()]
        results = self.store.batch_get_into(
            keys, [memory.address for memory in memories], list(sizes.values())
        )
        _require(keys, results, list(sizes.values()))
        return all(
            memory.read(0, memory.size) == content(name, memory.size)
            for name, memory in zip(sizes, memories, strict=True)
        )

    def setstr(self, name: str, text: str) -> None:
        """Puts a string, and its key into the index of its folder if that is new."""
        key = f"{self._model}/{name}"
        self._put(key, text)
        index = f"__index__{self._model}/"
        if not self._exists(index):
            self._put(index, key)

    def getstr(self, name: str) -> str | None:
        key = f"{self._model}/{name}"
        return self.store.get(key).decode() if self._exists(key) else None

    def list(self) -> list[str]:
        index = f"__index__{self._model}/"
        return self.store.get(index).decode().split("\n") if self._exists(index) else []

    def close(self) -> None:
        self.store.close()

    def _register(self, size: int) -> HostMemory:
        memory = HostMemory(size)
        code = self.store.register_buffer(memory.address, size)
        if code:
            raise RuntimeError(f"Failed to register buffer to Mooncake Store, error code: {code}")
        self._memories.append(memory)
        return memory

    def _exists(self, key: str) -> bool:
        code = self.store.is_exist(key)
        if code < 0:
            raise RuntimeError(f"Failed to query Mooncake key {key!r}, error code: {code}")
        return code == 1

    def _put(self, key: str, text: str) -> None:
        code = self.store.put(key, text.encode(), self._config)
        if code != 0:
            raise RuntimeError(f"Failed to put string key {key!r}, error code: {code}")


class FileConnector:
    """Reads tensors out of files that are stored in chunks, many ranges in one call."""

    _counter = itertools.count(1)

    def __init__(self, config_path: str, chunk_bytes: int = 64 << 10) -> None:
        settings = StoreSettings.from_file(config_path)
        self.store = MooncakeDistributedStore()
        # A name that nothing resolves: this client is not to be reached.
        name = f"sglang-client-{os.getpid()}-{next(self._counter)}:12347"
        code = self.store.setup(name, *settings.positional()[1:])
        if code != 0:
            raise RuntimeError(f"failed to setup MooncakeDistributedStore: {code}")
        self._chunk_bytes = chunk_bytes

    def store_file(self, path: str, size: int) -> None:
        data = content(path, size)
        for at in range(0, size, self._chunk_bytes):
            code = self.store.put(
                f"{path}#{at // self._chunk_bytes}", data[at:][: self._chunk_bytes]
            )
            if code != 0:
                raise RuntimeError(f"put failed: {code}")

    def read(self, path: str, tensors: Sequence[tuple[int, int]], size: int) -> bool:
        """Reads the parts (offset, length) of a file one after the other into one buffer.

        Returns whether they are what the file of that `size` has there.
        """
        buffer = HostMemory(sum(length for _, length in tensors))
        code = self.store.register_buffer(buffer.address, buffer.size)
        if code != 0:
            raise RuntimeError(f"register_buffer failed: {code}")
        keys, targets, sources, lengths = [], [], [], []
        filled = 0
        for offset, length in tensors:
            end = offset + length
            while offset < end:
                within = offset % self._chunk_bytes
                part = min(self._chunk_bytes - within, end - offset)
                keys.append(f"{path}#{offset // self._chunk_bytes}")
                targets.append([filled])
                sources.append([within])
                lengths.append([part])
                filled += part
                offset += part
        results = self.store.get_into_ranges(
            [buffer.address], [keys], [targets], [sources], [lengths]
        )
        if len(results) != 1 or results[0] != lengths:
            raise RuntimeError(f"get_into_ranges failed: {results}")
        code = self.store.unregister_buffer(buffer.address)
        if code != 0:
            raise RuntimeError(f"unregister_buffer failed: {code}")
        whole = content(path, size)
        return buffer.read(0, filled) == b"".join(
            whole[offset : offset + length] for offset, length in tensors
        )

    def close(self) -> None:
        self.store.close()


def _tensors(model: str, count: int) -> dict[str, torch.Tensor]:
    """Weights of several types and shapes, the same in every process."""
    import torch

    types: list[Any] = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
    tensors = {}
    for index in range(count):
        generator = torch.Generator().manual_seed(len(model) * 1000 + index)
        values = torch.randint(0, 100, (index % 4 + 1, 64), generator=generator)
        tensors[f"weight_{index}"] = values.to(types[index % len(types)])
    return tensors


def _are_equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    import torch

    return bool(found.dtype == expected.dtype and torch.equal(found, expected))


def _require(keys: Sequence[str], results: Sequence[int], expected: Sequence[int]) -> None:
    if len(results) != len(keys):
        raise RuntimeError(f"{len(results)} results for {len(keys)} keys")
    failures = [
        f"{key}: expected {wanted}, got {result}"
        for key, result, wanted in zip(keys, results, expected, strict=True)
        if result != wanted
    ]
    if failures:
        raise RuntimeError("; ".join(failures))
