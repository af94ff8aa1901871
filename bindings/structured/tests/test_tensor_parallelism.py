"""Requests for parts of tensors: what they take, what they mean, what objects are called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from _tensors import GOLDENS, Partition, part, slices

from mc_store_structured._tensor.axes import WriterPartition, axes_of, part_key, same_part
from mc_store_structured._tensor.layout import TensorError, parse
from mc_store_structured.tensors import ParallelAxis, ReadTarget, TensorParallelism


def test_an_axis_begins_empty() -> None:
    axis = ParallelAxis()

    assert (axis.kind, axis.rank, axis.size) == ("", 0, 1)
    assert (axis.split_dim, axis.expert_id, axis.stage_id) == (None, None, None)


@pytest.mark.parametrize("name", ["rank", "size", "split_dim", "expert_id", "stage_id"])
def test_numbers_of_an_axis_have_32_bits(name: str) -> None:
    axis = ParallelAxis()

    setattr(axis, name, True)
    assert getattr(axis, name) == 1
    for wrong in ("x", 1.5, 2.0, 1 << 31, -(1 << 31) - 1, [1]):
        with pytest.raises(TypeError, match=name):
            setattr(axis, name, wrong)
    assert getattr(axis, name) == 1


@pytest.mark.parametrize("name", ["kind", "rank", "size"])
def test_some_attributes_of_an_axis_are_not_none(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        setattr(ParallelAxis(), name, None)


def test_requests_have_no_other_attributes() -> None:
    for request in (ParallelAxis(), TensorParallelism(), ReadTarget()):
        with pytest.raises(AttributeError):
            setattr(request, "other", 1)  # noqa: B010


def test_a_parallelism_copies_axes_in_and_gives_them_out() -> None:
    axis = slices(0, 2, 0)
    parallelism = TensorParallelism()

    parallelism.axes = (axis,)
    axis.rank = 1
    parallelism.axes.append(axis)

    assert parallelism.axes == [slices(0, 2, 0)]
    parallelism.axes[0].rank = 1
    assert parallelism.axes == [slices(1, 2, 0)]
    for wrong in ([1], None, 3, "ab"):
        with pytest.raises(TypeError):
            parallelism.axes = wrong  # type: ignore[assignment]


def test_a_target_knows_three_modes() -> None:
    target = ReadTarget()

    assert (target.mode, target.parallelism) == ("as_stored", None)
    for mode in ("FULL", "As_Stored", "shard"):
        target.mode = mode
        assert target.mode == mode.lower()
    for wrong in ("", "half"):
        with pytest.raises(ValueError, match="mode"):
            target.mode = wrong
    with pytest.raises(TypeError):
        target.mode = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        target.parallelism = 3  # type: ignore[assignment]


def test_a_target_copies_its_parallelism() -> None:
    parallelism = part(slices(0, 2, 0))
    target = ReadTarget("shard", parallelism)

    parallelism.axes = []

    assert target.parallelism == part(slices(0, 2, 0))


def test_requests_compare_by_value_and_show_it() -> None:
    assert repr(ReadTarget("full", part(slices(1, 2, 0)))) == (
        "ReadTarget(mode='full', parallelism=TensorParallelism([ParallelAxis(kind='tp', rank=1, "
        "size=2, split_dim=0, expert_id=None, stage_id=None)]))"
    )
    assert ReadTarget("full", part()) == ReadTarget("FULL", part())
    assert part(slices(0, 2, 0)) != part(slices(1, 2, 0))
    assert slices(0, 2, 0) != "tp"


@pytest.mark.parametrize(
    "axes",
    [
        pytest.param([], id="none"),
        pytest.param([ParallelAxis("xx")], id="unknown kind"),
        pytest.param([ParallelAxis("tp", 0, 2)], id="tp without split_dim"),
        pytest.param([ParallelAxis("dp", 0, 2, 0)], id="dp with split_dim"),
        pytest.param([ParallelAxis("ep", 0, 2)], id="ep without expert"),
        pytest.param([ParallelAxis("ep", 0, 2, 0, 1)], id="ep with split_dim"),
        pytest.param([ParallelAxis("pp", 0, 2)], id="pp without stage"),
        pytest.param([slices(2, 2, 0)], id="rank beyond the last"),
        pytest.param([slices(-1, 2, 0)], id="negative rank"),
        pytest.param([slices(0, 0, 0)], id="no parts"),
        pytest.param([slices(0, 2, 0), ParallelAxis("TP", 0, 2, 0)], id="twice the same kind"),
        pytest.param([ParallelAxis("dp")] * 5, id="five"),
    ],
)
def test_axes_that_make_no_sense_are_refused(axes: list[ParallelAxis]) -> None:
    with pytest.raises(TensorError):
        axes_of(part(*axes))


@pytest.mark.parametrize(
    ("parallelism", "error"),
    [
        (3, TensorError),
        (SimpleNamespace(axes=[SimpleNamespace()]), TensorError),
        (SimpleNamespace(axes=5), TypeError),
        (SimpleNamespace(axes=[SimpleNamespace(kind=1, rank=0, size=1)]), TypeError),
        (SimpleNamespace(axes=[SimpleNamespace(kind="dp", rank="0", size=1)]), TypeError),
        (SimpleNamespace(axes=[SimpleNamespace(kind="dp", rank=0, size=1 << 31)]), TypeError),
    ],
)
def test_what_only_looks_like_a_request_is_checked(
    parallelism: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        axes_of(parallelism)


def test_anything_with_the_attributes_is_a_request() -> None:
    axis = SimpleNamespace(kind="DP", rank=0, size=2)

    assert part_key("k", axes_of(SimpleNamespace(axes=[axis]))) == "k__dp_0of2"


@pytest.mark.parametrize(
    "partition",
    [
        Partition(2, 2, 0),
        Partition(-1, 2, 0),
        Partition(0, 0, 0),
        Partition(0, 2, -1),
        5,
        {"rank": 0, "size": 1, "split_dim": 0},
    ],
)
def test_writer_partitions_that_make_no_sense_are_refused(partition: Any) -> None:
    with pytest.raises(TensorError):
        WriterPartition.of(partition)


def test_objects_are_called_as_the_reference_calls_them() -> None:
    every = [
        ParallelAxis("pp", 0, 1, stage_id=0),
        ParallelAxis("ep", 0, 2, expert_id=1),
        slices(1, 2, 0),
        ParallelAxis("dp", 1, 2),
    ]

    assert part_key("axes", axes_of(part(*every))) in GOLDENS
    assert part_key("expert", axes_of(part(ParallelAxis("EP", 1, 4, expert_id=3)))) in GOLDENS
    assert part_key("rank", axes_of(part(slices(2, 3, 1)))) == "rank_tp_2"


def test_a_part_is_the_same_in_any_order_of_its_axes() -> None:
    golden = GOLDENS["axes__dp_1of2__tp_1of2_sd0__ep_0of2_eid1__pp_0of1_sid0"]
    metadata = parse(golden, len(golden))
    axes = axes_of(
        part(
            slices(1, 2, 0),
            ParallelAxis("dp", 1, 2),
            ParallelAxis("ep", 0, 2, expert_id=1),
            ParallelAxis("pp", 0, 1, stage_id=0),
        )
    )

    assert same_part(axes, metadata)
    for place, axis in enumerate(axes):
        other = axis._replace(rank=0, size=3)
        assert not same_part((*axes[:place], other, *axes[place + 1 :]), metadata)
    assert not same_part(axes[:3], metadata)
    assert not same_part((*axes[:2], axes[2]._replace(expert_id=2), axes[3]), metadata)
