"""The bytes of tensor objects: those of Mooncake, and any others."""

from __future__ import annotations

import math
import random
import struct
import time

import pytest
from _tensors import GOLDENS

from mc_store_structured._tensor.layout import (
    ELEMENT_TYPES,
    MANIFEST_SIZE,
    METADATA_SIZE,
    ElementType,
    LayoutAxis,
    Manifest,
    TensorError,
    TensorMetadata,
    element_type,
    parse,
    parse_manifest,
)

OBJECTS = [
    name for name in GOLDENS if "manifest" not in name and not name.startswith("safetensors")
]
MANIFESTS = [name for name in GOLDENS if "manifest" in name]
FLOAT32 = element_type("float32")


@pytest.mark.parametrize("name", OBJECTS)
def test_headers_of_the_reference_are_read_and_written_alike(name: str) -> None:
    golden = GOLDENS[name]

    metadata = parse(golden, len(golden))

    assert metadata.pack() == golden[:METADATA_SIZE]
    assert metadata.data_offset + metadata.data_bytes == len(golden)


@pytest.mark.parametrize("element", ELEMENT_TYPES, ids=lambda element: str(element.name))
def test_types_of_elements_have_the_codes_of_the_reference(element: ElementType) -> None:
    golden = GOLDENS[f"elements {element.name}"]

    assert parse(golden, len(golden)).element == element


def test_a_whole_tensor_has_no_axes() -> None:
    shape = (4, 6)

    metadata = TensorMetadata.whole(FLOAT32, shape)

    assert metadata.pack() == GOLDENS["shape 4x6"][:METADATA_SIZE]
    assert not metadata.is_shard


def test_a_shard_says_how_it_was_cut() -> None:
    axis = LayoutAxis(kind=1, place=0, rank=2, size=3, split_dim=1, unit=0, extent=2)

    metadata = TensorMetadata.shard(FLOAT32, (4, 6), (4, 2), (axis,))

    assert metadata.pack() == GOLDENS["rank_tp_2"][:METADATA_SIZE]


def test_axes_keep_the_order_of_the_request() -> None:
    name = "axes__dp_1of2__tp_1of2_sd0__ep_0of2_eid1__pp_0of1_sid0"

    axes = parse(GOLDENS[name], len(GOLDENS[name])).axes

    assert [(axis.kind, axis.rank, axis.size, axis.split_dim, axis.unit) for axis in axes] == [
        (3, 0, 1, -1, 0),
        (2, 0, 2, -1, 1),
        (1, 1, 2, 0, 0),
        (0, 1, 2, -1, 0),
    ]


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_of_the_reference_are_read_and_written_alike(name: str) -> None:
    manifest = parse_manifest(GOLDENS[name])

    assert manifest.pack() == GOLDENS[name]
    assert manifest.element == FLOAT32
    assert manifest.global_shape == (4, 6)


def test_a_manifest_may_be_longer() -> None:
    golden = GOLDENS["part__parallelism_manifest"]

    assert parse_manifest(golden + b"more") == Manifest(FLOAT32, (4, 6), 0, 2)


def test_nine_dimensions_have_no_place() -> None:
    with pytest.raises(TensorError, match="9 dimensions"):
        TensorMetadata.whole(FLOAT32, (1,) * 9)


@pytest.mark.parametrize("dim", [1 << 63, -(1 << 64)])
def test_numbers_that_do_not_fit_are_refused(dim: int) -> None:
    with pytest.raises(TensorError, match="fit"):
        TensorMetadata.whole(FLOAT32, (dim, 0)).pack()
    with pytest.raises(TensorError, match="fit"):
        Manifest(FLOAT32, (dim,), 0, 1).pack()


def changed(golden: bytes, offset: int, form: str, value: int) -> bytes:
    data = bytearray(golden)
    struct.pack_into(form, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [
        pytest.param(0, "<I", 1, id="magic"),
        pytest.param(4, "<H", 2, id="version"),
        pytest.param(6, "<H", 300, id="header size"),
        pytest.param(8, "<i", 15, id="element type too high"),
        pytest.param(8, "<i", -1, id="element type negative"),
        pytest.param(8, "<i", 1, id="element type of another size"),
        pytest.param(12, "<i", 9, id="too many dimensions"),
        pytest.param(12, "<i", -1, id="negative dimensions"),
        pytest.param(12, "<i", 3, id="dimensions without extent"),
        pytest.param(12, "<i", 1, id="dimensions beyond the last"),
        pytest.param(16, "<I", 2, id="layout kind"),
        pytest.param(24, "<Q", 303, id="elements inside the header"),
        pytest.param(24, "<Q", 1 << 63, id="elements beyond the object"),
        pytest.param(24, "<Q", 308, id="elements elsewhere"),
        pytest.param(32, "<Q", 95, id="fewer bytes"),
        pytest.param(32, "<Q", (1 << 64) - 1, id="more bytes"),
        pytest.param(40, "<q", -2, id="negative global extent"),
        pytest.param(104, "<q", -2, id="negative local extent"),
        pytest.param(104, "<q", 1 << 60, id="huge local extent"),
        pytest.param(104, "<q", 5, id="larger local extent"),
        pytest.param(104, "<q", 3, id="smaller local extent"),
        pytest.param(56, "<q", 0, id="padding of the global shape"),
        pytest.param(160, "<q", 0, id="padding of the local shape"),
        pytest.param(168, "<I", 1, id="an axis of no parts"),
        pytest.param(168, "<I", 5, id="too many axes"),
    ],
)
def test_a_header_that_cannot_be_is_refused(offset: int, form: str, value: int) -> None:
    data = changed(GOLDENS["shape 4x6"], offset, form, value)

    with pytest.raises(TensorError):
        parse(data, len(data))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param(0, 5, id="kind too high"),
        pytest.param(0, -1, id="kind negative"),
        pytest.param(8, 3, id="rank beyond the last"),
        pytest.param(8, -1, id="rank negative"),
        pytest.param(12, 0, id="no parts"),
        pytest.param(16, 2, id="split dimension too high"),
        pytest.param(16, -2, id="split dimension negative"),
    ],
)
def test_an_axis_that_cannot_be_is_refused(field: int, value: int) -> None:
    data = changed(GOLDENS["rank_tp_2"], 176 + field, "<i", value)

    with pytest.raises(TensorError):
        parse(data, len(data))


@pytest.mark.parametrize("cut", [0, 1, METADATA_SIZE - 1, METADATA_SIZE, 399])
def test_an_object_that_is_cut_short_is_refused(cut: int) -> None:
    data = GOLDENS["shape 4x6"][:cut]

    with pytest.raises(TensorError):
        parse(data, len(data))


def test_an_object_with_bytes_to_spare_is_refused() -> None:
    data = GOLDENS["shape 4x6"] + b"\0"

    with pytest.raises(TensorError):
        parse(data, len(data))


def test_elements_may_lie_further_back() -> None:
    golden = GOLDENS["shape 4x6"]
    moved = changed(golden[:METADATA_SIZE] + b"gap" + golden[METADATA_SIZE:], 24, "<Q", 307)

    assert parse(moved, len(moved)).data_offset == 307


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [
        pytest.param(0, "<I", 1, id="magic"),
        pytest.param(4, "<H", 2, id="version"),
        pytest.param(6, "<H", 97, id="size"),
        pytest.param(8, "<i", 15, id="element type"),
        pytest.param(12, "<i", 9, id="too many dimensions"),
        pytest.param(12, "<i", 0, id="no dimension to cut"),
        pytest.param(16, "<i", 2, id="split dimension too high"),
        pytest.param(16, "<i", -1, id="split dimension negative"),
        pytest.param(20, "<i", 0, id="no parts"),
        pytest.param(20, "<i", -1, id="negative parts"),
        pytest.param(32, "<q", -1, id="negative extent"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(offset: int, form: str, value: int) -> None:
    data = changed(GOLDENS["part__parallelism_manifest"], offset, form, value)

    with pytest.raises(TensorError):
        parse_manifest(data)


def test_a_manifest_that_is_cut_short_is_refused() -> None:
    with pytest.raises(TensorError):
        parse_manifest(GOLDENS["part__parallelism_manifest"][: MANIFEST_SIZE - 1])


def damaged(chance: random.Random, golden: bytes) -> bytes:
    """`golden` with up to three faults."""
    data = bytearray(golden)
    for _ in range(chance.randrange(4)):
        match chance.randrange(4):
            case 0:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case 1:
                value = chance.choice([0, 1, -1, 1 << 31, 1 << 62, -(1 << 63)])
                struct.pack_into("<q", data, 8 * chance.randrange(len(data) // 8), value)
            case 2:
                del data[chance.randrange(8, len(data) + 1) :]
            case 3:
                data += chance.randbytes(chance.randrange(1, 40))
    return bytes(data)


def test_bytes_are_refused_or_hold_the_elements_they_claim() -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    read = 0
    for _ in range(20_000):
        data = damaged(chance, GOLDENS[chance.choice(OBJECTS)])
        try:
            metadata = parse(data, len(data))
        except TensorError:
            continue
        read += 1
        assert METADATA_SIZE <= metadata.data_offset
        assert metadata.data_offset + metadata.data_bytes == len(data)
        assert math.prod(metadata.local_shape) * metadata.element.size == metadata.data_bytes
        assert parse(metadata.pack(), len(data)) == metadata
    assert read


def test_bytes_are_refused_or_are_a_manifest() -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    read = 0
    for _ in range(20_000):
        try:
            manifest = parse_manifest(damaged(chance, GOLDENS[chance.choice(MANIFESTS)]))
        except TensorError:
            continue
        read += 1
        assert manifest.size > 0
        assert 0 <= manifest.split_dim < len(manifest.global_shape)
        assert parse_manifest(manifest.pack()) == manifest
    assert read
