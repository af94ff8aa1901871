"""`mooncake.dataproto_catalog`: keys that lead to rows and fields of stored batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from _cluster import Cluster, run_python
from _structured import OTHER_PROCESS, MemoryStore, left
from mc_store.mooncake.dataproto_catalog import (
    CatalogDrained,
    DataProtoCatalog,
    DataProtoCatalogTransfer,
)
from mc_store.mooncake.store import MooncakeDistributedStore
from mc_store.mooncake.structured_object_store import MooncakeBundleTransfer, export_ref


class Network:
    """Calls a catalog, and loses calls and replies on demand: `lose` has the names of methods, and
    whether the call or the reply is lost, in the order in which that is to happen."""

    def __init__(self, catalog: DataProtoCatalog) -> None:
        self.catalog = catalog
        self.lose: list[tuple[str, str]] = []

    def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        lost = self.lose[0] if self.lose and self.lose[0][0] == method else None
        if lost:
            del self.lose[0]
        if lost == (method, "call"):
            raise ConnectionError(f"the call of {method} was lost")
        # As a remote call: nothing of the arguments and the reply is shared.
        args, kwargs = json.loads(json.dumps([args, kwargs]))
        reply = getattr(self.catalog, method)(*args, **kwargs)
        if lost:
            raise ConnectionError(f"the reply of {method} was lost")
        return reply


@pytest.fixture
def network() -> Network:
    return Network(DataProtoCatalog())


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def client(network: Network, memory: MemoryStore) -> DataProtoCatalogTransfer:
    return DataProtoCatalogTransfer(MooncakeBundleTransfer(memory), network)


def read(client: DataProtoCatalogTransfer, plan: dict[str, Any], field: str) -> list[Any]:
    """The values of a field, in the order of the plan's keys."""
    (group,) = (group for group in plan["field_groups"] if field in group["fields"])
    found = []
    for fragment, row in group["locations"]:
        part = client.transfer.get(plan["handles"][fragment], fields=[field], rows=[row])
        found += part["batch"][field].tolist()
    return found


def test_rows_of_several_writers(
    cluster: Cluster, store: MooncakeDistributedStore, network: Network
) -> None:
    transfer = MooncakeBundleTransfer(store, "catalog/writers")
    client = DataProtoCatalogTransfer(transfer, network)
    # An object that another process stored is published here: its part of the catalog is a handle.
    done = run_python(
        OTHER_PROCESS + "print(json.dumps(export_ref(transfer.put({'ids': np.array([30, 40])}))))",
        cluster.address,
        "catalog/writers",
    )
    network("publish", "other", "train", ["c", "d"], handle=json.loads(done.stdout))
    client.put({"ids": np.array([10, 20])}, partition="train", keys=["a", "b"], tags=[{}, {"t": 1}])
    plan = client.resolve("train", ["d", "a", "b"])
    assert plan["tags"] == [{}, {}, {"t": 1}]
    assert read(client, plan, "ids") == [40, 10, 20]
    client.remove("train", ["a", "b", "c"])
    assert read(client, plan, "ids") == [40, 10, 20], "a read is going on"
    client.release_read(plan["read_token"])
    assert client.list() == {"train": {"d": {}}}
    client.drain()
    assert left(store, "catalog/writers") == 0


def test_fields_that_come_later(client: DataProtoCatalogTransfer, memory: MemoryStore) -> None:
    client.put({"a": np.arange(2), "b": np.arange(2)}, partition="p", keys=["x", "y"])
    plan = client.resolve("p", ["x"])
    ((fragment, handle),) = plan["handles"].items()
    result = client.append(
        fragment, handle, {"c": np.array([7, 8])}, partition="p", keys=["x", "y"], stage="late"
    )
    assert result["fields"] == ["a", "b", "c"]
    assert read(client, client.resolve("p", ["y", "x"]), "c") == [8, 7]
    before = set(memory.values)
    with pytest.raises(ValueError, match="stale"):
        client.append(
            fragment, handle, {"d": np.arange(2)}, partition="p", keys=["x", "y"], stage="late"
        )
    (new,) = client.resolve("p", ["x"])["handles"].values()
    with pytest.raises(ValueError, match="identity"):  # The rows would be the wrong ones.
        client.append(fragment, new, {"d": np.arange(2)}, partition="p", keys=["y", "x"], stage="d")
    with pytest.raises(ValueError, match="overwritten"):
        client.append(
            fragment,
            new,
            {"a": np.arange(2)},
            partition="p",
            keys=["x", "y"],
            stage="d",
            overwrite=True,
        )
    assert set(memory.values) == before, "what was refused is not stored"


def test_a_key_gets_another_value(client: DataProtoCatalogTransfer, memory: MemoryStore) -> None:
    client.put({"a": np.array([1, 2])}, partition="p", keys=["x", "y"])
    client.put({"a": np.array([3])}, partition="p", keys=["x"])
    assert read(client, client.resolve("p", ["x", "y"]), "a") == [3, 2]
    client.put({"a": np.array([4])}, partition="p", keys=["y"])
    plan = client.resolve("p", ["x", "y"])
    assert read(client, plan, "a") == [3, 4]
    assert len({key.rpartition("/buffer")[0] for key in memory.values if "buffer" in key}) == 3
    for token in (1, 2):
        client.release_read(token)
    assert len({key.rpartition("/buffer")[0] for key in memory.values if "buffer" in key}) == 2


def test_batches_of_the_caller_are_never_removed(
    client: DataProtoCatalogTransfer, network: Network, memory: MemoryStore
) -> None:
    handle = export_ref(client.transfer.put({"a": np.arange(1)}))
    network("update", "p", ["x"], handle=handle)
    client.remove("p", ["x"])
    client.drain()
    assert memory.values
    client.transfer.cleanup_dataproto(handle)
    assert not memory.values


def test_lost_calls_and_replies(
    client: DataProtoCatalogTransfer, network: Network, memory: MemoryStore
) -> None:
    network.lose = [("publish", "call"), ("ack_publication", "call")]
    client.put({"a": np.array([1])}, partition="p", keys=["x"])
    network.lose = [("publish", "reply"), ("publish", "reply")]
    with pytest.raises(ConnectionError, match="reply"):
        client.put({"a": np.array([2])}, partition="p", keys=["y"])
    # Another writer is faster, and the batch that it replaces goes.
    other = DataProtoCatalogTransfer(client.transfer, network)
    other.put({"a": np.array([3])}, partition="p", keys=["y"])
    client.close()
    assert read(client, client.resolve("p", ["x", "y"]), "a") == [1, 3]
    network.lose = [("publish", "call"), ("publish", "call"), ("publish", "call")]
    with pytest.raises(ConnectionError):
        client.put({"a": np.array([4])}, partition="p", keys=["z"])
    with pytest.raises(RuntimeError, match="publish pending"):
        client.drain()
    client.close()
    assert read(client, client.resolve("p", ["z"]), "a") == [4]
    for token in (1, 2):
        client.release_read(token)
    client.drain()
    assert not memory.values


def test_refused_publication_leaves_nothing(
    client: DataProtoCatalogTransfer, network: Network, memory: MemoryStore
) -> None:
    with pytest.raises(ValueError, match="unique"):
        client.put({"a": np.arange(2)}, partition="p", keys=["x", "x"])
    with pytest.raises(ValueError, match="does not match 1 logical keys"):
        client.put({"a": np.arange(2)}, partition="p", keys=["x"])
    with pytest.raises(ValueError, match="requires tags or DataProto data"):
        client.put(None, partition="p", keys=["x"])
    client.drain()
    with pytest.raises(CatalogDrained):
        client.put({"a": np.arange(1)}, partition="p", keys=["x"])
    client.close()
    assert not memory.values


def test_refusal_of_a_late_publication_leaves_nothing(
    client: DataProtoCatalogTransfer, network: Network, memory: MemoryStore
) -> None:
    other = DataProtoCatalogTransfer(client.transfer, network)
    network.lose = [("publish", "call")] * 2
    with pytest.raises(ConnectionError):
        client.put({"a": np.arange(2)}, partition="p", keys=["x", "x"])
    client.close()
    assert not memory.values
    # An append to a batch that is removed before the append is known.
    client.put({"a": np.arange(1)}, partition="p", keys=["x"])
    ((fragment, found),) = client.resolve("p", ["x"])["handles"].items()
    client.release_read(1)
    network.lose = [("publish_append", "call")] * 2
    with pytest.raises(ConnectionError):
        client.append(fragment, found, {"b": np.arange(1)}, partition="p", keys=["x"], stage="late")
    other.remove("p", ["x"])
    client.close()
    assert not memory.values


def test_what_an_append_adds_to_is_not_removed_meanwhile(
    client: DataProtoCatalogTransfer,
    network: Network,
    memory: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.put({"a": np.arange(1)}, partition="p", keys=["x"])
    ((fragment, found),) = client.resolve("p", ["x"])["handles"].items()
    client.release_read(1)
    other = DataProtoCatalogTransfer(client.transfer, network)
    append = client.transfer.append_dataproto_fields

    def late(*args: Any, **kwargs: Any) -> Any:
        other.remove("p", ["x"])
        assert client.transfer.get(found)["batch"]["a"].tolist() == [0]
        return append(*args, **kwargs)

    monkeypatch.setattr(client.transfer, "append_dataproto_fields", late)
    network.lose = [("release_read", "call")]
    with pytest.raises(ValueError, match="keys not found"):
        client.append(fragment, found, {"b": np.arange(1)}, partition="p", keys=["x"], stage="s")
    client.close()  # The call that was lost is repeated.
    assert not memory.values
    client.drain()


def test_interruption_loses_no_publication(
    client: DataProtoCatalogTransfer, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(client, "_settle", lambda: None)  # As puts of two threads at once.
        for key in ("x", "y"):
            network.lose = [("publish", "call")] * 2
            with pytest.raises(ConnectionError):
                client.put({"a": np.arange(1)}, partition="p", keys=[key])

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(network.catalog, "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.close()
        with pytest.raises(KeyboardInterrupt):
            client.put({"a": np.arange(1)}, partition="p", keys=["z"])
    client.close()
    assert client.list() == {"p": {"x": {}, "y": {}}}


def test_removal_that_fails_is_tried_again(
    client: DataProtoCatalogTransfer,
    network: Network,
    memory: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.put({"a": np.arange(1)}, partition="p", keys=["x"])
    with monkeypatch.context() as patched:
        patched.setattr(memory, "remove", lambda key, force: -1)
        client.remove("p", ["x"])
    assert "was not removed, and will be" in caplog.text
    assert memory.values
    network.lose = [("ack_retired", "call")]
    client.remove("p", ["x"])
    assert not memory.values
    client.drain()
    assert network.catalog.drain()["retired_handles"] == []


def test_no_drain_during_a_read(client: DataProtoCatalogTransfer) -> None:
    client.put({"a": np.arange(1)}, partition="p", keys=["x"])
    plan = client.resolve("p", ["x"])
    with pytest.raises(RuntimeError, match=r"1 active read\(s\)"):
        client.drain()
    client.release_read(plan["read_token"])
    client.release_read(plan["read_token"])
    client.drain()
    assert client.list() == {}


def handle(name: str, fields: list[str], size: int = 1, **more: Any) -> dict[str, Any]:
    location = {"stage": "s", "section": "batch"}
    return {
        "type": "mooncake_dataproto_ref",
        "version": 1,
        "kind": "bundle_stages",
        "batch_size": size,
        "stage_refs": {"s": {"manifest_key": name}},
        "field_index": {field: {**location, "member": f"batch.{field}"} for field in fields},
        **more,
    }


def test_plans() -> None:
    catalog = DataProtoCatalog()
    catalog.update("p", ["a", "b"], handle=handle("base", ["f", "g"], 2, meta_info={"k": 1}))
    catalog.update("p", ["b", "a"], tags=[{"t": 1}, {}], handle=handle("more", ["h"], 2))
    plan = catalog.resolve("p", ["a", "b"], ["h", "g", "f"])
    assert plan["field_groups"] == [
        {"fields": ["h"], "locations": [("more", 1), ("more", 0)]},
        {"fields": ["g", "f"], "locations": [("base", 0), ("base", 1)]},
    ]
    assert plan["meta_info"] == {"k": 1}
    assert plan["tags"] == [{}, {"t": 1}]
    plan["handles"].clear()
    assert catalog.resolve("p", ["a"])["handles"].keys() == {"base", "more"}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda c: c.update("p", ["a"]), "requires tags or a DataProto handle"),
        (lambda c: c.update("", ["a"], tags=[{}]), "partition must be"),
        (lambda c: c.update("p", "a", tags=[{}]), "keys must be a sequence"),
        (lambda c: c.update("p", [], tags=[]), "keys must be non-empty strings"),
        (lambda c: c.update("p", ["a", "a"], tags=[{}, {}]), "keys must be unique"),
        (lambda c: c.update("p", ["a"], tags=[{}, {}]), "same length"),
        (lambda c: c.update("p", ["a"], tags=[5]), "tags must be mappings"),
        (lambda c: c.update("p", ["a"], handle={}), "not a Mooncake DataProto ref handle"),
        (lambda c: c.update("p", ["a"], handle=handle("h", ["f"], 2)), "does not match 1"),
        (lambda c: c.update("p", ["a"], handle=handle("h", [])), "field names"),
        (lambda c: c.update("p", ["z"], handle=handle("one", ["other"])), "id collision"),
        (lambda c: c.publish("", "p", ["a"], tags=[{}]), "operation_id"),
        (lambda c: c.resolve("p", ["missing"]), "were not found"),
        (lambda c: c.resolve("p", ["a"], ["g"]), "not ready for key 'a'"),
        (lambda c: c.resolve("p", ["b"]), "do not contain any fields"),
        (lambda c: c.resolve("p", ["a", "c"]), "conflicting DataProto meta_info value for 'k'"),
        (lambda c: c.remove("p", []), "keys must be non-empty"),
    ],
)
def test_what_changes_nothing(call: Callable[[DataProtoCatalog], Any], says: str) -> None:
    catalog = DataProtoCatalog()
    catalog.update("p", ["a"], handle=handle("one", ["f"], meta_info={"k": 1}))
    catalog.update("p", ["b"], tags=[{"t": 1}])
    catalog.update("p", ["c"], handle=handle("two", ["f"], meta_info={"k": 2}))
    before = catalog.list()
    with pytest.raises((ValueError, TypeError), match=says):
        call(catalog)
    assert catalog.list() == before == {"p": {"a": {}, "b": {"t": 1}, "c": {}}}


def test_acknowledgement_of_another_batch_is_refused() -> None:
    catalog = DataProtoCatalog()
    catalog.publish("op", "p", ["a"], handle=handle("h", ["f"]))
    (retired,) = catalog.remove("p", ["a"])["retired_handles"]
    retired["field_index"]["f"]["member"] = "batch.other"
    with pytest.raises(ValueError, match="fragment mismatch"):
        catalog.ack_retired([retired])
    with pytest.raises(ValueError, match="id collision"):
        catalog.publish("op2", "p", ["a"], handle=handle("h", ["f"]))


@pytest.mark.parametrize("is_managed", [False, True])
def test_batch_has_one_owner(is_managed: bool) -> None:
    catalog = DataProtoCatalog()
    calls: list[Callable[..., Any]] = [
        catalog.update,
        lambda *a, **k: catalog.publish("op", *a, **k),
    ]
    first, second = reversed(calls) if is_managed else calls
    first("p", ["a"], handle=handle("h", ["f"]))
    with pytest.raises(ValueError, match="came by publish" if is_managed else "came by update"):
        second("p", ["a"], handle=handle("h", ["f"]))
    assert bool(catalog.remove("p", ["a"])["retired_handles"]) is is_managed


def test_results_of_a_read(client: DataProtoCatalogTransfer) -> None:
    released: list[str] = []

    def release(result: str) -> None:
        released.append(result)
        if released.count(result) == 1:
            raise RuntimeError("not yet")
        if result == "never":
            raise RuntimeError("never")

    client.transfer = SimpleNamespace(release_result=release)
    output = SimpleNamespace()
    client.attach_results(output, ["a", "b"])
    client.release_result(output)
    client.release_result(output)
    assert released == ["a", "a", "b", "b"]
    client.discard_results(["never"])
    with pytest.raises(RuntimeError, match="never"):
        client.discard_results(["never", "c"], strict=True)
    assert released[-2:] == ["c", "c"]


@pytest.fixture(autouse=True)
def nothing_left(store: MooncakeDistributedStore) -> Iterator[None]:
    yield
    left(store, "catalog")
