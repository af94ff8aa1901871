"""Methods for tensors that are stored as a shard for each rank, under key and rank alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .arrays import Elements, Like, elements_of
from .axes import WriterPartition, rank_key
from .byte_store import INVALID_PARAMS, checked_key, checked_keys, checked_list, refused
from .layout import TensorError
from .parallelism import int32
from .shards import shard_range
from .whole import WholeTensorMethods, checked_parts, elements_at
from .writes import Write, config_of, cut_write, group_ids_of, write

if TYPE_CHECKING:
    from mc_store import ReplicateConfig


class RankTensorMethods(WholeTensorMethods):
    """Tensor parallelism of one axis: `put` cuts a tensor into the shards of all ranks, `get` reads
    one.

    The shard of rank r lies under `<key>_tp_<r>`. With a `tp_size` of 1 or less there is one object
    under the key itself. A reader names a rank: nothing compares the `tp_size` and `split_dim` of
    readers with those of the writer. `get_tensor_with_parallelism` does, and cuts anew where they
    differ.
    """

    def put_tensor_with_tp(
        self, key: str, tensor: object, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Stores equal shards of a whole tensor for all ranks; `tp_rank` does not matter.

        Returns 0, -600 if this is no tensor or the dimension is not divisible, or the first code
        that a put gave.
        """
        name = "put_tensor_with_tp"
        return self._split_tensors(name, [key], [tensor], None, tp_size, split_dim)[0]

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: object,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` with a `ReplicateConfig`."""
        name = "pub_tensor_with_tp"
        return self._split_tensors(name, [key], [tensor], config, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[object],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp` for many: a code for each."""
        name = "batch_put_tensor_with_tp"
        return self._split_tensors(name, base_keys, tensors_list, None, tp_size, split_dim)

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[object],
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`batch_put_tensor_with_tp` with a `ReplicateConfig`; its group ids are one for each key,
        or
        one for each shard."""
        name = "batch_pub_tensor_with_tp"
        return self._split_tensors(name, base_keys, tensors_list, config, tp_size, split_dim)

    def put_tensor_with_tp_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` of the tensor object of `size` bytes at `buffer_ptr`."""
        name = "put_tensor_with_tp_from"
        return self._split_objects(name, [key], [buffer_ptr], [size], tp_size, split_dim)[0]

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp_from` for many: a code for each."""
        name = "batch_put_tensor_with_tp_from"
        return self._split_objects(name, base_keys, buffer_ptrs, sizes, tp_size, split_dim)

    def _split_tensors(
        self,
        operation: str,
        keys: Sequence[str],
        tensors: Sequence[object],
        config: ReplicateConfig | None,
        count: int,
        split_dim: int,
    ) -> list[int]:
        if int32(count, "tp_size") <= 1:
            return self._write_tensors(operation, keys, tensors, config, update=False)
        names, values = checked_keys(keys), checked_list(tensors, "tensors_list")
        if len(names) != len(values):
            refused(operation, names, "not as many tensors as keys")
            return [INVALID_PARAMS] * len(names)
        wholes = [partial(elements_of, value) for value in values]
        return self._split(operation, names, wholes, config, count, split_dim)

    def _split_objects(
        self,
        operation: str,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        count: int,
        split_dim: int,
    ) -> list[int]:
        if int32(count, "tp_size") <= 1:
            return self._write_objects(operation, keys, buffer_ptrs, sizes, None, update=False)
        names, parts = checked_keys(keys), checked_parts(buffer_ptrs, sizes)
        if parts is None or len(parts) != len(names):
            refused(operation, names, "not as many buffers as keys")
            return [INVALID_PARAMS] * len(names)
        wholes = [partial(elements_at, *part) for part in parts]
        return self._split(operation, names, wholes, None, count, split_dim)

    def _split(
        self,
        operation: str,
        names: list[str],
        wholes: Sequence[Callable[[], Elements]],
        config: ReplicateConfig | None,
        count: int,
        split_dim: int,
    ) -> list[int]:
        dim = int32(split_dim, "split_dim")
        codes = [INVALID_PARAMS] * len(names)
        places: list[int] = []
        writes: list[Write] = []
        for place, (name, whole) in enumerate(zip(names, wholes, strict=True)):
            try:
                shards = rank_writes(name, whole(), count, dim)
            except TensorError as error:
                refused(operation, name, error)
            else:
                places += [place] * count
                writes += shards
        ids = group_ids_of(config)
        if ids is None or len(ids) == len(names):
            owners: Sequence[int] = places
        elif len(ids) == len(places):
            owners = range(len(places))
        else:
            refused(operation, names, "not as many group ids as keys, nor as shards")
            return codes
        written = write(self, writes, config_of(config, owners), update=False)
        for place in places:
            codes[place] = 0
        for place, code in zip(places, written, strict=True):
            codes[place] = codes[place] or code
        return codes

    def get_tensor_with_tp(
        self,
        key: str,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        like: Like | None = None,
    ) -> Any:
        """The shard of a rank (see `get_tensor`), or `None` if there is none."""
        return self.get_tensor(self._shard_name(key, tp_rank, tp_size), like=like)

    def batch_get_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tp_rank: int = 0,
        tp_size: int = 1,
        *,
        like: Like | None = None,
    ) -> list[Any]:
        """`get_tensor_with_tp` for many: a tensor or `None` for each."""
        names = self._shard_names(base_keys, tp_rank, tp_size)
        return self.batch_get_tensor(names, like=like)

    def get_tensor_with_tp_into(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        like: Like | None = None,
    ) -> Any:
        """`get_tensor_into` of the shard of a rank."""
        name = self._shard_name(key, tp_rank, tp_size)
        return self.get_tensor_into(name, buffer_ptr, size, like=like)

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        *,
        like: Like | None = None,
    ) -> list[Any]:
        """`batch_get_tensor_into` of the shards of a rank."""
        names = self._shard_names(base_keys, tp_rank, tp_size)
        return self.batch_get_tensor_into(names, buffer_ptrs, sizes, like=like)

    def _shard_name(self, key: str, rank: int, count: int) -> str:
        name = checked_key(key)
        return name if int32(count, "tp_size") <= 1 else rank_key(name, int32(rank, "tp_rank"))

    def _shard_names(self, keys: Sequence[str], rank: int, count: int) -> list[str]:
        return [self._shard_name(key, rank, count) for key in checked_keys(keys)]


def rank_writes(key: str, whole: Elements, count: int, split_dim: int) -> list[Write]:
    """The writes of all shards of a tensor; `TensorError` if it cannot be cut like that."""
    shard_range(whole.shape, split_dim, 0, count)
    return [
        cut_write(rank_key(key, rank), whole, WriterPartition(rank, count, split_dim).axes)
        for rank in range(count)
    ]
