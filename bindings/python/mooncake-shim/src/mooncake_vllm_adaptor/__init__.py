"""The module ``mooncake_vllm_adaptor`` of older releases of Mooncake, from ``mc-store``."""

from __future__ import annotations

from _mc_store_mooncake import installed
from mc_store import _shim
from mc_store.mooncake.mooncake_vllm_adaptor import (
    MooncakeDistributedStore,
    mooncake_vllm_adaptor,
)

installed.check(__name__, __path__)
_shim.provide(__name__)

__all__ = ["MooncakeDistributedStore", "mooncake_vllm_adaptor"]
