"""Writes values of an object, all of them or none."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from . import groups
from .errors import StructuredTransferError
from .memory import TensorObjectBuffer
from .policy import (
    AUTO_PARALLEL_MIN_BYTES,
    AUTO_PARALLEL_MIN_CHUNKS,
    BundleStore,
    BundleTransferPolicy,
)
from .removal import remove_keys

_log = logging.getLogger("mc_store.structured")

#: Keys of one call of `put_batch`.
_BATCH_KEYS = 256


@dataclass(frozen=True)
class Value:
    """The bytes of one key: the parts one after the other, or memory by address."""

    key: str
    parts: tuple[memoryview, ...] = ()
    memory: TensorObjectBuffer | None = None

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.memory.size if self.memory else sum(part.nbytes for part in self.parts)


def write_values(
    store: BundleStore, values: Sequence[Value], config: Any, policy: BundleTransferPolicy
) -> None:
    """Stores ``values`` under new keys.

    Raises ``StructuredTransferError`` if the store refuses one, ``ValueError`` for a ``config`` of
    several groups. After any exception the keys that were written are removed again, as far as the
    store allows.
    """
    config = groups.for_keys(config, 1)
    try:
        simple = [value for value in values if value.memory is None and len(value.parts) == 1]
        for value in values:
            if value.memory is not None or len(value.parts) > 1:
                _check(value.key, _put_special(store, value, config))
        _put_simple(store, simple, config, policy)
    except BaseException:
        withdraw(store, [value.key for value in values])
        raise


def _put_special(store: BundleStore, value: Value, config: Any) -> int:
    if value.memory is not None:
        put_from = getattr(store, "put_from", None)
        if put_from is None:
            raise TypeError("this store cannot store a tensor_object_buffer: it has no put_from")
        return int(put_from(value.key, value.memory.ptr, value.memory.size, config))
    put_parts = getattr(store, "put_parts", None)
    if put_parts is None:
        return store.put(value.key, b"".join(value.parts), config)
    return int(put_parts(value.key, *value.parts, config=config))


def _put_simple(
    store: BundleStore, values: Sequence[Value], config: Any, policy: BundleTransferPolicy
) -> None:
    threads = min(policy.max_inflight_put, len(values))
    if _is_batched(store, policy) and len(values) > 1:
        _put_in_batches(store, values, config)
    elif threads > 1 and (policy.put_mode == "parallel" or _is_large(values)):
        with ThreadPoolExecutor(threads, thread_name_prefix="mc-store-put") as pool:
            puts = [(value.key, pool.submit(_put_one, store, value, config)) for value in values]
        for key, put in puts:
            _check(key, put.result())
    else:
        for value in values:
            _check(value.key, _put_one(store, value, config))


def _put_one(store: BundleStore, value: Value, config: Any) -> int:
    return store.put(value.key, value.parts[0], config)


def _put_in_batches(store: Any, values: Sequence[Value], config: Any) -> None:
    for batch in _batches(values, _BATCH_KEYS):
        code = store.put_batch(
            [value.key for value in batch],
            [value.parts[0] for value in batch],
            groups.for_keys(config, len(batch)),
        )
        _check(batch[0].key, code, f" and {len(batch) - 1} more keys")


def _is_batched(store: BundleStore, policy: BundleTransferPolicy) -> bool:
    return policy.put_mode != "parallel" and hasattr(store, "put_batch")


def _is_large(values: Sequence[Value]) -> bool:
    total = sum(value.size for value in values)
    return len(values) >= AUTO_PARALLEL_MIN_CHUNKS and total >= AUTO_PARALLEL_MIN_BYTES


def _check(key: str, code: int, others: str = "") -> None:
    if code != 0:
        raise StructuredTransferError(f"put failed for {key}{others}: {code}", key, code)


def withdraw(store: BundleStore, keys: Iterable[str]) -> None:
    """Removes what a failed put wrote, and raises nothing if that fails."""
    try:
        remove_keys(store, keys)
    except Exception as error:  # The failure of the put is what the caller is to see.
        _log.warning("a put failed, and some of its keys stay: %s", error)


def _batches(values: Iterable[Value], size: int) -> Iterator[list[Value]]:
    iterator = iter(values)
    while batch := list(islice(iterator, size)):
        yield batch
