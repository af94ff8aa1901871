"""Distributed KV-cache store for LLM inference.

>>> import mc_store
>>> with mc_store.local(segment_size="16MB") as store:
...     store["greeting"] = b"hello from the pool"
...     bytes(store["greeting"])
b'hello from the pool'

:class:`Client` joins a cluster, :class:`AsyncClient` does so for asyncio, and :func:`local` makes
one inside this process. What they raise is in :mod:`mc_store.exceptions`, what they report in
:mod:`mc_store.reports`. Programs that are written for Mooncake find its modules in
:mod:`mc_store.mooncake`, or under their own names after :func:`install_as_mooncake`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mc_store._native import AsyncClient, Buffer, Client, __version__, local
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
    "Timeout",
    "TooFewSegments",
    "TransferFailed",
    "Unreachable",
    "Unsupported",
    "__version__",
    "install_as_mooncake",
    "local",
]

# Imported when they are first asked for, so that a program that uses the classes above alone
# does not pay for them.
_OF_MOONCAKE = {"MooncakeDistributedStore", "ReplicateConfig"}

# Type checkers would take this to mean that every name exists.
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
    """Make ``import mooncake`` and ``from mooncake.store import ...`` give ``mc_store.mooncake``.

    The top-level modules of older releases, ``distributed_object_store`` and
    ``mooncake_vllm_adaptor``, are there after it, too.

    It lasts for this process; call it before whatever imports ``mooncake``. Calling it again does
    nothing. Modules are imported when they are asked for, and are the same objects by both names.

    If a package of one of these names that is not ours is imported or installed, ``ImportError`` is
    raised, so that nobody gets another store than the one installed. With ``force`` it is hidden,
    and forgotten if it was imported; what was taken out of it before stays what it was.
    """
    from mc_store import _shim

    _shim.install(force=force)
