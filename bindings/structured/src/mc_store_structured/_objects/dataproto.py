"""Batches in a store: an object for each stage, and a reference that knows where fields lie."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .batches import Batch, Schemas, is_object_array
from .bundle import Inherited
from .columns import EncodedColumn
from .fields import ColumnDescription, StoredColumn, decode_column, encode_column
from .groups import group_of_new_batch, in_group
from .handles import ref_of
from .members import Member
from .refs import DataProtoRefLike, MooncakeDataProtoRef, RemoteBundleRef, StructuredFieldLocation
from .slices import Rows, RowSelection
from .structured import (
    STRUCTURED_FIELD_SPECS_KEY,
    OpenedObject,
    StructuredObjects,
    WriteOptions,
    check_destinations,
    encode_members,
    metadata_source,
)

_LAYOUT = "dataproto_stage"
_VERSION = 1


class DataProtos:
    """Writes, reads and removes batches."""

    def __init__(self, objects: StructuredObjects) -> None:
        self._objects = objects
        self._bundles = objects.bundles

    def put(
        self,
        batch: Batch,
        *,
        namespace: str,
        stage: str,
        options: WriteOptions,
        schemas: Schemas | None,
    ) -> MooncakeDataProtoRef:
        """Stores a batch as the object of one stage. A batch without fields needs none."""
        group = group_of_new_batch(options.config)
        ref = MooncakeDataProtoRef(
            batch.size,
            {},
            {},
            dict(batch.meta_info),
            namespace,
            options.partition,
            _storage_group_id=group,
        )
        if batch.names:
            encoded = _EncodedBatch(batch, stage, schemas)
            options = replace(options, config=in_group(options.config, group))
            metadata = _stage_metadata(ref, stage)
            ref.stage_refs[stage] = self._objects.put(metadata, encoded.members, options)
            ref.field_index.update(encoded.locations)
            ref.encoded_non_tensor.update(encoded.columns)
        return ref

    def append(
        self,
        previous: DataProtoRefLike,
        batch: Batch,
        *,
        stage: str,
        overwrite: bool,
        options: WriteOptions,
        schemas: Schemas | None,
    ) -> MooncakeDataProtoRef:
        """Stores further fields of the same rows, and returns the reference with all of them.

        The earlier reference stays valid, unless ``overwrite`` replaced the fields of its stage
        ``stage``: then that object is gone. Raises ``ValueError`` for a field that exists already,
        without ``overwrite``, for an ``overwrite`` that leaves fields of the stage out, for another
        number of rows and for another group.
        """
        ref = copy.deepcopy(ref_of(previous))
        ref.meta_info.update(batch.meta_info)
        if not batch.names:
            return ref
        if batch.size != ref.batch_size:
            raise ValueError(
                f"DataProto append batch size {batch.size} does not match ref batch size "
                f"{ref.batch_size}"
            )
        existing = [name for name in batch.names if name in ref.field_index]
        if existing and not overwrite:
            raise ValueError(f"DataProto fields already exist: {existing}")
        left_out = [
            name
            for name, location in ref.field_index.items()
            if location.stage == stage and name not in batch.names
        ]
        if overwrite and left_out:
            raise ValueError(
                f"DataProto overwrite for stage {stage!r} must include existing fields: "
                f"{sorted(left_out)}"
            )
        encoded = _EncodedBatch(batch, stage, schemas)
        options = replace(options, config=in_group(options.config, ref._storage_group_id))
        old = ref.stage_refs.get(stage)
        if old is not None and left_out:
            ref.stage_refs[stage] = self._merge(old, ref, stage, encoded, options)
        else:
            ref.stage_refs[stage] = self._objects.put(
                _stage_metadata(ref, stage), encoded.members, options
            )
        for name in encoded.locations:
            ref.encoded_non_tensor.pop(name, None)
        ref.field_index.update(encoded.locations)
        ref.encoded_non_tensor.update(encoded.columns)
        if old is not None and not left_out:
            self._bundles.remove(old)
        return ref

    def _merge(
        self,
        old: RemoteBundleRef,
        ref: MooncakeDataProtoRef,
        stage: str,
        encoded: _EncodedBatch,
        options: WriteOptions,
    ) -> RemoteBundleRef:
        """Stores the new members, and a manifest with them and the old ones, whose payloads are
        not written again. Its removal removes the old object as well."""
        before = self._objects.open(old)
        encoded.check_members(before.manifest.buffers)
        new_specs, sources = encode_members(encoded.members, options.policy)
        specs = {**before.metadata[STRUCTURED_FIELD_SPECS_KEY], **new_specs}
        metadata = {**_stage_metadata(ref, stage), STRUCTURED_FIELD_SPECS_KEY: specs}
        ends_with_it = [
            before.manifest.keys.manifest,
            *before.manifest.cleanup_keys,
            *(chunk.key for chunk in before.manifest.meta.chunks),
        ]
        return self._bundles.put(
            metadata_source(metadata),
            sources,
            partition=options.partition,
            chunk_bytes=options.chunk_bytes,
            policy=options.policy,
            config=options.config,
            inherited=Inherited(before.manifest, before.manifest.buffers, tuple(ends_with_it)),
        )

    def get(
        self,
        ref: MooncakeDataProtoRef,
        names: Sequence[str],
        rows: RowSelection | None,
        destinations: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields ``names``, those of ``batch`` and those of ``non_tensor_batch``.

        Raises ``KeyError`` for an unknown field, ``ValueError`` for a destination of a field that
        is not among ``names``, or is a column.
        """
        unknown = [name for name in names if name not in ref.field_index]
        if unknown:
            raise KeyError(f"unknown DataProto fields: {unknown}")
        check_destinations(destinations, names, ref.encoded_non_tensor)
        chosen = None if rows is None else Rows.of_selection(rows, ref.batch_size)
        found: dict[str, Any] = {}
        for stage, fields in _by_stage(ref, names).items():
            opened = self._objects.open(ref.stage_refs[stage])
            found |= _StageReader(opened, ref, chosen).read(fields, destinations)
        sections: dict[str, dict[str, Any]] = {"batch": {}, "non_tensor_batch": {}}
        for name in dict.fromkeys(names):
            sections[ref.field_index[name].section][name] = found[name]
        return sections["batch"], sections["non_tensor_batch"]

    def view(self, ref: MooncakeDataProtoRef) -> dict[str, Any]:
        """The description of each stage and field in the manifests."""
        fields: dict[str, dict[str, Any]] = {"batch": {}, "non_tensor_batch": {}}
        stages: dict[str, dict[str, Any]] = {}
        names_of = _by_stage(ref, list(ref.field_index))
        for stage, bundle in ref.stage_refs.items():
            opened = self._objects.open(bundle)
            stages[stage] = {
                "manifest_key": bundle.manifest_key,
                "dataproto": opened.metadata.get("dataproto", {}),
            }
            for name in names_of.get(stage, ()):
                location = ref.field_index[name]
                fields[location.section][name] = {
                    "section": location.section,
                    "stage": stage,
                    "member": location.member,
                    "spec": _spec_of(opened, ref, name),
                }
        return {
            "namespace": ref.namespace,
            "partition": ref.partition,
            "batch_size": ref.batch_size,
            "batch_fields": fields["batch"],
            "non_tensor_fields": fields["non_tensor_batch"],
            "meta_info": dict(ref.meta_info),
            "meta_info_keys": list(ref.meta_info),
            "stages": stages,
        }

    def cleanup(self, ref: MooncakeDataProtoRef) -> None:
        """Removes the objects of all stages. Raises the first error after it has tried all."""
        self._remove_each(list(ref.stage_refs.values()), frozenset())

    def cleanup_append(self, previous: MooncakeDataProtoRef, ref: MooncakeDataProtoRef) -> None:
        """Removes what ``ref`` has and ``previous`` has not."""
        kept = {bundle.manifest_key for bundle in previous.stage_refs.values()}
        added = [bundle for bundle in ref.stage_refs.values() if bundle.manifest_key not in kept]
        if added:
            keys = set(kept)
            for bundle in previous.stage_refs.values():
                if not self._bundles.is_removed(bundle):
                    keys.update(self._bundles.load(bundle).data_keys())
            self._remove_each(added, frozenset(keys))

    def _remove_each(self, refs: Iterable[RemoteBundleRef], kept: frozenset[str]) -> None:
        failures: list[Exception] = []
        for ref in refs:
            try:
                self._bundles.remove(ref, but=kept)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]


class _EncodedBatch:
    """The fields of a batch as members of an object.

    members: by name. locations: of each field. columns: descriptions of columns by field.

    Raises ``ValueError`` if two fields have a member of the same name, as the data of a column
    ``a`` and a field ``a.data``.
    """

    def __init__(self, batch: Batch, stage: str, schemas: Schemas | None) -> None:
        self.members: dict[str, Any] = {}
        self.locations: dict[str, StructuredFieldLocation] = {}
        self.columns: dict[str, Any] = {}
        self._fields: dict[str, str] = {}
        for name, value in batch.batch.items():
            self._add_plain("batch", name, value, stage)
        for name, value in batch.non_tensor_batch.items():
            schema = (schemas or {}).get(name)
            if _is_plain_array(value) and (schema is None or schema.codec in ("auto", "ndarray")):
                self._add_plain("non_tensor_batch", name, value, stage)
            else:
                member = f"non_tensor_batch.{name}"
                column = encode_column(member, list(value), schema)
                self._add_column(name, member, column, stage)

    def _add_plain(self, section: Any, name: str, value: Any, stage: str) -> None:
        member = f"{section}.{name}"
        self._add_members(name, {member: value})
        self.locations[name] = StructuredFieldLocation(stage, member, section)

    def _add_column(self, name: str, member: str, column: EncodedColumn, stage: str) -> None:
        names = {short: f"{member}.{short}" for short in column.payloads}
        self._add_members(name, {names[short]: value for short, value in column.payloads.items()})
        self.locations[name] = StructuredFieldLocation(stage, member, "non_tensor_batch")
        self.columns[name] = {
            "codec": column.codec,
            "rows": column.rows,
            "metadata": column.metadata,
            "payload_members": names,
        }

    def _add_members(self, name: str, members: Mapping[str, Any]) -> None:
        self._fields |= dict.fromkeys(members, name)
        self.check_members(self.members.keys() & members.keys())
        self.members |= members

    def check_members(self, taken: Iterable[str]) -> None:
        """Raises ``ValueError`` that names the field of a member whose name is in ``taken``."""
        for member in taken:
            if member in self._fields:
                raise ValueError(
                    f"field {self._fields[member]!r}: another field has a member {member!r} too; "
                    "rename one of the fields"
                )


class _StageReader:
    """Reads fields of one stage, all that is read as a whole together."""

    def __init__(self, opened: OpenedObject, ref: MooncakeDataProtoRef, rows: Rows | None) -> None:
        self._opened = opened
        self._ref = ref
        self._rows = rows

    def read(self, names: Sequence[str], destinations: Mapping[str, Any]) -> dict[str, Any]:
        """The fields by name."""
        columns = {
            name: ColumnDescription.parse(self._ref.encoded_non_tensor[name], name)
            for name in names
            if name in self._ref.encoded_non_tensor
        }
        plain = {name: self._ref.field_index[name].member for name in names if name not in columns}
        wanted = [*plain.values()]
        for column in columns.values():
            wanted += column.payload_members.values()
        members = self._opened.members(wanted)
        found: dict[str, Any] = {}
        for name, member in plain.items():
            target = destinations.get(name)
            if target is not None:
                found[name] = members[member].read_into(self._opened.reader, self._rows, target)
            elif self._rows is not None:
                found[name] = members[member].read_rows(self._opened.reader, self._rows)
        whole = [member for name, member in plain.items() if name not in found]
        whole += self._read_whole(columns.values())
        values = self._values([members[member] for member in dict.fromkeys(whole)])
        for name, member in plain.items():
            if name not in found:
                found[name] = values[member]
        for name, column in columns.items():
            stored = StoredColumn(column, members, values, self._opened.reader)
            found[name] = decode_column(stored, column, self._rows_of(name, column))
        return found

    def _read_whole(self, columns: Iterable[ColumnDescription]) -> list[str]:
        """The payloads of columns that are read as a whole: for a selection of rows, those that
        say where the rows lie."""
        return [
            member
            for column in columns
            for short, member in column.payload_members.items()
            if self._rows is None or short.rpartition(".")[2] != "data"
        ]

    def _values(self, members: Sequence[Member]) -> dict[str, Any]:
        data = self._opened.reader.whole([member.payload for member in members])
        return {
            member.name: member.decode(view) for member, view in zip(members, data, strict=True)
        }

    def _rows_of(self, name: str, column: ColumnDescription) -> Rows:
        if self._rows is None:
            return Rows(range(column.rows))
        self._rows.check(column.rows, name)
        return self._rows


def _stage_metadata(ref: MooncakeDataProtoRef, stage: str) -> dict[str, Any]:
    return {
        "layout": _LAYOUT,
        "dataproto": {
            "version": _VERSION,
            "namespace": ref.namespace,
            "partition": ref.partition,
            "stage": stage,
            "batch_size": ref.batch_size,
        },
    }


def _spec_of(opened: OpenedObject, ref: MooncakeDataProtoRef, name: str) -> dict[str, Any]:
    if name not in ref.encoded_non_tensor:
        return opened.spec_of(ref.field_index[name].member)
    column = ColumnDescription.parse(ref.encoded_non_tensor[name], name)
    members = dict(column.payload_members)
    return {
        "encoding": "structured_non_tensor",
        "codec": column.codec,
        "metadata": dict(column.metadata),
        "payload_members": members,
        "payload_specs": {short: opened.spec_of(member) for short, member in members.items()},
    }


def _by_stage(ref: MooncakeDataProtoRef, names: Iterable[str]) -> dict[str, list[str]]:
    stages: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        stages.setdefault(ref.field_index[name].stage, []).append(name)
    return stages


def _is_plain_array(value: Any) -> bool:
    return hasattr(value, "dtype") and not is_object_array(value)
