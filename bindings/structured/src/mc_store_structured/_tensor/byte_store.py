"""The byte methods that the tensor methods need of a store, and the codes of refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from .layout import TensorError

T = TypeVar("T")

INTERNAL_ERROR = -1
INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704
FILE_NOT_FOUND = -1100


class ByteStore(Protocol):
    """The methods of `MooncakeDistributedStore` that the tensor methods are made of."""

    def get_buffer(self, key: str, /) -> Any: ...
    def batch_get_buffer(self, keys: list[str], /) -> list[Any]: ...
    def get_size(self, key: str, /) -> int: ...
    def get_into(self, key: str, buffer_ptr: int, size: int, /) -> int: ...
    def batch_get_into(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], /
    ) -> list[int]: ...
    def _get_ranges_of(
        self,
        keys: list[str],
        generations: list[int] | None,
        all_buffer_ptrs: list[list[int]],
        all_src_offsets: list[list[int]],
        all_sizes: list[list[int]],
        /,
    ) -> list[list[int]]: ...
    def put_parts(self, key: str, /, *values: Any, config: Any = ...) -> int: ...
    def upsert_parts(self, key: str, /, *values: Any, config: Any = ...) -> int: ...
    def batch_put_from_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        config: Any = ...,
    ) -> list[int]: ...
    def batch_upsert_from(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        config: Any = ...,
    ) -> list[int]: ...
    def register_buffer(self, buffer_ptr: int, size: int, /) -> int: ...
    def unregister_buffer(self, buffer_ptr: int, /) -> int: ...


def attempt(operation: str, key: object, action: Callable[[], T], otherwise: T) -> T:
    """The result of `action`; `otherwise`, and a line in the log, if it raises `TensorError`."""
    try:
        return action()
    except TensorError as error:
        refused(operation, key, error)
        return otherwise


def refused(operation: str, key: object, reason: object) -> None:
    """Logs why an operation is refused: its caller sees only a code or `None`."""
    from logging import getLogger

    getLogger("mc_store.tensor").error("%s %r: %s", operation, key, reason)


def checked_key(key: object) -> str:
    """`key` itself; `TypeError` if it is no string."""
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    return key


def checked_keys(keys: object) -> list[str]:
    """The keys as a list; `TypeError` if they are not a list or tuple of strings."""
    return [checked_key(key) for key in checked_list(keys, "keys")]


def checked_list(values: object, name: str) -> list[Any]:
    """The values as a list; `TypeError` if they are not a list or a tuple."""
    if not isinstance(values, list | tuple):
        raise TypeError(f"{name} is a list, not {type(values).__name__}")
    return list(values)
