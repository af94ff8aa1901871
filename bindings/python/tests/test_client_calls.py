"""`mc_store.Client` in one process: what calls return and raise."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mc_store
import pytest


@pytest.fixture
def store() -> Iterator[mc_store.Client]:
    with mc_store.local(segment_size="16MB") as opened:
        yield opened


def test_a_key_keeps_its_first_value_until_it_is_upserted(store: mc_store.Client) -> None:
    assert store.put("k", b"one")
    assert not store.put("k", b"two")
    assert bytes(store.get("k")) == b"one"
    store.upsert("k", b"three")
    assert bytes(store["k"]) == b"three"
    store["k"] = b"four"
    assert store["k"] == b"four"


def test_values_are_bytes_like_objects_of_any_kind(store: mc_store.Client) -> None:
    import array

    numbers = array.array("d", [1.0, 2.0])
    store["array"] = numbers
    assert store["array"] == numbers.tobytes()
    store["bytearray"] = bytearray(b"abc")
    store["view"] = memoryview(b"xabcx")[1:4]
    store["buffer"] = store["bytearray"]
    assert [bytes(store[key]) for key in ("bytearray", "view", "buffer")] == [b"abc"] * 3
    store.put_parts("parts", [b"a", bytearray(b"b"), memoryview(b"c"), b""])
    assert store["parts"] == b"abc"
    store.upsert_parts("parts", [b"d", b"e"])
    assert store["parts"] == b"de"


def test_a_large_value_goes_there_and_back(store: mc_store.Client) -> None:
    value = bytes(range(256)) * 16384
    store["large"] = value
    got = store["large"]
    assert len(got) == got.nbytes == 4 << 20
    assert got == value
    target = bytearray(len(value) + 1)
    assert store.get_into("large", target) == len(value)
    assert target[:-1] == value
    assert target[-1] == 0


def test_wrong_arguments_are_refused(store: mc_store.Client) -> None:
    store["k"] = b"value"
    with pytest.raises(TypeError, match="bytes-like"):
        store.put("t", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'key'"):
        store.put(b"t", b"v")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'replica'"):
        store.put("t", b"v", replica=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'replicas'"):
        store.put("t", b"v", replicas="2")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        store.put("t", b"v", replicas=-1)
    with pytest.raises(TypeError, match="several"):
        store.exists_many("text")
    with pytest.raises(TypeError, match="several"):
        store.put_parts("t", b"bytes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="contiguous"):
        store.put("t", memoryview(b"abcd")[::2])
    with pytest.raises(ValueError, match="read-only"):
        store.get_into("k", b"read-only")
    with pytest.raises(TypeError, match="bytes-like"):
        store.get_into("k", 17)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a size"):
        store.mount_segment("sixteen")
    for seconds in (-1.0, float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError, match="not a time"):
            store.wait_for_task("", seconds)
    with pytest.raises(mc_store.InvalidArgument, match="UUID"):
        store.task("task")
    with pytest.raises(mc_store.InvalidArgument, match="UUID"):
        store.unmount_segment("segment")
    with pytest.raises(TypeError):
        list(store)  # type: ignore[call-overload]


@pytest.mark.parametrize("key", ["", "k" * 1025, "\ud800", "a\udfffb"])
def test_what_is_no_key_is_a_value_error(store: mc_store.Client, key: str) -> None:
    for call in (store.exists, store.get, store.size, store.remove, store.describe, store.explain):
        with pytest.raises(ValueError, match=r"key|surrogates"):
            call(key)
    with pytest.raises(ValueError, match=r"key|surrogates"):
        store.put(key, b"value")


def test_missing_keys_are_key_errors_or_the_default(store: mc_store.Client) -> None:
    with pytest.raises(KeyError) as caught:
        store["missing"]
    error = caught.value
    assert isinstance(error, mc_store.NotFound)
    assert (error.code, error.name, error.key) == (-704, "OBJECT_NOT_FOUND", "missing")
    assert not error.retryable
    assert str(error) == "no such object [key 'missing']"
    assert store.get("missing", None) is None
    assert store.get("missing", default=b"") == b""
    with pytest.raises(mc_store.NotFound):
        store.size("missing")
    with pytest.raises(mc_store.NotFound):
        del store["missing"]
    with pytest.raises(mc_store.NotFound):
        store.get_into("missing", bytearray(1))
    # An invalid key is an error, not a missing key.
    with pytest.raises(mc_store.InvalidArgument):
        store.get("", None)


def test_a_client_has_keys_and_is_not_iterated_over(store: mc_store.Client) -> None:
    store["k"] = b"v"
    assert "k" in store
    assert "l" not in store
    anything: Any = store
    with pytest.raises(TypeError, match="not iterable"):
        list(anything)


def test_many_keys_at_once(store: mc_store.Client) -> None:
    values = {f"k{n}": bytes([n]) * 1000 for n in range(100)}
    assert store.put_many(values) == [True] * 100
    assert store.put_many(values.items()) == [False] * 100
    assert store.upsert_many(values) == [None] * 100
    got = store.get_many([*values, "missing"])
    assert got.pop() is None
    assert [bytes(buffer) for buffer in got if buffer is not None] == list(values.values())
    assert store.exists_many(["k0", "missing"]) == [True, False]
    assert store.size_many(["k0", "missing"]) == [1000, None]
    targets = {key: bytearray(1000) for key in values}
    assert store.get_many_into(targets) == [1000] * 100
    assert targets == values
    assert store.longest_prefix(["k0", "k1", "missing", "k2"]) == 2
    assert store.remove_many(["k0", "missing"], force=True) == [True, False]
    assert store.remove_matching("^k[0-9]$", force=True) == 9
    assert sorted(store.find("^k", limit=200)) == sorted(f"k{n}" for n in range(10, 100))
    assert len(store.find("^k", 7)) == 7
    assert store.remove_all(force=True) == 90
    assert store.get_many([]) == store.put_many({}) == store.exists_many(()) == []


def test_a_value_is_taken_once(store: mc_store.Client) -> None:
    store.put_many({"a": b"1", "b": b"2", "c": b"3"})
    store.get("a")
    assert bytes(store.get_and_remove("a")) == b"1"
    with pytest.raises(mc_store.NotFound):
        store.get_and_remove("a")
    assert store.get_and_remove("a", None) is None
    taken = store.get_and_remove_many(["b", "a", "b"])
    found = [bytes(it) if isinstance(it, mc_store.Buffer) else it for it in taken]
    assert found == [b"2", None, None]
    value, invalid = store.get_and_remove_many(["c", ""])
    assert isinstance(value, mc_store.Buffer)
    assert isinstance(invalid, mc_store.InvalidArgument)
    assert store.get_and_remove_many([]) == []
    assert store.find(".") == []

    # Of many threads each value is one's.
    values = {f"k{n}": n.to_bytes(4) for n in range(200)}
    store.put_many(values)
    taken_by: list[list[bytes]] = []

    def take() -> None:
        buffers = (store.get_and_remove(key, None) for key in values)
        taken_by.append([bytes(buffer) for buffer in buffers if buffer is not None])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(value for taken in taken_by for value in taken) == sorted(values.values())


def test_a_probe_leases_nothing(store: mc_store.Client) -> None:
    store.put_many({"a": b"1", "b": b"2"})
    assert store.probe("a")
    assert not store.probe("none")
    assert store.probe_many(["a", "none", "b"]) == [True, False, True]
    store.remove("a")
    assert store.probe_many(iter(["a"])) == [False]
    assert store.exists("b")
    with pytest.raises(mc_store.Leased):
        store.remove("b")
    with pytest.raises(mc_store.InvalidArgument):
        store.probe("")


def test_what_fails_among_many_is_raised_or_returned(store: mc_store.Client) -> None:
    store["short"] = b"12"
    store["long"] = b"1234"
    targets = [("short", bytearray(2)), ("long", bytearray(2)), ("missing", bytearray(2))]
    with pytest.raises(mc_store.InvalidArgument) as caught:
        store.get_many_into(targets)
    assert caught.value.key == "long"
    assert "1 of 3 keys failed" in caught.value.__notes__[0]
    read, failed, missing = store.get_many_into(targets, return_exceptions=True)
    assert (read, missing) == (2, None)
    assert isinstance(failed, mc_store.InvalidArgument)
    assert failed.key == "long"
    stored, refused = store.put_many([("a", b"1"), ("", b"2")], return_exceptions=True)
    assert stored is True
    assert isinstance(refused, mc_store.InvalidArgument)
    store["read"] = b"1"
    store.get("read")
    leased = store.remove_many(["read"], return_exceptions=True)[0]
    assert isinstance(leased, mc_store.Leased)
    assert leased.retryable


def test_room_that_is_not_there() -> None:
    with mc_store.local(segment_size="1MB", put_wait=0.05) as store:
        with pytest.raises(mc_store.InvalidArgument):
            store["larger than any segment"] = bytes(2 << 20)
        store.put("kept", bytes(700 << 10), hard_pin=True)
        with pytest.raises(mc_store.NoSpace) as caught:
            store["k"] = bytes(700 << 10)
        assert type(caught.value) in (mc_store.Full, mc_store.Fragmented, mc_store.AllLeased)
    with mc_store.local(segment_size=0, put_wait=0.05) as store:
        with pytest.raises(mc_store.TooFewSegments):
            store["k"] = b"v"


def test_a_buffer_is_a_read_only_view_that_keeps_its_bytes(store: mc_store.Client) -> None:
    store["k"] = bytes(range(100))
    buffer = store["k"]
    view = memoryview(buffer)
    assert view.readonly
    assert view.c_contiguous
    assert view.format == "B"
    assert memoryview(buffer[10:20]).tobytes() == bytes(range(10, 20))
    assert (buffer[0], buffer[-1], buffer[99]) == (0, 99, 99)
    assert bytes(buffer[50:10]) == b""
    assert list(buffer[:3]) == [0, 1, 2]
    assert buffer == bytes(range(100)) == buffer.tobytes()
    assert buffer == bytearray(range(100))
    assert buffer != b"other"
    assert buffer != 17
    for index in (100, -101, 1 << 62):
        with pytest.raises(IndexError):
            buffer[index]
    with pytest.raises(ValueError, match="step"):
        buffer[::2]
    with pytest.raises(TypeError):
        buffer["0"]  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        hash(buffer)
    store.close()
    del buffer
    assert view[99] == 99


def test_a_bytearray_that_was_lent_can_be_resized_after_the_call(store: mc_store.Client) -> None:
    target = bytearray(b"value")
    store["k"] = target
    target.append(1)
    store.get_into("k", target)
    target.append(2)
    assert target == b"value\x01\x02"


def test_ranges(store: mc_store.Client) -> None:
    store["k"] = b"keys and values"
    assert store.get_range("k", 9, 15) == b"values"
    assert store.get_range("k", 9, 1000) == b"values"
    assert store.get_range("k", 15, 15) == b""
    target = bytearray(8)
    assert store.get_range_into("k", 9, target) == 6
    assert target == b"values\x00\x00"
    for start, stop in ((16, 17), (3, 2)):
        with pytest.raises(mc_store.InvalidArgument):
            store.get_range("k", start, stop)
    with pytest.raises(OverflowError):
        store.get_range("k", -1, 2)


def test_what_is_being_read_is_not_removed() -> None:
    with mc_store.local(segment_size="1MB", lease=600) as store:
        store["k"] = b"v"
        store.get("k")
        with pytest.raises(mc_store.Leased) as caught:
            del store["k"]
        assert caught.value.code == -706
        assert store.describe("k").lease > 500
        assert "lease" in [kept.reason for kept in store.explain("k").kept_by]
        store.remove("k", force=True)
        assert "k" not in store


def test_objects_are_placed_as_the_caller_says(store: mc_store.Client) -> None:
    store.mount_segment("4MB", name="second")
    first = store.segment_name
    assert first is not None
    store.put("both", b"v", replicas=2)
    assert {replica.segment_name for replica in store.replicas("both")} == {first, "second"}
    store.put("one", b"v", preferred_segments=["second"], soft_pin=True, group="g")
    assert [replica.segment_name for replica in store.replicas("one")] == ["second"]
    assert store.describe("one").soft_pinned
    store.put("other", b"v", excluded_segments={"second"}, parent="one")
    assert [replica.segment_name for replica in store.replicas("other")] == [first]
    assert store.put("in dram", b"v", medium="DRAM")
    assert {segment.medium for segment in store.segments()} == {"dram"}
    assert {segment.medium for segment in store.cluster_report().segments} == {"dram"}
    with pytest.raises(mc_store.NoSpace, match="medium vram"):
        store.put("in vram", b"v", medium="vram")
    with pytest.raises(ValueError, match="medium: expected dram, ssd or vram"):
        store.put("k", b"v", medium="tape")
    with pytest.raises(ValueError, match="key is empty"):
        store.put("k", b"v", parent="")


def test_puts_take_event_infos(store: mc_store.Client) -> None:
    info = mc_store.StoreEventInfo(model_name="m", block_size=2, token_ids=[1, 2])
    assert store.put("a", b"v", event_info=info)
    assert store.put_parts("b", [b"v", b"w"], event_info=info)
    assert store.put_many({"c": b"v", "d": b"w"}, event_infos=[info, None]) == [True] * 2
    store.upsert("a", bytearray(b"w"), event_info=info)
    store.upsert("a", b"x", event_info=None)
    store.upsert_parts("b", [b"x"], event_info=info)
    assert store.upsert_many([("c", b"x")], event_infos=iter([info])) == [None]
    assert {bytes(store[key]) for key in "abc"} == {b"x"}

    long = mc_store.StoreEventInfo(token_ids=[0] * 32_769)
    with pytest.raises(ValueError, match="token_ids has length 32769, and at most 32768"):
        store.put("no", b"v", event_info=long)
    with pytest.raises(ValueError, match="token_ids has length 32769, and at most 32768"):
        store.upsert_many({"no": b"v"}, event_infos=[long])
    with pytest.raises(mc_store.InvalidArgument, match="1 event_infos for 2 items"):
        store.put_many({"no": b"v", "none": b"v"}, event_infos=[info])
    with pytest.raises(TypeError, match="event_info"):
        store.put("no", b"v", event_info={"model_name": "m"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="event_infos"):
        store.put_many({"no": b"v"}, event_infos=info)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="event_infos"):
        store.put_many({"no": b"v"}, event_infos=[5])  # type: ignore[list-item]
    assert "no" not in store


def test_objects_are_copied_and_moved(store: mc_store.Client) -> None:
    first = store.segment_name
    assert first is not None
    store.put("k", b"value", preferred_segments=[first])
    store.mount_segment("4MB", name="second")
    store.mount_segment("4MB", name="third")
    task = store.wait_for_task(store.copy_to("k", ["second"]), 30)
    assert (task.status, task.kind, task.targets, task.done) == (
        "success",
        "copy",
        ("second",),
        True,
    )
    task = store.wait_for_task(store.move_to("k", "second", "third"), 30)
    assert (task.status, task.kind, task.source) == ("success", "move", "second")
    assert store.task(task.id).status == "success"
    names = {replica.segment_name for replica in store.replicas("k")}
    assert names == {first, "third"}
    assert store["k"] == b"value"
    with pytest.raises(mc_store.NotFound):
        store.copy_to("k", ["nowhere"])
    with pytest.raises(mc_store.NotFound):
        store.wait_for_task("00000000-0000-0000-0000-000000000007", 5)
    assert store.clear_replicas(["missing"]) == []


def test_report_has_all_totals_and_can_be_kept(store: mc_store.Client) -> None:
    store["k"] = b"value"
    assert store["k"] == b"value"
    report = store.cluster_report()
    assert (report.objects, report.totals["objects"]) == (1, 1)
    assert report.totals["get_hits"] == report.get_hits == 1
    assert report.totals["offload_written"] == report.totals["damage_confirmed"] == 0
    # For a log, another process, a set.
    assert dataclasses.asdict(report)["totals"] == report.totals
    assert pickle.loads(pickle.dumps(report)) == copy.deepcopy(report) == report
    assert len({report, copy.deepcopy(report)}) == 1


def test_segments_come_and_go(store: mc_store.Client) -> None:
    segment = store.mount_segment(1 << 20, name="second")
    assert [it.size for it in store.segments()] == [16 << 20, 1 << 20]
    assert store.cluster_report().capacity == 17 << 20
    with pytest.raises(mc_store.AlreadyExists):
        store.mount_segment("1MB", name="second")
    store.unmount_segment(segment, grace=600)
    assert (store.segments()[1].leaves_in or 0) > 500
    store.unmount_segment(segment)
    assert len(store.segments()) == 1
    with pytest.raises(mc_store.NotFound):
        store.unmount_segment(segment)
    with pytest.raises(mc_store.TooFewSegments):
        store.drain(timeout=30)


def test_a_client_is_drained_before_it_leaves() -> None:
    with mc_store.local(segment_size="1MB", lease=0.01) as store:
        with mc_store.Client(
            store.master_addr, segment_size="1MB", listen="127.0.0.1:0", segment_name="leaver"
        ) as leaver:
            leaver.put("k", b"value", preferred_segments=["leaver"])
            report = leaver.drain(timeout=60)
            assert (report.complete, report.moved, report.moved_bytes) == (True, 1, 5)
        assert store["k"] == b"value"


def test_what_a_client_is_and_has_counted(store: mc_store.Client) -> None:
    store["k"] = bytes(1000)
    store.get("k")
    store.get("missing", None)
    metrics = store.metrics()
    assert metrics.operations["upsert"].bytes == 1000
    get = metrics.operations["get"]
    assert (get.calls, get.failures) == (2, {"OBJECT_NOT_FOUND": 1})
    assert (get.p50 or 0) > 0
    assert metrics.paths["own_memory"].read == 1000
    assert "mooncake_transfer_read_bytes" in store.metrics_text()
    assert store.role == "both"
    assert store.endpoint is not None
    assert store.http_addr is None
    assert store.hosts([store.id]) == {store.id: ["127.0.0.1"]}
    assert 0 < store.ping() < 30
    assert store.id in repr(store)
    assert mc_store.Client(store.master_addr).role == "client"


def test_a_closed_client_refuses_every_call(store: mc_store.Client) -> None:
    with mc_store.Client(store.master_addr) as client:
        states = [client.closed]
    states.append(client.closed)
    assert states == [False, True]
    client.close()
    for call in (client.ping, client.segments, client.metrics, lambda: client.get("k", None)):
        with pytest.raises(mc_store.Closed):
            call()
    with pytest.raises(mc_store.Closed):
        _ = client.id
    assert repr(client) == "<mc_store.Client, closed>"


def test_a_client_is_closed_while_others_call(store: mc_store.Client) -> None:
    client = mc_store.Client(store.master_addr)
    begun = threading.Barrier(5)
    outcomes: list[Exception | None] = []

    def call() -> None:
        begun.wait()
        try:
            while True:
                client.exists("k")
        except mc_store.StoreError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    client.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert [type(outcome) for outcome in outcomes] == [mc_store.Closed] * 4


def test_exceptions_survive_pickling_and_copying(store: mc_store.Client) -> None:
    with pytest.raises(mc_store.NotFound) as caught:
        store["missing"]
    error = caught.value
    error.add_note("a note")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is mc_store.NotFound
        assert (str(twin), twin.code, twin.name, twin.key) == (
            str(error),
            error.code,
            error.name,
            "missing",
        )
        assert twin.__notes__ == ["a note"]
    for name in mc_store.exceptions.__all__:
        kind = getattr(mc_store.exceptions, name)
        made = pickle.loads(pickle.dumps(kind("message", -1, "NAME", True, "k")))
        assert (type(made), str(made), made.retryable) == (kind, "message [key 'k']", True)


def test_settings(store: mc_store.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master = store.master_addr
    with mc_store.Client(config={"master": master, "cluster_id": "test"}) as client:
        assert 'cluster_id="test"' in client.metrics_text()
    file = tmp_path / "client.toml"
    file.write_text(f"master = '{master}'\nglobal_segment_size = '1MB'\nlisten = '127.0.0.1:0'\n")
    with mc_store.Client(config=file) as client:
        assert [segment.size for segment in client.segments()] == [1 << 20]
    with mc_store.Client(config=str(file), segment_size=2 << 20, segment_name="named") as client:
        assert [(it.size, it.name) for it in client.segments()] == [(2 << 20, "named")]
    monkeypatch.setenv("MOONCAKE_MASTER", master)
    monkeypatch.setenv("MC_STORE_CLUSTER_ID", "of the environment")
    with mc_store.Client.from_env() as client:
        assert client.master_addr == master
        assert 'cluster_id="of the environment"' in client.metrics_text()
    with mc_store.Client.from_env(config={"cluster_id": "of the mapping"}) as client:
        assert 'cluster_id="of the mapping"' in client.metrics_text()


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(mc_store.InvalidArgument, match="no master"):
        mc_store.Client()
    with pytest.raises(mc_store.InvalidArgument, match="did you mean protocol"):
        mc_store.Client("127.0.0.1:1", config={"protokol": "tcp"})
    with pytest.raises(TypeError, match="segmentsize"):
        mc_store.Client("127.0.0.1:1", segmentsize=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'config'"):
        mc_store.Client("127.0.0.1:1", config=17)  # type: ignore[arg-type]
    with pytest.raises(mc_store.InvalidArgument, match="address and a port"):
        mc_store.Client("127.0.0.1:1", listen="everywhere")
    with pytest.raises(OverflowError):
        mc_store.Client("127.0.0.1:1", segment_size=-1)
    with pytest.raises(mc_store.StoreError, match="no/such/file"):
        mc_store.Client(config="/no/such/file.json")


def test_a_master_that_is_not_there_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError) as caught:
        mc_store.Client(
            "127.0.0.1:1", config={"rpc_connect_timeout_ms": 200, "rpc_timeout_ms": 200}
        )
    assert isinstance(caught.value, mc_store.Unreachable)
    assert "check that it runs there" in str(caught.value)
    assert str(caught.value).count("refused") == 1
    assert caught.value.retryable
