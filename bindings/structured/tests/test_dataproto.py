"""`mooncake.structured_object_store`: batches of fields, their references, rows and columns."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from _cluster import Cluster, run_python
from _structured import (
    OTHER_PROCESS,
    MemoryStore,
    edit_json,
    keys_of,
    left,
    objects,
    plain,
)
from mc_store.mooncake.store import MooncakeDistributedStore, ReplicateConfig
from mc_store.mooncake.structured_object_store import (
    MISSING,
    FieldSchema,
    MooncakeBundleTransfer,
    StructuredFormatError,
    StructuredMemberSlice,
    StructuredTransferError,
    export_ref,
    import_ref,
    infer_structure,
    is_dataproto_ref_handle,
)

#: A column of every kind, with three rows.
COLUMNS: dict[str, Any] = {
    "int": objects(1, 2, None),
    "float": objects(1.5, 2, None),
    "bool": objects(True, False, None),
    "text": objects("a", "", None),
    "bytes": objects(b"a", b"", None),
    "arrays": objects(np.arange(2), np.zeros((2, 2), int), None),
    "masks": objects(np.array([True]), np.array([False, True]), None),
    "lists": objects([1, 2], [], None),
    "json": objects({"a": 1, "b": [1, "x", None]}, {}, None),
    "texts": objects(["a"], ["b", "c"], None),
    "blobs": objects([b"x", b""], [], None),
    "tree": objects({"x": np.arange(2), "y": {"z": [1, "k"]}}, {"y": {"q": b"1"}}, None),
    "trees": objects([{"a": np.arange(1)}], [{"a": np.arange(2)}, None], []),
    "odd": objects({"a.b[0]\\": np.arange(2)}, {"c": b"x"}, {}),
    "fixed": np.array(["x", "yy", "z"]),
    "days": np.array([1, 2, 3], "M8[D]"),
}
BATCH: dict[str, Any] = {
    "ids": np.arange(300_000, dtype=np.int32).reshape(3, -1),
    "scores": np.linspace(0, 1, 3),
    "swapped": np.arange(6, dtype=">i2").reshape(3, 2),
}


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A key prefix that no other test has, and no regular expression."""
    return "dataproto/" + "".join(c if c.isalnum() else "-" for c in request.node.nodeid)


@pytest.fixture
def transfer(store: MooncakeDistributedStore, prefix: str) -> Iterator[MooncakeBundleTransfer]:
    yield MooncakeBundleTransfer(store, prefix, default_chunk_bytes=1 << 16)
    left(store, prefix)


def everything() -> dict[str, Any]:
    return {"batch": BATCH, "non_tensor_batch": COLUMNS, "meta_info": {"step": 3, "of": [1, "x"]}}


class Data:
    """As `DataProto` of a training framework."""

    def __init__(
        self, batch: Any = None, non_tensor_batch: Any = None, meta_info: Any = None
    ) -> None:
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensor_batch, meta_info


# ---- round trips


def test_batch_in_another_process(
    cluster: Cluster, store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, prefix: str
) -> None:
    ref = transfer.put(everything(), stage="rollout", partition="step-1")
    done = run_python(
        OTHER_PROCESS
        + """
handle = json.loads(sys.argv[3])
part = transfer.get(handle, fields=["ids", "text", "arrays"], rows=[2, 0])
assert part["batch"]["ids"][:, 0].tolist() == [200_000, 0], part
assert part["non_tensor_batch"]["text"].tolist() == [None, "a"]
assert part["non_tensor_batch"]["arrays"][1].tolist() == [0, 1]
whole = transfer.get(handle, type="dict")
more = {"batch": {"reward": whole["ids"].sum(axis=1)}, "meta_info": {"step": 4}}
print(json.dumps(export_ref(transfer.append_dataproto_fields(handle, more, stage="reward"))))
""",
        cluster.address,
        prefix,
        json.dumps(export_ref(ref)),
    )
    handle = json.loads(done.stdout)
    found = transfer.get(handle)
    expected = everything()
    expected["batch"] = {**BATCH, "reward": BATCH["ids"].sum(axis=1)}
    expected["meta_info"]["step"] = 4
    assert plain(found) == plain(expected)
    assert handle["partition"] == "step-1"
    transfer.cleanup_dataproto(handle)
    transfer.cleanup_dataproto(handle)
    assert left(store, prefix) == 0
    with pytest.raises(StructuredTransferError, match="no such bundle"):
        transfer.get(handle)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("rows", [None, slice(1, None), [2, 0, 0], [-3], []])
def test_columns(transfer: MooncakeBundleTransfer, name: str, rows: Any) -> None:
    values = COLUMNS[name]
    ref = transfer.put({"batch": {}, "non_tensor_batch": {name: values}}, chunk_bytes=10)
    found = transfer.get(export_ref(ref), rows=rows)["non_tensor_batch"][name]
    expected = values if rows is None else values[rows if rows != [] else slice(0)]
    assert plain(found) == plain(expected)


def test_columns_of_tensors(transfer: MooncakeBundleTransfer) -> None:
    torch = pytest.importorskip("torch")
    rows = objects(torch.arange(2), torch.zeros(2, 3, dtype=torch.int64), None)
    ref = transfer.put({"tokens": torch.arange(6).reshape(3, 2), "rows": list(rows)}, type="dict")
    found = transfer.get(export_ref(ref), type="dict")
    assert torch.equal(found["tokens"], torch.arange(6).reshape(3, 2))
    assert found["rows"][2] is None
    assert all(torch.equal(found["rows"][n], rows[n]) for n in range(2))
    part = transfer.get(ref, rows=slice(1, 2))
    assert part["batch"]["tokens"].tolist() == [[2, 3]]
    assert torch.equal(part["non_tensor_batch"]["rows"][0], rows[1])
    mixed = objects(torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="mixed tensor dtype"):
        transfer.put({"batch": {}, "non_tensor_batch": {"x": mixed}})


def test_type_that_torch_does_not_have(transfer: MooncakeBundleTransfer) -> None:
    torch = pytest.importorskip("torch")
    if hasattr(torch, "uint32"):
        pytest.skip("this torch has every type")
    rows = objects(np.arange(2, dtype=np.uint32))
    handle = export_ref(transfer.put({"non_tensor_batch": {"f": rows}}))
    handle["encoded_non_tensor"]["f"]["codec"] = "ragged_tensor"
    with pytest.raises(StructuredFormatError, match="ragged_tensor column: can't convert"):
        transfer.get(handle)


def test_columns_of_images(transfer: MooncakeBundleTransfer) -> None:
    image = pytest.importorskip("PIL.Image")
    one = image.frombytes("RGB", (2, 2), bytes(range(12)))
    bits = image.frombytes("1", (3, 2), b"\xa0\x40")
    columns = {"image": objects(one, bits, None), "list": objects([one, b"x"], [bits], None)}
    ref = transfer.put({"batch": {}, "non_tensor_batch": columns})
    found = transfer.get(export_ref(ref), rows=[1, 0])["non_tensor_batch"]
    assert [row.tobytes() for row in found["image"]] == [bits.tobytes(), one.tobytes()]
    assert found["list"][1][0].size == (2, 2)
    assert found["list"][1][1] == b"x"
    palette = objects(image.new("P", (1, 1)))
    with pytest.raises(ValueError, match="mode P"):
        transfer.put({"batch": {}, "non_tensor_batch": {"x": palette}})


def test_without_msgpack_columns_are_json(
    transfer: MooncakeBundleTransfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mc_store_structured._objects import inference

    monkeypatch.setattr(inference, "has_msgpack", lambda: False)
    ref = transfer.put({"batch": {}, "non_tensor_batch": {"json": COLUMNS["json"]}})
    assert ref.encoded_non_tensor["json"]["codec"] == "json_ragged"
    assert plain(transfer.get(ref)["non_tensor_batch"]["json"]) == plain(COLUMNS["json"])


def test_objects_with_sections(transfer: MooncakeBundleTransfer) -> None:
    ref = transfer.put(Data({"a": np.arange(2)}, {"s": objects("x", "y")}, {"k": 1}))
    found = transfer.get(ref, data_cls=Data)
    assert isinstance(found, Data)
    assert found.batch["a"].tolist() == [0, 1]
    assert found.meta_info == {"k": 1}

    class Built(Data):
        @classmethod
        def from_dict(cls, batch: Any, columns: Any, meta_info: Any) -> Built:
            return cls(batch, columns, {**meta_info, "built": True})

    assert transfer.get(ref, data_cls=Built).meta_info == {"k": 1, "built": True}
    assert transfer.put(Data()).batch_size == 0
    assert transfer.get(transfer.put({}))["batch"] == {}
    with pytest.raises(TypeError, match="int is no batch"):
        transfer.put(5)


def test_flat_dicts(transfer: MooncakeBundleTransfer) -> None:
    data = {
        "tokens": [[1, 2], [3]],
        "rewards": [1.0, 0.5],
        "mask": np.ones((2, 3), np.int8),
        "text": ("a", "b"),
        "boxed": objects(1, None),
        "step": 7,
        "names": ["one", "two", "three"],
        "nothing": None,
        "none": [],
    }
    ref = transfer.put(data, type="dict")
    sections = {name: location.section for name, location in ref.field_index.items()}
    assert sections == {
        "mask": "batch",
        **dict.fromkeys(("tokens", "rewards", "text", "boxed"), "non_tensor_batch"),
    }
    found = transfer.get(json.loads(json.dumps(export_ref(ref))), type="dict")
    assert found.pop("mask").tolist() == [[1, 1, 1], [1, 1, 1]]
    expected = {**data, "text": ["a", "b"], "boxed": [1, None]}
    del expected["mask"]
    assert found == expected
    assert transfer.get(transfer.put({"a": 1}, type="dict"), type="dict") == {"a": 1}
    assert transfer.get_legacy_dict(transfer.put_legacy_dict({"a": [1]})) == {"a": [1]}


def test_flat_dicts_of_uncertain_size(transfer: MooncakeBundleTransfer) -> None:
    data = {"tokens": [[1, 2], [3]], "names": [1, 2, 3]}
    with pytest.raises(ValueError, match=r"ambiguous batch sizes: \[2, 3\]"):
        transfer.put(data, type="dict")
    schemas = {"names": FieldSchema("auto", metadata={"section": "meta_info"})}
    ref = transfer.put(data, type="dict", field_schemas=schemas)
    assert transfer.get(ref, type="dict") == data
    wrong = {"names": FieldSchema("auto", metadata={"section": "other"})}
    with pytest.raises(ValueError, match="must be one of"):
        transfer.put(data, type="dict", field_schemas=wrong)
    with pytest.raises(ValueError, match="unsupported Mooncake payload type: 'list'"):
        transfer.put(data, type="list")  # type: ignore[arg-type]


def test_schemas(transfer: MooncakeBundleTransfer) -> None:
    section = {"section": "non_tensor_batch"}
    schemas = {
        "tokens": FieldSchema("typed_ragged", False, {**section, "dtype": "int16"}),
        "rewards": FieldSchema("ndarray", False, {**section, "dtype": "float32"}),
        "json": FieldSchema("json_ragged", metadata=section),
    }
    data = {"tokens": [[1, 2], [3]], "rewards": [1.0, 0.5], "json": [1, None]}
    ref = transfer.put(data, type="dict", field_schemas=schemas)
    columns = ref.encoded_non_tensor
    assert columns["tokens"]["metadata"]["dtype"] == "int16"
    assert columns["rewards"]["metadata"]["dtype"] == "float32"
    assert columns["json"]["codec"] == "json_ragged"
    assert transfer.get(ref, type="dict") == data
    for name, wrong, says in (
        ("rewards", [1.0, None], "not nullable"),
        ("tokens", [{"a": 1}, {}], "failed to encode"),
        ("json", [b"x", 1], "json_ragged"),
    ):
        with pytest.raises(ValueError, match=says):
            transfer.put({**data, name: wrong}, type="dict", field_schemas=schemas)
    exact = {"tokens": FieldSchema("typed_ragged", metadata={"dtype": "uint64"})}
    large = {"tokens": [[np.uint64((1 << 63) + 1), 5], [7]]}
    assert transfer.get(transfer.put(large, type="dict", field_schemas=exact), type="dict") == large
    with pytest.raises(ValueError, match=r"unsupported schema codec: 'pickle'.*utf8_ragged"):
        transfer.put(data, type="dict", field_schemas={"json": FieldSchema("pickle")})


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (objects(None, None), "all rows are null"),
        (objects({1}, {2}), "no codec matched"),
        (objects(object(), 1), "no codec matched"),
        (objects({"a": np.arange(1), "b": object()}), "no codec matched"),
        (objects({1: np.arange(1)}), "no strings"),
        (objects(1 << 70, 1), "64 bits|no encoding"),
        (objects({"a": 1 << 70}), "out of range"),
        (objects(1 << 63, -1), "64 bits"),
        (objects(np.uint64(1), np.int64(-1)), "64 bits"),
        (objects([1 << 63, -1]), "64 bits"),
        (objects([1 << 63], [-1]), "64 bits"),
        (objects(np.arange(2, dtype="u8"), np.arange(2)), "64 bits"),
        (objects({"a": [1 << 63, -1], "b": b""}), "64 bits"),
        (objects(np.arange(2).view(np.ma.MaskedArray)), "masked"),
        (objects(np.array(["a"]), np.array(["b"])), "object ndarray rows"),
    ],
)
def test_columns_that_have_no_encoding(
    store: MooncakeDistributedStore,
    transfer: MooncakeBundleTransfer,
    prefix: str,
    column: Any,
    says: str,
) -> None:
    with pytest.raises(ValueError, match=says):
        transfer.put({"batch": {}, "non_tensor_batch": {"f": column}})
    deep: Any = np.arange(1)
    for _ in range(40):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="more than 32"):
        transfer.put({"batch": {}, "non_tensor_batch": {"f": objects(deep)}})
    assert left(store, prefix) == 0


def test_structure_of_columns() -> None:
    leaves: list[Any] = []
    nodes: list[Any] = []
    infer_structure("f", [{"a": np.arange(2)}, {"b": [b"x"]}], leaves, nodes)
    assert [leaf.path for leaf in leaves] == ["f.a", "f.b"]
    assert leaves[0].values[1] is MISSING
    assert [(node.path, node.children) for node in nodes] == [("f", ["a", "b"])]


# ---- fields and rows


@pytest.mark.parametrize(
    "rows",
    [
        *(slice(1, 3), slice(None, None, 2), slice(5, 9)),
        *(StructuredMemberSlice(0, -2, 3), (2, 2, -3), np.array([2, 0, -1]), np.zeros(0, "u1")),
    ],
)
def test_rows(transfer: MooncakeBundleTransfer, rows: Any) -> None:
    ref = transfer.put(everything())
    found = transfer.get(ref, fields=["ids", "text"], rows=rows)
    wanted = list(rows) if isinstance(rows, tuple) else rows
    if isinstance(rows, StructuredMemberSlice):
        wanted = slice(rows.start, rows.end, rows.step)
    assert (found["batch"]["ids"] == BATCH["ids"][wanted]).all()
    assert found["non_tensor_batch"]["text"].tolist() == COLUMNS["text"][wanted].tolist()


@pytest.mark.parametrize(
    ("rows", "problem", "says"),
    [
        ([3], IndexError, "row index 3 out of range for 3 rows"),
        ([-4], IndexError, "out of range"),
        ([1.5], TypeError, "must be integers"),
        ([True, False, True], TypeError, "a mask is no list of rows"),
        (np.array([True, False, True]), TypeError, "must be integers in one dimension, not bool"),
        (np.zeros((1, 1), int), TypeError, r"one dimension, not int64 of shape \(1, 1\)"),
        (np.array([3]), IndexError, "row index 3 out of range for 3 rows"),
        (3, TypeError, "must be a slice"),
        ("12", TypeError, "must be a slice"),
        (slice(2, 0, -1), ValueError, "step must be positive"),
        (StructuredMemberSlice(1, 0, 1), ValueError, "axis=0"),
    ],
)
def test_rows_that_there_are_not(
    transfer: MooncakeBundleTransfer, rows: Any, problem: type[Exception], says: str
) -> None:
    with pytest.raises(problem, match=says):
        transfer.get(transfer.put(everything()), rows=rows)


def test_rows_read_only_their_bytes(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer
) -> None:
    ref = transfer.put(everything())
    chunks = ref.stage_refs["default"].manifest["buffers"]["batch.ids"]["chunks"]
    assert store.remove(chunks[-1]["key"], True) == 0  # Of the last row only.
    assert transfer.get(ref, fields=["ids"], rows=[1, 0])["batch"]["ids"][0, 0] == 100_000
    with pytest.raises(StructuredTransferError, match=r"batch\.ids"):
        transfer.get(ref, fields=["ids"], rows=[2])


def test_fields(transfer: MooncakeBundleTransfer) -> None:
    ref = transfer.put(everything())
    found = transfer.get(ref, batch_fields=["scores"], non_tensor_fields=["int"])
    assert (list(found["batch"]), list(found["non_tensor_batch"])) == (["scores"], ["int"])
    assert found["meta_info"] == {"step": 3, "of": [1, "x"]}
    assert transfer.get(ref, fields=[], meta_info_keys=["step", "x"])["meta_info"] == {"step": 3}
    target = np.empty_like(BATCH["ids"])
    found = transfer.get(ref, fields=["ids"], destinations={"ids": target, "other": None})
    assert found["batch"]["ids"] is target
    assert (target == BATCH["ids"]).all()
    part = np.empty((2, 2), ">i2")
    transfer.get(ref, fields=["swapped"], rows=[2, 1], destinations={"swapped": part})
    assert part.tolist() == [[4, 5], [2, 3]]
    for name, says in (("int", "a column is"), ("other", "nothing of"), ("scores", "nothing of")):
        with pytest.raises(ValueError, match=f"destination '{name}': {says}"):
            transfer.get(ref, fields=["ids", "int"], destinations={name: target})
    with pytest.raises(KeyError, match="unknown DataProto fields: \\['other'\\]"):
        transfer.get(ref, fields=["other"])
    with pytest.raises(ValueError, match="cannot be combined"):
        transfer.get(ref, fields=["ids"], batch_fields=["ids"])


@pytest.mark.parametrize(
    ("data", "problem", "says"),
    [
        ({"batch": {"a": np.arange(2), "b": np.arange(3)}}, ValueError, r"batch sizes: \[2, 3\]"),
        ({"batch": {"a": np.arange(1)}, "non_tensor_batch": {"a": [1]}}, ValueError, "overlap"),
        ({"batch": {"a": np.array(5)}}, TypeError, "has no rows"),
        ({"batch": {"": np.arange(2)}}, ValueError, "non-empty text"),
        ({"batch": {"a/b": np.arange(2)}}, ValueError, "invalid bundle buffer name"),
        ({"batch": {"a": [1, 2]}}, TypeError, "batch.a"),
        ({"batch": {"a": np.zeros(1, [("x", "<i4")])}}, TypeError, "cannot be stored as bytes"),
        (Data(batch=np.arange(2)), TypeError, "batch must be a dict of names"),
        ({"meta_info": [1]}, TypeError, r"batch\.meta_info"),
    ],
)
def test_batches_that_are_none(
    transfer: MooncakeBundleTransfer, data: Any, problem: type[Exception], says: str
) -> None:
    with pytest.raises(problem, match=says):
        transfer.put(data)


# ---- stages


def test_append_in_one_stage(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, prefix: str
) -> None:
    first = transfer.put(everything(), stage="s")
    new = {
        "batch": {"more": BATCH["ids"] * 2},
        "non_tensor_batch": {"new": objects("a", None, "c")},
    }
    second = transfer.append_dataproto_fields(first, new, stage="s")
    third = transfer.append_dataproto_fields(
        export_ref(second), {"batch": {"last": np.arange(3)}}, stage="s"
    )
    assert transfer.get(first, fields=["ids"])["batch"]["ids"][2, 1] == 200_001
    for ref in (second, export_ref(third)):
        found = transfer.get(ref, fields=["more", "new", "tree"])
        assert found["batch"]["more"][2, 1] == 400_002
        assert found["non_tensor_batch"]["new"].tolist() == ["a", None, "c"]
        assert plain(found["non_tensor_batch"]["tree"]) == plain(COLUMNS["tree"])
    # Only what the last append added goes.
    transfer.cleanup_dataproto_append(second, third)
    assert transfer.get(second, fields=["new"])["non_tensor_batch"]["new"][0] == "a"
    with pytest.raises(StructuredTransferError):
        transfer.get(export_ref(third))
    transfer.cleanup_dataproto_append(first, second)
    assert plain(transfer.get(first)) == plain(everything())
    third = transfer.append_dataproto_fields(first, {"batch": {"x": np.arange(3)}}, stage="s")
    transfer.cleanup_dataproto(export_ref(third))
    assert left(store, prefix) == 0


def test_an_overwrite_replaces_all_fields_of_its_stage(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, prefix: str
) -> None:
    ref = transfer.put({"a": np.arange(2), "b": np.arange(2)}, stage="s")
    for data in ({"b": np.arange(2) * 5}, {"c": np.arange(2)}):
        says = r"overwrite for stage 's' must include existing fields: \['a'"
        with pytest.raises(ValueError, match=says):
            transfer.append_dataproto_fields(ref, data, stage="s", overwrite=True)
    assert transfer.get(ref, type="dict")["b"].tolist() == [0, 1]
    every = {"a": np.arange(2) * 2, "b": np.arange(2) * 5, "c": np.arange(2)}
    new = transfer.append_dataproto_fields(ref, every, stage="s", overwrite=True)
    assert plain(transfer.get(new, type="dict")) == plain(every)
    transfer.cleanup_dataproto(new)
    assert left(store, prefix) == 0


def test_append_of_a_stage_anew(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, prefix: str
) -> None:
    ref = transfer.put({"a": np.arange(2)}, stage="first")
    ref = transfer.append_dataproto_fields(ref, {"b": np.arange(2)}, stage="second")
    before = ref.stage_refs["second"]
    new = transfer.append_dataproto_fields(
        ref, {"b": np.arange(2) * 5}, stage="second", overwrite=True
    )
    assert store.is_exist(before.manifest_key) == 0
    assert transfer.get(new)["batch"]["b"].tolist() == [0, 5]
    moved = transfer.append_dataproto_fields(
        new, {"a": np.arange(2) * 7, "b": np.arange(2)}, stage="third", overwrite=True
    )
    assert transfer.get(moved)["batch"]["a"].tolist() == [0, 7]
    transfer.cleanup_dataproto(moved)
    assert left(store, prefix) == 0


def test_names_of_parts_of_columns(transfer: MooncakeBundleTransfer) -> None:
    column, plain_array = {"a": objects("x", "y")}, {"a.data": np.arange(2)}
    for fields in (column | plain_array, plain_array | column):
        second = list(fields)[1]
        with pytest.raises(ValueError, match=f"field '{second}': .* rename one"):
            transfer.put({"non_tensor_batch": fields})
    both = {"a": objects("x", "y"), "a.leaf": objects({"b": b"x"}, {"b": b"y"})}
    assert plain(transfer.get(transfer.put({"non_tensor_batch": both}))["non_tensor_batch"]) == (
        plain(both)
    )
    for first, later in ((column, plain_array), (plain_array, column)):
        ref = transfer.put({"non_tensor_batch": first})
        (name,) = later
        with pytest.raises(ValueError, match=f"field '{name}': .* rename one"):
            transfer.append_dataproto_fields(ref, {"non_tensor_batch": later}, stage="default")
        appended = transfer.append_dataproto_fields(ref, {"non_tensor_batch": later}, stage="s")
        assert plain(transfer.get(appended)["non_tensor_batch"]) == plain(first | later)


def test_appends_that_are_refused(transfer: MooncakeBundleTransfer) -> None:
    ref = transfer.put(everything())
    with pytest.raises(ValueError, match="append batch size 2 does not match ref batch size 3"):
        transfer.append_dataproto_fields(ref, {"x": np.arange(2)}, stage="x")
    with pytest.raises(ValueError, match=r"fields already exist: \['ids'\]"):
        transfer.append_dataproto_fields(ref, {"ids": np.arange(3)}, stage="x")
    only_meta = transfer.append_dataproto_fields(ref, {"meta_info": {"step": 9}}, stage="x")
    assert only_meta.meta_info["step"] == 9
    assert ref.meta_info["step"] == 3


@pytest.mark.parametrize("refused", range(7))
def test_failed_append_leaves_nothing(refused: int) -> None:
    store = MemoryStore()
    transfer = MooncakeBundleTransfer(store)
    ref = transfer.put({"a": np.arange(2), "keep": np.arange(2)})
    before = set(store.values)
    store.refused = refused
    more = {"batch": {"b": np.arange(2)}, "non_tensor_batch": {"text": objects("a", "b")}}
    if refused == 6:  # meta, b, data, offsets, nulls, manifest
        assert transfer.append_dataproto_fields(ref, more, stage="default").batch_size == 2
        return
    with pytest.raises(StructuredTransferError, match="put failed"):
        transfer.append_dataproto_fields(ref, more, stage="default")
    assert set(store.values) == before


def test_two_writers_append_to_one_batch(transfer: MooncakeBundleTransfer) -> None:
    base = transfer.put({"a": np.arange(2)}, stage="s")
    one = transfer.append_dataproto_fields(base, {"b": np.arange(2)}, stage="s")
    two = transfer.append_dataproto_fields(base, {"b": np.arange(2) * 2}, stage="s")
    assert transfer.get(one)["batch"]["b"].tolist() == [0, 1]
    assert transfer.get(two)["batch"]["b"].tolist() == [0, 2]


def test_manifest_view(transfer: MooncakeBundleTransfer) -> None:
    view = transfer.dataproto_manifest_view(export_ref(transfer.put(everything(), stage="s")))
    assert view["batch_size"] == 3
    assert view["batch_fields"]["ids"]["spec"] == {
        "encoding": "ndarray",
        "dtype": "<i4",
        "shape": [3, 100_000],
    }
    text = view["non_tensor_fields"]["text"]
    assert (text["stage"], text["spec"]["codec"]) == ("s", "utf8_ragged")
    assert text["spec"]["payload_specs"]["nulls"]["shape"] == [3]
    json.dumps(view)


def test_the_manifest_view_tells_of_stages_and_meta_info(transfer: MooncakeBundleTransfer) -> None:
    ref = transfer.put(everything(), namespace="n", partition="p", stage="s")
    ref = transfer.append_dataproto_fields(ref, {"late": np.arange(3)}, stage="t")
    view = transfer.dataproto_manifest_view(ref)
    assert view["meta_info_keys"] == ["step", "of"]
    assert list(view["stages"]) == ["s", "t"]
    for stage, told in view["stages"].items():
        assert told == {
            "manifest_key": ref.stage_refs[stage].manifest_key,
            "dataproto": {
                "version": 1,
                "namespace": "n",
                "partition": "p",
                "stage": stage,
                "batch_size": 3,
            },
        }
    assert transfer.dataproto_manifest_view(transfer.put({"meta_info": {"a": 1}}))["stages"] == {}


class Watched(MemoryStore):
    """A store that keeps the group of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, Any] = {}
        self.configs: list[Any] = []

    def put(self, key: str, value: Any, config: Any = None) -> int:
        self.groups[key] = config and config.group_ids
        self.configs.append(config)
        return super().put(key, value, config)


def test_a_batch_stays_in_the_group_of_its_put(
    store: MooncakeDistributedStore, prefix: str
) -> None:
    watched = Watched()
    transfer = MooncakeBundleTransfer(watched)
    mine = ReplicateConfig(group_ids=["mine"])
    ref = transfer.put_dataproto({"a": np.arange(2)}, config=mine)
    assert export_ref(ref)["storage_group_id"] == "mine"
    for config in (None, ReplicateConfig(replica_num=2), mine):
        for stage in ("default", "other"):
            name = f"{stage}{len(ref.field_index)}"
            handle = json.loads(json.dumps(export_ref(ref)))
            ref = transfer.append_dataproto_fields(
                handle, {name: np.arange(2)}, stage=stage, config=config
            )
    assert import_ref(export_ref(ref))._storage_group_id == "mine"
    ref = import_ref(export_ref(ref))
    assert {tuple(groups or ()) for groups in watched.groups.values()} == {("mine",)}

    before = dict(watched.values)
    with pytest.raises(ValueError, match="conflicts with the DataProto storage group"):
        transfer.append_dataproto_fields(
            ref, {"x": np.arange(2)}, stage="x", config=ReplicateConfig(group_ids=["other"])
        )
    with pytest.raises(ValueError, match="exactly one logical group"):
        transfer.put({"a": np.arange(2)}, config=ReplicateConfig(group_ids=["a", "b"]))
    with pytest.raises(ValueError, match="exactly one logical group"):
        transfer.put_bundle(b"", {"a": b"x"}, config=ReplicateConfig(group_ids=["a", "b"]))
    assert watched.values == before

    # "" is no group, and none is kept.
    none = transfer.put({"a": np.arange(2)}, config=ReplicateConfig(group_ids=[""]))
    assert "storage_group_id" not in export_ref(none)


def test_groups_and_configs(store: MooncakeDistributedStore, prefix: str) -> None:
    watched = Watched()
    seen = watched.configs
    transfer = MooncakeBundleTransfer(watched)
    transfer.put({"a": np.arange(2)})
    assert len({tuple(config.group_ids) for config in seen}) == 1
    seen.clear()
    mine = ReplicateConfig(replica_num=2)
    transfer.put({"a": np.arange(2)}, config=mine)
    assert {config.replica_num for config in seen} == {2}
    assert seen[0].group_ids
    assert mine.group_ids is None
    seen.clear()
    mine.group_ids = ["own"]
    transfer.put({"a": np.arange(2)}, config=mine)
    assert {tuple(config.group_ids) for config in seen} == {("own",)}
    # A real store takes one group for each key of a call.
    real = MooncakeBundleTransfer(store, prefix, default_chunk_bytes=100)
    real.cleanup_dataproto(real.put(everything() | {"batch": {"a": np.arange(3)}}, config=mine))
    assert left(store, prefix) == 0


def test_a_name_in_two_sections_has_no_place_in_a_flat_dict(
    transfer: MooncakeBundleTransfer,
) -> None:
    data = {"batch": {"x": np.arange(2), "y": np.arange(2)}, "meta_info": {"x": 1, "z": 2}}
    ref = transfer.put(data)
    with pytest.raises(ValueError, match=r"Duplicate keys .*: \['x'\]"):
        transfer.get(ref, type="dict")
    assert plain(transfer.get(ref)) == plain({**data, "non_tensor_batch": {}})
    assert set(transfer.get(ref, type="dict", meta_info_keys=["z"])) == {"x", "y", "z"}
    assert transfer.get(ref, type="dict", fields=[]) == {"x": 1, "z": 2}


def test_fields_may_have_the_names_of_sections(transfer: MooncakeBundleTransfer) -> None:
    data = {"batch": np.arange(2), "meta_info": np.arange(2) * 2}
    found = transfer.get(transfer.put(data))
    assert plain(found) == plain({"batch": data, "non_tensor_batch": {}, "meta_info": {}})
    # Only dicts make it the batch's own sections.
    sections = transfer.get(transfer.put({"batch": data, "meta_info": None}))
    assert plain(sections) == plain(found)


# ---- references


def test_handles(transfer: MooncakeBundleTransfer) -> None:
    ref = transfer.put(everything() | {"meta_info": {"n": np.float32(2), "a": np.arange(2)}})
    handle = export_ref(ref)
    assert is_dataproto_ref_handle(handle)
    assert not is_dataproto_ref_handle(ref)
    assert handle["meta_info"] == {"n": 2.0, "a": [0, 1]}
    assert export_ref(import_ref(json.loads(json.dumps(handle)))) == handle
    with pytest.raises(TypeError, match="JSON-safe values, got bytes"):
        export_ref(transfer.put({"meta_info": {"x": b"y"}}))
    with pytest.raises(TypeError, match="got dict"):
        export_ref(handle)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got str"):
        transfer.get("x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": "other"}, "not a Mooncake DataProto ref handle"),
        ({"version": 3}, "version: 3"),
        ({"version": 2, "storage_group_id": None}, "invalid storage_group_id"),
        ({"storage_group_id": ""}, "invalid storage_group_id"),
        ({"storage_group_id": 5}, "invalid storage_group_id"),
        ({"kind": "other"}, "kind: 'other'"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": "3"}, "batch_size"),
        ({"stage_refs": {}}, "unknown stage 'default'"),
        ({"stage_refs": {"default": "x"}}, "stage_refs must be a mapping"),
        ({"stage_refs": {"default": {}}}, "manifest_key"),
        ({"field_index": []}, "field_index must be a mapping"),
        ({"field_index": {"a": {"stage": "default"}}}, "non-empty strings"),
        ({"meta_info": [1]}, "meta_info"),
        ({"encoded_non_tensor": None}, "encoded_non_tensor"),
        ({"global_indexes": ["a"]}, "global_indexes"),
    ],
)
def test_handles_that_are_none(change: dict[str, Any], says: str) -> None:
    transfer = MooncakeBundleTransfer(MemoryStore())
    handle = {**export_ref(transfer.put({"a": np.arange(2)})), **change}
    with pytest.raises(ValueError, match=says):
        import_ref(handle)
    with pytest.raises((ValueError, TypeError)):
        transfer.get(handle)


def test_foreign_handle(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, prefix: str
) -> None:
    handle = export_ref(transfer.put(everything()))
    other = MooncakeBundleTransfer(store, f"{prefix}-other")
    for call in (other.get, other.cleanup_dataproto, other.dataproto_manifest_view):
        with pytest.raises(ValueError, match="outside the bundle namespace"):
            call(handle)
    assert plain(transfer.get(handle)) == plain(everything())


HOSTILE: list[tuple[str, Any, str]] = [
    ("text", {"codec": "pickle"}, "unsupported schema codec"),
    ("text", {"rows": 4}, "column nulls has shape"),
    ("text", {"rows": -1}, "no valid description"),
    ("text", {"rows": 1 << 40}, "column nulls has shape"),
    ("text", {"payload_members": {}}, "has no payload 'nulls'"),
    ("text", {"payload_members": {"data": 5}}, "no valid description"),
    ("text", {"codec": "ndarray"}, "has encoding 'bytes'"),
    ("text", {"codec": "typed_ragged"}, "has no payload 'ndims'"),
    ("text", {"codec": "media_bytes"}, "does not describe its 3 items"),
    ("text", {"codec": "json_ragged"}, "a row of a json_ragged column"),
    ("arrays", {"codec": "utf8_ragged"}, "data is an array, expected bytes"),
    ("arrays", {"metadata": {"row_format": "x"}}, "rows of format 'x'"),
    ("arrays", {"metadata": {"row_format": "mixed", "ndarray_rows": [True]}}, "which rows"),
    ("tree", {"metadata": {}}, "another version"),
    ("tree", {"metadata": {"structure_version": 1, "root_path": "x"}}, "describe its parts"),
    ("blobs", {"metadata": {}}, "does not describe"),
]


@pytest.mark.parametrize(("name", "change", "says"), HOSTILE)
@pytest.mark.parametrize("rows", [None, [0, 1]])
def test_hostile_columns(
    transfer: MooncakeBundleTransfer, name: str, change: Any, says: str, rows: Any
) -> None:
    handle = export_ref(transfer.put(everything()))
    handle = copy.deepcopy(handle)
    handle["encoded_non_tensor"][name].update(change)
    with pytest.raises(StructuredFormatError, match=says):
        transfer.get(handle, fields=[name], rows=rows)


@pytest.mark.parametrize(
    ("name", "payload", "value"),
    [
        ("text", "offsets", [0, 1 << 62, 1, 1]),
        ("text", "offsets", [0, 1, 0, 1]),
        ("text", "offsets", [-5, 1, 1, 1]),
        ("arrays", "shapes", [[1 << 31, 1 << 33], [2, 2], [0, 0]]),
        ("arrays", "shapes", [[-1, -2], [2, 2], [0, 0]]),
        ("arrays", "ndims", [1, 99, 0]),
        ("arrays", "ndims", [1, -1, 0]),
        ("trees", "node.0.lengths", [1 << 62, 2, 0]),
        ("trees", "node.0.lengths", [-1, 2, 0]),
    ],
)
def test_hostile_numbers(
    store: MooncakeDistributedStore,
    transfer: MooncakeBundleTransfer,
    name: str,
    payload: str,
    value: Any,
) -> None:
    ref = transfer.put(everything())
    member = ref.encoded_non_tensor[name]["payload_members"][payload]
    (chunk,) = ref.stage_refs["default"].manifest["buffers"][member]["chunks"]
    dtype = "<i2" if payload == "ndims" else "<i8"
    wrong = np.array(value, dtype).tobytes()
    assert len(wrong) == chunk["bytes"]
    assert store.upsert(chunk["key"], wrong) == 0
    for rows in (None, [0, 1]):
        with pytest.raises(StructuredFormatError, match="column"):
            transfer.get(ref, fields=[name], rows=rows)


def test_image_that_claims_to_be_huge(transfer: MooncakeBundleTransfer) -> None:
    handle = export_ref(transfer.put(everything()))
    kinds = [{"kind": "pil_raw", "mode": "RGB", "size": [1 << 30, 1 << 30]}] * 2
    handle["encoded_non_tensor"]["blobs"]["metadata"] = {"media_encodings": kinds}
    with pytest.raises(StructuredFormatError, match="1073741824x1073741824 RGB has 1 bytes"):
        transfer.get(handle, fields=["blobs"])


def test_hostile_stage_manifest(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, prefix: str
) -> None:
    victim = transfer.put({"a": np.arange(2)})
    ref = transfer.put(everything())
    handle = export_ref(ref)
    (kept,) = (keys_of(bundle) for bundle in victim.stage_refs.values())
    edit_json(
        store,
        ref.stage_refs["default"].manifest_key,
        lambda manifest: manifest.update(cleanup_keys=kept),
    )
    with pytest.raises(StructuredFormatError, match="outside the bundle namespace"):
        transfer.cleanup_dataproto(handle)
    assert all(store.batch_is_exist(kept)), "keys of another object are not removed"
