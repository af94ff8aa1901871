"""Locks that are free in a forked child."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

#: What has locks, by the names of their attributes, and what makes new ones.
_owners: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def own_lock(owner: object, name: str, make: Callable[[], Any]) -> None:
    """Set the attribute ``name`` of ``owner`` to the lock that ``make`` returns, and to a new lock
    in every child: a thread of the parent may hold the lock, and no thread of the child would
    release it."""
    setattr(owner, name, make())
    _owners.setdefault(owner, {})[name] = make


def _renew() -> None:
    for owner, locks in list(_owners.items()):
        for name, make in locks.items():
            setattr(owner, name, make())


os.register_at_fork(after_in_child=_renew)
