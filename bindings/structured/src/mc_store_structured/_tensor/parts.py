"""Methods for tensors that are stored in parts along several axes, and read in any other parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from . import memory
from .arrays import Like, alias_tensor, array_of, check_like, copied, metadata_at
from .axes import Axes, axes_of, cut_of, layout_axes, part_key, same_part, tensor_axis, writer_key
from .byte_store import (
    INVALID_PARAMS,
    attempt,
    checked_key,
    checked_keys,
    checked_list,
    refused,
)
from .layout import TensorError, TensorMetadata, parse
from .pairs import Operation, put_and_upsert
from .parallelism import MODES
from .part_writes import Stages, object_stages, tensor_stages
from .ranks import RankTensorMethods
from .shard_reads import ShardSet, Target, gather, gather_into, parallel_sets, writer_set
from .shards import with_dim
from .whole import checked_parts
from .writes import config_of, group_ids_fit, write

if TYPE_CHECKING:
    from mc_store import ReplicateConfig

_StagesOf: TypeAlias = Callable[[Any, Any], Stages]  # of a parallelism and a writer partition


class PartTensorMethods(RankTensorMethods):
    """Parts of tensors by `TensorParallelism`, writer partition and `ReadTarget`.

    A writer says which part it has: with a `parallelism` of which "tp" is the only axis the tensor
    it gives is that part; with more axes it gives the whole tensor, of which its part is cut;
    without "tp" what it gives is stored as it is. A `writer_partition` is anything with `rank`,
    `size` and `split_dim`: it gives the whole tensor, of which its part is cut. Only equal parts
    exist. Beside the parts lies a manifest, so that readers need not know how a tensor was cut.
    """

    def _store_part(
        self,
        to: Operation,
        key: str,
        tensor: object,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """Stores the part of a tensor that a writer has.

        Returns 0, -600 if the tensor or the request is refused, or the code of the put.
        """
        stages_of = partial(tensor_stages, key, tensor)
        return self._write_part(to, key, stages_of, parallelism, config, writer_partition)

    put_tensor_with_parallelism, upsert_tensor_with_parallelism = put_and_upsert(
        "put_tensor_with_parallelism", _store_part
    )

    def _store_part_from(
        self,
        to: Operation,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """Stores parts of the tensor object (its header, then its elements) at `buffer_ptr`.

        With a "tp" axis the object is a whole tensor, and the parts of all its ranks are stored.
        Returns 0, -600 if the object or the request is refused, or the first code that a put gave.
        """
        stages_of = partial(object_stages, key, *memory.checked(buffer_ptr, size))
        return self._write_part(to, key, stages_of, parallelism, config, writer_partition)

    put_tensor_with_parallelism_from, upsert_tensor_with_parallelism_from = put_and_upsert(
        "put_tensor_with_parallelism_from", _store_part_from
    )

    def _store_parts(
        self,
        to: Operation,
        keys: Sequence[str],
        tensors_list: Sequence[object],
        parallelisms: Sequence[Any] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]:
        """`put_tensor_with_parallelism` for many: a code for each.

        `parallelisms` and `writer_partitions` exclude each other; each has an element, or `None`,
        for each key.
        """
        if parallelisms is None and writer_partitions is None:
            return self._write_tensors(to.name, keys, tensors_list, config, update=to.update)
        tensors = checked_list(tensors_list, "tensors_list")
        sources = [(tensor_stages, (tensor,)) for tensor in tensors]
        return self._write_parts(to, keys, sources, parallelisms, config, writer_partitions)

    batch_put_tensor_with_parallelism, batch_upsert_tensor_with_parallelism = put_and_upsert(
        "batch_put_tensor_with_parallelism", _store_parts
    )

    def _store_parts_from(
        self,
        to: Operation,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Sequence[Any] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]:
        """`put_tensor_with_parallelism_from` for many: a code for each."""
        if parallelisms is None and writer_partitions is None:
            return self._write_objects(to.name, keys, buffer_ptrs, sizes, config, update=to.update)
        parts = checked_parts(buffer_ptrs, sizes) or []
        sources = [(object_stages, tuple(part)) for part in parts]
        return self._write_parts(to, keys, sources, parallelisms, config, writer_partitions)

    batch_put_tensor_with_parallelism_from, batch_upsert_tensor_with_parallelism_from = (
        put_and_upsert("batch_put_tensor_with_parallelism_from", _store_parts_from)
    )

    def _write_part(
        self,
        to: Operation,
        key: str,
        stages_of: _StagesOf,
        parallelism: Any,
        config: ReplicateConfig | None,
        writer_partition: Any,
    ) -> int:
        checked_key(key)
        try:
            stages = stages_of(parallelism, writer_partition)
            if not group_ids_fit(config, 1):
                raise TensorError("not one group id for one key")
        except TensorError as error:
            refused(to.name, key, error)
            return INVALID_PARAMS
        for stage in stages:
            shared = config_of(config, [0] * len(stage))
            codes = write(self, stage, shared, update=to.update)
            failed = next((code for code in codes if code), 0)
            if failed:
                return failed
        return 0

    def _write_parts(
        self,
        to: Operation,
        keys: Sequence[str],
        sources: Sequence[tuple[Callable[..., Stages], tuple[Any, ...]]],
        parallelisms: Sequence[Any] | None,
        config: ReplicateConfig | None,
        writer_partitions: Sequence[Any] | None,
    ) -> list[int]:
        names = checked_keys(keys)
        count = len(names)
        requests = _one_each(parallelisms, writer_partitions, count)
        if requests is None or len(sources) != count or not group_ids_fit(config, count):
            refused(to.name, names, "not one tensor, request and group id for each key")
            return [INVALID_PARAMS] * count
        return [
            self._write_part(
                to,
                name,
                partial(stages_of, name, *source),
                parallelism,
                config_of(config, [place]),
                writer_partition,
            )
            for place, (name, (stages_of, source), (parallelism, writer_partition)) in enumerate(
                zip(names, sources, requests, strict=True)
            )
        ]

    def get_tensor_with_parallelism(
        self, key: str, target: Any = None, *, like: Like | None = None
    ) -> Any:
        """The part of a tensor that a `ReadTarget` names (see `get_tensor`); `None` if missing.

        Without a target: the object of that very name. "full" without a parallelism: what the
        writers of a writer partition wrote, or the object of that name.
        """
        check_like(like)
        name = checked_key(key)
        return attempt(
            "get_tensor_with_parallelism", name, lambda: self._read_target(name, target, like), None
        )

    def batch_get_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        targets: Sequence[Any] | None = None,
        *,
        like: Like | None = None,
    ) -> list[Any]:
        """`get_tensor_with_parallelism` for many: a tensor or `None` for each."""
        names = checked_keys(keys)
        if targets is None:
            return self.batch_get_tensor(names, like=like)
        wanted = checked_list(targets, "targets")
        if len(wanted) != len(names):
            refused("batch_get_tensor_with_parallelism", names, "not as many targets as keys")
            return [None] * len(names)
        return [
            self.get_tensor_with_parallelism(name, target, like=like)
            for name, target in zip(names, wanted, strict=True)
        ]

    def get_tensor_with_parallelism_into(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        target: Any = None,
        *,
        like: Like | None = None,
    ) -> Any:
        """Reads what a `ReadTarget` says, as a tensor object, into `size` bytes at `buffer_ptr`.

        Returns a tensor over the elements in that memory, which the caller keeps alive and
        registered, or `None` if there is none or it does not fit; the memory then has any content.
        """
        check_like(like)
        name = checked_key(key)
        address, room = memory.checked(buffer_ptr, size)
        if address == 0:
            return None
        return attempt(
            "get_tensor_with_parallelism_into",
            name,
            lambda: self._read_target_into(name, address, room, target, like),
            None,
        )

    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        targets: Sequence[Any] | None = None,
        *,
        like: Like | None = None,
    ) -> list[Any]:
        """`get_tensor_with_parallelism_into` for many: a tensor or `None` for each."""
        names, parts = checked_keys(keys), checked_parts(buffer_ptrs, sizes)
        wanted = [None] * len(names) if targets is None else checked_list(targets, "targets")
        if parts is None or not len(names) == len(parts) == len(wanted):
            refused(
                "batch_get_tensor_with_parallelism_into",
                names,
                "not as many buffers or targets as keys",
            )
            return [None] * len(names)
        return [
            self.get_tensor_with_parallelism_into(name, *part, target, like=like)
            for name, part, target in zip(names, parts, wanted, strict=True)
        ]

    def _read_target(self, key: str, target: Any, like: Like | None) -> Any:
        mode, axes = _request(target)
        if axes is None:
            writers = writer_set(self, key) if mode == "full" else None
            if writers is None:
                return self.get_tensor(key, like=like)
            return self._gathered(writers, mode, None, like)
        if mode == "shard":
            for name in _names(key, axes):
                found = self.get_buffer(name)
                if found is not None:
                    data = memoryview(found)
                    metadata = parse(data, len(data))
                    if _answers(axes, metadata):
                        return array_of(metadata, copied(data[metadata.data_offset :]), like)
        for shards in parallel_sets(self, key, axes):
            try:
                return self._gathered(shards, mode, axes, like)
            except TensorError as error:
                refused("get_tensor_with_parallelism", key, error)
        return None

    def _gathered(self, shards: ShardSet, mode: str, axes: Axes | None, like: Like | None) -> Any:
        target = _target(shards, mode, axes)
        return array_of(target.metadata, gather(self, shards, target), like)

    def _read_target_into(
        self, key: str, address: int, room: int, target: Any, like: Like | None
    ) -> Any:
        mode, axes = _request(target)
        if axes is None:
            writers = writer_set(self, key) if mode == "full" else None
            if writers is None:
                return self.get_tensor_into(key, address, room, like=like)
            return self._gathered_into(writers, mode, None, address, room, like)
        if mode == "shard":
            for name in _names(key, axes):
                size = self.get_into(name, address, room)
                if size >= 0 and _answers(axes, metadata_at(address, size)):
                    return alias_tensor(address, size, like)
        for shards in parallel_sets(self, key, axes):
            try:
                return self._gathered_into(shards, mode, axes, address, room, like)
            except TensorError as error:
                refused("get_tensor_with_parallelism_into", key, error)
        return None

    def _gathered_into(
        self,
        shards: ShardSet,
        mode: str,
        axes: Axes | None,
        address: int,
        room: int,
        like: Like | None,
    ) -> Any:
        size = gather_into(self, shards, _target(shards, mode, axes), address, room)
        return alias_tensor(address, size, like)


def _one_each(
    parallelisms: Sequence[Any] | None, writer_partitions: Sequence[Any] | None, count: int
) -> list[tuple[Any, Any]] | None:
    if parallelisms is not None and writer_partitions is not None:
        return None
    if parallelisms is not None:
        requests = [(one, None) for one in checked_list(parallelisms, "parallelisms")]
    else:
        requests = [(None, one) for one in checked_list(writer_partitions, "writer_partitions")]
    return requests if len(requests) == count else None


def _request(target: Any) -> tuple[str, Axes | None]:
    if target is None:
        return "as_stored", None
    if not hasattr(target, "mode") or not hasattr(target, "parallelism"):
        raise TensorError("a target has mode and parallelism")
    if not isinstance(target.mode, str):
        raise TypeError(f"mode is a str, not {type(target.mode).__name__}")
    mode = target.mode.lower()
    axes = None if target.parallelism is None else axes_of(target.parallelism)
    if mode not in MODES or (mode == "as_stored" and axes) or (mode == "shard" and not axes):
        raise TensorError(f"no target is {mode!r} with parallelism {target.parallelism}")
    return mode, axes


def _names(key: str, axes: Axes) -> list[str]:
    """Under which names the very part may lie: one of several writers may have written it."""
    names = [part_key(key, axes)]
    if len(axes) == 1 and axes[0].split_dim is not None:
        names.append(writer_key(key, axes[0].rank, axes[0].size, axes[0].split_dim))
    return names


def _answers(axes: Axes, metadata: TensorMetadata) -> bool:
    """Whether an object under the name of a part is that part.

    It may say nothing of parts: writers that knew the rank alone stored whole objects under its
    name.
    """
    by_rank = len(axes) == 1 and tensor_axis(axes) is not None
    return same_part(axes, metadata) or (by_rank and not metadata.is_shard)


def _target(shards: ShardSet, mode: str, axes: Axes | None) -> Target:
    shape, dim = shards.global_shape, shards.split_dim
    if axes is not None:
        indices, dim = cut_of(shape, axes)
    if axes is None or mode == "full":
        return Target(TensorMetadata.whole(shards.element, shape), range(shape[dim]))
    local_shape = with_dim(shape, dim, len(indices))
    part = TensorMetadata.shard(shards.element, shape, local_shape, layout_axes(axes, local_shape))
    return Target(part, indices)
