"""`mooncake.structured_object_store`: bundles and objects of arrays, tensors and bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from _cluster import Cluster, run_python
from _structured import OTHER_PROCESS, MemoryStore, edit_json, keys_of, left, replace_value
from mc_store.mooncake.buffer_pool import BufferPool
from mc_store.mooncake.store import MooncakeDistributedStore
from mc_store.mooncake.structured_object_store import (
    BundleTransferPolicy,
    MooncakeBundleTransfer,
    RemoteBundleRef,
    StructuredFormatError,
    StructuredObjectPayload,
    StructuredTransferError,
    raw_destination,
    tensor_object_buffer,
)

from mc_store_structured._objects import manifest

CHUNK = 1 << 16
TOKENS = np.arange(1 << 17, dtype=np.int32).reshape(1 << 10, 1 << 7)


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A key prefix that no other test has, and no regular expression."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.nodeid)
    return f"structured/{name}"


@pytest.fixture
def transfer(store: MooncakeDistributedStore, prefix: str) -> Iterator[MooncakeBundleTransfer]:
    yield MooncakeBundleTransfer(store, prefix, default_chunk_bytes=CHUNK)
    left(store, prefix)


def put_some(transfer: MooncakeBundleTransfer) -> RemoteBundleRef:
    payload = StructuredObjectPayload(
        metadata={"step": 7, "of": {"run": [1, 2.5, None]}},
        buffers={"tokens": TOKENS, "raw": b"ids", "empty": np.zeros((0, 3)), "none": b""},
    )
    return transfer.put_structured_object(payload)


def test_object_in_another_process(
    cluster: Cluster, transfer: MooncakeBundleTransfer, prefix: str
) -> None:
    ref = put_some(transfer)
    done = run_python(
        OTHER_PROCESS
        + """
ref = {"manifest_key": sys.argv[3]}
result = transfer.materialize(transfer.read_spec(ref))
assert result.metadata["step"] == 7 and result.metadata["of"] == {"run": [1, 2.5, None]}
tokens = np.arange(1 << 17, dtype=np.int32).reshape(1 << 10, 1 << 7)
assert (result.objects["tokens"] == tokens).all() and result.objects["tokens"].flags.writeable
assert result.objects["raw"] == b"ids" and result.objects["none"] == b""
assert result.objects["empty"].shape == (0, 3)
part = transfer.read_spec(ref).select_members(["tokens"]).slice_member("tokens", 0, 500, 900, 3)
assert (transfer.materialize(part).objects["tokens"] == tokens[500:900:3]).all()
written = transfer.put_object({"answer": np.arange(5.0), "text": b"from there"})
print(json.dumps(written.manifest_key))
""",
        cluster.address,
        prefix,
        ref.manifest_key,
    )
    answer = transfer.get_object({"manifest_key": json.loads(done.stdout)})
    assert answer["answer"].tolist() == [0, 1, 2, 3, 4]
    assert answer["text"] == b"from there"


def test_removal_leaves_nothing(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, prefix: str
) -> None:
    refs: list[Any] = [
        put_some(transfer),
        {"manifest_key": put_some(transfer).manifest_key},
        transfer.put_bundle(b"meta", {"a": bytes(3 * CHUNK + 1), "b": b""}),
    ]
    transfer.materialize(transfer.read_spec(refs[0]))  # What was read is leased.
    for ref in refs:
        transfer.remove_bundle(ref)
        transfer.remove_bundle(ref)  # Once more does nothing.
    assert left(store, prefix) == 0


def test_two_writers_of_one_name(transfer: MooncakeBundleTransfer) -> None:
    first = transfer.put_object({"name": b"first"}, partition="same")
    second = transfer.put_object({"name": b"second"}, partition="same")
    assert not set(keys_of(first)) & set(keys_of(second))
    transfer.remove_bundle(first)
    assert transfer.get_object(second) == {"name": b"second"}


@pytest.mark.parametrize(
    "value", [np.arange(3), np.array(["a", "bcd"]), np.array(5.5), b"bytes", bytearray(b"ba")]
)
def test_values_come_back(transfer: MooncakeBundleTransfer, value: Any) -> None:
    found = transfer.get_object(transfer.put_object(value))
    if isinstance(value, np.ndarray):
        assert found.dtype == value.dtype
        assert found.tolist() == value.tolist()
    else:
        assert found == bytes(value)


def test_arrays_that_are_not_contiguous(transfer: MooncakeBundleTransfer) -> None:
    array = np.arange(24).reshape(4, 6)
    for view in (array.T, array[::2], array[:, 1:3], array.astype(">i4")):
        found = transfer.get_object(transfer.put_object(view))
        assert found.dtype == view.dtype
        assert found.tolist() == view.tolist()


#: An array of records, and one with a mask: the bytes of their elements are not all they are.
RECORDS = np.zeros(2, [("a", "<i4"), ("b", "<f8")])
MASKED: Any = np.arange(2).view(np.ma.MaskedArray)


@pytest.mark.parametrize(
    "value", ["text", None, 5j, {1, 2}, [1], np.array([object()]), RECORDS, MASKED]
)
def test_nothing_is_pickled(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, prefix: str, value: Any
) -> None:
    with pytest.raises(TypeError, match="value"):
        transfer.put_object(value)
    assert left(store, prefix) == 0


# ---- parts of members


@pytest.mark.parametrize(
    ("start", "end", "step"), [(0, 1, 1), (3, 3, 1), (-5, 2000, 1), (0, 99, 7), (1023, 1024, 1)]
)
def test_slices(transfer: MooncakeBundleTransfer, start: int, end: int, step: int) -> None:
    spec = transfer.read_spec(put_some(transfer)).select_members(["tokens"])
    found = transfer.materialize(spec.slice_member("tokens", 0, start, end, step)).objects
    assert found["tokens"].tolist() == TOKENS[start:end:step].tolist()


def test_slices_read_only_their_bytes(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer
) -> None:
    ref = put_some(transfer)
    # The first chunk of eight is gone, and not needed.
    assert store.remove(ref.manifest["buffers"]["tokens"]["chunks"][0]["key"], True) == 0
    spec = transfer.read_spec(ref).slice_member("tokens", 0, 128, 256)
    found = transfer.materialize(spec.select_members(["tokens"])).objects["tokens"]
    assert found.tolist() == TOKENS[128:256].tolist()
    with pytest.raises(StructuredTransferError, match="chunk/0"):
        transfer.materialize(spec.slice_member("tokens", 0, 127, 256).select_members(["tokens"]))


@pytest.mark.parametrize(
    ("part", "problem", "says"),
    [
        (("tokens", 1, 0, 1), ValueError, "axis=0"),
        (("tokens", 0, 0, 2, 0), ValueError, "step must be positive"),
        (("raw", 0, 0, 1), ValueError, "does not support slicing"),
        (("other", 0, 0, 1), KeyError, "unknown bundle buffers"),
    ],
)
def test_slices_that_there_are_not(
    transfer: MooncakeBundleTransfer, part: Any, problem: type[Exception], says: str
) -> None:
    spec = transfer.read_spec(put_some(transfer)).slice_member(*part)
    with pytest.raises(problem, match=says):
        transfer.materialize(spec)


def test_members_are_selected(transfer: MooncakeBundleTransfer) -> None:
    spec = transfer.read_spec(put_some(transfer))
    assert list(transfer.materialize(spec.select_members(["raw", "raw"])).objects) == ["raw"]
    assert len(transfer.materialize(spec.select_members(None)).objects) == 4
    with pytest.raises(ValueError, match="no members"):
        transfer.materialize(spec.select_members([]))
    with pytest.raises(KeyError, match="other"):
        transfer.materialize(spec.select_members(["other"]))


# ---- the caller's memory


def test_destinations(transfer: MooncakeBundleTransfer) -> None:
    spec = transfer.read_spec(put_some(transfer))
    target = np.empty_like(TOKENS)
    found = transfer.materialize_into(spec, {"tokens": target}).objects
    assert found["tokens"] is target
    assert (target == TOKENS).all()
    assert found["raw"] == b"ids"
    part = np.zeros((2, 128), np.int32)
    transfer.materialize_into(
        spec.select_members(["tokens"]).slice_member("tokens", 0, 1000, 1002), {"tokens": part}
    )
    assert (part == TOKENS[1000:1002]).all()


def test_destination_that_nothing_is_read_into(transfer: MooncakeBundleTransfer) -> None:
    spec = transfer.read_spec(put_some(transfer))
    target = np.empty_like(TOKENS)
    for narrowed, name in ((spec, "other"), (spec.select_members(["raw"]), "tokens")):
        with pytest.raises(ValueError, match=f"destination '{name}'"):
            transfer.materialize_into(narrowed, {name: target})


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (np.empty((5, 2), np.int32), "shape mismatch"),
        (np.empty(TOKENS.shape, np.int64), "dtype mismatch"),
        (np.empty(TOKENS.shape, np.int32, order="F"), "C-contiguous"),
        (read_only(np.empty(TOKENS.shape, np.int32)), "writeable"),
        ([], "must be an ndarray"),
        (raw_destination(4096, TOKENS.nbytes - 1), "needs 524288 bytes"),
        (tensor_object_buffer(4096, 1 << 30), "has encoding 'ndarray'"),
    ],
)
def test_destinations_that_do_not_suit(
    transfer: MooncakeBundleTransfer, target: Any, says: str
) -> None:
    spec = transfer.read_spec(put_some(transfer)).select_members(["tokens"])
    with pytest.raises(ValueError, match=says):
        transfer.materialize_into(spec, {"tokens": target})


def test_memory_by_address(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer
) -> None:
    spec = transfer.read_spec(put_some(transfer)).select_members(["tokens"])
    target = np.zeros_like(TOKENS)
    address = target.ctypes.data
    for is_registered in (False, True):
        target[:] = 0
        if is_registered:
            assert store.register_buffer(address, target.nbytes) == 0
        into = raw_destination(address, target.nbytes, target, pre_registered=is_registered)
        assert transfer.materialize_into(spec, {"tokens": into}).objects["tokens"] is into
        assert (target == TOKENS).all()
    assert store.unregister_buffer(address) == 0
    # An address without memory is an error, and not the end of the process.
    with pytest.raises(StructuredTransferError, match="get failed"):
        transfer.materialize_into(spec, {"tokens": raw_destination(4096, target.nbytes)})


def test_results_in_memory_of_a_pool(store: MooncakeDistributedStore, prefix: str) -> None:
    with BufferPool(store, max_bytes=1 << 20) as pool:
        transfer = MooncakeBundleTransfer(store, prefix, CHUNK, buffer_pool=pool)
        ref = put_some(transfer)
        results = []
        for _ in range(3):  # The pool has space for two of them.
            results.append(transfer.get_object(ref)["tokens"])
            assert (results[-1] == TOKENS).all()
        with pytest.raises(RuntimeError, match="exhausted"):
            pool.acquire(TOKENS.nbytes, block=False)
        transfer.release_result(results)
        results.clear()
        pool.acquire(TOKENS.nbytes, block=False).release()
    assert left(store, prefix) > 0


def test_tensors(store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12, dtype=torch.int64).reshape(6, 2)
    half = torch.ones(3, dtype=torch.bfloat16)
    ref = transfer.put_object({"t": tensor, "half": half, "scalar": torch.tensor(2.5)})
    found = transfer.get_object(ref)
    assert found["t"].dtype == torch.int64
    assert torch.equal(found["t"], tensor)
    assert torch.equal(found["half"], half)
    assert found["scalar"].item() == 2.5
    # It is a tensor of the store as well, and the other way round.
    key = ref.manifest["buffers"]["t"]["key"]
    assert torch.equal(store.get_tensor(key), tensor)
    spec = transfer.read_spec(ref).select_members(["t"]).slice_member("t", 0, 2, 5)
    assert torch.equal(transfer.materialize(spec).objects["t"], tensor[2:5])
    # Without torch's help, into memory for a tensor object.
    value = np.frombuffer(store.get(key), np.uint8).copy()
    again = transfer.put_object({"t": tensor_object_buffer(value.ctypes.data, value.nbytes, value)})
    assert torch.equal(transfer.get_object(again)["t"], tensor)
    target = np.zeros(value.nbytes, np.uint8)
    into = tensor_object_buffer(target.ctypes.data, target.nbytes, target)
    transfer.materialize_into(transfer.read_spec(again), {"t": into})
    assert (target == value).all()
    transfer.materialize_into(spec, {"t": into})
    assert target[304 : 304 + 48].view(np.int64).tolist() == tensor[2:5].reshape(-1).tolist()
    zero_copy = BundleTransferPolicy(copy_mode="zero_copy")
    with pytest.raises(ValueError, match=r"t: zero-copy .* require a tensor_object_buffer"):
        transfer.put_object({"t": tensor}, policy=zero_copy)
    raw = np.zeros(12, np.int64)
    transfer.materialize_into(
        transfer.read_spec(again), {"t": raw_destination(raw.ctypes.data, raw.nbytes, raw)}
    )
    assert raw.tolist() == list(range(12))


# ---- what is refused, and failures midway


@pytest.mark.parametrize("prefix_", ["", "/", "a\nb"])
def test_prefixes_that_are_none(prefix_: str) -> None:
    with pytest.raises(ValueError, match="key_prefix"):
        MooncakeBundleTransfer(MemoryStore(), prefix_)


@pytest.mark.parametrize("name", ["", "a/b", "a\n", None])
def test_names_that_are_none(transfer: MooncakeBundleTransfer, name: Any) -> None:
    with pytest.raises(ValueError, match="invalid bundle partition"):
        transfer.put_bundle(b"m", {}, partition=name)
    with pytest.raises(ValueError, match="invalid bundle buffer name"):
        transfer.put_bundle(b"m", {name: b"x"})


@pytest.mark.parametrize(
    "settings", [{"put_mode": "x"}, {"copy_mode": "x"}, {"max_inflight_put": 0}]
)
def test_policies_that_are_none(settings: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        BundleTransferPolicy(**settings)


@pytest.mark.parametrize("mode", ["auto", "batch", "parallel"])
def test_policies(transfer: MooncakeBundleTransfer, mode: Any) -> None:
    policy = BundleTransferPolicy(max_inflight_put=3, put_mode=mode)
    ref = transfer.put_object(TOKENS, policy=policy, chunk_bytes=50_000)
    assert (transfer.get_object(ref) == TOKENS).all()


@pytest.mark.parametrize("mode", ["auto", "parallel"])
@pytest.mark.parametrize("refused", [0, 1, 3, 5])
def test_failed_put_leaves_nothing(refused: int, mode: Any) -> None:
    store = MemoryStore(refused)
    transfer = MooncakeBundleTransfer(store)
    policy = BundleTransferPolicy(max_inflight_put=2, put_mode=mode)
    with pytest.raises(StructuredTransferError, match=r"put failed for bundle/.*: -200") as caught:
        transfer.put_bundle(b"m", {"a": b"1234567"}, chunk_bytes=2, policy=policy)
    assert caught.value.code == -200
    assert store.values == {}


def test_failed_removal_does_not_hide_the_failed_put(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(refused=2)  # The manifest, after the metadata and a member.
    monkeypatch.setattr(store, "remove", lambda key, force: -1)
    with pytest.raises(StructuredTransferError, match=r"put failed for .*: -200"):
        MooncakeBundleTransfer(store).put_bundle(b"m", {"a": b"x"})


class Reluctant(MemoryStore):
    """A store that refuses to remove a key the first few times it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[str, int] = {}

    def remove(self, key: str, force: bool = False) -> int:
        if self.refuses.get(key, 0):
            self.refuses[key] -= 1
            return -706
        return super().remove(key, force)

    def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
        return [self.remove(key, force) for key in keys]


def test_a_removal_that_failed_is_tried_once_more() -> None:
    store = Reluctant()
    transfer = MooncakeBundleTransfer(store)
    ref = transfer.put_bundle(b"m", {"a": b"1", "b": b"2"})
    first, second, *_ = keys_of(ref)
    store.refuses = {first: 1, ref.manifest_key: 1}
    transfer.remove_bundle(ref)
    assert store.values == {}
    # Keys that are left after that are reported, and the manifest stays for another call.
    ref = transfer.put_bundle(b"m", {"a": b"1", "b": b"2"})
    first, second, *_ = keys_of(ref)
    store.refuses = {first: 1, second: 2}
    with pytest.raises(StructuredTransferError, match="failed to remove 1 Mooncake keys") as caught:
        transfer.remove_bundle(ref)
    assert (caught.value.key, caught.value.code) == (second, -706)
    assert set(store.values) == {second, ref.manifest_key}
    transfer.remove_bundle(ref)
    assert store.values == {}


def test_put_that_nobody_could_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    transfer = MooncakeBundleTransfer(store)
    ref = transfer.put({"a": np.arange(2)})
    before = dict(store.values)
    monkeypatch.setattr(manifest, "MAX_JSON_BYTES", 1000)
    long = StructuredObjectPayload({"text": "x" * 1000}, {})
    for call, says in (
        (lambda: transfer.put_structured_object(long), "metadata of"),
        (lambda: transfer.put_bundle(b"", {"a": bytes(9)}, chunk_bytes=1), "larger chunk_bytes"),
        (
            lambda: transfer.append_dataproto_fields(
                ref, {"b" * 900: np.arange(2)}, stage="default"
            ),
            "metadata of",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            call()
    assert store.values == before


def test_put_into_a_full_store(new_cluster: Any, new_store: Any) -> None:
    store = new_store(new_cluster(nodes=1, size="8MB"))
    transfer = MooncakeBundleTransfer(store, "full", default_chunk_bytes=1 << 20)
    kept = transfer.put_object(b"small")
    store.get(kept.manifest_key)
    with pytest.raises(StructuredTransferError, match="-200"):
        transfer.put_object(bytes(32 << 20))
    assert left(store, "full") <= len(keys_of(kept))


def test_missing_and_short_chunks(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer
) -> None:
    ref = put_some(transfer)
    for name in ("tokens", "raw"):
        key = ref.manifest["buffers"][name]["chunks"][-1]["key"]
        value = store.get(key)
        for wrong in (value[:-1], value + b"x"):
            replace_value(store, key, wrong)
            with pytest.raises(StructuredTransferError, match="get failed") as caught:
                transfer.get_object(ref)
            assert caught.value.key == key
        assert store.remove(key, True) == 0
        with pytest.raises(StructuredTransferError, match="get failed"):
            transfer.get_object(ref)
        replace_value(store, key, value)
    assert (transfer.get_object(ref)["tokens"] == TOKENS).all()


def test_object_that_is_not_there(transfer: MooncakeBundleTransfer, prefix: str) -> None:
    nothing = {"manifest_key": f"{prefix}/default/{'0' * 32}/manifest"}
    with pytest.raises(StructuredTransferError, match="no such bundle"):
        transfer.get_object(nothing)
    with pytest.raises(ValueError, match="must include manifest_key"):
        transfer.get_object({})
    with pytest.raises(TypeError, match="str"):
        transfer.get_object("key")  # type: ignore[arg-type]


def test_foreign_objects_are_left_alone(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, prefix: str
) -> None:
    ref = put_some(transfer)
    other = MooncakeBundleTransfer(store, f"{prefix}-other")
    for wrong in (ref, {"manifest_key": ref.manifest_key}, {"manifest_key": "any/key"}):
        for call in (other.get_object, other.remove_bundle):
            with pytest.raises(ValueError, match="outside the bundle namespace"):
                call(wrong)
    assert (transfer.get_object(ref)["tokens"] == TOKENS).all()


HUGE = 1 << 40


def first_chunk(manifest: dict[str, Any], name: str = "tokens") -> dict[str, Any]:
    chunk: dict[str, Any] = manifest["buffers"][name]["chunks"][0]
    return chunk


def grow(manifest: dict[str, Any]) -> None:
    manifest["buffers"]["raw"]["bytes"] = first_chunk(manifest, "raw")["bytes"] = HUGE


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda m: m.clear(), "its version is None"),
        (lambda m: m.update(version=2), "its version is 2"),
        (lambda m: m.update(layout="other"), "its layout"),
        (lambda m: m.update(object_id=f"default/{'0' * 32}"), "its object_id"),
        (lambda m: m.update(buffers=[]), "no buffers"),
        (lambda m: m.update(meta=None), "no list of chunks"),
        (lambda m: first_chunk(m).update(bytes=-1), "must be non-negative"),
        (lambda m: first_chunk(m).update(bytes=1 << 70), "below 2\\*\\*62"),
        (lambda m: first_chunk(m).update(bytes="1"), "must be a whole number"),
        (lambda m: first_chunk(m).update(bytes=HUGE), "chunks total"),
        (lambda m: first_chunk(m).update(key="elsewhere"), "outside the bundle namespace"),
        (lambda m: first_chunk(m).update(key=first_chunk(m, "raw")["key"]), "occurs twice"),
        (lambda m: m.update(cleanup_keys=["elsewhere"]), "outside the bundle namespace"),
        (lambda m: m.update(buffer_object_ids=["../x"]), "no valid id"),
        (lambda m: m["buffers"]["raw"].update(metadata_bytes=99), "has a header"),
        (grow, "expected 1099511627776 bytes, got 3"),
    ],
)
def test_hostile_manifests(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, edit: Any, says: str
) -> None:
    ref = put_some(transfer)
    edit_json(store, ref.manifest_key, edit)
    with pytest.raises((StructuredFormatError, StructuredTransferError), match=says):
        transfer.get_object({"manifest_key": ref.manifest_key})
    if "expected" not in says:  # Sizes hinder no removal.
        with pytest.raises(StructuredFormatError, match=says):
            transfer.remove_bundle({"manifest_key": ref.manifest_key})


@pytest.mark.parametrize("value", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"version":1,"lay'])
def test_manifests_that_are_none(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, value: bytes
) -> None:
    ref = put_some(transfer)
    replace_value(store, ref.manifest_key, value)
    with pytest.raises(StructuredFormatError, match="bundle manifest"):
        transfer.get_object({"manifest_key": ref.manifest_key})


FIELDS = "__mooncake_structured_fields__"


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (None, "has no description"),
        ({"encoding": "pickle"}, "'pickle'"),
        ({"encoding": "torch_tensor"}, "structured tensor tokens"),
        ({"encoding": "ndarray", "dtype": "|O", "shape": [1]}, "has dtype"),
        ({"encoding": "ndarray", "dtype": "O8", "shape": [1]}, "has dtype"),
        ({"encoding": "ndarray", "dtype": "<i4,<i4", "shape": [1]}, "has dtype"),
        ({"encoding": "ndarray", "dtype": "<i3", "shape": [1]}, "tokens"),
        ({"encoding": "ndarray", "dtype": "<i4", "shape": [1 << 60]}, "has 524288 bytes"),
        ({"encoding": "ndarray", "dtype": "<i4", "shape": [-1]}, "has shape"),
        ({"encoding": "ndarray", "dtype": "<i4", "shape": [1] * 65}, "has shape"),
    ],
)
def test_hostile_descriptions(
    store: MooncakeDistributedStore, transfer: MooncakeBundleTransfer, member: Any, says: str
) -> None:
    ref = put_some(transfer)
    (chunk,) = ref.manifest["meta"]["chunks"]
    edit_json(store, chunk["key"], lambda meta: meta[FIELDS].update(tokens=member))
    size = store.get_size(chunk["key"])

    def resize(manifest: dict[str, Any]) -> None:
        manifest["meta"]["bytes"] = manifest["meta"]["chunks"][0]["bytes"] = size

    edit_json(store, ref.manifest_key, resize)
    with pytest.raises(StructuredFormatError, match=says):
        transfer.get_object({"manifest_key": ref.manifest_key})


def test_bundles_are_no_structured_objects(transfer: MooncakeBundleTransfer) -> None:
    for meta, says in ((b"meta", "is not JSON"), (b"{}", "no structured object")):
        with pytest.raises(StructuredFormatError, match=says):
            transfer.get_object(transfer.put_bundle(meta, {"a": b"x"}))
    with pytest.raises(TypeError, match="requires buffers"):
        StructuredObjectPayload(metadata={})
    with pytest.raises(ValueError, match="is reserved"):
        transfer.put_structured_object(StructuredObjectPayload({FIELDS: 1}, {}))


def test_bytes_need_no_numpy(cluster: Cluster, prefix: str) -> None:
    run_python(
        "import sys\nfor name in ('numpy', 'torch', 'msgpack'): sys.modules[name] = None\n"
        + OTHER_PROCESS.replace("import numpy as np\n", "")
        + """
ref = transfer.put_object({"a": bytes(200_000), "b": b"x"})
assert transfer.get_object(ref) == {"a": bytes(200_000), "b": b"x"}
transfer.remove_bundle(ref)
handle = export_ref(transfer.put({"batch": {"a": b"xy"}, "meta_info": {"k": 1}}))
assert transfer.get(handle)["batch"] == {"a": b"xy"}
transfer.cleanup_dataproto(handle)
try:
    transfer.put({"rows": [1, 2]}, type="dict")
except ImportError as error:
    assert "mc-store[structured]" in str(error)
else:
    raise AssertionError("columns need numpy")
""",
        cluster.address,
        prefix,
    )
