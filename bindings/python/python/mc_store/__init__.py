"""Distributed KV-cache store for LLM inference.

>>> import mc_store
>>> with mc_store.local(segment_size="16MB") as store:
...     store["greeting"] = b"hello from the pool"
...     bytes(store["greeting"])
b'hello from the pool'

:class:`Client` joins a cluster, :class:`AsyncClient` does so for asyncio, and :func:`local` starts
a cluster in this process. :mod:`mc_store.exceptions` has their exceptions, :mod:`mc_store.reports`
their reports. :mod:`mc_store.mooncake` has Mooncake's modules, which programs for Mooncake can
import under their own names after :func:`install_as_mooncake`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mc_store._native import AsyncClient, Buffer, Client, StoreEventInfo, __version__, local
from mc_store.exceptions import (
    AllLeased,
    AlreadyExists,
    Closed,
    Conflict,
    Corrupt,
    Fragmented,
    Full,
    InvalidArgument,
    Leased,
    LeaseExpired,
    NoSpace,
    NotFound,
    NotReady,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    StoreError,
    Timeout,
    TooFewSegments,
    TransferFailed,
    Unreachable,
    Unsupported,
)

if TYPE_CHECKING:
    from mc_store.mooncake.store import MooncakeDistributedStore, ReplicateConfig

__all__ = [
    "AllLeased",
    "AlreadyExists",
    "AsyncClient",
    "Buffer",
    "Client",
    "Closed",
    "Conflict",
    "Corrupt",
    "Fragmented",
    "Full",
    "InvalidArgument",
    "LeaseExpired",
    "Leased",
    "MooncakeDistributedStore",
    "NoSpace",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PermissionDenied",
    "QuotaExceeded",
    "ReplicateConfig",
    "StoreError",
    "StoreEventInfo",
    "Timeout",
    "TooFewSegments",
    "TransferFailed",
    "Unreachable",
    "Unsupported",
    "__version__",
    "install_as_mooncake",
    "local",
]

# Imported on first use, so that programs that only use the classes above do not load them.
_OF_MOONCAKE = {"MooncakeDistributedStore", "ReplicateConfig"}

# For type checkers this would mean that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _OF_MOONCAKE:
            from mc_store.mooncake import store

            value = getattr(store, name)
            globals()[name] = value
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(globals().keys() | _OF_MOONCAKE)


def install_as_mooncake(*, force: bool = False) -> None:
    """Make ``mc_store.mooncake`` importable as ``mooncake``, in this process.

    The modules of older releases, ``distributed_object_store`` and ``mooncake_vllm_adaptor``,
    become importable, too.

    Call it before the first import of ``mooncake``; further calls have no effect. Modules are
    imported on first use, and are the same objects under both names.

    Raises ``ImportError`` if another package with one of these names is imported or installed, so
    that a program does not get a different store than the installed one. ``force`` hides that
    package and removes its imported modules; objects that were imported from it before stay. Its
    ``mooncake.engine`` is not hidden: ``import mooncake.engine`` gives that module, as long as the
    package has one, while ``mooncake.store`` is this package's.
    """
    from mc_store import _shim

    _shim.install(force=force)
