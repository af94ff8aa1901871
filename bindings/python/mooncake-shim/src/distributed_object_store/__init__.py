"""The module ``distributed_object_store`` of older releases of Mooncake, from ``mc-store``."""

from __future__ import annotations

from _mc_store_mooncake import installed
from mc_store import _shim
from mc_store.mooncake.distributed_object_store import (
    DistributedObjectStore,
    distributed_object_store,
)

installed.check(__name__, __path__)
_shim.provide(__name__)

__all__ = ["DistributedObjectStore", "distributed_object_store"]
