"""How payloads are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

DEFAULT_BUNDLE_CHUNK_BYTES = 64 << 20
"""The most bytes of a payload under one key, unless the caller says otherwise."""

AUTO_PARALLEL_MIN_CHUNKS = 8
AUTO_PARALLEL_MIN_BYTES = 64 << 20
"""``put_mode="auto"`` writes with several threads from these numbers on, if the store has no
``put_batch`` and ``max_inflight_put`` allows it."""

_PUT_MODES = ("auto", "batch", "parallel")
_COPY_MODES = ("auto", "zero_copy", "copy")


class BundleStore(Protocol):
    """The methods of a store that every transfer needs, as of ``MooncakeDistributedStore``.

    Further ones are used if the store has them: ``put_batch``, ``put_parts``, ``put_from``,
    ``batch_get_buffer``, ``batch_get_into``, ``_get_ranges_of``, ``get_size``, ``batch_remove``.
    """

    def put(self, key: str, value: Any, config: Any = None) -> int: ...
    def get(self, key: str) -> bytes: ...
    def remove(self, key: str, force: bool = False) -> int: ...
    def is_exist(self, key: str) -> int: ...


@dataclass(frozen=True)
class BundleTransferPolicy:
    """How the payloads of an object are written.

    max_inflight_put: the most puts at the same time, of ``put_mode="parallel"``.
    put_mode: ``"batch"`` stores many keys with one call of ``put_batch``, ``"parallel"`` runs
        ``put`` on ``max_inflight_put`` threads, ``"auto"`` chooses.
    copy_mode: ``"zero_copy"`` accepts tensors only as :func:`tensor_object_buffer`. The other two
        mean the same here: no mode copies the bytes of contiguous host memory.

    Raises ``ValueError`` for other values.
    """

    max_inflight_put: int = 1
    put_mode: Literal["auto", "batch", "parallel"] = "auto"
    copy_mode: Literal["auto", "zero_copy", "copy"] = "auto"

    def __post_init__(self) -> None:
        if self.max_inflight_put <= 0:
            raise ValueError(f"max_inflight_put must be positive, not {self.max_inflight_put}")
        if self.put_mode not in _PUT_MODES:
            raise ValueError(f"unsupported put_mode: {self.put_mode}; use one of {_PUT_MODES}")
        if self.copy_mode not in _COPY_MODES:
            raise ValueError(f"unsupported copy_mode: {self.copy_mode}; use one of {_COPY_MODES}")


def policy_of(
    policy: BundleTransferPolicy | None, max_inflight_put: int | None
) -> BundleTransferPolicy:
    """The policy of a call with these arguments; ``max_inflight_put`` wins."""
    policy = policy or BundleTransferPolicy()
    if max_inflight_put is None:
        return policy
    return BundleTransferPolicy(max_inflight_put, policy.put_mode, policy.copy_mode)


def checked_chunk_bytes(chunk_bytes: int) -> int:
    """``chunk_bytes`` itself. Raises ``ValueError`` if it is not positive."""
    if not isinstance(chunk_bytes, int):
        raise TypeError(f"chunk_bytes must be an int, not {type(chunk_bytes).__name__}")
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes must be positive, not {chunk_bytes}")
    return chunk_bytes
