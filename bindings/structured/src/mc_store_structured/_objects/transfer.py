"""The public class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from . import batches
from .batches import Batch, Schemas
from .bundle import Bundles, Source
from .dataproto import DataProtos
from .handles import ref_of
from .memory import Results
from .names import checked_prefix
from .policy import (
    DEFAULT_BUNDLE_CHUNK_BYTES,
    BundleStore,
    BundleTransferPolicy,
    checked_chunk_bytes,
    policy_of,
)
from .refs import DataProtoRefLike, MooncakeDataProtoRef, RemoteBundleRef
from .slices import RowSelection
from .structured import (
    StructuredObjectPayload,
    StructuredObjectReadSpec,
    StructuredObjectResult,
    StructuredObjects,
    WriteOptions,
)

_BundleRef: TypeAlias = RemoteBundleRef | Mapping[str, Any]
_PayloadType: TypeAlias = Literal["dataproto", "dict"]


class MooncakeBundleTransfer:
    """Objects of many members in a store.

    store: a ``MooncakeDistributedStore`` that is set up, or any object with these methods.
    key_prefix: the keys of all objects begin with it. Only objects under it are read or removed.
    default_chunk_bytes: the most bytes of a member under one key.
    buffer_pool: a ``BufferPool`` of the store, for results. Results are then read into registered
        memory, which goes back to the pool when the last array over it is garbage. A pool without
        space is no failure: the result takes other memory.

    Arguments that the methods share:

    partition: a part of the keys, without ``/``.
    chunk_bytes: in place of ``default_chunk_bytes``.
    policy, max_inflight_put: how members are written.
    config: a ``ReplicateConfig``, passed to the store.

    Every put makes new keys, and its object is visible when it is complete. Exceptions of all
    methods: ``StructuredTransferError`` (a ``RuntimeError``) if the store refuses a call or lacks
    a part of the object, ``StructuredFormatError`` (a ``ValueError``) if what it has is no such
    object. After a failed put nothing is left of it.
    """

    def __init__(
        self,
        store: BundleStore,
        key_prefix: str = "bundle",
        default_chunk_bytes: int = DEFAULT_BUNDLE_CHUNK_BYTES,
        buffer_pool: Any = None,
    ) -> None:
        self.store = store
        self.key_prefix = checked_prefix(key_prefix)
        self.default_chunk_bytes = checked_chunk_bytes(default_chunk_bytes)
        self._bundles = Bundles(store, self.key_prefix, Results(buffer_pool))
        self._objects = StructuredObjects(self._bundles)
        self._dataprotos = DataProtos(self._objects)

    # ---- Bundles: a manifest, metadata, named payloads.

    def put_bundle(
        self,
        meta: bytes | bytearray | memoryview,
        buffers: Mapping[str, Any],
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Stores ``meta`` and the bytes of ``buffers``, without descriptions of them.

        Raises ``RuntimeError`` for ``copy_mode="zero_copy"``: bytes are no tensor objects.
        """
        options = self._options(partition, chunk_bytes, policy, max_inflight_put, config)
        if options.policy.copy_mode == "zero_copy" and buffers:
            raise RuntimeError("zero-copy put requires tensor-object buffers")
        return self._bundles.put(
            Source.of_bytes(meta, "meta"),
            {name: Source.of_bytes(value, name) for name, value in buffers.items()},
            partition=options.partition,
            chunk_bytes=options.chunk_bytes,
            policy=options.policy,
            config=options.config,
        )

    def remove_bundle(self, ref: _BundleRef) -> None:
        """Removes a bundle, or another object by its ``manifest_key``, leased or not."""
        self._bundles.remove(ref)

    # ---- Structured objects: members that are arrays, tensors or bytes.

    def put_structured_object(
        self,
        payload: StructuredObjectPayload,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Stores metadata and members."""
        options = self._options(partition, chunk_bytes, policy, max_inflight_put, config)
        return self._objects.put_payload(payload, options)

    def put_object(
        self,
        obj: Any,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Stores an array, a tensor, bytes, or a mapping of names to them.

        Other objects raise ``TypeError``: nothing is pickled.
        """
        options = self._options(partition, chunk_bytes, policy, max_inflight_put, config)
        return self._objects.put_object(obj, options)

    def get_object(self, ref: _BundleRef) -> Any:
        """Reads a value that :meth:`put_object` stored; bytes-like objects as ``bytes``."""
        return self._objects.get_object(ref)

    def read_spec(self, ref: _BundleRef) -> StructuredObjectReadSpec:
        """Selects everything of an object; methods of the result narrow it. Reads nothing."""
        return StructuredObjectReadSpec(ref)

    def materialize(self, spec: StructuredObjectReadSpec) -> StructuredObjectResult:
        """Reads members, into writable memory of their own.

        Raises ``KeyError`` for a member that does not exist, ``ValueError`` for a part that cannot
        be read.
        """
        return self._objects.materialize(spec)

    def materialize_into(
        self, spec: StructuredObjectReadSpec, destinations: Mapping[str, Any] | None
    ) -> StructuredObjectResult:
        """Reads members, those with a destination into that: an ndarray of the same dtype and
        shape, :func:`raw_destination`, or for a tensor :func:`tensor_object_buffer`.

        Raises ``ValueError`` if a destination does not suit.
        """
        return self._objects.materialize(spec, destinations)

    @staticmethod
    def release_result(result: Any) -> None:
        """Does nothing, and exists for programs that call it: memory of a pool goes back when the
        last array over it is garbage."""

    # ---- Batches of fields.

    def put(
        self,
        data: Any,
        *,
        type: _PayloadType = "dataproto",
        namespace: str = "default",
        partition: str = "default",
        stage: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        config: Any = None,
        field_schemas: Schemas | None = None,
    ) -> MooncakeDataProtoRef:
        """Stores a batch: an object with ``batch``, ``non_tensor_batch`` and ``meta_info``, a dict
        with these keys or with the fields of ``batch``, or for ``type="dict"`` a flat dict.

        ``meta_info`` becomes a part of the reference. Without a group in ``config``, the objects of
        the batch get one of their own.
        """
        return self._dataprotos.put(
            _batch_of(data, type, field_schemas),
            namespace=namespace,
            stage=stage,
            options=self._options(partition, chunk_bytes, policy, None, config),
            schemas=field_schemas,
        )

    def get(
        self,
        ref: DataProtoRefLike,
        *,
        type: _PayloadType = "dataproto",
        fields: Sequence[str] | None = None,
        batch_fields: Sequence[str] | None = None,
        non_tensor_fields: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        data_cls: Any | None = None,
        destinations: Mapping[str, Any] | None = None,
        rows: RowSelection | None = None,
    ) -> Any:
        """Reads a batch, or some of its fields and rows.

        fields, batch_fields, non_tensor_fields: the fields, all of them if none is given.
        meta_info_keys: of ``meta_info``; others are left out.
        data_cls: ``data_cls.from_dict(batch, non_tensor_batch, meta_info=...)`` is returned, or
            ``data_cls(batch=..., non_tensor_batch=..., meta_info=...)``; a dict by default.
        destinations: memory for fields that are arrays or tensors, as of :meth:`materialize_into`.
        rows: a slice, a :class:`StructuredMemberSlice` or row numbers; only their bytes are read.

        Raises ``KeyError`` for a field that does not exist, ``IndexError`` for such a row.
        """
        _check_type(type)
        ref = ref_of(ref)
        names = _names(ref, fields, batch_fields, non_tensor_fields)
        batch, columns = self._dataprotos.get(ref, names, rows, destinations or {})
        meta = {
            key: value
            for key, value in ref.meta_info.items()
            if meta_info_keys is None or key in meta_info_keys
        }
        if type == "dict":
            return batches.as_dict(batch, columns, meta)
        return batches.as_dataproto(batch, columns, meta, data_cls)

    def put_dataproto(
        self,
        data: Any,
        *,
        namespace: str = "default",
        partition: str = "default",
        stage: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        field_schemas: Schemas | None = None,
        config: Any = None,
    ) -> MooncakeDataProtoRef:
        """:meth:`put` with ``type="dataproto"``."""
        return self.put(
            data,
            namespace=namespace,
            partition=partition,
            stage=stage,
            chunk_bytes=chunk_bytes,
            policy=policy,
            config=config,
            field_schemas=field_schemas,
        )

    def get_dataproto(
        self,
        ref: DataProtoRefLike,
        *,
        fields: Sequence[str] | None = None,
        batch_fields: Sequence[str] | None = None,
        non_tensor_fields: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        data_cls: Any | None = None,
        destinations: Mapping[str, Any] | None = None,
        rows: RowSelection | None = None,
    ) -> Any:
        """:meth:`get` with ``type="dataproto"``."""
        return self.get(
            ref,
            fields=fields,
            batch_fields=batch_fields,
            non_tensor_fields=non_tensor_fields,
            meta_info_keys=meta_info_keys,
            data_cls=data_cls,
            destinations=destinations,
            rows=rows,
        )

    def append_dataproto_fields(
        self,
        ref: DataProtoRefLike,
        data: Any,
        *,
        stage: str,
        overwrite: bool = False,
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        field_schemas: Schemas | None = None,
        config: Any = None,
    ) -> MooncakeDataProtoRef:
        """Stores further fields of the same rows, and returns a reference to all of them.

        Nothing that is stored is written again. ``ref`` stays valid, unless ``overwrite`` replaced
        every field of its stage ``stage``. Raises ``ValueError`` for a field that exists, without
        ``overwrite``, and for another number of rows.
        """
        ref = ref_of(ref)
        return self._dataprotos.append(
            ref,
            batches.of_dataproto(data),
            stage=stage,
            overwrite=overwrite,
            options=self._options(ref.partition, chunk_bytes, policy, None, config),
            schemas=field_schemas,
        )

    def dataproto_manifest_view(self, ref: DataProtoRefLike) -> dict[str, Any]:
        """How each field is stored, as the manifests say."""
        return self._dataprotos.view(ref_of(ref))

    def cleanup_dataproto(self, ref: DataProtoRefLike) -> None:
        """Removes a batch with all its stages, leased or not. Doing so again does nothing."""
        self._dataprotos.cleanup(ref_of(ref))

    def cleanup_dataproto_append(
        self, previous: DataProtoRefLike, appended: DataProtoRefLike
    ) -> None:
        """Removes what :meth:`append_dataproto_fields` added to ``previous``."""
        self._dataprotos.cleanup_append(ref_of(previous), ref_of(appended))

    def put_dict(self, data: Mapping[str, Any], **options: Any) -> MooncakeDataProtoRef:
        """:meth:`put` with ``type="dict"``."""
        return self.put(data, type="dict", **options)

    def get_dict(self, ref: DataProtoRefLike, **options: Any) -> Any:
        """:meth:`get` with ``type="dict"``."""
        return self.get(ref, type="dict", **options)

    # As older programs call them.
    put_legacy_dict = put_dict
    get_legacy_dict = get_dict
    remove_legacy_dict = cleanup_dataproto

    def _options(
        self,
        partition: str,
        chunk_bytes: int | None,
        policy: BundleTransferPolicy | None,
        max_inflight_put: int | None,
        config: Any,
    ) -> WriteOptions:
        size = self.default_chunk_bytes if chunk_bytes is None else chunk_bytes
        return WriteOptions(
            partition, checked_chunk_bytes(size), policy_of(policy, max_inflight_put), config
        )


def _batch_of(data: Any, type: str, schemas: Schemas | None) -> Batch:
    _check_type(type)
    return batches.of_dict(data, schemas) if type == "dict" else batches.of_dataproto(data)


def _check_type(type: str) -> None:
    if type not in ("dataproto", "dict"):
        raise ValueError(f"unsupported Mooncake payload type: {type!r}; use 'dataproto' or 'dict'")


def _names(
    ref: MooncakeDataProtoRef,
    fields: Sequence[str] | None,
    batch_fields: Sequence[str] | None,
    non_tensor_fields: Sequence[str] | None,
) -> list[str]:
    if fields is not None and (batch_fields is not None or non_tensor_fields is not None):
        raise ValueError("fields cannot be combined with batch_fields or non_tensor_fields")
    if fields is not None:
        return list(fields)
    if batch_fields is None and non_tensor_fields is None:
        return list(ref.field_index)
    return [*(batch_fields or ()), *(non_tensor_fields or ())]
