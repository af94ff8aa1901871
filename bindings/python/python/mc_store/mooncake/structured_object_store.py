"""Objects of many members in a store, under Mooncake's name: the module
``mc_store_structured.structured_object_store`` of the package mc-store-structured."""

from __future__ import annotations

from mc_store.mooncake._structured import needed_for

with needed_for(__name__):
    from mc_store_structured.structured_object_store import *  # noqa: F403
    from mc_store_structured.structured_object_store import __all__ as __all__
