"""Which keys lead to which rows and fields of batches in a store (see
:mod:`mc_store_structured.structured_object_store`), under Mooncake's names."""

from __future__ import annotations

from ._objects.catalog import CatalogDrained, DataProtoCatalog
from ._objects.catalog_transfer import DataProtoCatalogTransfer

__all__ = ["CatalogDrained", "DataProtoCatalog", "DataProtoCatalogTransfer"]
