"""``python -m mooncake.cli``: the master, under the name of Mooncake's module."""

from __future__ import annotations

from mc_store._binaries import master as main

__all__ = ["main"]

if __name__ == "__main__":
    main()
