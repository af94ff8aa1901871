"""Which rows of a member are read."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class StructuredMemberSlice:
    """Elements ``start``, ``start + step``, ... before ``end`` along the dimension ``axis``.

    Negative numbers count from the end, as in a Python slice. Only ``axis=0`` can be read.
    """

    axis: int
    start: int
    end: int
    step: int = 1


RowSelection: TypeAlias = "slice | StructuredMemberSlice | Sequence[int]"


class Rows:
    """Numbers of rows, in the order in which they are wanted."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    @classmethod
    def of_slice(cls, part: StructuredMemberSlice, total: int, what: str) -> Rows:
        """The rows of a slice out of ``total``.

        Raises ``ValueError`` for another axis than 0, and a step that is not positive.
        """
        if part.axis != 0:
            raise ValueError(f"{what} slicing currently supports axis=0 only")
        if part.step <= 0:
            raise ValueError(f"{what} slicing step must be positive")
        return cls(range(*slice(part.start, part.end, part.step).indices(total)))

    @classmethod
    def of_selection(cls, rows: RowSelection, total: int) -> Rows:
        """The rows that a caller selects out of ``total``.

        Raises ``TypeError`` for an object that selects no rows, ``IndexError`` for a row that does
        not exist, ``ValueError`` for another axis than 0 and a step that is not positive.
        """
        if isinstance(rows, slice):
            step = 1 if rows.step is None else rows.step
            if step <= 0:
                raise ValueError("DataProto row slicing step must be positive")
            return cls(range(*rows.indices(total)))
        if isinstance(rows, StructuredMemberSlice):
            return cls.of_slice(rows, total, "DataProto row")
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(rows, numpy.ndarray):
            if rows.ndim != 1 or rows.dtype.kind not in "iu":
                raise TypeError(
                    "DataProto rows in an array must be integers in one dimension, not "
                    f"{rows.dtype} of shape {rows.shape}"
                )
            rows = rows.tolist()
        if isinstance(rows, str | bytes) or not isinstance(rows, Sequence):
            raise TypeError(
                "DataProto rows must be a slice, StructuredMemberSlice, or row index sequence, not "
                f"{type(rows).__name__}"
            )
        return cls([_row(row, total) for row in rows])

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def check(self, total: int, what: str) -> None:
        """Raises ``ValueError`` if a row is beyond the ``total`` rows of ``what``."""
        if self.numbers and max(self.numbers) >= total:
            raise ValueError(f"{what} has {total} rows, and no row {max(self.numbers)}")

    def runs(self) -> Iterator[tuple[int, int]]:
        """The rows as runs of neighbours: the first row and how many."""
        start = count = 0
        for number in self.numbers:
            if count and number == start + count:
                count += 1
                continue
            if count:
                yield start, count
            start, count = number, 1
        if count:
            yield start, count


def _row(row: object, total: int) -> int:
    if isinstance(row, bool):
        raise TypeError(
            "DataProto row indices must be integers, not bool: a mask is no list of rows"
        )
    try:
        number = operator.index(row)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError("DataProto row indices must be integers") from None
    if not -total <= number < total:
        raise IndexError(f"DataProto row index {number} out of range for {total} rows")
    return number + total if number < 0 else number
