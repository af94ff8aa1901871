"""Batches that a catalog leads to: stored, appended to, and removed when nobody uses them."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._fork import own_lock
from .catalog import CatalogDrained
from .handles import export_ref

_log = logging.getLogger("mc_store.structured")

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
        self._unpublished: list[_Publication] = []
        self._unacknowledged: list[str] = []

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
        if data is not None and len(data) != len(keys):
            raise ValueError(
                f"DataProto batch size {len(data)} does not match {len(keys)} logical keys"
            )
        self._settle()
        handle = None
        if data is not None:
            stored = self.transfer.put(data, type="dataproto", partition=partition, **put_kwargs)
            handle = export_ref(stored)
        publication = _Publication(
            "publish",
            (partition, list(keys)),
            {"tags": None if tags is None else list(tags), "handle": handle},
        )
        try:
            return self._publish(publication)
        except _REFUSALS:
            if handle is not None:
                self._withdraw(self.transfer.cleanup_dataproto, handle)
            raise

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
        plan = self._catalog_call("resolve", partition, list(keys), list(handle["field_index"]))
        if plan["handles"].get(fragment_id) != handle:
            raise ValueError(f"stale DataProto append handle: {fragment_id!r}")
        appended = export_ref(
            self.transfer.append_dataproto_fields(handle, data, stage=stage, **append_kwargs)
        )
        publication = _Publication(
            "publish_append",
            (fragment_id, partition, list(keys)),
            {"previous_handle": dict(handle), "handle": appended},
        )
        try:
            result = self._publish(publication)
            if "append_rejected" in result:
                raise ValueError(result["append_rejected"])
        except _REFUSALS:
            self._withdraw(self.transfer.cleanup_dataproto_append, handle, appended)
            raise
        return result

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
        """Publishes and acknowledges what earlier calls could not."""
        with self._lock:
            waiting, self._unpublished = self._unpublished, []
            unacknowledged, self._unacknowledged = self._unacknowledged, []
        for operation in unacknowledged:
            self._acknowledge(operation)
        failures: list[Exception] = []
        for publication in waiting:
            try:
                self._publish(publication, attempts=1)
            except _REFUSALS as error:
                _log.error("a publication is given up, its batch stays: %s", error)
            except Exception as error:
                failures.append(error)
        if failures:
            raise RuntimeError(
                f"failed to publish pending DataProto fragment for {len(failures)} item(s)"
            ) from failures[0]

    def _publish(self, publication: _Publication, attempts: int = _ATTEMPTS) -> dict[str, Any]:
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
                raise
            except Exception as error:
                if attempt == attempts - 1:
                    with self._lock:
                        self._unpublished.append(publication)
                    raise
                _log.warning("a publication is tried again: %s", error)
        self._acknowledge(publication.operation)
        self._clean_up(result)
        return result

    def _acknowledge(self, operation: str) -> None:
        try:
            self._catalog_call("ack_publication", operation)
        except Exception as error:
            _log.warning("a publication was not acknowledged, and will be: %s", error)
            with self._lock:
                self._unacknowledged.append(operation)

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

    def _withdraw(self, remove: Callable[..., None], *handles: Mapping[str, Any]) -> None:
        try:
            remove(*handles)
        except Exception as error:
            _log.warning("a batch that was not published stays in the store: %s", error)


class _Publication:
    """A call that makes a batch known, with an identity of its own."""

    def __init__(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.operation = uuid.uuid4().hex
        self.method = method
        self.args = args
        self.kwargs = kwargs
