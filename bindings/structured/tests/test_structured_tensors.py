"""`mooncake.structured_object_store`: jagged tensors, and columns of dicts of tensors."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from _structured import left, objects
from mc_store.mooncake.store import MooncakeDistributedStore
from mc_store.mooncake.structured_object_store import (
    FieldSchema,
    MooncakeBundleTransfer,
    StructuredFormatError,
    export_ref,
)

from mc_store_structured._objects.jagged import JaggedParts

torch = pytest.importorskip("torch")

needs_jagged = pytest.mark.skipif(
    not hasattr(torch.nested, "nested_tensor_from_jagged"), reason="torch is older than 2.4"
)

#: A jagged tensor of the shape (3, 2, *) as Mooncake 0.3.13 stores it, with a gap after each row:
#: `nested_tensor_from_jagged(torch.arange(20, dtype=torch.int16).reshape(2, 10),
#: offsets=torch.tensor([0, 3, 6, 9]), lengths=torch.tensor([2, 0, 3]), jagged_dim=2)`.
MOONCAKES = zlib.decompress(
    base64.b64decode(
        "eNrdkLsKhDAUBScmvtb32lhabumPqP//NSp6w4IiojbiNMMlnCLT9X2raJQBHP40avFPbvv2EQ8nubvnMaiphcbg"
        "4uETEE5/iohJSMnIKfhS0knXYF5su9Zym4s9LHf3PAwt9sSh+Khntdpf7aFf0tPZ6ToC4DNFFw=="
    )
)
MOONCAKES_SPEC = {
    "encoding": "torch_tensor",
    "dtype": "torch.int16",
    "nested": True,
    "format": "tensor_parts",
    "part_bytes": [344, 336, 328],
    "has_lengths": True,
    "ragged_idx": 2,
}
MOONCAKES_ROWS = [[[0, 1], [10, 11]], [[], []], [[6, 7, 8], [16, 17, 18]]]


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A key prefix that no other test has, and no regular expression."""
    return "tensors/" + "".join(c if c.isalnum() else "-" for c in request.node.nodeid)


@pytest.fixture
def transfer(store: MooncakeDistributedStore, prefix: str) -> Iterator[MooncakeBundleTransfer]:
    yield MooncakeBundleTransfer(store, prefix, default_chunk_bytes=500)
    left(store, prefix)


def rows_of(tensor: Any) -> list[Any]:
    return [row.tolist() for row in tensor.unbind()]


# ---- jagged tensors


def parse(**changes: Any) -> JaggedParts:
    data = memoryview(bytearray(MOONCAKES))
    return JaggedParts.parse(data, MOONCAKES_SPEC | changes, "x")


def test_the_parts_of_a_jagged_tensor_of_mooncake_are_read() -> None:
    parts = parse()
    assert len(parts) == 3
    assert parts.values.dtype == torch.int16
    assert tuple(parts.values.shape) == (2, 10)
    assert parts.offsets.tolist() == [0, 3, 6, 9]
    assert parts.lengths.tolist() == [2, 0, 3]


def test_chosen_rows_of_a_jagged_tensor_have_memory_of_their_own() -> None:
    parts = parse()
    chosen = parts.select([2, 0, 1, 2])
    assert chosen.values.tolist() == [
        [6, 7, 8, 0, 1, 6, 7, 8],
        [16, 17, 18, 10, 11, 16, 17, 18],
    ]
    assert chosen.offsets.tolist() == [0, 3, 5, 5, 8]
    assert chosen.lengths is None
    parts.values[:] = 0
    assert chosen.values[0, 0] == 6
    none = parts.select([])
    assert (none.offsets.tolist(), tuple(none.values.shape)) == ([0], (2, 0))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": "torch_save"}, "pickled and not read; move the tensor to the CPU"),
        ({"format": None}, "pickled"),
        ({"part_bytes": [344, 336]}, "no valid parts"),
        ({"part_bytes": [344, 336, 329]}, "no valid parts"),
        ({"part_bytes": [344, 336, 327]}, "no valid parts"),
        ({"part_bytes": [1008, 0, 0]}, "no valid parts"),
        ({"part_bytes": [344, 336, True]}, "no valid parts"),
        ({"part_bytes": "x"}, "no valid parts"),
        ({"has_lengths": False}, "no valid parts"),
        ({"part_bytes": [336, 344, 328]}, "structured nested tensor x"),
        ({"ragged_idx": 0}, "no ragged dimension"),
        ({"ragged_idx": 3}, "no ragged dimension"),
        ({"ragged_idx": "1"}, "no ragged dimension"),
        ({"ragged_idx": 1}, "rows outside of its values"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(changes: Any, says: str) -> None:
    with pytest.raises(StructuredFormatError, match=says):
        parse(**changes)


@pytest.mark.parametrize(
    ("part", "place", "number"),
    [(1, 0, -1), (1, 3, 11), (1, 2, 8), (1, 2, 1 << 62), (2, 0, -1), (2, 2, 5), (2, 1, 1 << 62)],
)
def test_rows_outside_of_the_values_are_refused(part: int, place: int, number: int) -> None:
    data = bytearray(MOONCAKES)
    at = sum([344, 336, 328][:part]) + 304 + 8 * place
    data[at : at + 8] = number.to_bytes(8, "little", signed=True)
    with pytest.raises(StructuredFormatError, match="rows outside of its values"):
        JaggedParts.parse(memoryview(data), MOONCAKES_SPEC, "x")


def nested(*rows: Any, **options: Any) -> Any:
    return torch.nested.nested_tensor(list(rows), layout=torch.jagged, **options)


@needs_jagged
def test_a_jagged_tensor_of_mooncake_is_read() -> None:
    assert rows_of(parse().tensor()) == MOONCAKES_ROWS
    assert rows_of(parse().select([2, 0]).tensor()) == [MOONCAKES_ROWS[2], MOONCAKES_ROWS[0]]
    assert rows_of(parse().select([]).tensor()) == []


@needs_jagged
def test_a_jagged_tensor_is_stored_as_mooncake_stores_it(
    transfer: MooncakeBundleTransfer, store: MooncakeDistributedStore
) -> None:
    tensor = parse().tensor()
    ref = transfer.put({"x": tensor}, chunk_bytes=1 << 20)
    view = transfer.dataproto_manifest_view(ref)
    assert view["batch_fields"]["x"]["spec"] == MOONCAKES_SPEC
    (chunk,) = ref.stage_refs["default"].manifest["buffers"]["batch.x"]["chunks"]
    assert store.get(chunk["key"]) == MOONCAKES


@needs_jagged
@pytest.mark.parametrize("type", ["dataproto", "dict"])
def test_jagged_tensors_go_there_and_back(transfer: MooncakeBundleTransfer, type: Any) -> None:
    fields = {
        "ids": nested(torch.arange(300), torch.arange(0), torch.arange(5)),
        "scores": nested(torch.ones(2, 4), torch.zeros(1, 4), torch.ones(3, 4)).bfloat16(),
        "learnt": nested(torch.ones(2), torch.ones(1), torch.ones(3), requires_grad=True),
        "gaps": parse().tensor(),
        "plain": torch.arange(3),
    }
    ref = transfer.put(fields if type == "dict" else {"batch": fields}, type=type)
    whole = transfer.get(export_ref(ref), type=type)
    whole = whole if type == "dict" else whole["batch"]
    for name, tensor in fields.items():
        assert whole[name].dtype == tensor.dtype
        assert rows_of(whole[name]) == rows_of(tensor)
        for rows in ([2, 0], [1], [], slice(0, 3, 2), slice(1, None)):
            part = transfer.get(ref, fields=[name], rows=rows)["batch"][name]
            every = rows_of(tensor)
            chosen = [every[row] for row in rows] if isinstance(rows, list) else every[rows]
            assert rows_of(part) == chosen
            assert part.is_nested == tensor.is_nested
    more = transfer.append_dataproto_fields(ref, {"late": fields["ids"]}, stage="late")
    assert rows_of(transfer.get(more, fields=["late"])["batch"]["late"]) == rows_of(fields["ids"])


@needs_jagged
def test_a_jagged_member_is_read_in_part_and_into_no_memory(
    transfer: MooncakeBundleTransfer,
) -> None:
    ref = transfer.put_object({"x": parse().tensor()})
    assert rows_of(transfer.get_object(ref)["x"]) == MOONCAKES_ROWS
    spec = transfer.read_spec(ref).slice_member("x", axis=0, start=-2, end=3)
    assert rows_of(transfer.materialize(spec).objects["x"]) == MOONCAKES_ROWS[1:]
    with pytest.raises(ValueError, match="nested tensor member x does not support destinations"):
        transfer.materialize_into(transfer.read_spec(ref), {"x": np.empty(3)})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_that_are_not_jagged_are_refused(transfer: MooncakeBundleTransfer) -> None:
    if not hasattr(torch, "nested"):
        pytest.skip("torch has no nested tensors")
    make = torch.nested.nested_tensor
    with pytest.raises(ValueError, match=r"batch\.x: .* require torch.jagged layout"):
        transfer.put_object({"batch.x": make([torch.ones(2), torch.ones(3)])})


# ---- dicts of tensors


def schema(**metadata: Any) -> dict[str, FieldSchema]:
    return {"x": FieldSchema("ragged_tensor_dict", metadata=metadata)}


def put(transfer: MooncakeBundleTransfer, *rows: Any, **metadata: Any) -> Any:
    data = {"non_tensor_batch": {"x": objects(*rows)}}
    return transfer.put(data, field_schemas=schema(**metadata))


def plain(rows: Any) -> list[Any]:
    return [
        row and {key: (str(value.dtype), value.tolist()) for key, value in row.items()}
        for row in rows
    ]


ROWS = [
    {"image": torch.arange(6).reshape(2, 3), "mask": torch.tensor([True])},
    None,
    {"mask": torch.tensor([[False], [True]])},
    {},
    {"image": torch.tensor(5), "mask": torch.zeros(0, dtype=torch.bool)},
]


def test_dicts_of_tensors_go_there_and_back(transfer: MooncakeBundleTransfer) -> None:
    ref = put(transfer, *ROWS)
    column = ref.encoded_non_tensor["x"]
    assert column["codec"] == "ragged_tensor_dict"
    assert column["metadata"]["keys"] == ["image", "mask"]
    parts = {"data", "offsets", "shapes", "ndims", "nulls"}
    assert set(column["payload_members"]) == {"null_mask"} | {
        f"{key}.{part}" for key in ("image", "mask") for part in parts
    }
    handle = json.loads(json.dumps(export_ref(ref)))
    assert plain(transfer.get(handle)["non_tensor_batch"]["x"]) == plain(ROWS)
    for rows in ([4, 1, 0], [3], [], slice(0, 5, 2)):
        found = transfer.get(handle, rows=rows)["non_tensor_batch"]["x"]
        chosen = [ROWS[row] for row in rows] if isinstance(rows, list) else ROWS[rows]
        assert plain(found) == plain(chosen)


def test_dicts_of_tensors_in_a_flat_dict(transfer: MooncakeBundleTransfer) -> None:
    ref = transfer.put(
        {"x": ROWS, "n": np.arange(5)},
        type="dict",
        field_schemas=schema(section="non_tensor_batch", keys=["mask", "image", "unused"]),
    )
    assert ref.encoded_non_tensor["x"]["metadata"]["keys"] == ["mask", "image", "unused"]
    found = transfer.get(ref, type="dict")["x"]
    assert isinstance(found, list)
    assert plain(found) == plain(ROWS)


def test_arrays_in_dicts_of_tensors_become_tensors(transfer: MooncakeBundleTransfer) -> None:
    fixed = np.arange(2)
    fixed.flags.writeable = False
    found = transfer.get(put(transfer, {"a": fixed}, {"a": torch.ones(1, dtype=torch.int64)}))
    assert plain(found["non_tensor_batch"]["x"]) == [
        {"a": ("torch.int64", [0, 1])},
        {"a": ("torch.int64", [1])},
    ]


@pytest.mark.parametrize(
    ("row", "metadata", "says"),
    [
        ([1], {}, "must be mappings or None; row 1 is list"),
        ({"a": None}, {}, r"explicit None tensor values; row 1 has explicit None for \['a'\]"),
        ({"b": torch.ones(1)}, {"keys": ["a"]}, r"row 1 has keys not declared: \['b'\]"),
        ({"a.b": torch.ones(1)}, {}, "must not contain"),
        ({"a/b": torch.ones(1)}, {}, "must not contain"),
        ({"": torch.ones(1)}, {}, "must not be empty"),
        ({1: torch.ones(1)}, {}, "must be strings"),
        ({"a": 5}, {}, "key 'a': .* rows that are torch tensors"),
        ({"a": torch.ones(1).bfloat16()}, {}, "key 'a'"),
        ({"a": torch.arange(1)}, {}, "key 'a': mixed tensor dtype"),
        ({}, {"keys": ["a", "a"]}, "a key twice"),
    ],
)
def test_rows_that_are_no_dicts_of_tensors_are_refused(
    transfer: MooncakeBundleTransfer, row: Any, metadata: Any, says: str
) -> None:
    with pytest.raises(ValueError, match=f"field 'non_tensor_batch.x'.*{says}"):
        put(transfer, {"a": torch.ones(1)}, row, **metadata)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"keys": None}, "does not describe its keys"),
        ({"key_codecs": None}, "does not describe its keys"),
        ({"key_codecs": {}}, "does not describe its key 'image'"),
        ({"keys": ["image", "image"]}, "a key twice"),
        ({"keys": [5]}, "must be strings"),
        ({"keys": ["other"], "key_codecs": {"other": {}}}, "has no payload 'other"),
    ],
)
def test_descriptions_that_are_none_are_refused(
    transfer: MooncakeBundleTransfer, change: Any, says: str
) -> None:
    handle = export_ref(put(transfer, *ROWS))
    handle["encoded_non_tensor"]["x"]["metadata"] |= change
    with pytest.raises(StructuredFormatError, match=says):
        transfer.get(handle)
