"""Mooncake's Python modules, on this store.

What a program imports from ``mooncake`` is here under the same names: replace ``mooncake`` by
``mc_store.mooncake``, or call :func:`mc_store.install_as_mooncake` and change nothing. The modules
``distributed_object_store`` and ``mooncake_vllm_adaptor``, which older releases have outside of the
package, are inside of it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mc_store.mooncake.store import (
        BufferPool,
        MooncakeDistributedStore,
        RegisteredBufferPool,
    )

__all__ = ["BufferPool", "MooncakeDistributedStore", "RegisteredBufferPool"]


def __getattr__(name: str) -> Any:
    # On first use only: `import mooncake` is to cost nothing.
    if name in __all__:
        from mc_store.mooncake import store

        return getattr(store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
