"""Batches that a catalog leads to: stored, appended to, and removed when they are unused."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mc_store.mooncake._fork import own_lock

from .batches import of_dataproto
from .catalog import CatalogDrained
from .handles import export_ref

_log = logging.getLogger("mc_store.structured")

_T = TypeVar("_T")

_RESULTS = "_mooncake_catalog_results"

#: Publications are tried again once, at once; then at the next call.
_ATTEMPTS = 2

#: Failures by which the catalog says that it changed nothing.
_REFUSALS = (ValueError, TypeError, CatalogDrained)


class DataProtoCatalogTransfer:
    """Stores batches with ``transfer`` and publishes them with a catalog elsewhere.

    transfer: a ``MooncakeBundleTransfer``.
    catalog_call: calls a method of the catalog: ``catalog_call(name, *args, **kwargs)``, for
        example a remote call. It raises ``ValueError`` and ``TypeError`` only if the catalog did:
        they mean that the catalog changed nothing, and the batch is removed again.

    A reply of the catalog may get lost. A publication without a reply is kept, and published again
    by the next call; its identity makes that harmless. Fragments that the catalog retires are
    removed from the store. What could not be removed is tried again with the next reply.
    """

    _lock: threading.Lock

    def __init__(self, transfer: Any, catalog_call: Callable[..., Any]) -> None:
        self.transfer = transfer
        self._catalog_call = catalog_call
        own_lock(self, "_lock", threading.Lock)
        self._unpublished: deque[_Publication] = deque()
        self._unsent: deque[tuple[str, Any]] = deque()

    def put(
        self,
        data: Any,
        *,
        partition: str,
        keys: Sequence[str],
        tags: Sequence[Mapping[str, Any]] | None = None,
        **put_kwargs: Any,
    ) -> dict[str, Any]:
        """Stores a batch, with further arguments of ``MooncakeBundleTransfer.put``, and publishes
        its rows as the values of ``keys``. Without ``data`` only tags are merged.

        Returns what ``DataProtoCatalog.publish`` returns. Raises ``ValueError`` if the numbers of
        rows and keys differ. If the catalog cannot be reached, the exception of the call is raised,
        and the batch stays to be published by a later call.
        """
        if data is None and tags is None:
            raise ValueError("catalog update requires tags or DataProto data")
        size = len(keys) if data is None else of_dataproto(data).size
        if size != len(keys):
            raise ValueError(f"DataProto batch size {size} does not match {len(keys)} logical keys")
        self._settle()
        handle = None
        if data is not None:
            stored = self.transfer.put(data, type="dataproto", partition=partition, **put_kwargs)
            handle = export_ref(stored)
        publication = _Publication(
            "publish",
            (partition, list(keys)),
            {"tags": None if tags is None else list(tags), "handle": handle},
            lambda: None if handle is None else self.transfer.cleanup_dataproto(handle),
        )
        return self._publish(publication)

    def append(
        self,
        fragment_id: str,
        handle: Mapping[str, Any],
        data: Any,
        *,
        partition: str,
        keys: Sequence[str],
        stage: str,
        **append_kwargs: Any,
    ) -> dict[str, Any]:
        """Adds fields to the rows of a fragment, as :meth:`resolve` names it, with further
        arguments of ``append_dataproto_fields`` except ``overwrite``.

        Raises ``ValueError`` if the fragment changed in the meantime, and removes what it stored.
        """
        if append_kwargs.pop("overwrite", False):
            raise ValueError("fields of a catalog fragment cannot be overwritten: others read them")
        self._settle()
        plan = self.resolve(partition, list(keys), list(handle["field_index"]))
        try:  # Pinned: the fragment stays while it is appended to.
            if plan["handles"].get(fragment_id) != handle:
                raise ValueError(f"stale DataProto append handle: {fragment_id!r}")
            appended = export_ref(
                self.transfer.append_dataproto_fields(handle, data, stage=stage, **append_kwargs)
            )
            publication = _Publication(
                "publish_append",
                (fragment_id, partition, list(keys)),
                {"previous_handle": dict(handle), "handle": appended},
                lambda: self.transfer.cleanup_dataproto_append(handle, appended),
            )
            return self._publish(publication)
        finally:
            self._notify("release_read", plan["read_token"])

    def resolve(
        self, partition: str, keys: Sequence[str], fields: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """``DataProtoCatalog.resolve``, pinned: the batches stay until :meth:`release_read`."""
        plan: dict[str, Any] = self._catalog_call("resolve", partition, keys, fields, pin=True)
        return plan

    def release_read(self, token: int) -> None:
        """Ends the read with the ``read_token`` of :meth:`resolve`."""
        self._clean_up(self._catalog_call("release_read", token))

    def attach_results(self, output: Any, results: Sequence[Any]) -> None:
        """Makes ``results``, which ``output`` was composed of, part of ``output``, an object that
        takes attributes."""
        setattr(output, _RESULTS, list(results))

    def release_result(self, output: Any) -> None:
        """Releases the results that were attached to ``output``."""
        results = getattr(output, _RESULTS, [])
        if results:
            self.discard_results(results, strict=True)
            setattr(output, _RESULTS, [])

    def discard_results(self, results: Sequence[Any], *, strict: bool = False) -> None:
        """Releases results, each tried twice. Failures are logged; with ``strict`` the last one is
        raised when all were tried."""
        failure: Exception | None = None
        for result in results:
            for attempt in range(_ATTEMPTS):
                try:
                    self.transfer.release_result(result)
                    break
                except Exception as error:
                    _log.warning("a result was not released: %s", error)
                    if attempt == _ATTEMPTS - 1:
                        failure = error
        if strict and failure is not None:
            raise failure

    def list(self, partition: str | None = None) -> dict[str, dict[str, Any]]:
        """``DataProtoCatalog.list``."""
        found: dict[str, dict[str, Any]] = self._catalog_call("list", partition)
        return found

    def remove(self, partition: str, keys: Sequence[str]) -> None:
        """Forgets keys, and removes batches that only they used."""
        self._settle()
        self._clean_up(self._catalog_call("remove", partition, keys))

    def drain(self) -> None:
        """Forgets all keys for good, and removes all batches that were published.

        Raises ``RuntimeError`` while there are reads, or publications that still fail.
        """
        self._settle()
        self._clean_up(self._catalog_call("drain"))

    def close(self) -> None:
        """Publishes what is left to publish. Raises ``RuntimeError`` if it fails still."""
        self._settle()

    def _settle(self) -> None:
        """Publishes, acknowledges and releases what earlier calls could not."""
        for method, argument in self._taken(self._unsent):
            self._notify(method, argument)
        failures: list[Exception] = []
        for publication in self._taken(self._unpublished):
            try:
                self._publish(publication, attempts=1)
            except _REFUSALS as error:
                _log.error("a publication is given up, and its batch is removed: %s", error)
            except Exception as error:
                failures.append(error)
        if failures:
            raise RuntimeError(
                f"failed to publish pending DataProto fragment for {len(failures)} item(s)"
            ) from failures[0]

    def _taken(self, waiting: deque[_T]) -> Iterator[_T]:
        """Takes out what is waiting, each when its turn comes: what an interruption leaves
        waits on."""
        for _ in range(len(waiting)):
            with self._lock:
                if not waiting:  # Another thread was faster.
                    return
                item = waiting.popleft()
            yield item

    def _publish(self, publication: _Publication, attempts: int = _ATTEMPTS) -> dict[str, Any]:
        """Makes a batch known. One that the catalog refuses is removed, one without a reply is kept
        to be published later."""
        for attempt in range(attempts):
            try:
                result: dict[str, Any] = self._catalog_call(
                    publication.method,
                    publication.operation,
                    *publication.args,
                    **publication.kwargs,
                )
                break
            except _REFUSALS:
                publication.withdraw()
                raise
            except BaseException as error:
                if attempt == attempts - 1 or not isinstance(error, Exception):
                    with self._lock:
                        self._unpublished.append(publication)
                    raise
                _log.warning("a publication is tried again: %s", error)
        self._notify("ack_publication", publication.operation)
        self._clean_up(result)
        if "append_rejected" in result:
            publication.withdraw()
            raise ValueError(result["append_rejected"])
        return result

    def _notify(self, method: str, argument: Any) -> None:
        """Makes a call that may be repeated. If it fails, :meth:`_settle` repeats it."""
        try:
            reply = self._catalog_call(method, argument)
        except BaseException as error:
            with self._lock:
                self._unsent.append((method, argument))
            if not isinstance(error, Exception):
                raise
            _log.warning("%s failed, and will be called again: %s", method, error)
        else:
            if isinstance(reply, Mapping):
                self._clean_up(reply)

    def _clean_up(self, reply: Mapping[str, Any]) -> None:
        """Removes the fragments that the catalog retired."""
        removed = []
        for handle in reply.get("retired_handles", ()):
            try:
                self.transfer.cleanup_dataproto(handle)
                removed.append(handle)
            except Exception as error:
                _log.warning("a retired fragment was not removed, and will be: %s", error)
        if removed:
            try:
                self._catalog_call("ack_retired", removed)
            except Exception as error:
                _log.warning("the catalog did not hear of removed fragments: %s", error)


class _Publication:
    """A call that makes a batch known, with an identity of its own.

    remove: removes the batch again.
    """

    def __init__(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        remove: Callable[[], None],
    ) -> None:
        self.operation = uuid.uuid4().hex
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self._remove = remove

    def withdraw(self) -> None:
        """Removes the batch from the store. A failure is logged only."""
        try:
            self._remove()
        except Exception as error:
            _log.warning("a batch that was not published stays in the store: %s", error)
