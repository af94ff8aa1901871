"""Why a call of the store failed: one class for each family of causes.

Every exception of :class:`mc_store.Client` and :class:`mc_store.AsyncClient` that comes from
the store is a :class:`StoreError`. Its subclasses are also the built-in exceptions that Python
programs expect: a missing key is a :class:`KeyError`, a wrong argument a :class:`ValueError`,
a peer that is away a :class:`ConnectionError`.

Arguments of a wrong *type* raise :class:`TypeError`, as everywhere in Python.
"""

from __future__ import annotations

__all__ = [
    "AllLeased",
    "AlreadyExists",
    "Closed",
    "Conflict",
    "Corrupt",
    "Fragmented",
    "Full",
    "InvalidArgument",
    "LeaseExpired",
    "Leased",
    "NoSpace",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PermissionDenied",
    "QuotaExceeded",
    "StoreError",
    "Timeout",
    "TooFewSegments",
    "TransferFailed",
    "Unreachable",
    "Unsupported",
]


class StoreError(Exception):
    """A call of the store failed.

    ``str()`` of it tells what happened, what caused that, and what to do about it.
    """

    message: str
    """What happened, in words."""
    code: int
    """The cause's number, always negative; the same number in every language and log."""
    name: str
    """The cause's name in logs and metrics, such as ``"OBJECT_NOT_FOUND"``."""
    retryable: bool
    """Whether the same call may succeed later without anybody's help."""
    key: str | None
    """The object that the call was about, if it was about one."""

    def __init__(
        self,
        message: str,
        code: int = -1,
        name: str = "INTERNAL_ERROR",
        retryable: bool = False,
        key: str | None = None,
    ) -> None:
        # One argument only, whatever built-in class the subclass is: OSError takes two for
        # an errno and its text.
        super().__init__(message)
        self.message = message
        self.code = code
        self.name = name
        self.retryable = retryable
        self.key = key

    def __str__(self) -> str:
        # KeyError would show the message in quotes.
        return self.message if self.key is None else f"{self.message} [key {self.key!r}]"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, code={self.code}, name={self.name!r})"

    def __reduce__(self) -> tuple[object, ...]:
        arguments = (self.message, self.code, self.name, self.retryable, self.key)
        # With what was added later, such as notes.
        return type(self), arguments, self.__dict__


class NotFound(StoreError, KeyError):
    """There is no such object, segment, task or client."""


class NotReady(NotFound):
    """The object cannot be read now: it is being written, or the nodes that hold it are away."""


class AlreadyExists(StoreError):
    """What was to be made is there already, or is being made by somebody else."""


class InvalidArgument(StoreError, ValueError):
    """A key, a size, a range, a pattern or a setting that cannot be meant."""


class NoSpace(StoreError):
    """There is no room for the object; each cause has its subclass."""


class Full(NoSpace):
    """No segment has room, and nothing more can be evicted."""


class Fragmented(NoSpace):
    """Enough bytes are free, but not next to each other."""


class TooFewSegments(NoSpace):
    """Fewer segments are mounted than the object needs; often none at all."""


class AllLeased(NoSpace):
    """There would be room, but everything that could be evicted is being read."""


class QuotaExceeded(NoSpace):
    """The tenant has as many bytes as its quota allows."""


class Leased(StoreError):
    """Somebody may be reading the object, so that it cannot be removed now."""


class LeaseExpired(StoreError):
    """The object went away while it was read: the read took longer than its lease."""


class Conflict(StoreError):
    """Somebody else writes, copies, moves or removes the object at this moment."""


class Corrupt(StoreError):
    """The bytes read are not the bytes that were put, in any replica."""


class Unreachable(StoreError, ConnectionError):
    """The master cannot be reached, or the connection to it broke."""


class TransferFailed(StoreError, ConnectionError):
    """Bytes could not be moved to or from the nodes that hold the object."""


class Timeout(StoreError, TimeoutError):
    """No answer came in time, or what was waited for did not happen in time."""


class Overloaded(StoreError):
    """The other side is busy beyond its limits; try again later."""


class PermissionDenied(StoreError, PermissionError):
    """The caller is not known, or may not do this."""


class Unsupported(StoreError):
    """The other side does not offer the operation, or speaks another version."""


class Closed(StoreError):
    """The client is closed, or belongs to the process that this one was forked from."""
