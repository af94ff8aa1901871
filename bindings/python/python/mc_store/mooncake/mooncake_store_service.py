"""``python -m mooncake.mooncake_store_service``: :mod:`mc_store.service` by its other name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mc_store.service import main

if TYPE_CHECKING:
    from mc_store._service.node import MooncakeStoreService

__all__ = ["MooncakeStoreService", "main", "sync_main"]


def sync_main() -> int:
    """The console script ``mc_store_rest_server``."""
    return main()


def __getattr__(name: str) -> Any:
    # Requires aiohttp; `main` reports it if that is missing.
    if name == "MooncakeStoreService":
        from mc_store._service.node import MooncakeStoreService

        return MooncakeStoreService
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


if __name__ == "__main__":
    sys.exit(main())
