"""Distributed KV-cache store for LLM inference."""

from __future__ import annotations


def install_as_mooncake(*, force: bool = False) -> None:
    """Make ``import mooncake`` and ``from mooncake.store import ...`` give ``mc_store.mooncake``.

    It lasts for this process; call it before whatever imports ``mooncake``. Calling it again does
    nothing. Modules are imported when they are asked for, and are the same objects by both names.

    If a package ``mooncake`` that is not ours is imported or installed, ``ImportError`` is raised,
    so that nobody gets another store than the one installed. With ``force`` it is hidden, and
    forgotten if it was imported; what was taken out of it before stays what it was.
    """
    from mc_store import _shim

    _shim.install(force=force)


__all__ = ["install_as_mooncake"]
