"""Where shards lie in the bytes of a tensor."""

from __future__ import annotations

import math
import random
import time

import pytest

from mc_store_structured._tensor.layout import TensorError
from mc_store_structured._tensor.shards import MAX_SHARDS, Rows, shard_range, with_dim


@pytest.mark.parametrize(
    ("dim", "rank", "count"),
    [(2, 0, 2), (-1, 0, 2), (0, 2, 2), (0, -1, 2), (0, 0, 0), (0, 0, -1), (0, 0, 3), (0, 0, 8)],
)
def test_only_equal_shards_of_a_dimension_exist(dim: int, rank: int, count: int) -> None:
    with pytest.raises(TensorError):
        shard_range((4, 6), dim, rank, count)


def test_shards_of_nothing_are_bounded() -> None:
    assert shard_range((0, 4), 0, MAX_SHARDS - 1, MAX_SHARDS) == range(0)
    with pytest.raises(TensorError):
        shard_range((0, 4), 0, 0, MAX_SHARDS + 1)


def test_rows_are_those_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(500):
        shape = tuple(chance.randrange(1, 6) for _ in range(chance.randrange(1, 6)))
        size = chance.choice([1, 2, 4, 8])
        dim = chance.randrange(len(shape))
        start = chance.randrange(shape[dim])
        indices = range(start, chance.randrange(start, shape[dim] + 1))
        flat = numpy.frombuffer(chance.randbytes(math.prod(shape) * size), dtype="u1")
        cut = numpy.take(flat.reshape(*shape, size), indices, axis=dim)

        rows = Rows.of(shape, size, dim, indices)

        assert rows.total == cut.size == math.prod(with_dim(shape, dim, len(indices))) * size
        assert rows.of_array(flat).tobytes() == cut.tobytes()
        found = b"".join(bytes(flat[at : at + rows.size]) for at in rows.offsets())
        assert found == cut.tobytes()
