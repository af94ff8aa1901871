"""Clients among processes: peers, signals, forks, and the end of the interpreter."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import mc_store
import pytest
from _cluster import Cluster, run_python, wait_until


def test_clients_of_a_cluster_share_their_values(cluster: Cluster, key: str) -> None:
    value = bytes(range(256)) * 4096
    with mc_store.Client(cluster.address) as prefill, mc_store.Client(cluster.address) as decode:
        assert prefill.put_many({f"{key}{n}": value for n in range(8)}) == [True] * 8
        keys = [f"{key}{n}" for n in range(9)]
        assert decode.longest_prefix(keys) == 8
        assert decode.get_many(keys) == [value] * 8 + [None]
        targets = {f"{key}{n}": bytearray(len(value)) for n in range(8)}
        assert decode.get_many_into(targets) == [len(value)] * 8
        assert set(map(bytes, targets.values())) == {value}
        assert decode.get_range(keys[0], 255, 258) == b"\xff\x00\x01"
        assert decode.describe(keys[0]).owner == prefill.id


def test_other_processes_join_a_local_cluster() -> None:
    with mc_store.local(segment_size="8MB") as store:
        store["question"] = b"six times seven"
        code = """
import sys, mc_store
with mc_store.Client(sys.argv[1]) as client:
    print(bytes(client["question"]).decode())
    client["answer"] = b"42"
"""
        assert run_python(code, store.master_addr).stdout == "six times seven\n"
        assert store["answer"] == b"42"


def test_a_local_cluster_is_gone_when_it_is_closed() -> None:
    for _ in range(20):
        with mc_store.local(segment_size="1MB") as store, mc_store.Client(store.master_addr):
            host, _, port = store.master_addr.rpartition(":")
        # From another address: a socket can be connected to itself.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0))


def test_a_node_that_is_gone_is_a_connection_error(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(nodes=1)
    settings = {"shared_memory": False, "transfer_connect_timeout_ms": 300}
    with mc_store.Client(cluster.address, config=settings) as client:
        client["k"] = b"value"
        cluster.nodes[0].kill()
        with pytest.raises(mc_store.TransferFailed) as caught:
            client.get("k")
        assert isinstance(caught.value, ConnectionError)
        assert caught.value.retryable
        # Not the same as a missing key.
        with pytest.raises(mc_store.TransferFailed):
            client.get("k", None)
        cluster.master.kill()
        with pytest.raises((mc_store.Unreachable, mc_store.Timeout)):
            client.exists("k")


#: Prints "begun" when the call that is to be interrupted is about to begin, and its outcome.
INTERRUPTED = """
import signal
import mc_store

# Background jobs of a shell begin with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
store = mc_store.local(segment_size="1MB", lease=600, put_wait=600)
store["leased"] = bytes(900 << 10)
store.get("leased")
print("begun", flush=True)
try:
    store.put("k", bytes(900 << 10))
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert store["leased"] == bytes(900 << 10)
store.close()
"""


def test_a_call_that_waits_is_ended_by_control_c() -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"

        def waits() -> bool:
            """Until it is in the call: then its main thread sleeps in the kernel."""
            with open(f"/proc/{process.pid}/wchan") as place:
                return place.read() not in ("", "0")

        wait_until(waits, what="the process to wait")
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - sent < 10
        assert process.wait(30) == 0


def test_a_handler_that_does_not_raise_lets_the_call_go_on() -> None:
    code = """
import os, signal, threading, mc_store
handled = []
signal.signal(signal.SIGUSR1, lambda number, frame: handled.append(number))
with mc_store.local(segment_size="1MB", lease=600, put_wait=0.6) as store:
    store["leased"] = bytes(900 << 10)
    store.get("leased")
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        store.put("k", bytes(900 << 10))
    except mc_store.NoSpace as error:
        print(type(error).__name__, len(handled))
"""
    assert run_python(code).stdout == "AllLeased 1\n"


def test_a_forgotten_client_leaves_the_cluster(cluster: Cluster) -> None:
    client = mc_store.Client(cluster.address, segment_size="1MB", segment_name="forgotten")

    def names() -> set[str]:
        with mc_store.Client(cluster.address) as other:
            return {segment.name for segment in other.cluster_report().segments}

    assert "forgotten" in names()
    del client
    wait_until(lambda: "forgotten" not in names(), seconds=5, what="the client to leave")


FORKED = """
import gc, os, sys, mc_store, asyncio

store = mc_store.local(segment_size="1MB")
store["k"] = b"value"
buffer = store["k"]
async def connect():
    return await mc_store.AsyncClient.connect(store.master_addr)

other = asyncio.run(connect())
master = store.master_addr
child = os.fork()
if child == 0:
    assert store.closed and other.closed
    for call in (store.ping, lambda: store["k"], store.segments, other.segments):
        try:
            call()
        except mc_store.Closed as error:
            assert "fork" in str(error), error
        else:
            os._exit(1)
    async def call():
        try:
            await other.ping()
        except mc_store.Closed as error:
            assert "fork" in str(error), error
        else:
            os._exit(2)
    asyncio.run(call())
    store.close()
    assert bytes(buffer) == b"value"
    # A client of its own works.
    with mc_store.Client(master) as own:
        assert own["k"] == b"value"
    del store, other, buffer
    gc.collect()
    if sys.argv[1] == "exit":
        sys.exit(0)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert store["k"] == b"value"
async def still_works():
    assert await other.ping() > 0
    await other.close()

asyncio.run(still_works())
store.close()
print("done")
"""


@pytest.mark.parametrize("end", ["exit", "_exit"])
def test_a_forked_child_is_told_and_harms_nobody(end: str) -> None:
    assert run_python(FORKED, end).stdout == "done\n"


@pytest.mark.parametrize("end", ["falls off", "sys.exit(0)", "raise SystemExit"])
def test_the_interpreter_ends_with_clients_open(cluster: Cluster, end: str) -> None:
    code = f"""
import asyncio, sys, threading, mc_store
local = mc_store.local(segment_size="1MB")
local["k"] = b"value"
view = memoryview(local["k"])
client = mc_store.Client({cluster.address!r}, segment_size="1MB", segment_name="open at exit")
cycle = [client]
cycle.append(cycle)

async def connect():
    return await mc_store.AsyncClient.connect({cluster.address!r})

other = asyncio.run(connect())
loop = asyncio.new_event_loop()
unfinished = loop.create_task(other.ping())
unfinished._log_destroy_pending = False
loop.run_until_complete(asyncio.sleep(0))
begun = threading.Event()

def forever():
    begun.set()
    while True:
        client.exists("k")

threading.Thread(target=forever, daemon=True).start()
begun.wait()
print("open", flush=True)
{end if "(" in end or "raise" in end else ""}
"""
    started = time.monotonic()
    done = run_python(code)
    assert done.stdout == "open\n"
    assert "Fatal" not in done.stderr
    assert "panicked" not in done.stderr
    assert time.monotonic() - started < 20
    # It has unmounted its segment, so that no client is sent there any more.
    with mc_store.Client(cluster.address) as client:
        segments = client.cluster_report().segments
        assert "open at exit" not in [segment.name for segment in segments]


def test_the_interpreter_ends_when_the_master_is_gone(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(nodes=0)
    code = f"""
import mc_store
from _cluster import suspend
client = mc_store.Client({cluster.address!r}, segment_size="1MB", listen="127.0.0.1:0")
suspend({cluster.master.pid})
print("open", flush=True)
"""
    started = time.monotonic()
    try:
        assert run_python(code, cwd=Path(__file__).parent).stdout == "open\n"
    finally:
        cluster.master.signal(signal.SIGCONT)
    assert time.monotonic() - started < 20
