"""Removes the keys of an object."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import StructuredTransferError
from .policy import BundleStore

MISSING_OBJECT_ERROR = -704
"""The number of a store for a key without a value."""

#: Keys of one call of `batch_remove`.
_BATCH_KEYS = 1024

#: Failures that an error names.
_NAMED = 3


def remove_keys(store: BundleStore, keys: Iterable[str]) -> None:
    """Removes ``keys``, leased ones as well; a missing key counts as removed.

    Raises ``StructuredTransferError`` if some are left, after it has tried all of them.
    """
    keys = list(dict.fromkeys(keys))
    codes = _codes(store, keys)
    failed = [
        (key, code)
        for key, code in zip(keys, codes, strict=True)
        if code not in (0, MISSING_OBJECT_ERROR)
    ]
    if failed:
        raise StructuredTransferError(
            f"failed to remove {len(failed)} Mooncake keys: {failed[:_NAMED]}", *failed[0]
        )


def _codes(store: BundleStore, keys: list[str]) -> list[int]:
    batch_remove = getattr(store, "batch_remove", None)
    if batch_remove is None:
        return [store.remove(key, True) for key in keys]
    codes: list[int] = []
    for first in range(0, len(keys), _BATCH_KEYS):
        codes += batch_remove(keys[first : first + _BATCH_KEYS], True)
    return codes
