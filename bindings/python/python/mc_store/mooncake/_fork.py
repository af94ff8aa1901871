"""Locks that a forked child finds free."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

#: What has locks, by the names of their attributes, and what makes new ones.
_owners: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def own_lock(owner: object, name: str, make: Callable[[], Any]) -> None:
    """Give ``owner`` the lock that ``make`` makes, as attribute ``name``, and another one in every
    child: a thread of the parent may have held the lock, and nobody in the child would free it."""
    setattr(owner, name, make())
    _owners.setdefault(owner, {})[name] = make


def _renew() -> None:
    for owner, locks in list(_owners.items()):
        for name, make in locks.items():
            setattr(owner, name, make())


os.register_at_fork(after_in_child=_renew)
