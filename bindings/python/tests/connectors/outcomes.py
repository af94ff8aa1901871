"""Outcomes of blocks, in a module that a process without `mooncake` can import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Saved:
    """The outcome of a put of one batch."""

    stored: int
    #: Were in the store before, so that they were not put.
    present: int
    #: The codes of those that were not stored.
    codes: list[int]
    #: Whether vLLM stops saving this request until the pool has room again.
    under_pressure: bool


@dataclass(frozen=True)
class Loaded:
    """The outcome of a get for one request."""

    #: For each block, in order: bytes, or a negative code.
    results: list[int]
    #: Blocks that the scheduler computes anew.
    failed_blocks: set[int]
    #: memory, disk or unknown, for each block.
    tiers: list[str]
