"""Bundles: a manifest, metadata and named payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import manifest as manifests
from .errors import StructuredTransferError
from .manifest import Chunk, Manifest, Payload, dump_json, load_json
from .memory import Results, TensorObjectBuffer, bytes_view
from .names import ObjectKeys, checked_segment, chunk_key, keys_of_manifest, new_object_id
from .policy import BundleStore, BundleTransferPolicy
from .reads import Reader
from .refs import RemoteBundleRef, manifest_key_of
from .removal import remove_keys
from .writes import Value, withdraw, write_values


class Source:
    """The bytes of one member that is written.

    parts: views of the bytes; the first one is the header if there are two.
    memory: instead of them, a tensor object by address.
    """

    def __init__(self, *parts: memoryview, memory: TensorObjectBuffer | None = None) -> None:
        self.parts = parts
        self.memory = memory

    @classmethod
    def of_bytes(cls, value: object, name: str) -> Source:
        """``value``'s bytes. Raises ``TypeError`` that names the member if it has none."""
        return cls(bytes_view(value, name))


@dataclass(frozen=True)
class Inherited:
    """The payloads that a new bundle takes over from an earlier one, without writing them again.

    payloads: those that become members of the new bundle.
    cleanup_keys: keys that end with the new bundle, besides its own.
    """

    manifest: Manifest
    payloads: Mapping[str, Payload]
    cleanup_keys: tuple[str, ...]


class Bundles:
    """Writes, reads and removes the bundles of ``prefix``."""

    def __init__(self, store: BundleStore, prefix: str, results: Results) -> None:
        self.store = store
        self.prefix = prefix
        self.reader = Reader(store, results)

    def put(
        self,
        meta: Source,
        members: Mapping[str, Source],
        *,
        partition: str,
        chunk_bytes: int,
        policy: BundleTransferPolicy,
        config: Any,
        inherited: Inherited | None = None,
    ) -> RemoteBundleRef:
        """Stores a bundle and returns its reference.

        Readers see it when it is complete, for the manifest is written last. After an exception
        nothing of it is left, as far as the store allows. Raises ``ValueError`` for a manifest that
        no reader would parse.
        """
        keys = ObjectKeys(self.prefix, new_object_id(partition))
        values: list[Value] = []
        meta_payload = _split(meta, keys.meta, chunk_bytes, values)
        buffers = {
            name: _split(
                member, keys.buffer(checked_segment(name, "buffer name")), chunk_bytes, values
            )
            for name, member in members.items()
        }
        manifest = Manifest(keys, meta_payload, buffers)
        if inherited is not None:
            owners = [inherited.manifest.keys.object_id, *inherited.manifest.other_objects]
            manifest = Manifest(
                keys,
                meta_payload,
                {**inherited.payloads, **buffers},
                tuple(dict.fromkeys([*owners, keys.object_id])),
                inherited.cleanup_keys,
            )
        return self._write(manifest, values, policy, config)

    def _write(
        self,
        manifest: Manifest,
        values: Sequence[Value],
        policy: BundleTransferPolicy,
        config: Any,
    ) -> RemoteBundleRef:
        content = manifest.to_dict()
        encoded = memoryview(dump_json(content))
        manifests.check_json_size(encoded.nbytes, "bundle manifest", "; use larger chunk_bytes")
        write_values(self.store, values, config, policy)
        try:
            write_values(self.store, [Value(manifest.keys.manifest, (encoded,))], config, policy)
        except BaseException:
            withdraw(self.store, [value.key for value in values])
            raise
        return RemoteBundleRef(manifest.keys.manifest, content)

    def load(self, ref: RemoteBundleRef | Mapping[str, Any]) -> Manifest:
        """The manifest of a bundle, from its reference or else from the store.

        Raises ``ValueError`` if it is not a manifest of ``prefix``, ``StructuredTransferError`` if
        there is none.
        """
        key = manifest_key_of(ref)
        content = ref.manifest if isinstance(ref, RemoteBundleRef) else ref.get("manifest")
        if not content:
            keys_of_manifest(key, self.prefix)  # Nothing else is read.
            value = self.store.get(key)
            if not value:
                raise StructuredTransferError(
                    f"get failed for {key}: there is no such bundle, or it cannot be read", key
                )
            content = load_json(value, f"bundle manifest {key!r}")
        if not isinstance(content, Mapping):
            raise TypeError(f"a manifest is a dict, not {type(content).__name__}")
        return manifests.parse(content, key, self.prefix)

    def load_meta(self, manifest: Manifest) -> dict[str, Any]:
        """The metadata of a structured object, which is a JSON object."""
        manifests.check_json_size(manifest.meta.size, f"metadata {manifest.meta.key!r}")
        (data,) = self.reader.whole([manifest.meta])
        return load_json(data, f"metadata {manifest.meta.key!r}")

    def is_removed(self, ref: RemoteBundleRef | Mapping[str, Any]) -> bool:
        """Whether the store has no such bundle. It is not asked if ``ref`` has the manifest."""
        key = manifest_key_of(ref)
        if isinstance(ref, RemoteBundleRef) and ref.manifest:
            return False
        keys_of_manifest(key, self.prefix)
        return self.store.is_exist(key) == 0

    def remove(
        self, ref: RemoteBundleRef | Mapping[str, Any], *, but: frozenset[str] = frozenset()
    ) -> None:
        """Removes a bundle, except the keys ``but``. One that is not there counts as removed.

        Raises ``StructuredTransferError`` if keys are left. The manifest is then left as well, so
        that the call can be repeated.
        """
        if self.is_removed(ref):
            return
        manifest = self.load(ref)
        remove_keys(self.store, (key for key in manifest.data_keys() if key not in but))
        if manifest.keys.manifest not in but:
            remove_keys(self.store, [manifest.keys.manifest])


def _split(source: Source, key: str, chunk_bytes: int, values: list[Value]) -> Payload:
    """Adds the values of one payload to ``values``, and returns what the manifest says of it."""
    if source.memory is not None or len(source.parts) > 1:
        # A tensor object has one key, as the tensor methods of a store need it.
        value = Value(key, source.parts, source.memory)
        values.append(value)
        header = source.parts[0].nbytes if source.parts else 0
        return Payload(key, value.size, (Chunk(key, value.size),), header)
    view = source.parts[0]
    pieces = [view[at : at + chunk_bytes] for at in range(0, view.nbytes, chunk_bytes)]
    if len(pieces) == 1:
        chunks = [Chunk(key, view.nbytes)]
    else:
        chunks = [Chunk(chunk_key(key, index), piece.nbytes) for index, piece in enumerate(pieces)]
    values += [Value(chunk.key, (piece,)) for chunk, piece in zip(chunks, pieces, strict=True)]
    return Payload(key, view.nbytes, tuple(chunks))
