"""Pairs of methods: a put, and an upsert that replaces the value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class Operation(NamedTuple):
    """Which method of a pair was called."""

    name: str
    update: bool


def put_and_upsert(
    put: str, store: Callable[Concatenate[S, Operation, P], R]
) -> tuple[Callable[Concatenate[S, P], R], Callable[Concatenate[S, P], R]]:
    """The method named `put`, and that with "upsert" for the "put" in its name.

    `store` does the work of both and is told which it is; its other parameters are theirs, and its
    docstring is that of the put.
    """
    upsert = f"`{put}` that replaces the value."
    return (
        _method(store, Operation(put, update=False), store.__doc__),
        _method(store, Operation(put.replace("put", "upsert"), update=True), upsert),
    )


def _method(
    store: Callable[Concatenate[S, Operation, P], R], operation: Operation, doc: str | None
) -> Callable[Concatenate[S, P], R]:
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return store(self, operation, *args, **kwargs)

    signature = inspect.signature(store)
    this, told, *own = signature.parameters.values()
    method.__dict__["__signature__"] = signature.replace(parameters=[this, *own])
    method.__annotations__ = {
        name: kind for name, kind in store.__annotations__.items() if name != told.name
    }
    method.__name__ = operation.name
    method.__qualname__ = f"{store.__qualname__.rpartition('.')[0]}.{operation.name}"
    method.__module__ = store.__module__
    method.__doc__ = doc
    return method
