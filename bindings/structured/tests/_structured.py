"""Shared by the tests of structured objects: objects of many kinds, and what a store has left."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from mc_store.mooncake.store import MooncakeDistributedStore
from mc_store.mooncake.structured_object_store import RemoteBundleRef

#: Makes a transfer in another process: arguments are the master's address and the key prefix.
OTHER_PROCESS = """
import json, sys
import numpy as np
from mc_store.mooncake.store import MooncakeDistributedStore
from mc_store.mooncake.structured_object_store import *

store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
transfer = MooncakeBundleTransfer(store, key_prefix=sys.argv[2], default_chunk_bytes=1 << 16)
"""


def objects(*rows: Any) -> Any:
    """The rows as an array of objects."""
    array = np.empty(len(rows), dtype=object)
    for place, row in enumerate(rows):
        array[place] = row
    return array


def plain(value: Any) -> Any:
    """``value`` in lists and dicts that can be compared, with the types of arrays."""
    if isinstance(value, np.ndarray):
        rows = [plain(row) for row in value] if value.dtype.kind == "O" else value.tolist()
        return ("array", value.dtype.str, value.shape, rows)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def keys_of(bundle: RemoteBundleRef) -> list[str]:
    """Every key of an object, the manifest's last."""
    payloads = [bundle.manifest["meta"], *bundle.manifest["buffers"].values()]
    chunks = [chunk["key"] for payload in payloads for chunk in payload["chunks"]]
    return [*chunks, *bundle.manifest.get("cleanup_keys", []), bundle.manifest_key]


def left(store: MooncakeDistributedStore, prefix: str) -> int:
    """Removes all keys under ``prefix`` and returns how many there were."""
    return store.remove_by_regex(f"^{prefix}/", True)


def replace_value(store: MooncakeDistributedStore, key: str, value: bytes) -> None:
    """Puts ``value`` in the place of the key's value."""
    assert store.upsert(key, value) == 0


def edit_json(
    store: MooncakeDistributedStore, key: str, edit: Callable[[dict[str, Any]], object]
) -> None:
    """Changes a value that is a JSON object."""
    content = json.loads(store.get(key))
    edit(content)
    replace_value(store, key, json.dumps(content).encode())


class MemoryStore:
    """A store in a dict with the four methods that every store has. ``refused`` counts down the
    puts until one fails."""

    def __init__(self, refused: int = -1) -> None:
        self.values: dict[str, bytes] = {}
        self.refused = refused

    def put(self, key: str, value: Any, config: Any = None) -> int:
        if self.refused == 0:
            return -200
        self.refused -= 1
        self.values[key] = bytes(value)
        return 0

    def get(self, key: str) -> bytes:
        return self.values.get(key, b"")

    def remove(self, key: str, force: bool = False) -> int:
        return 0 if self.values.pop(key, None) is not None else -704

    def is_exist(self, key: str) -> int:
        return int(key in self.values)
