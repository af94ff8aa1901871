"""Which keys lead to which rows and fields of batches, under Mooncake's name: the module
``mc_store_structured.dataproto_catalog`` of the package mc-store-structured."""

from __future__ import annotations

from mc_store.mooncake._structured import needed_for

with needed_for(__name__):
    from mc_store_structured.dataproto_catalog import *  # noqa: F403
    from mc_store_structured.dataproto_catalog import __all__ as __all__
