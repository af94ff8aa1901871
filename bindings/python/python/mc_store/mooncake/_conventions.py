"""Methods of ``MooncakeDistributedStore`` whose results in rare cases are Mooncake's convention."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from mc_store import _native

_EVERY_KEY = "^"


class ConventionMethods(_native.Store):
    """Mooncake's results for values without bytes and for empty patterns."""

    if not TYPE_CHECKING:  # Their types are those of the native class.

        @functools.wraps(_native.Store.put_from)
        def put_from(self, key, buffer_ptr, size, *args, **kwargs):
            if size == 0 and self.get_hostname():
                return 0  # Nothing is stored.
            return super().put_from(key, buffer_ptr, size, *args, **kwargs)

        @functools.wraps(_native.Store.upsert_from)
        def upsert_from(self, key, buffer_ptr, size, *args, **kwargs):
            if size == 0 and self.get_hostname():
                return 0
            return super().upsert_from(key, buffer_ptr, size, *args, **kwargs)

        @functools.wraps(_native.Store.put_batch)
        def put_batch(self, keys, values, *args, **kwargs):
            keys, values = _from_first_empty(keys, values)
            return super().put_batch(keys, values, *args, **kwargs)

        @functools.wraps(_native.Store.upsert_batch)
        def upsert_batch(self, keys, values, *args, **kwargs):
            keys, values = _from_first_empty(keys, values)
            return super().upsert_batch(keys, values, *args, **kwargs)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Remove all values whose keys contain a match of the pattern; an empty one matches every
        key.

        Without ``force``, values that a lease protects stay. Returns the number of values removed;
        -600 for an invalid pattern, and for one with look-ahead, look-behind or back-references.
        """
        pattern = _EVERY_KEY if regex_pattern == "" else regex_pattern
        return super().remove_by_regex(pattern, force)


def _from_first_empty(keys: object, values: object) -> tuple[object, object]:
    """Returns the first key with an empty value, and that value, so that the batch is refused and
    nothing of it is stored; without an empty value, everything."""
    if isinstance(keys, list | tuple) and isinstance(values, list | tuple):
        for place, value in enumerate(values[: len(keys)]):
            if _is_empty(value):
                return keys[place : place + 1], values[place : place + 1]
    return keys, values


def _is_empty(value: object) -> bool:
    if isinstance(value, bytes | bytearray):
        return not value
    try:
        return memoryview(value).nbytes == 0  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return False  # The native method raises the exception.
