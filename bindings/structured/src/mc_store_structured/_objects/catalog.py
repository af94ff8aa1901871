"""Which rows and fields of which batch a logical key has.

A *fragment* is a batch in a store: its rows are the values of as many keys, each field of it one
field of theirs. A key may have its fields from several fragments. The catalog only knows handles;
:class:`~mc_store_structured.dataproto_catalog.DataProtoCatalogTransfer` moves the data.

A fragment that came by ``publish`` is *managed*: when no key and no reader uses it any more, it is
*retired*, and every reply names it until its removal from the store is acknowledged.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mc_store.mooncake._fork import own_lock

from .handles import export_ref, import_ref

Handle = dict[str, Any]


class CatalogDrained(RuntimeError):
    """The catalog was drained, and takes nothing new."""


@dataclass
class _Fragment:
    """A batch and its users.

    origin: the partition and the keys with which it came; row N is the value of key N.
    uses: how many fields of keys lie in it.
    """

    number: str
    handle: Handle
    origin: tuple[str, tuple[str, ...]]
    is_managed: bool = False
    uses: int = 0
    readers: int = 0


@dataclass
class _Row:
    """A key: its tags, and the fragment and the row of each of its fields."""

    tags: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, tuple[_Fragment, int]] = field(default_factory=dict)


class DataProtoCatalog:
    """Maps keys of partitions to rows and fields of stored batches.

    It lives in one process, for example as an actor, and its methods may be called from several
    threads. Arguments that the methods share:

    partition: keys of two partitions are different keys.
    keys: non-empty strings, each once.
    tags: a mapping for each key, merged into the key's tags.
    handle: of a batch with as many rows as there are keys, and with one stage.

    Most replies are dicts with ``retired_handles``. ``ValueError`` and ``TypeError`` mean that
    nothing was changed.
    """

    _lock: threading.Lock

    def __init__(self) -> None:
        own_lock(self, "_lock", threading.Lock)
        self._rows: dict[str, dict[str, _Row]] = {}
        self._fragments: dict[str, _Fragment] = {}
        self._retired: dict[str, Handle] = {}
        self._published: dict[str, dict[str, Any]] = {}
        self._pins: dict[Any, list[_Fragment]] = {}
        self._last_token = 0
        self._is_drained = False

    def update(
        self,
        partition: str,
        keys: Sequence[str],
        *,
        tags: Sequence[Mapping[str, Any]] | None = None,
        handle: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Merges tags, and makes the fields of a batch the fields of the keys. The batch stays the
        caller's: it is never retired.

        Returns ``keys``, their ``tags`` and their ``fields``.
        """
        with self._lock:
            self._check_open()
            return self._reply(self._update(partition, keys, tags, handle, is_managed=False))

    def publish(
        self,
        operation_id: str,
        partition: str,
        keys: Sequence[str],
        *,
        tags: Sequence[Mapping[str, Any]] | None = None,
        handle: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """:meth:`update` with a managed batch. The same ``operation_id`` again changes nothing and
        returns the same, until :meth:`ack_publication`."""
        with self._lock:
            self._check_open()
            _text(operation_id, "operation_id")
            if operation_id not in self._published:
                result = self._update(partition, keys, tags, handle, is_managed=True)
                self._published[operation_id] = result
            return self._reply(self._published[operation_id])

    def ack_publication(self, operation_id: str) -> None:
        """Forgets the outcome of a publication, which its caller knows by now."""
        with self._lock:
            self._published.pop(_text(operation_id, "operation_id"), None)

    def publish_append(
        self,
        operation_id: str,
        fragment_id: str,
        partition: str,
        keys: Sequence[str],
        *,
        previous_handle: Mapping[str, Any],
        handle: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Adds the fields that ``handle`` has beyond ``previous_handle``, the one that the catalog
        has of the managed fragment ``fragment_id``, to the fragment's keys.

        Returns as :meth:`publish`, or ``append_rejected`` with a reason, for example that the
        fragment changed in the meantime.
        """
        with self._lock:
            self._check_open()
            _text(operation_id, "operation_id")
            if operation_id in self._published:
                return self._reply(self._published[operation_id])
            names = _names(keys, "keys")
            previous, appended = _normal(previous_handle), _normal(handle)
            fragment = self._fragments.get(fragment_id)
            if fragment is None or not fragment.is_managed or fragment.handle != previous:
                return {"append_rejected": f"stale DataProto append handle: {fragment_id!r}"}
            reason = self._why_rejected(fragment, partition, names, previous, appended)
            if reason is not None:
                return {"append_rejected": reason}
            added = [name for name in appended["field_index"] if name not in _fields(previous)]
            fragment.handle = appended
            rows = self._rows[partition]
            for number, key in enumerate(names):
                self._place(rows[key], added, fragment, number)
            result = self._describe(partition, names)
            self._published[operation_id] = result
            return self._reply(result)

    def resolve(
        self,
        partition: str,
        keys: Sequence[str],
        fields: Sequence[str] | None = None,
        *,
        pin: bool = False,
    ) -> dict[str, Any]:
        """Where the fields of the keys lie, all fields of all keys by default.

        Returns ``keys``, ``tags``, ``fields``, ``field_groups`` (fields with the same
        ``locations``: for each key a fragment and a row), ``handles`` by fragment, their merged
        ``meta_info``, and with ``pin`` a ``read_token``: no fragment is retired until
        :meth:`release_read` gets it.

        Raises ``ValueError`` for a missing key, a field that a key does not have, and values of
        ``meta_info`` that differ.
        """
        with self._lock:
            names = _names(keys, "keys")
            rows = self._rows.get(_text(partition, "partition"), {})
            missing = [key for key in names if key not in rows]
            if missing:
                raise ValueError(f"keys were not found in partition {partition!r}: {missing}")
            if fields is None:
                wanted = _union(rows[key].fields for key in names)
                if not wanted:
                    raise ValueError(f"keys do not contain any fields: {names}")
            else:
                wanted = _names(fields, "field names")
            for key in names:
                unready = [name for name in wanted if name not in rows[key].fields]
                if unready:
                    raise ValueError(f"fields are not ready for key {key!r}: {unready}")
            return self._plan([rows[key] for key in names], names, wanted, pin)

    def release_read(self, token: int) -> dict[str, Any]:
        """Ends a read that :meth:`resolve` pinned. Again, or for an unknown token, it does
        nothing."""
        with self._lock:
            for fragment in self._pins.pop(token, ()):
                fragment.readers -= 1
                self._retire_if_unused(fragment)
            return self._reply({})

    def list(self, partition: str | None = None) -> dict[str, dict[str, Any]]:
        """The tags of all keys, by partition; of one partition if it is given."""
        with self._lock:
            return {
                name: {key: copy.deepcopy(row.tags) for key, row in rows.items()}
                for name, rows in self._rows.items()
                if partition is None or name == partition
            }

    def remove(self, partition: str, keys: Sequence[str]) -> dict[str, Any]:
        """Forgets keys. Keys that do not exist are no failure."""
        with self._lock:
            names = _names(keys, "keys")
            rows = self._rows.get(_text(partition, "partition"), {})
            for key in names:
                self._forget(rows.pop(key, _Row()))
            if not rows:
                self._rows.pop(partition, None)
            return self._reply({})

    def drain(self) -> dict[str, Any]:
        """Forgets everything, for good: later publications raise :class:`CatalogDrained`.

        Raises ``RuntimeError`` while reads are pinned, and changes nothing.
        """
        with self._lock:
            if self._pins:
                raise RuntimeError(
                    f"cannot drain DataProto catalog with {len(self._pins)} active read(s)"
                )
            self._is_drained = True
            self._published.clear()
            for rows in self._rows.values():
                for row in rows.values():
                    self._forget(row)
            self._rows.clear()
            return self._reply({})

    def ack_retired(self, handles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Forgets retired fragments that were removed from the store.

        Raises ``ValueError`` for a handle that differs from the one that was retired.
        """
        with self._lock:
            done = []
            for handle in map(_normal, handles):
                for number, retired in self._retired.items():
                    if retired["stage_refs"] == handle["stage_refs"]:
                        if retired != handle:
                            raise ValueError(f"retired DataProto fragment mismatch: {number!r}")
                        done.append(number)
            for number in done:
                del self._retired[number]
            return self._reply({})

    # The methods below are called with the lock held.

    def _check_open(self) -> None:
        if self._is_drained:
            raise CatalogDrained("DataProto catalog is drained")

    def _update(
        self,
        partition: str,
        keys: Sequence[str],
        tags: Sequence[Mapping[str, Any]] | None,
        handle: Mapping[str, Any] | None,
        *,
        is_managed: bool,
    ) -> dict[str, Any]:
        if tags is None and handle is None:
            raise ValueError("catalog update requires tags or a DataProto handle")
        _text(partition, "partition")
        names = _names(keys, "keys")
        merged = _tags(tags, len(names))
        origin = (partition, tuple(names))
        fragment = None if handle is None else self._fragment(handle, origin, is_managed)
        rows = self._rows.setdefault(partition, {})
        for number, key in enumerate(names):
            row = rows.setdefault(key, _Row())
            row.tags.update(merged[number])
            if fragment is not None:
                self._place(row, _fields(fragment.handle), fragment, number)
        return self._describe(partition, names)

    def _fragment(
        self, content: Mapping[str, Any], origin: tuple[str, tuple[str, ...]], is_managed: bool
    ) -> _Fragment:
        handle = _normal(content)
        if len(handle["stage_refs"]) != 1:
            raise ValueError("a catalog fragment must have exactly one DataProto stage")
        _names(list(handle["field_index"]), "field names")
        rows = len(origin[1])
        if handle["batch_size"] != rows:
            raise ValueError(
                f"DataProto batch size {handle['batch_size']} does not match {rows} logical keys"
            )
        (stage,) = handle["stage_refs"].values()
        number = stage["manifest_key"]
        known = self._fragments.get(number)
        if number in self._retired or (known is not None and known.handle != handle):
            raise ValueError(f"DataProto fragment id collision: {number!r}")
        if known is not None and known.is_managed != is_managed:
            came, again = ("publish", "update") if known.is_managed else ("update", "publish")
            raise ValueError(
                f"DataProto fragment {number!r} came by {came}, and cannot come by {again} too: "
                "either the catalog retires it, or its owner removes it"
            )
        if known is None:
            known = _Fragment(number, handle, origin, is_managed)
            self._fragments[number] = known
        return known

    def _why_rejected(
        self,
        fragment: _Fragment,
        partition: str,
        names: Sequence[str],
        previous: Handle,
        appended: Handle,
    ) -> str | None:
        missing = [key for key in names if key not in self._rows.get(partition, {})]
        if missing and partition == fragment.origin[0]:
            return f"keys not found in partition {partition!r}: {missing}"
        same = ("batch_size", "namespace", "partition", "storage_group_id")
        if fragment.origin != (partition, tuple(names)) or any(
            previous.get(name) != appended.get(name) for name in same
        ):
            return "appended DataProto handle changed fragment identity"
        before, after = previous["field_index"], appended["field_index"]
        if any(after.get(name) != location for name, location in before.items()):
            return "appended DataProto handle changed existing fields"
        return None

    def _place(self, row: _Row, names: Iterable[str], fragment: _Fragment, number: int) -> None:
        for name in names:
            fragment.uses += 1
            replaced = row.fields.get(name)
            row.fields[name] = (fragment, number)
            if replaced is not None:
                self._unuse(replaced[0])

    def _forget(self, row: _Row) -> None:
        for fragment, _ in row.fields.values():
            self._unuse(fragment)

    def _unuse(self, fragment: _Fragment) -> None:
        fragment.uses -= 1
        self._retire_if_unused(fragment)

    def _retire_if_unused(self, fragment: _Fragment) -> None:
        if fragment.uses or fragment.readers:
            return
        if self._fragments.pop(fragment.number, None) and fragment.is_managed:
            self._retired[fragment.number] = fragment.handle

    def _describe(self, partition: str, names: Sequence[str]) -> dict[str, Any]:
        rows = [self._rows[partition][key] for key in names]
        return {
            "keys": list(names),
            "tags": [dict(row.tags) for row in rows],
            "fields": _union(row.fields for row in rows),
        }

    def _plan(
        self, rows: Sequence[_Row], names: Sequence[str], wanted: Sequence[str], pin: bool
    ) -> dict[str, Any]:
        groups: dict[tuple[tuple[str, int], ...], Any] = {}
        fragments: dict[str, _Fragment] = {}
        for name in wanted:
            places = [row.fields[name] for row in rows]
            fragments.update({fragment.number: fragment for fragment, _ in places})
            locations = tuple((fragment.number, number) for fragment, number in places)
            groups.setdefault(locations, []).append(name)
        plan: dict[str, Any] = {
            "keys": list(names),
            "tags": [row.tags for row in rows],
            "fields": list(wanted),
            "field_groups": [
                {"fields": members, "locations": list(locations)}
                for locations, members in groups.items()
            ],
            "handles": {number: fragment.handle for number, fragment in fragments.items()},
            "meta_info": _merged_meta(fragments.values()),
        }
        plan = copy.deepcopy(plan)
        if pin:
            self._last_token += 1
            plan["read_token"] = self._last_token
            self._pins[self._last_token] = list(fragments.values())
            for fragment in fragments.values():
                fragment.readers += 1
        return plan

    def _reply(self, content: Mapping[str, Any]) -> dict[str, Any]:
        return copy.deepcopy({**content, "retired_handles": list(self._retired.values())})


def _normal(handle: Mapping[str, Any]) -> Handle:
    return export_ref(import_ref(handle))


def _fields(handle: Handle) -> Iterable[str]:
    index: dict[str, Any] = handle["field_index"]
    return index


def _union(fields: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for row in fields for name in row))


def _merged_meta(fragments: Iterable[_Fragment]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for fragment in fragments:
        for name, value in fragment.handle["meta_info"].items():
            if name in merged and merged[name] != value:
                raise ValueError(f"conflicting DataProto meta_info value for {name!r}")
            merged[name] = value
    return merged


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a non-empty string")
    return value


def _names(values: object, what: str) -> list[str]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{what} must be a sequence of non-empty strings")
    names = list(values)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{what} must be non-empty strings")
    if len(set(names)) != len(names):
        raise ValueError(f"{what} must be unique")
    return names


def _tags(tags: object, count: int) -> list[dict[str, Any]]:
    if tags is None:
        return [{} for _ in range(count)]
    if not isinstance(tags, Sequence) or not all(isinstance(tag, Mapping) for tag in tags):
        raise TypeError("tags must be mappings")
    if len(tags) != count:
        raise ValueError("tags must have the same length as keys")
    return [copy.deepcopy(dict(tag)) for tag in tags]
