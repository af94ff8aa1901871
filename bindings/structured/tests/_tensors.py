"""Shared by the tests of tensors: objects of Mooncake, and requests for parts."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from mc_store_structured.tensors import ParallelAxis, ReadTarget, TensorParallelism

#: Objects by name, as `MooncakeDistributedStore` of Mooncake's wheel 0.3.13.post1
#: stored them (with torch 1.13, and look-alikes of tensors for the types that this torch has not):
#: `elements *` are the numbers 0 and 1; `shape 4x6` and all that is cut from it are 0 to 23 in
#: float32, cut by `put_tensor_with_tp("rank", tp_size=3, split_dim=1)` and
#: `put_tensor_with_parallelism`. Read back with `get`; the last is the file that
#: `save_tensor_to_safetensor` wrote.
GOLDENS = {
    name: bytes.fromhex(digits)
    for name, digits in json.loads(
        Path(__file__).with_name("tensor_goldens.json").read_text("ascii")
    ).items()
}


#: For tests in which tensors are made, whatever the library is that makes them.
NEEDS_A_LIBRARY = pytest.mark.skipif(
    not any(find_spec(library) for library in ("numpy", "torch")), reason="needs numpy or torch"
)


class Partition:
    """A writer partition, as callers make them: any object with these attributes."""

    def __init__(self, rank: int, size: int, split_dim: int) -> None:
        self.rank = rank
        self.size = size
        self.split_dim = split_dim


def slices(rank: int, size: int, split_dim: int) -> ParallelAxis:
    """Slice `rank` of `size` along a dimension."""
    return ParallelAxis("tp", rank, size, split_dim)


def part(*axes: ParallelAxis) -> TensorParallelism:
    """The part at these places."""
    return TensorParallelism(axes)


def shard(*axes: ParallelAxis) -> ReadTarget:
    """To read the part at these places."""
    return ReadTarget("shard", part(*axes))


def full(*axes: ParallelAxis) -> ReadTarget:
    """To read all of a tensor that was stored in such parts."""
    return ReadTarget("full", part(*axes) if axes else None)
