"""The package ``mooncake``, provided by ``mc-store``: each module is ``mc_store.mooncake``'s."""

from __future__ import annotations

from typing import Any

import mc_store.mooncake
from _mc_store_mooncake import installed
from mc_store import _shim

installed.check(__name__, __path__)
_shim.provide(__name__)

__all__ = list(mc_store.mooncake.__all__)


def __getattr__(name: str) -> Any:
    return getattr(mc_store.mooncake, name)
