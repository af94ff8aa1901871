"""Errors of objects in a store. They are subclasses of what Mooncake raises in the same case."""

from __future__ import annotations


class StructuredFormatError(ValueError):
    """Stored bytes, or a reference to them, that are not what they should be."""


class StructuredTransferError(RuntimeError):
    """A store that refused a call, or returned other bytes than were stored.

    key: the key, or the first one of several.
    code: the store's number for the failure; ``None`` if the store gave none.
    """

    def __init__(self, message: str, key: str, code: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.code = code
