"""The axes of a request, checked, and the names of the objects that hold the parts they mean."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from .layout import MAX_AXES, AxisKind, LayoutAxis, Shape, TensorError, TensorMetadata
from .parallelism import int32
from .shards import shard_range


class Axis(NamedTuple):
    """A checked `ParallelAxis`."""

    kind: str  # in small letters
    rank: int
    size: int
    split_dim: int | None
    expert_id: int | None
    stage_id: int | None


Axes: TypeAlias = tuple[Axis, ...]


class _Kind(NamedTuple):
    code: int
    splits: bool
    named_by: str | None


# In the order in which the axes appear in the names of objects.
_KINDS = {
    "dp": _Kind(AxisKind.DATA, False, None),
    "tp": _Kind(AxisKind.TENSOR, True, None),
    "ep": _Kind(AxisKind.EXPERT, False, "expert_id"),
    "pp": _Kind(AxisKind.PIPELINE, False, "stage_id"),
}
_ORDER = {kind: place for place, kind in enumerate(_KINDS)}
_NAMES = {kind.code: name for name, kind in _KINDS.items()}


def axes_of(parallelism: object) -> Axes:
    """The checked axes of a `TensorParallelism`, or of anything that looks like one.

    Raises `TensorError` for axes that make no sense, `TypeError` for numbers that are none.
    """
    if not hasattr(parallelism, "axes"):
        raise TensorError("a parallelism has axes")
    axes = tuple(_axis_of(axis) for axis in parallelism.axes)
    if not 0 < len(axes) <= MAX_AXES:
        raise TensorError(f"{len(axes)} axes, and from 1 to {MAX_AXES} are possible")
    if len({axis.kind for axis in axes}) != len(axes):
        raise TensorError("two axes of the same kind")
    return axes


def _axis_of(axis: Any) -> Axis:
    if not all(hasattr(axis, field) for field in ("kind", "rank", "size")):
        raise TensorError("an axis has kind, rank and size")
    if not isinstance(axis.kind, str):
        raise TypeError(f"kind is a str, not {type(axis.kind).__name__}")
    name = axis.kind.lower()
    kind = _KINDS.get(name)
    if kind is None:
        raise TensorError(f"unknown kind of axis {axis.kind!r}")
    numbers = {field: _optional(axis, field) for field in ("split_dim", "expert_id", "stage_id")}
    checked = Axis(name, int32(axis.rank, "rank"), int32(axis.size, "size"), **numbers)
    if not 0 <= checked.rank < checked.size:
        raise TensorError(f"no rank {checked.rank} of {checked.size} on axis {name}")
    if (checked.split_dim is not None) != kind.splits:
        raise TensorError(f"axis {name} {'needs' if kind.splits else 'has no'} split_dim")
    if kind.named_by is not None and numbers[kind.named_by] is None:
        raise TensorError(f"axis {name} needs {kind.named_by}")
    return checked


def _optional(axis: Any, field: str) -> int | None:
    value = getattr(axis, field, None)
    return None if value is None else int32(value, field)


class WriterPartition(NamedTuple):
    """The part of a tensor that one of several writers writes."""

    rank: int
    size: int
    split_dim: int

    @classmethod
    def of(cls, partition: Any) -> WriterPartition:
        """Of anything with `rank`, `size` and `split_dim`; `TensorError` if they make no sense."""
        if not all(hasattr(partition, field) for field in cls._fields):
            raise TensorError("a writer partition has rank, size and split_dim")
        checked = cls(*(int32(getattr(partition, field), field) for field in cls._fields))
        if not 0 <= checked.rank < checked.size or checked.split_dim < 0:
            raise TensorError(f"no writer {checked.rank} of {checked.size}")
        return checked

    @property
    def axes(self) -> Axes:
        """The same as tensor parallelism."""
        return (Axis("tp", self.rank, self.size, self.split_dim, None, None),)


def tensor_axis(axes: Axes) -> Axis | None:
    """The axis that cuts the tensor, if there is one."""
    return next((axis for axis in axes if axis.kind == "tp"), None)


def cut_of(shape: Shape, axes: Axes) -> tuple[range, int]:
    """Which indices of which dimension of a tensor of `shape` the part that `axes` mean has.

    Raises `TensorError` if no axis cuts the tensor, or if it cannot be cut like that.
    """
    axis = tensor_axis(axes)
    if axis is None or axis.split_dim is None:
        raise TensorError("no axis cuts the tensor")
    return shard_range(shape, axis.split_dim, axis.rank, axis.size), axis.split_dim


def with_tensor_rank(axes: Axes, rank: int, size: int) -> Axes:
    """The same axes with another place on the one that cuts the tensor."""
    return tuple(
        axis._replace(rank=rank, size=size) if axis.kind == "tp" else axis for axis in axes
    )


def same_part(axes: Axes, metadata: TensorMetadata) -> bool:
    """Whether the object with this header holds exactly the part that `axes` mean."""
    return metadata.is_shard and _identity(axes) == _stored(metadata)


def _identity(axes: Axes) -> list[tuple[str, int, int, int, int]]:
    return sorted(
        (
            axis.kind,
            axis.rank,
            axis.size,
            -1 if axis.split_dim is None else axis.split_dim,
            _unit(axis),
        )
        for axis in axes
    )


def _stored(metadata: TensorMetadata) -> list[tuple[str, int, int, int, int]]:
    return sorted(
        (
            _NAMES.get(axis.kind, "reserved"),
            axis.rank,
            axis.size,
            axis.split_dim,
            axis.unit if axis.kind in (AxisKind.EXPERT, AxisKind.PIPELINE) else 0,
        )
        for axis in metadata.axes
    )


def _unit(axis: Axis) -> int:
    named_by = _KINDS[axis.kind].named_by
    return getattr(axis, named_by) if named_by is not None else 0


def layout_axes(axes: Axes, local_shape: Shape) -> tuple[LayoutAxis, ...]:
    """The axes as the header of a part of `local_shape` has them."""
    return tuple(_layout_axis(place, axis, local_shape) for place, axis in enumerate(axes))


def _layout_axis(place: int, axis: Axis, local_shape: Shape) -> LayoutAxis:
    kind = _KINDS[axis.kind].code
    if axis.split_dim is None:
        return LayoutAxis(kind, place, axis.rank, axis.size, -1, _unit(axis), 0)
    if not 0 <= axis.split_dim < len(local_shape):
        raise TensorError(f"no dimension {axis.split_dim} among {len(local_shape)}")
    extent = local_shape[axis.split_dim]
    return LayoutAxis(kind, place, axis.rank, axis.size, axis.split_dim, _unit(axis), extent)


def rank_key(key: str, rank: int) -> str:
    """The name of a shard by its rank alone."""
    return f"{key}_tp_{rank}"


def part_key(key: str, axes: Axes) -> str:
    """The name of the object that holds the part that `axes` mean."""
    if len(axes) == 1 and axes[0].kind == "tp":
        return rank_key(key, axes[0].rank)
    ordered = sorted(axes, key=lambda axis: _ORDER[axis.kind])
    return "__".join((key, *map(_suffix, ordered)))


def _suffix(axis: Axis) -> str:
    suffix = f"{axis.kind}_{axis.rank}of{axis.size}"
    for mark, number in (("sd", axis.split_dim), ("eid", axis.expert_id), ("sid", axis.stage_id)):
        if number is not None:
            suffix += f"_{mark}{number}"
    return suffix


def parallelism_manifest_key(key: str) -> str:
    """The name of the manifest beside the parts of a tensor."""
    return f"{key}__parallelism_manifest"


def writer_key(key: str, rank: int, size: int, split_dim: int) -> str:
    """The name of the part of one of several writers."""
    return f"{key}__writer_{rank}of{size}_sd{split_dim}"


def writer_manifest_key(key: str) -> str:
    """The name of the manifest beside the parts of several writers."""
    return f"{key}__writer_manifest"
