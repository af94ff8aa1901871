"""Objects made of pieces of memory, and how they are written without gathering them first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from . import memory
from .arrays import Elements, elements_of
from .axes import Axes, cut_of, layout_axes
from .byte_store import INTERNAL_ERROR, ByteStore
from .layout import Shape, TensorMetadata
from .shards import Rows, flat_bytes, new_buffer, with_dim

_CONFIG_FIELDS = (
    "data_type",
    "dfs_replica_num",
    "nof_replica_num",
    "prefer_alloc_in_same_node",
    "preferred_nof_segments",
    "preferred_segment",
    "preferred_segments",
    "replica_num",
    "soft_pin_action",
    "soft_pin_ttl_ms",
    "with_hard_pin",
)


# Rows shorter than a page are gathered before they are sent: each part has a cost of its own.
_SHORTEST_PART = 4096

_GATHERED_AT_ONCE = 64 << 20


class Part(NamedTuple):
    """A piece of memory of which an object is written."""

    address: int
    size: int


class Write(NamedTuple):
    """An object to write: the memory that makes it up, and what keeps that memory alive."""

    key: str
    parts: list[Part]
    owner: object


def write_of(key: str, header: bytes, payload: Iterable[Part], owner: object) -> Write:
    """The write of an object that begins with `header`."""
    from ctypes import addressof, c_char

    head = (c_char * len(header)).from_buffer_copy(header)
    parts = [Part(addressof(head), len(header)), *(part for part in payload if part.size)]
    return Write(key, parts, (head, owner))


def object_write(key: str, part: Part) -> Write:
    """The write of memory that already is an object."""
    return Write(key, [part], None)


def whole_write(key: str, elements: Elements) -> Write:
    """The write of a tensor as one object."""
    payload = [Part(elements.address, elements.size)]
    return write_of(key, elements.metadata().pack(), payload, elements.owner)


def part_write(key: str, part: Elements, global_shape: Shape, axes: Axes) -> Write:
    """The write of all of `part`, which is a part of a tensor of `global_shape`."""
    metadata = TensorMetadata.shard(
        part.element, global_shape, part.shape, layout_axes(axes, part.shape)
    )
    return write_of(key, metadata.pack(), [Part(part.address, part.size)], part.owner)


def cut_write(key: str, whole: Elements, axes: Axes) -> Write:
    """The write of the part of `whole` that `axes` mean; one of them cuts the tensor.

    Raises `TensorError` if the tensor cannot be cut like this.
    """
    indices, dim = cut_of(whole.shape, axes)
    local_shape = with_dim(whole.shape, dim, len(indices))
    metadata = TensorMetadata.shard(
        whole.element, whole.shape, local_shape, layout_axes(axes, local_shape)
    )
    payload, owner = _payload(whole, Rows.of(whole.shape, whole.element.size, dim, indices))
    return write_of(key, metadata.pack(), payload, owner)


def _payload(whole: Elements, rows: Rows) -> tuple[list[Part], object]:
    if rows.total == 0:
        return [], None
    if rows.size == rows.stride:
        return [Part(whole.address, rows.total)], whole.owner
    if rows.runs == 1 or rows.size >= _SHORTEST_PART:
        return [Part(whole.address + offset, rows.size) for offset in rows.offsets()], whole.owner
    gathered = new_buffer(rows.total)
    source = flat_bytes(memory.view(whole.address, whole.size))
    flat_bytes(gathered).reshape(rows.runs, rows.size)[:] = rows.of_array(source)
    return [Part(elements_of(gathered).address, rows.total)], gathered


def write(store: ByteStore, writes: Sequence[Write], config: Any, *, update: bool) -> list[int]:
    """Puts (or, with `update`, upserts) objects straight from their memory: a code for each."""
    if not update:
        return _put(store, writes, config)
    if len(writes) == 1 and config is None:
        return [
            store.upsert_parts(writes[0].key, *(memory.view(*part) for part in writes[0].parts))
        ]
    codes: list[int] = []
    for window in _windows(writes):
        places = range(len(codes), len(codes) + len(window))
        codes += _upsert(store, window, config_of(config, places))
    return codes


def _put(store: ByteStore, writes: Sequence[Write], config: Any) -> list[int]:
    if not writes:
        return []
    codes = store.batch_put_from_multi_buffers(
        [one.key for one in writes],
        [[part.address for part in one.parts] for one in writes],
        [[part.size for part in one.parts] for one in writes],
        **_keyword(config),
    )
    return _one_for_each(codes, writes)


def _upsert(store: ByteStore, writes: Sequence[Write], config: Any) -> list[int]:
    # Only single pieces of memory can be upserted as a batch or with every configuration.
    pieces = [_single(one) for one in writes]
    codes = store.batch_upsert_from(
        [one.key for one in writes],
        [piece.address for piece, _ in pieces],
        [piece.size for piece, _ in pieces],
        **_keyword(config),
    )
    return _one_for_each(codes, writes)


def _single(one: Write) -> tuple[Part, object]:
    if len(one.parts) == 1:
        return one.parts[0], one.owner
    gathered = new_buffer(sum(part.size for part in one.parts))
    flat, filled = flat_bytes(gathered), 0
    for part in one.parts:
        flat[filled : filled + part.size] = flat_bytes(memory.view(*part))
        filled += part.size
    place = elements_of(gathered)
    return Part(place.address, place.size), place.owner


def _windows(writes: Sequence[Write]) -> Iterator[list[Write]]:
    """The objects in order, in runs of which only the gathering of one object needs more memory."""
    window: list[Write] = []
    size = 0
    for one in writes:
        room = sum(part.size for part in one.parts) if len(one.parts) > 1 else 0
        if window and size + room > _GATHERED_AT_ONCE:
            yield window
            window, size = [], 0
        window.append(one)
        size += room
    if window:
        yield window


def _one_for_each(codes: list[int], writes: Sequence[Write]) -> list[int]:
    return list(codes) if len(codes) == len(writes) else [INTERNAL_ERROR] * len(writes)


def _keyword(config: Any) -> dict[str, Any]:
    return {} if config is None else {"config": config}


def group_ids_of(config: Any) -> list[str] | None:
    """The group ids of a configuration; `TypeError` if it is none."""
    if config is None:
        return None
    try:
        ids: list[str] | None = config.group_ids
    except AttributeError:
        raise TypeError(f"config is a ReplicateConfig, not {type(config).__name__}") from None
    return ids


def group_ids_fit(config: Any, count: int) -> bool:
    """Whether a batch of `count` objects has as many group ids, or none."""
    ids = group_ids_of(config)
    return ids is None or len(ids) == count


def config_of(config: Any, places: Sequence[int]) -> Any:
    """The configuration for those objects of a batch: the same, but with only their group ids."""
    ids = group_ids_of(config)
    if ids is None:
        return config
    chosen = type(config)()
    for field in _CONFIG_FIELDS:
        value = getattr(config, field)
        if value != getattr(chosen, field):
            setattr(chosen, field, value)
    chosen.group_ids = [ids[place] for place in places]
    return chosen
