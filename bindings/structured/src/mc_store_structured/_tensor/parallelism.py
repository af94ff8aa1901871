"""Descriptions of parts of a tensor, for writers and readers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

_INT32 = range(-(1 << 31), 1 << 31)
MODES = ("as_stored", "shard", "full")


def int32(value: Any, name: str) -> int:
    """`value` as an integer; `TypeError` if it is none, or none of 32 bits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is an int, not {type(value).__name__}") from None
    if number not in _INT32:
        raise TypeError(f"{name} is an int of 32 bits, not {number}")
    return number


class ParallelAxis:
    """One way in which work is shared, and one place in it.

    `kind` is "tp" (slices of a tensor, along `split_dim`), "dp" (replicas of data), "ep" (experts,
    named by `expert_id`) or "pp" (stages of a pipeline, named by `stage_id`), in either case.
    `rank` is the place among `size`. A value of another type is a `TypeError`; whether the values
    make sense together is checked where the axis is used.
    """

    __slots__ = ("expert_id", "kind", "rank", "size", "split_dim", "stage_id")

    kind: str
    rank: int
    size: int
    split_dim: int | None
    expert_id: int | None
    stage_id: int | None

    def __init__(
        self,
        kind: str = "",
        rank: int = 0,
        size: int = 1,
        split_dim: int | None = None,
        expert_id: int | None = None,
        stage_id: int | None = None,
    ) -> None:
        self.kind = kind
        self.rank = rank
        self.size = size
        self.split_dim = split_dim
        self.expert_id = expert_id
        self.stage_id = stage_id

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "kind":
            if not isinstance(value, str):
                raise TypeError(f"kind is a str, not {type(value).__name__}")
        elif name in ("rank", "size") or (value is not None and name in self.__slots__):
            value = int32(value, name)
        object.__setattr__(self, name, value)

    def _fields(self) -> tuple[object, ...]:
        return self.kind, self.rank, self.size, self.split_dim, self.expert_id, self.stage_id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ParallelAxis):
            return NotImplemented
        return self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return (
            f"ParallelAxis(kind={self.kind!r}, rank={self.rank}, size={self.size}, "
            f"split_dim={self.split_dim}, expert_id={self.expert_id}, stage_id={self.stage_id})"
        )

    def __copy__(self) -> ParallelAxis:
        return ParallelAxis(
            self.kind, self.rank, self.size, self.split_dim, self.expert_id, self.stage_id
        )


class TensorParallelism:
    """The place of a part of a tensor on every axis along which the work is shared.

    `axes` gives a list of its axes and takes copies of those it is set to.
    """

    __slots__ = ("_axes",)

    def __init__(self, axes: Iterable[ParallelAxis] = ()) -> None:
        self.axes = list(axes)

    @property
    def axes(self) -> list[ParallelAxis]:
        """The axes, at most four and each kind once."""
        return list(self._axes)

    @axes.setter
    def axes(self, axes: Iterable[ParallelAxis]) -> None:
        chosen = list(axes)
        for axis in chosen:
            if not isinstance(axis, ParallelAxis):
                raise TypeError(f"an axis is a ParallelAxis, not {type(axis).__name__}")
        self._axes = [axis.__copy__() for axis in chosen]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorParallelism):
            return NotImplemented
        return self._axes == other._axes

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"TensorParallelism({self._axes})"


class ReadTarget:
    """The part of a tensor that a reader wants.

    `mode` is "as_stored" (the object of that very name), "shard" (the part at `parallelism`, cut
    anew if it was stored in other parts) or "full" (all of it, put together of the parts).
    """

    __slots__ = ("_mode", "_parallelism")

    def __init__(
        self, mode: str = "as_stored", parallelism: TensorParallelism | None = None
    ) -> None:
        self.mode = mode
        self.parallelism = parallelism

    @property
    def mode(self) -> str:
        """The mode in small letters; `ValueError` if it is set to an unknown one."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        if not isinstance(mode, str):
            raise TypeError(f"mode is a str, not {type(mode).__name__}")
        if mode.lower() not in MODES:
            raise ValueError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        self._mode = mode.lower()

    @property
    def parallelism(self) -> TensorParallelism | None:
        """The part that is meant; setting it takes a copy."""
        return self._parallelism

    @parallelism.setter
    def parallelism(self, parallelism: TensorParallelism | None) -> None:
        if parallelism is not None and not isinstance(parallelism, TensorParallelism):
            raise TypeError(f"parallelism is a TensorParallelism, not {type(parallelism).__name__}")
        self._parallelism = None if parallelism is None else TensorParallelism(parallelism.axes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReadTarget):
            return NotImplemented
        return (self._mode, self._parallelism) == (other._mode, other._parallelism)

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"ReadTarget(mode={self._mode!r}, parallelism={self._parallelism})"
