"""The module ``distributed_object_store`` of older releases of Mooncake, from ``mc-store``."""

from __future__ import annotations

from mc_store import _shim
from mc_store.mooncake.distributed_object_store import DistributedObjectStore

_shim.provide(__name__, __path__)

__all__ = ["DistributedObjectStore"]
