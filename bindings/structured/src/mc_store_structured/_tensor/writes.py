"""Objects made of pieces of memory, and how they are written without gathering them first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import memory
from .arrays import Elements, elements_of
from .axes import Axes, cut_of, layout_axes
from .byte_store import INTERNAL_ERROR, ByteStore
from .layout import Shape, TensorMetadata
from .shards import Rows, flat_bytes, new_buffer, with_dim

if TYPE_CHECKING:
    from mc_store import ReplicateConfig

_CONFIG_FIELDS = (
    "data_type",
    "dfs_replica_num",
    "media_type",
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

# From here on an object of a batch is worth a call of its own, to be sent without a copy.
_LARGE = 1 << 20


class Part(NamedTuple):
    """A piece of memory of which an object is written."""

    address: int
    size: int


class Write(NamedTuple):
    """An object to write: the memory that makes it up, and what keeps that memory alive.

    Without an owner it is memory that a caller named by its address, in which there is no trust.
    """

    key: str
    parts: list[Part]
    header: object
    owner: object

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return sum(part.size for part in self.parts)


def write_of(key: str, header: bytes, payload: Iterable[Part], owner: object) -> Write:
    """The write of an object that begins with `header`."""
    from ctypes import addressof, c_char

    head = (c_char * len(header)).from_buffer_copy(header)
    parts = [Part(addressof(head), len(header)), *(part for part in payload if part.size)]
    return Write(key, parts, head, owner)


def object_write(key: str, part: Part) -> Write:
    """The write of memory that already is an object."""
    return Write(key, [part], None, None)


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
    trusted = whole.owner is not None
    source = flat_bytes((memory.view if trusted else memory.peek)(whole.address, whole.size))
    flat_bytes(gathered).reshape(rows.runs, rows.size)[:] = rows.of_array(source)
    return [Part(elements_of(gathered).address, rows.total)], gathered


def write(
    store: ByteStore, writes: Sequence[Write], config: ReplicateConfig | None, *, update: bool
) -> list[int]:
    """Puts (or, with `update`, upserts) objects from where their memory is: a code for each."""
    by_address = config is not None and config.prefer_alloc_in_same_node
    codes: dict[int, int] = {}
    for place, one in enumerate(writes):
        # Memory that is lent as a buffer is never copied, but only one object at a time can be.
        if one.owner is not None and not by_address and (len(writes) == 1 or one.size >= _LARGE):
            codes[place] = _lend(store, one, config_of(config, [place]), update=update)
    others = [place for place in range(len(writes)) if place not in codes]
    if others:
        batch = _upsert if update else _put
        written = batch(store, [writes[place] for place in others], config_of(config, others))
        if len(written) != len(others):
            written = [INTERNAL_ERROR] * len(others)
        codes.update(zip(others, written, strict=True))
    return [codes[place] for place in range(len(writes))]


def _lend(store: ByteStore, one: Write, config: ReplicateConfig | None, *, update: bool) -> int:
    method = store.upsert_parts if update else store.put_parts
    lent = [memory.view(*part, owner=(one.header, one.owner)) for part in one.parts]
    return method(one.key, *lent, **_keyword(config))


def _put(store: ByteStore, writes: Sequence[Write], config: ReplicateConfig | None) -> list[int]:
    return store.batch_put_from_multi_buffers(
        [one.key for one in writes],
        [[part.address for part in one.parts] for one in writes],
        [[part.size for part in one.parts] for one in writes],
        **_keyword(config),
    )


def _upsert(store: ByteStore, writes: Sequence[Write], config: ReplicateConfig | None) -> list[int]:
    singles = [_single(one) for one in writes]
    return store.batch_upsert_from(
        [one.key for one in writes],
        [one.parts[0].address for one in singles],
        [one.parts[0].size for one in singles],
        **_keyword(config),
    )


def _single(one: Write) -> Write:
    """The same object in one piece of memory."""
    if len(one.parts) == 1:
        return one
    gathered = new_buffer(one.size)
    flat, filled = flat_bytes(gathered), 0
    for part in one.parts:
        flat[filled : filled + part.size] = flat_bytes(memory.view(*part))
        filled += part.size
    place = elements_of(gathered)
    return Write(one.key, [Part(place.address, place.size)], None, place.owner)


def _keyword(config: ReplicateConfig | None) -> dict[str, Any]:
    return {} if config is None else {"config": config}


def group_ids_of(config: ReplicateConfig | None) -> list[str] | None:
    """The group ids of a configuration; `TypeError` if it is none."""
    if config is None:
        return None
    try:
        ids: list[str] | None = config.group_ids
    except AttributeError:
        raise TypeError(f"config is a ReplicateConfig, not {type(config).__name__}") from None
    return ids


def group_ids_fit(config: ReplicateConfig | None, count: int) -> bool:
    """Whether a batch of `count` objects has as many group ids, or none."""
    ids = group_ids_of(config)
    return ids is None or len(ids) == count


def config_of(config: ReplicateConfig | None, places: Sequence[int]) -> ReplicateConfig | None:
    """The configuration for those objects of a batch: the same, but with only their group ids."""
    ids = group_ids_of(config)
    if config is None or ids is None:
        return config
    chosen = type(config)()
    for field in _CONFIG_FIELDS:
        value = getattr(config, field)
        if value != getattr(chosen, field):
            setattr(chosen, field, value)
    chosen.group_ids = [ids[place] for place in places]
    return chosen
