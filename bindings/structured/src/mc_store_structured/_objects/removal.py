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
    """Removes ``keys``, leased ones as well; a missing key counts as removed. Keys that could not
    be removed together with the others are tried once more, each by itself.

    Raises ``StructuredTransferError`` if some are left, after it has tried all of them.
    """
    keys = list(dict.fromkeys(keys))
    batch_remove = getattr(store, "batch_remove", None)
    if batch_remove is not None:
        codes: list[int] = []
        for first in range(0, len(keys), _BATCH_KEYS):
            codes += batch_remove(keys[first : first + _BATCH_KEYS], True)
        keys = [key for key, _ in _failed(keys, codes)]
    failed = _failed(keys, [store.remove(key, True) for key in keys])
    if failed:
        raise StructuredTransferError(
            f"failed to remove {len(failed)} Mooncake keys: {failed[:_NAMED]}", *failed[0]
        )


def _failed(keys: list[str], codes: list[int]) -> list[tuple[str, int]]:
    """The keys that are left, each with the code of its removal."""
    return [
        (key, code)
        for key, code in zip(keys, codes, strict=True)
        if code not in (0, MISSING_OBJECT_ERROR)
    ]
