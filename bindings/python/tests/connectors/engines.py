"""Interpreters of their own for connectors, as the engines they belong to have."""

from __future__ import annotations

import faulthandler
import importlib
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any


def install_as_mooncake() -> None:
    """Makes `import mooncake` import this package, as a program would."""
    faulthandler.enable()
    import mc_store

    mc_store.install_as_mooncake()


def use_distribution(site: str) -> None:
    """For an interpreter that has the distribution `mc-store-mooncake` installed in `site`, and
    that need not know of this package at all."""
    faulthandler.enable()
    sys.path.insert(0, site)


def _make(name: str, *arguments: object, **settings: object) -> object:
    module, _, factory = name.partition(":")
    return getattr(importlib.import_module(module), factory)(*arguments, **settings)


class _Manager(BaseManager):
    pass


_Manager.register("make", _make)


class Engine:
    """A fresh interpreter, in which connectors are made and called from here."""

    def __init__(
        self, prepare: Callable[..., None] = install_as_mooncake, *arguments: object
    ) -> None:
        self._manager = _Manager(ctx=get_context("spawn"))
        self._manager.start(prepare, arguments)

    def make(self, name: str, *arguments: object, **settings: object) -> Any:
        """Calls `name`, as `module:callable`, in the interpreter.

        Returns a proxy: the public methods of what was made, run where it is, each call in the
        thread that belongs to the calling one.

        Raises:
            multiprocessing.managers.RemoteError: it raised; with the traceback.
        """
        return self._manager.make(name, *arguments, **settings)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Ends the interpreter as a program ends, with all that lives in it."""
        self._manager.shutdown()
