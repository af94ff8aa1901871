"""Which keys lead to which rows and fields of batches in a store (see
:mod:`mc_store.mooncake.structured_object_store`), under Mooncake's names."""

from __future__ import annotations

from mc_store.mooncake._structured.catalog import CatalogDrained, DataProtoCatalog
from mc_store.mooncake._structured.catalog_transfer import DataProtoCatalogTransfer

__all__ = ["CatalogDrained", "DataProtoCatalog", "DataProtoCatalogTransfer"]
