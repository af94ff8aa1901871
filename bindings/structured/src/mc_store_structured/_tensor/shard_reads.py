"""Reads a tensor, or any part of one, out of the shards it is stored in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from . import memory
from .arrays import elements_of
from .axes import (
    Axes,
    WriterPartition,
    parallelism_manifest_key,
    part_key,
    same_part,
    tensor_axis,
    with_tensor_rank,
    writer_key,
    writer_manifest_key,
)
from .byte_store import ByteStore
from .layout import (
    METADATA_SIZE,
    ElementType,
    Manifest,
    Shape,
    TensorError,
    TensorMetadata,
    parse,
    parse_manifest,
)
from .shards import Rows, flat_bytes, new_buffer, shard_range, with_dim

# A manifest may claim more shards than there are: they are asked for in windows, until one is
# missing.
_WINDOW = 64

# Memory that could not be unregistered: a transfer may write to it yet, so it is never released.
_IN_USE: list[bytearray] = []


class ShardSet(NamedTuple):
    """A tensor that is stored in equal shards along one dimension."""

    element: ElementType
    global_shape: Shape
    split_dim: int
    size: int
    key_of: Callable[[int], str]
    axes_of: Callable[[int], Axes]

    def indices_of(self, rank: int) -> range:
        """The indices of the split dimension that a shard has."""
        return shard_range(self.global_shape, self.split_dim, rank, self.size)

    def ranks_with(self, indices: range) -> range:
        """The shards that have any of these indices; all of them if the dimension is empty."""
        extent = len(self.indices_of(0))
        if extent == 0:
            return range(self.size)
        return range(indices.start // extent, -(-indices.stop // extent))

    def check(self, rank: int, metadata: TensorMetadata) -> None:
        """`TensorError` if this header is not that of this shard."""
        shape = with_dim(self.global_shape, self.split_dim, len(self.indices_of(rank)))
        if (
            metadata.element != self.element
            or metadata.global_shape != self.global_shape
            or metadata.local_shape != shape
            or not same_part(self.axes_of(rank), metadata)
        ):
            raise TensorError(f"{self.key_of(rank)!r} is not the shard that it should be")


class Source(NamedTuple):
    """A shard to read from."""

    key: str
    indices: range
    metadata: TensorMetadata


class Target(NamedTuple):
    """The part to read: its header, and its indices of the split dimension."""

    metadata: TensorMetadata
    indices: range


def writer_set(store: ByteStore, key: str) -> ShardSet | None:
    """The shards of several writers, if the key has their manifest."""
    manifest = _manifest(store, writer_manifest_key(key))
    if manifest is None:
        return None
    element, shape, dim, size = manifest
    return ShardSet(
        element,
        shape,
        dim,
        size,
        lambda rank: writer_key(key, rank, size, dim),
        lambda rank: WriterPartition(rank, size, dim).axes,
    )


def parallel_sets(store: ByteStore, key: str, axes: Axes) -> Iterator[ShardSet]:
    """The sets of shards that could hold the tensor of which `axes` mean a part, likeliest first.

    Raises `TensorError` if none of `axes` cuts the tensor.
    """
    axis = tensor_axis(axes)
    if axis is None or axis.split_dim is None:
        raise TensorError("no axis cuts the tensor")
    split_dim = axis.split_dim

    def shards(element: ElementType, shape: Shape, size: int) -> ShardSet:
        def axes_of(rank: int) -> Axes:
            return with_tensor_rank(axes, rank, size)

        return ShardSet(
            element, shape, split_dim, size, lambda rank: part_key(key, axes_of(rank)), axes_of
        )

    manifest = _manifest(store, parallelism_manifest_key(key))
    if manifest is not None and manifest.split_dim == split_dim:
        yield shards(manifest.element, manifest.global_shape, manifest.size)
    # Without a manifest, the first shard tells of the others.
    first = store.get_buffer(part_key(key, with_tensor_rank(axes, 0, axis.size)))
    if first is None:
        return
    data = memoryview(first)
    metadata = parse(data, len(data))
    sizes = [stored.size for stored in metadata.axes if stored.split_dim == split_dim]
    if sizes:
        yield shards(metadata.element, metadata.global_shape, sizes[0])


def _manifest(store: ByteStore, key: str) -> Manifest | None:
    found = store.get_buffer(key)
    try:
        return None if found is None else parse_manifest(memoryview(found))
    except TensorError:
        return None


def gather(store: ByteStore, shards: ShardSet, target: Target) -> Any:
    """The elements of `target` out of `shards`, in a new buffer.

    Nothing is allocated before all shards that it takes are there, with the sizes they should have;
    `TensorError` if one is not.
    """
    pieces = list(_pieces(store, shards, target.indices))
    gathered = new_buffer(target.metadata.data_bytes)
    if target.metadata.data_bytes == 0:
        return gathered
    flat = flat_bytes(gathered)
    for source, elements in pieces:
        rows_from, rows_to = _rows(source, target, shards.split_dim)
        rows_to.of_array(flat)[:] = rows_from.of_array(flat_bytes(elements))
    return gathered


def _pieces(
    store: ByteStore, shards: ShardSet, indices: range
) -> Iterator[tuple[Source, memoryview]]:
    for ranks in _windows(shards.ranks_with(indices)):
        found = store.batch_get_buffer([shards.key_of(rank) for rank in ranks])
        for rank, buffer in zip(ranks, found, strict=True):
            if buffer is None:
                raise TensorError(f"shard {shards.key_of(rank)!r} is missing")
            data = memoryview(buffer)
            source = _source(shards, rank, parse(data, len(data)))
            yield source, data[source.metadata.data_offset :]


def gather_into(store: ByteStore, shards: ShardSet, target: Target, address: int, size: int) -> int:
    """Reads `target` as an object into `size` bytes at `address`: the bytes of the object.

    The elements go from the shards to their places without a copy in between. Raises `TensorError`
    if they do not fit, or if a shard is not as expected.
    """
    total = METADATA_SIZE + target.metadata.data_bytes
    if total > size:
        raise TensorError(f"{size} bytes are too few for an object of {total}")
    for ranks in _windows(shards.ranks_with(target.indices)):
        sources = [
            _source(shards, rank, metadata)
            for rank, metadata in zip(ranks, _headers(store, shards, ranks), strict=True)
        ]
        _read_ranges(
            store,
            address,
            [source.key for source in sources],
            [_fragments(source, target, shards.split_dim) for source in sources],
        )
    memory.poke(address, target.metadata.pack())
    return total


class _Fragments(NamedTuple):
    to: list[int]
    source: list[int]
    sizes: list[int]


def _fragments(source: Source, target: Target, split_dim: int) -> _Fragments:
    rows_from, rows_to = _rows(source, target, split_dim)
    if rows_from.total == 0:
        return _Fragments([], [], [])
    start_from, start_to = source.metadata.data_offset, target.metadata.data_offset
    if rows_from.size == rows_from.stride and rows_to.size == rows_to.stride:
        return _Fragments([start_to], [start_from], [rows_from.total])
    return _Fragments(
        [start_to + offset for offset in rows_to.offsets()],
        [start_from + offset for offset in rows_from.offsets()],
        [rows_from.size] * rows_from.runs,
    )


def _headers(store: ByteStore, shards: ShardSet, ranks: list[int]) -> list[TensorMetadata]:
    keys = [shards.key_of(rank) for rank in ranks]
    sizes = [store.get_size(key) for key in keys]
    if any(size < METADATA_SIZE for size in sizes):
        raise TensorError("a shard is missing or no tensor")
    heads = bytearray(METADATA_SIZE * len(keys))
    place = elements_of(heads)
    code = store.register_buffer(place.address, place.size)
    if code != 0:
        raise TensorError(f"memory for headers cannot be registered: {code}")
    try:
        starts = range(0, place.size, METADATA_SIZE)
        _read_ranges(
            store, place.address, keys, [_Fragments([at], [0], [METADATA_SIZE]) for at in starts]
        )
    finally:
        if store.unregister_buffer(place.address) != 0:
            _IN_USE.append(heads)
    return [
        parse(memoryview(heads)[start:], size) for start, size in zip(starts, sizes, strict=True)
    ]


def _read_ranges(
    store: ByteStore, address: int, keys: list[str], fragments: list[_Fragments]
) -> None:
    wanted = [(key, one) for key, one in zip(keys, fragments, strict=True) if one.sizes]
    if not wanted:
        return
    counts = store._get_ranges_of(
        [key for key, _ in wanted],
        None,
        [[address + offset for offset in one.to] for _, one in wanted],
        [one.source for _, one in wanted],
        [one.sizes for _, one in wanted],
    )
    if counts != [one.sizes for _, one in wanted]:
        raise TensorError("a range of a shard cannot be read")


def _source(shards: ShardSet, rank: int, metadata: TensorMetadata) -> Source:
    shards.check(rank, metadata)
    return Source(shards.key_of(rank), shards.indices_of(rank), metadata)


def _rows(source: Source, target: Target, dim: int) -> tuple[Rows, Rows]:
    """Where the indices that both have lie in the elements of either."""
    start = max(source.indices.start, target.indices.start)
    stop = min(source.indices.stop, target.indices.stop)

    def rows(metadata: TensorMetadata, first: int) -> Rows:
        common = range(start - first, stop - first)
        return Rows.of(metadata.local_shape, metadata.element.size, dim, common)

    return (
        rows(source.metadata, source.indices.start),
        rows(target.metadata, target.indices.start),
    )


def _windows(ranks: range) -> Iterator[list[int]]:
    remaining = iter(ranks)
    while window := list(islice(remaining, _WINDOW)):
        yield window
