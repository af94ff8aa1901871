"""Methods of ``MooncakeDistributedStore`` whose results in rare cases are Mooncake's convention."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mc_store import _native
from mc_store._native import ReplicaStatus

_EVERY_KEY = "^"


class ConventionMethods(_native.Store):
    """Mooncake's results for values without bytes and for empty patterns, and its probes."""

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

    def probe_key(self, key: str) -> int:
        """Return 1 if the key has a value, 0 if it has none, a negative number after a failure.

        Unlike :meth:`is_exist`, the value gets no lease, so it may be gone a moment later.
        """
        return self.batch_probe_key([key])[0]

    def batch_probe_key(self, keys: Sequence[str]) -> list[int]:
        """:meth:`probe_key` for many keys, with a result for each."""
        if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
            raise TypeError("keys must be a list of str")
        names = list(keys)
        described = self.batch_get_replica_desc(names)
        found = {
            key
            for key, replicas in described.items()
            if any(replica.status == ReplicaStatus.COMPLETE for replica in replicas)
        }
        if found or not names:
            return [int(key in found) for key in names]
        # Either there is nothing, or the call failed, which this one tells. A key without a value
        # gets no lease.
        return self.batch_is_exist(names)


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
