"""What became of blocks, in modules that a process without `mooncake` can import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Saved:
    """What became of the blocks of one batch."""

    stored: int
    #: Were in the store before, so that they were not put.
    present: int
    #: The codes of those that were not stored.
    codes: list[int]
    #: Whether vLLM stops saving this request until the pool has room again.
    under_pressure: bool


@dataclass(frozen=True)
class Loaded:
    """What became of the blocks of one request."""

    #: For each block, in order: bytes, or a negative code.
    results: list[int]
    #: Blocks that the scheduler computes anew.
    failed_blocks: set[int]
    #: memory, disk or unknown, for each block.
    tiers: list[str]
