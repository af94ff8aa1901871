"""Exceptions of the store: one class for each family of causes.

Every error of the store that :class:`mc_store.Client` and :class:`mc_store.AsyncClient` raise is a
:class:`StoreError`. Its subclasses are also the built-in exceptions that Python programs expect: a
missing key is a :class:`KeyError`, an invalid argument a :class:`ValueError`, an unreachable peer a
:class:`ConnectionError`.

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

    ``str()`` returns what happened, the cause, and the remedy.
    """

    message: str
    """The text of the error."""
    code: int
    """The error code, always negative; the same in every language and log."""
    name: str
    """The error's name in logs and metrics, such as ``"OBJECT_NOT_FOUND"``."""
    retryable: bool
    """Whether the same call may succeed later."""
    key: str | None
    """The key of the object, if the call was about one."""

    def __init__(
        self,
        message: str,
        code: int = -1,
        name: str = "INTERNAL_ERROR",
        retryable: bool = False,
        key: str | None = None,
    ) -> None:
        # Only one argument: with two, OSError, the base of some subclasses, sets its errno.
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
        # With attributes that were added later, such as notes.
        return type(self), arguments, self.__dict__


class NotFound(StoreError, KeyError):
    """There is no such object, segment, task or client."""


class NotReady(NotFound):
    """The object cannot be read now: it is being written, or the nodes that hold it are away."""


class AlreadyExists(StoreError):
    """The object or segment exists already, or another client is creating it."""


class InvalidArgument(StoreError, ValueError):
    """A key, a size, a range, a pattern or a setting is invalid."""


class NoSpace(StoreError):
    """There is no space for the object; each cause has a subclass."""


class Full(NoSpace):
    """No segment has enough space, and nothing more can be evicted."""


class Fragmented(NoSpace):
    """Enough bytes are free, but they are not contiguous."""


class TooFewSegments(NoSpace):
    """Fewer segments are mounted than the object needs; often none at all."""


class AllLeased(NoSpace):
    """Eviction could make space, but leases protect all candidates."""


class QuotaExceeded(NoSpace):
    """The put would exceed the tenant's quota."""


class Leased(StoreError):
    """A lease protects the object from removal now: a client may be reading it."""


class LeaseExpired(StoreError):
    """The object was removed or evicted during the read, which took longer than its lease."""


class Conflict(StoreError):
    """Another client is writing, copying, moving or removing the object."""


class Corrupt(StoreError):
    """No replica has the bytes that were put: their checksums differ."""


class Unreachable(StoreError, ConnectionError):
    """The master cannot be reached, or the connection to it broke."""


class TransferFailed(StoreError, ConnectionError):
    """A transfer to or from the nodes that hold the object failed."""


class Timeout(StoreError, TimeoutError):
    """No answer arrived in time, or an awaited event did not happen in time."""


class Overloaded(StoreError):
    """The peer has reached its limits; try again later."""


class PermissionDenied(StoreError, PermissionError):
    """The caller is unknown, or its role does not permit the call."""


class Unsupported(StoreError):
    """The peer does not support the operation or the protocol version."""


class Closed(StoreError):
    """The client is closed, or belongs to the parent of a forked process."""
