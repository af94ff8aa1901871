"""The results of a check: made by a phase in its own process, read and printed by the parent."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

#: Ways in which a row may end. Only the first two fail a run.
WRONG, BROKEN = "WRONG", "broken"
EQUAL, REFUSED, MET, MISSED, MEASURED, ABSENT = (
    "equal",
    "refused",
    "met",
    "missed",
    "measured",
    "not there yet",
)


@dataclass
class Row:
    """One line of the report."""

    phase: str
    what: str
    status: str
    #: The memory or the side that was used: a column of the table of bytes.
    kind: str = ""
    value: float | None = None
    unit: str = ""
    #: The bound of `value`, and whether it is the highest or the lowest one allowed.
    target: float | None = None
    at_most: bool = False
    note: str = ""
    details: dict[str, object] = field(default_factory=dict)


class Phase:
    """The side of a phase: its clock, and the way of its rows to the parent."""

    def __init__(self, name: str, limit: float, *, small: bool) -> None:
        self.name, self.small = name, small
        self._ends = time.monotonic() + limit
        # Texts that libraries print do not mix with the rows.
        self._rows = os.fdopen(os.dup(1), "w")
        sys.stdout.flush()
        os.dup2(2, 1)

    def remaining(self) -> float:
        """The seconds until the parent ends this phase."""
        return self._ends - time.monotonic()

    def add(self, what: str, status: str, **fields: object) -> None:
        """Sends a row to the parent, which keeps it even when this process dies next."""
        row = Row(self.name, what, status, **fields)  # type: ignore[arg-type]
        self._rows.write(json.dumps(asdict(row)) + "\n")
        self._rows.flush()

    def measure(
        self,
        what: str,
        value: float,
        unit: str,
        *,
        target: float | None = None,
        at_most: bool = False,
        **fields: object,
    ) -> None:
        """Sends a figure, and whether it reaches its target. Small runs have no targets."""
        status = MEASURED
        if target is not None and not self.small:
            status = MET if (value <= target if at_most else value >= target) else MISSED
        else:
            target = None
        fields |= {"value": value, "unit": unit, "target": target, "at_most": at_most}
        self.add(what, status, **fields)


def seconds(call: Callable[[], object]) -> float:
    """The time that a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def size_name(size: int) -> str:
    """4096 as "4 KiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
