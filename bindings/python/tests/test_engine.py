"""`mooncake.engine.TransferEngine`: transfers between the memories of real processes."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _cluster import Cluster, Program, free_port, run_python, suspend, wait_until
from _engine import P2P
from connectors.engines import Engine
from connectors.memory import HostMemory, content
from mc_store.mooncake import engine as module
from mc_store.mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

if TYPE_CHECKING:
    from _engine import Peer

KIB, MIB = 1 << 10, 1 << 20
SIZE = 4 * MIB

NOT_REGISTERED = -3
OVERLAPS = -7
FAILED = -1
NO_ANSWER = -102

#: Limits in time of a process whose peer is stopped.
HASTY = {"MC_TRANSFER_TIMEOUT": "2", "MC_STORE_TRANSFER_STALL_TIMEOUT_MS": "1000"}


@pytest.fixture(scope="module")
def process() -> Iterator[Engine]:
    """A process for peers that no test harms."""
    with ExitStack() as opened:
        engine = Engine()
        opened.callback(engine.close)
        yield engine


@pytest.fixture(scope="module")
def peer(process: Engine) -> Peer:
    """A peer with registered memory."""
    made: Peer = process.make("_engine:Peer", size=SIZE)
    return made


@pytest.fixture
def new_process() -> Iterator[Callable[[], Engine]]:
    """Makes processes that tests may kill."""
    with ExitStack() as opened:

        def make() -> Engine:
            engine = Engine()
            opened.callback(engine.close)
            return engine

        yield make


@pytest.fixture
def engine() -> TransferEngine:
    made = TransferEngine()
    assert made.initialize("127.0.0.1", P2P, "tcp", "") == 0
    return made


class Registered(HostMemory):
    """Memory that is registered with an engine."""

    def __init__(self, engine: TransferEngine, size: int = SIZE) -> None:
        super().__init__(size)
        assert engine.register_memory(self.address, size) == 0


@pytest.fixture
def memory(engine: TransferEngine) -> Registered:
    return Registered(engine)


def test_bytes_are_written_to_a_peer_and_read_back(
    engine: TransferEngine, memory: Registered, peer: Peer, key: str
) -> None:
    data = content(key, MIB + 5)
    memory.write(100, data)
    session, local, remote = peer.session(), memory.address, peer.address()
    assert engine.transfer_sync_write(session, local + 100, remote + 7, len(data)) == 0
    assert peer.read(7, len(data)) == data
    assert engine.transfer_sync_read(session, local + 2 * MIB, remote + 7, len(data)) == 0
    assert memory.read(2 * MIB, len(data)) == data


def test_a_thousand_pairs_are_one_batch(
    engine: TransferEngine, memory: Registered, peer: Peer, key: str
) -> None:
    data = content(key, 1000 * KIB)
    memory.write(0, data)
    local = [memory.address + nth * KIB for nth in range(1000)]
    # In another order over there.
    remote = [peer.address() + (nth * 7 % 1000) * KIB for nth in range(1000)]
    lengths = [KIB] * 1000
    session = peer.session()
    assert engine.batch_transfer_sync_write(session, local, remote, lengths) == 0
    there = peer.read(0, len(data))
    for nth in range(1000):
        place = (nth * 7 % 1000) * KIB
        assert there[place : place + KIB] == data[nth * KIB : (nth + 1) * KIB]
    memory.write(0, bytes(len(data)))
    opcode = TransferOpcode.Read
    assert engine.batch_transfer_sync(session, local, remote, lengths, opcode) == 0
    assert memory.read(0, len(data)) == data


def test_three_processes_pass_bytes_on(
    engine: TransferEngine,
    memory: Registered,
    peer: Peer,
    new_process: Callable[[], Engine],
    key: str,
) -> None:
    third: Peer = new_process().make("_engine:Peer", size=SIZE)
    data = content(key, 300_000)
    peer.write(0, data)
    moved = third.call(
        "transfer_sync_read", peer.session(), third.address() + 9, peer.address(), len(data)
    )
    assert moved == 0
    read = engine.transfer_sync_read(
        third.session(), memory.address, third.address() + 9, len(data)
    )
    assert read == 0
    assert memory.read(0, len(data)) == data


def test_an_engine_is_a_peer_of_itself(
    engine: TransferEngine, memory: Registered, key: str
) -> None:
    data = content(key, 100_000)
    memory.write(0, data)
    session = f"127.0.0.1:{engine.get_rpc_port()}"
    at = memory.address
    assert engine.transfer_sync_write(session, at, at + MIB, len(data)) == 0
    assert memory.read(MIB, len(data)) == data
    assert engine.get_first_buffer_address(session) == at


def test_no_bytes_are_transferred_at_once(engine: TransferEngine, peer: Peer) -> None:
    session = peer.session()
    assert engine.transfer_sync_write(session, 1, 2, 0) == 0
    assert engine.batch_transfer_sync_read(session, [], [], []) == 0
    assert engine.batch_transfer_sync_write(session, [1, 2], [3, 4], [0, 0]) == 0
    batch = engine.batch_transfer_async_write(session, [], [], [])
    assert batch > 0
    assert engine.get_batch_transfer_status([batch]) == 0


def test_lists_of_different_lengths_are_refused(engine: TransferEngine, peer: Peer) -> None:
    session = peer.session()
    for lists in (([1], [1, 2], [1]), ([1, 2], [1, 2], [1]), ([], [1], [1])):
        assert engine.batch_transfer_sync_write(session, *lists) == FAILED
        assert engine.batch_transfer_async_read(session, *lists) == 0
    assert engine.batch_register_memory([1, 2], [3]) == FAILED


def test_local_memory_must_be_registered(
    engine: TransferEngine, memory: Registered, peer: Peer
) -> None:
    session, remote = peer.session(), peer.address()
    stranger = HostMemory(SIZE)
    end = memory.address + SIZE
    for local in (stranger.address, end - 99, end, 0, 1 << 47, (1 << 64) - 50):
        assert engine.transfer_sync_write(session, local, remote, 100) == FAILED
        assert engine.transfer_sync_read(session, local, remote, 100) == FAILED
        assert engine.transfer_submit_write(session, local, remote, 100) == 0
    # One that is not spoils all of a batch.
    both = [memory.address, stranger.address]
    before = peer.read(0, 8)
    memory.write(0, bytes(byte ^ 0xFF for byte in before))
    assert engine.batch_transfer_sync_write(session, both, [remote, remote + 8], [8, 8]) == FAILED
    assert peer.read(0, 8) == before


def test_remote_memory_must_be_registered(
    engine: TransferEngine, memory: Registered, peer: Peer
) -> None:
    session, local = peer.session(), memory.address
    end = peer.address() + SIZE
    for remote in (end - 99, end, 0, 8, 1 << 47, (1 << 64) - 50):
        assert engine.transfer_sync_write(session, local, remote, 100) == FAILED
        assert engine.transfer_sync_read(session, local, remote, 100) == FAILED
    assert engine.transfer_sync_write(session, local, end - 100, 100) == 0


def test_unknown_sessions_are_refused(engine: TransferEngine, memory: Registered) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for session in (nobody, "", "127.0.0.1:0", "127.0.0.1:99999", "a b:1", "[::1", "[x]:1", ":1"):
        assert engine.transfer_sync_write(session, memory.address, 8, 8) == FAILED
        assert engine.batch_transfer_async_write(session, [memory.address], [8], [8]) == 0
        assert engine.get_first_buffer_address(session) == 0
        assert engine.send_probe(session) == NO_ANSWER


def test_probes_are_answered(engine: TransferEngine, peer: Peer) -> None:
    assert engine.send_probe(peer.session()) == 0
    assert engine.warmup_efa_segment(peer.session()) == 0


def test_memory_that_is_registered_later_is_found(
    engine: TransferEngine, memory: Registered, process: Engine, key: str
) -> None:
    late: Peer = process.make("_engine:Peer", size=SIZE, register=False)
    session, remote = late.session(), late.address()
    data = content(key, 1000)
    memory.write(0, data)
    assert engine.get_first_buffer_address(session) == 0
    assert engine.transfer_sync_write(session, memory.address, remote, 1000) == FAILED
    assert late.call("register_memory", remote, SIZE) == 0
    assert engine.transfer_sync_write(session, memory.address, remote, 1000) == 0
    assert late.read(0, 1000) == data
    # Registered anew it has another key.
    assert late.call("unregister_memory", remote) == 0
    assert engine.transfer_sync_write(session, memory.address, remote, 1000) == FAILED
    assert late.call("register_memory", remote, SIZE) == 0
    assert engine.transfer_sync_write(session, memory.address, remote + MIB, 1000) == 0
    assert late.read(MIB, 1000) == data


def test_ranges_that_adjoin_are_one_for_transfers(
    engine: TransferEngine, process: Engine, key: str
) -> None:
    pieces: Peer = process.make("_engine:Peer", size=SIZE, register=False)
    session, remote = pieces.session(), pieces.address()
    sizes = [MIB, MIB, 2 * MIB]
    places = [remote, remote + MIB, remote + 2 * MIB]
    assert pieces.call("batch_register_memory", places, sizes) == 0
    local = HostMemory(SIZE)
    halves = [local.address, local.address + 1000]
    assert engine.batch_register_memory(halves, [1000, SIZE - 1000]) == 0
    data = content(key, 3 * MIB)
    local.write(10, data)
    assert engine.transfer_sync_write(session, local.address + 10, remote + 5, len(data)) == 0
    assert pieces.read(5, len(data)) == data
    local.write(10, bytes(len(data)))
    assert engine.transfer_sync_read(session, local.address + 10, remote + 5, len(data)) == 0
    assert local.read(10, len(data)) == data
    assert pieces.call("unregister_memory", remote + MIB) == 0
    assert engine.transfer_sync_read(session, local.address + 10, remote + 5, len(data)) == FAILED


def test_registrations_have_the_numbers_of_mooncake(engine: TransferEngine) -> None:
    memory = HostMemory(64 * KIB)
    at = memory.address
    assert engine.register_memory(at, 8 * KIB) == 0
    assert engine.register_memory(at, 8 * KIB) == OVERLAPS
    assert engine.register_memory(at + 4 * KIB, 8 * KIB, "cpu:0") == OVERLAPS
    assert engine.register_memory(at + 8 * KIB, 0) == FAILED
    assert engine.register_memory(0, 10) == FAILED
    assert engine.register_memory((1 << 64) - 8, 8) == FAILED
    assert engine.unregister_memory(at + 1) == NOT_REGISTERED
    assert engine.unregister_memory(at) == 0
    assert engine.unregister_memory(at) == NOT_REGISTERED
    # All or none of them.
    places = [at, at + 8 * KIB, at + 4 * KIB]
    assert engine.batch_register_memory(places, [8 * KIB, 1, 1]) == OVERLAPS
    assert engine.batch_register_memory(places[:2], [8 * KIB, 1]) == 0
    assert engine.batch_unregister_memory([at, 12345, at + 8 * KIB]) == NOT_REGISTERED
    assert engine.unregister_memory(at + 8 * KIB) == NOT_REGISTERED


def test_memory_of_a_device_is_refused_with_the_reason() -> None:
    done = run_python(
        """
from connectors.memory import DeviceMemory
from mc_store.mooncake.engine import TransferEngine
engine, memory = TransferEngine(), DeviceMemory(65536)
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
assert engine.register_memory(memory.address, memory.size) == -1
""",
        cwd=Path(__file__).parent,
    )
    assert "GPU" in done.stderr
    # The second in a build with RDMA, on a host without a device.
    assert "rdma is not part of this build" in done.stderr or "RDMA is off" in done.stderr


def test_read_only_memory_is_only_read(
    engine: TransferEngine, memory: Registered, process: Engine, key: str
) -> None:
    data = key.encode()
    pages = HostMemory(SIZE)
    pages.write(0, data)
    libc = ctypes.CDLL(None, use_errno=True)
    read_only = (ctypes.c_void_p(pages.address), ctypes.c_size_t(SIZE), mmap.PROT_READ)
    assert libc.mprotect(*read_only) == 0
    reader: Peer = process.make("_engine:Peer", size=SIZE)
    assert engine.register_memory(pages.address, SIZE) == 0
    session = reader.session()
    assert engine.transfer_sync_write(session, pages.address, reader.address(), len(data)) == 0
    assert reader.read(0, len(data)) == data
    assert engine.transfer_sync_read(session, pages.address, reader.address(), 1) == FAILED
    # Nor do peers write it.
    own = f"127.0.0.1:{engine.get_rpc_port()}"
    there, size = reader.address(), len(data)
    assert reader.call("transfer_sync_read", own, there + KIB, pages.address, size) == 0
    assert reader.read(KIB, size) == data
    assert reader.call("transfer_sync_write", own, there, pages.address + 1, 1) == FAILED
    assert pages.read(0, size) == data


def test_managed_buffers_are_registered_until_they_are_freed(
    engine: TransferEngine, memory: Registered, process: Engine, key: str
) -> None:
    owner: Peer = process.make("_engine:Peer", register=False)
    session = owner.session()
    remote = owner.call("allocate_managed_buffer", 2 * MIB)
    assert engine.get_first_buffer_address(session) == remote
    local = engine.allocate_managed_buffer(2 * MIB)
    data = content(key, 2 * MIB)
    assert engine.write_bytes_to_buffer(local, data, len(data)) == 0
    assert engine.transfer_sync_write(session, local, remote, len(data)) == 0
    assert owner.call("read_bytes_from_buffer", remote, len(data)) == data
    assert owner.call("unregister_memory", remote) == NOT_REGISTERED
    assert owner.call("free_managed_buffer", remote, 2 * MIB) == 0
    assert owner.call("free_managed_buffer", remote, 2 * MIB) == NOT_REGISTERED
    assert engine.transfer_sync_write(session, local, remote, len(data)) == FAILED
    assert engine.free_managed_buffer(local, 2 * MIB) == 0
    assert engine.free_managed_buffer(memory.address, SIZE) == NOT_REGISTERED
    for impossible in (0, 1 << 60):
        assert engine.allocate_managed_buffer(impossible) == 0


def test_bytes_of_buffers(engine: TransferEngine) -> None:
    memory = HostMemory(64)
    at = memory.address
    assert engine.write_bytes_to_buffer(at, "héllo", 6) == 0
    assert engine.read_bytes_from_buffer(at, 6) == "héllo".encode()
    assert engine.write_bytes_to_buffer(at, bytearray(b"\x00\xff"), 2) == 0
    assert engine.read_bytes_from_buffer(at, 2) == b"\x00\xff"
    assert engine.write_bytes_to_buffer(at, b"abc", 2) == 0
    assert memory.read(0, 3) == b"ab\xa9", "the third byte is still that of the é"
    assert engine.write_bytes_to_buffer(at, b"abc", 4) == FAILED, "there are three"
    assert engine.write_bytes_to_buffer(8, b"abc", 3) == FAILED
    with pytest.raises(ValueError, match="cannot be read"):
        engine.read_bytes_from_buffer(8, 3)
    with pytest.raises(TypeError):
        engine.write_bytes_to_buffer(at, 7, 3)  # type: ignore[arg-type]


def test_notifies_arrive_in_order_after_the_bytes(
    engine: TransferEngine, memory: Registered, process: Engine
) -> None:
    told: Peer = process.make("_engine:Peer")
    session = told.session()
    for nth in range(50):
        memory.write(0, bytes([nth]))
        notify = TransferNotify("block", f"ü{nth}")
        code = engine.transfer_sync(
            session, memory.address, told.address() + nth, 1, TransferOpcode.Write, notify
        )
        assert code == 0
    lists = ([memory.address], [told.address()], [1])
    last = TransferNotify("last", "")
    assert engine.batch_transfer_sync(session, *lists, module.Read, notify=last) == 0
    expected = [("block", f"ü{nth}") for nth in range(50)]
    assert told.notifies() == [*expected, ("last", "")]
    assert told.notifies() == []
    assert told.read(0, 50) == bytes(range(50))
    # None, or a transfer that fails, tells nothing.
    assert engine.transfer_sync(session, memory.address, 8, 1, module.Write, last) == FAILED
    assert engine.transfer_sync(session, memory.address, told.address(), 1, module.Write, None) == 0
    assert told.notifies() == []
    memory.write(0, b"new")
    for long in (TransferNotify("long", "x" * 65_537), TransferNotify("ü" * 32_769, "")):
        assert engine.batch_transfer_sync(session, *lists, module.Write, long) == FAILED
    assert told.read(0, 1) == b"\0", "no byte of a transfer whose notify cannot be sent"


def test_asynchronous_transfers(
    engine: TransferEngine, memory: Registered, peer: Peer, key: str
) -> None:
    session, local, remote = peer.session(), memory.address, peer.address()
    data = content(key, MIB)
    memory.write(0, data)
    one = engine.transfer_submit_write(session, local, remote, MIB)
    wait_until(lambda: engine.transfer_check_status(one) == 1)
    assert engine.transfer_check_status(one) == 1, "it is not forgotten"
    assert peer.read(0, MIB) == data
    batch = engine.batch_transfer_async_read(session, [local + MIB], [remote], [MIB])
    other = engine.batch_transfer_async(session, [local], [remote], [8], TransferOpcode.Write)
    assert len({0, one, batch, other}) == 4
    assert engine.get_batch_transfer_status([batch, other]) == 0
    assert memory.read(MIB, MIB) == data
    assert engine.get_batch_transfer_status([batch]) == FAILED, "it is forgotten"
    bad = engine.batch_transfer_async_write(session, [local], [8], [8])
    assert bad > 0
    wait_until(lambda: engine.batch_transfer_poll([bad, one, 0]) == [-1, 0, -1])
    assert engine.transfer_check_status(bad) == FAILED
    engine.batch_transfer_free([bad, one, 0])
    assert engine.batch_transfer_poll([bad, one]) == [-1, -1]
    assert engine.transfer_check_status(-1) == FAILED
    assert engine.get_batch_transfer_status([]) == 0


def test_a_peer_that_is_killed_fails_transfers(
    engine: TransferEngine, memory: Registered, new_process: Callable[[], Engine]
) -> None:
    victim: Peer = new_process().make("_engine:Peer", size=SIZE)
    session, remote = victim.session(), victim.address()
    assert engine.transfer_sync_write(session, memory.address, remote, 100) == 0
    os.kill(victim.pid(), signal.SIGKILL)
    wait_until(lambda: engine.send_probe(session) == NO_ANSWER)
    began = time.monotonic()
    assert engine.transfer_sync_write(session, memory.address, remote, 100) == FAILED
    assert engine.transfer_sync_read(session, memory.address, remote, SIZE) == FAILED
    batch = engine.batch_transfer_async_write(session, [memory.address], [remote], [100])
    assert engine.get_batch_transfer_status([batch]) == FAILED
    assert time.monotonic() - began < 10
    assert engine.unregister_memory(memory.address) == 0


def test_a_peer_that_is_stopped_is_given_up(new_process: Callable[[], Engine]) -> None:
    reader: Peer = new_process().make("_engine:Peer", size=SIZE, environment=HASTY)
    stopped: Peer = new_process().make("_engine:Peer", size=SIZE)
    session, remote, pid = stopped.session(), stopped.address(), stopped.pid()
    local = reader.address()
    stopped.write(0, b"before")
    assert reader.call("transfer_sync_read", session, local, remote, SIZE) == 0
    suspend(pid)
    try:
        began = time.monotonic()
        assert reader.call("transfer_sync_read", session, local, remote, SIZE) == FAILED
        assert reader.call("transfer_sync_write", session, local, remote, SIZE) == FAILED
        assert time.monotonic() - began < 30
        # Nothing is left that could still touch the memory.
        assert reader.call("unregister_memory", local) == 0
        assert reader.call("register_memory", local, SIZE) == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: reader.call("transfer_sync_read", session, local, remote, SIZE) == 0)
    assert reader.read(0, 6) == b"before"


def test_a_peer_that_starts_again_at_its_port_is_found(
    engine: TransferEngine, memory: Registered, new_process: Callable[[], Engine], key: str
) -> None:
    name = f"127.0.0.1:{free_port()}"
    process = new_process()
    first: Peer = process.make("_engine:Peer", name, size=SIZE)
    assert first.session() == name
    data = content(key, MIB)
    memory.write(0, data)
    assert engine.transfer_sync_write(name, memory.address, first.address(), MIB) == 0
    notify = TransferNotify("to", "first")
    opcode = TransferOpcode.Write
    sent = engine.transfer_sync(name, memory.address, first.address(), MIB, opcode, notify)
    assert sent == 0
    os.kill(first.pid(), signal.SIGKILL)
    wait_until(lambda: engine.send_probe(name) == NO_ANSWER)
    second: Peer = new_process().make("_engine:Peer", name, size=SIZE)
    assert second.session() == name
    remote = second.address()
    notify = TransferNotify("to", "second")
    assert engine.transfer_sync(name, memory.address, remote + 9, MIB, opcode, notify) == 0
    assert second.read(9, MIB) == data
    assert second.notifies() == [("to", "second")]
    assert engine.transfer_sync_read(name, memory.address + MIB, remote + 9, MIB) == 0
    assert memory.read(MIB, MIB) == data


def test_unregistered_memory_is_left_alone(
    engine: TransferEngine, memory: Registered, new_process: Callable[[], Engine]
) -> None:
    """Once unregister_memory has returned, no write of a peer that was under way arrives."""
    writer: Peer = new_process().make("_engine:Peer", size=SIZE)
    session = f"127.0.0.1:{engine.get_rpc_port()}"
    writer.write(0, b"\xff" * SIZE)
    batches = []
    for _ in range(20):
        for _ in range(8):
            lists = ([writer.address()], [memory.address], [SIZE])
            batches.append(writer.call("batch_transfer_async_write", session, *lists))
        # Some of them are under way.
        wait_until(lambda: memory.read(0, 1) == b"\xff")
        assert engine.unregister_memory(memory.address) == 0
        memory.write(0, bytes(SIZE))
        assert memory.read(0, SIZE) == bytes(SIZE)
        for _ in range(5):
            assert memory.read(0, SIZE) == bytes(SIZE), "a byte came late"
        assert engine.register_memory(memory.address, SIZE) == 0
    assert writer.call("get_batch_transfer_status", batches) == FAILED, "none was cut off"


def test_an_engine_that_is_deleted_leaves_memory_alone(peer: Peer) -> None:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", P2P, "tcp", "") == 0
    port = engine.get_rpc_port()
    memory = Registered(engine)
    session = f"127.0.0.1:{port}"
    peer.write(0, b"\xee" * SIZE)
    lists = ([peer.address()] * 500, [memory.address] * 500, [SIZE] * 500)
    batch = peer.call("batch_transfer_async_write", session, *lists)
    assert batch > 0
    wait_until(lambda: memory.read(0, 1) == b"\xee")
    del engine
    gc.collect()
    memory.write(0, bytes(SIZE))
    assert peer.call("get_batch_transfer_status", [batch]) == FAILED, "it had ended before"
    assert memory.read(0, SIZE) == bytes(SIZE)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_before_initialize_nothing_works() -> None:
    engine = TransferEngine()
    assert engine.get_rpc_port() == FAILED
    assert engine.register_memory(8, 8) == FAILED
    assert engine.transfer_sync_write("a:1", 8, 8, 8) == FAILED
    assert engine.batch_transfer_async_write("a:1", [8], [8], [8]) == 0
    assert engine.allocate_managed_buffer(8) == 0
    assert engine.get_first_buffer_address("a:1") == 0
    assert engine.send_probe("a:1") == NO_ANSWER
    assert engine.get_notifies() == []
    assert engine.transfer_check_status(1) == FAILED


@pytest.mark.parametrize("protocol", ["nvlink", "ascend", "efa", "cuda", "hip", "", "quic"])
def test_protocols_that_cannot_be_served_are_refused(protocol: str) -> None:
    # quic is served with certificates only.
    assert TransferEngine().initialize("127.0.0.1", P2P, protocol, "") == FAILED


@pytest.mark.parametrize("name", ["", "0.0.0.0", "::", "a b", "host:port", "host:-1", "[::1", "é"])
def test_names_that_are_none_are_refused(name: str) -> None:
    assert TransferEngine().initialize(name, P2P, "tcp", "") == FAILED


def test_engines_of_a_metadata_server_are_named_by_their_hostname(
    engine: TransferEngine, memory: Registered, process: Engine
) -> None:
    server = "etcd://127.0.0.1:2379"
    name = f"127.0.0.1:{free_port()}"
    named: Peer = process.make("_engine:Peer", name, metadata_server=server)
    assert engine.transfer_sync_write(name, memory.address, named.address(), 10) == 0
    # Another engine of the same name is refused, but in a mesh of peers gets a port.
    other = TransferEngine()
    assert other.initialize(name, server, "tcp", "") == FAILED
    assert other.initialize_ext(name, server, "tcp", "", "p2p") == 0
    assert other.get_rpc_port() not in (FAILED, int(name.partition(":")[2]))


def test_an_engine_may_be_initialized_again(peer: Peer) -> None:
    engine = TransferEngine()
    memory = HostMemory(SIZE)
    for _ in range(2):
        assert engine.initialize("localhost:0", P2P, "TCP", "no_such_device") == 0
        assert engine.register_memory(memory.address, SIZE) == 0
        assert engine.transfer_sync_write(peer.session(), memory.address, peer.address(), 9) == 0


def test_a_process_has_a_store_and_an_engine(cluster: Cluster, peer: Peer, key: str) -> None:
    from mc_store.mooncake.store import MooncakeDistributedStore

    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", P2P, "tcp", "") == 0
    memory = Registered(engine)
    store = MooncakeDistributedStore()
    code = store.setup(
        "127.0.0.1", P2P, 0, 16 << 20, "tcp", "", cluster.address, engine.get_engine()
    )
    assert code == 0
    memory.write(0, key.encode())
    assert store.register_buffer(memory.address, SIZE) == 0
    assert store.put_from(key, memory.address, len(key)) == 0
    assert engine.transfer_sync_write(peer.session(), memory.address, peer.address(), len(key)) == 0
    assert peer.read(0, len(key)) == store.get(key) == key.encode()
    assert store.close() == 0


def test_values_of_the_module() -> None:
    assert (int(module.Read), int(module.Write)) == (0, 1)
    assert TransferEngine.TransferOpcode is TransferOpcode
    assert TransferOpcode(1) == module.Write
    assert repr(module.Read) == "<TransferOpcode.Read: 0>"
    notify = TransferNotify()
    assert (notify.name, notify.msg) == ("", "")
    notify.name = "changed"
    assert repr(notify) == 'TransferNotify("changed", "")'
    assert not module.SUPPORT_CUDA
    engine = TransferEngine()
    assert '"cpu:0"' in engine.get_local_topology()
    assert engine.get_local_topology("none,such").startswith("{")
    with pytest.raises(RuntimeError, match="GPU"):
        engine.batch_transfer_write_on_cuda("a:1", [], [], [])


@pytest.mark.parametrize("value", [-1, 1 << 64, 1.5, "8", None])
def test_addresses_that_are_none_raise(engine: TransferEngine, value: object) -> None:
    with pytest.raises(TypeError):
        engine.register_memory(value, 8)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        engine.batch_transfer_sync_write("a:1", [8], [value], [8])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        engine.batch_transfer_poll([value])  # type: ignore[list-item]


FORK = """
import os, warnings
warnings.simplefilter("ignore")  # of forking with threads
from mc_store.mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
buffer = engine.allocate_managed_buffer(4096)
pid = os.fork()
if pid == 0:
    try:
        engine.get_rpc_port()
    except RuntimeError as error:
        assert "fork" in str(error)
        own = TransferEngine()
        assert own.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        assert own.allocate_managed_buffer(4096)
        del engine
        os._exit(0 if own.get_rpc_port() > 0 else 2)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
session = f"127.0.0.1:{engine.get_rpc_port()}"
assert engine.transfer_sync_write(session, buffer, buffer + 100, 10) == 0
"""


def test_an_engine_does_not_survive_a_fork() -> None:
    run_python(FORK)


INTERRUPTED = """
import signal, sys
from mc_store.mooncake.engine import TransferEngine
signal.signal(signal.SIGINT, signal.default_int_handler)
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
at = engine.allocate_managed_buffer(4096)
print("calling", flush=True)
try:
    print("ended", engine.transfer_sync_write(sys.argv[1], at, 8, 8), flush=True)
except KeyboardInterrupt:
    print("interrupted", engine.free_managed_buffer(at, 4096), flush=True)
"""


def test_an_interrupt_ends_a_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        session = f"127.0.0.1:{silent.getsockname()[1]}"
        program = Program([sys.executable, "-c", INTERRUPTED, session])
        try:
            program.expect("calling")
            accepted, _ = silent.accept()
            with accepted:
                began = time.monotonic()
                program.signal(signal.SIGINT)
                program.expect("interrupted 0")
                assert time.monotonic() - began < 3, "connecting has a limit of 5 s"
        finally:
            program.kill()


UNREGISTERED_TWICE = """
import signal, sys
from _cluster import suspend
from connectors.memory import HostMemory
from mc_store.mooncake.engine import TransferEngine
# It is ignored below a shell in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
session, remote, pid, size = sys.argv[1], *map(int, sys.argv[2:])
engine, memory, other = TransferEngine(), HostMemory(size), HostMemory(size)
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
assert engine.batch_register_memory([memory.address, other.address], [size, size]) == 0
assert engine.transfer_sync_write(session, memory.address, remote, 8) == 0
suspend(pid)
batch = engine.batch_transfer_async_write(session, [memory.address], [remote], [size])
both = [memory.address, other.address]
try:
    print("calling", flush=True)
    code = engine.batch_unregister_memory(both)
    raise AssertionError(f"nothing was interrupted: {code}")
except KeyboardInterrupt:
    print("poll", *engine.batch_transfer_poll([batch]), flush=True)
print("again", engine.register_memory(memory.address + size // 2, size), flush=True)
print("other", engine.unregister_memory(other.address), flush=True)
print("closed", engine.unregister_memory(memory.address), flush=True)
print("ended", engine.get_batch_transfer_status([batch]), flush=True)
print("after", engine.unregister_memory(memory.address), flush=True)
"""


def test_unregister_memory_may_be_repeated_after_an_interrupt(
    new_process: Callable[[], Engine],
) -> None:
    stopped: Peer = new_process().make("_engine:Peer", size=SIZE)
    pid = stopped.pid()
    arguments = [stopped.session(), str(stopped.address()), str(pid), str(SIZE)]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {"PYTHONPATH": path, **HASTY}
    program = Program([sys.executable, "-c", UNREGISTERED_TWICE, *arguments], environment)
    try:
        program.expect("calling")
        program.signal(signal.SIGINT)
        # The transfer goes on, and so does the second call until it has ended.
        program.expect("poll 1")
        program.expect(f"again {OVERLAPS}")
        assert "do not free" not in program.output, "an interrupt is no error"
        program.expect("other 0")
        program.expect("closed 0")
        program.expect(f"ended {FAILED}")
        program.expect(f"after {NOT_REGISTERED}")
    finally:
        os.kill(pid, signal.SIGCONT)
        program.kill()


@contextmanager
def answering(*replies: bytes) -> Iterator[str]:
    """A server that gives each connection the next of `replies`, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for reply in replies:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


HELLO = b"MCTE\x01\0\0\0" + bytes(16)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        HELLO.replace(b"\x01", b"\x63"),
        HELLO,
        HELLO + b"\x81\0\0\0\xff\xff\xff\xff",
        HELLO + b"\x81\0\0\0\x04\0\0\0\x01\xff\xff\xff",
        HELLO + b"\x82\0\0\0\0\0\0\0",
    ],
)
def test_servers_that_are_no_engines_are_refused(
    engine: TransferEngine, memory: Registered, reply: bytes
) -> None:
    with answering(reply) as session:
        assert engine.transfer_sync_write(session, memory.address, 8, 8) == FAILED


def test_connections_that_ask_nothing_keep_no_engine_out(engine: TransferEngine) -> None:
    import resource

    # Both ends of each connection are of this process.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    place = ("127.0.0.1", engine.get_rpc_port())
    other = TransferEngine()
    assert other.initialize("127.0.0.1", P2P, "tcp", "") == 0
    with ExitStack() as opened:
        for _ in range(1100):
            connection = opened.enter_context(socket.create_connection(place))
            connection.settimeout(10)
            connection.sendall(HELLO)
            connection.recv(len(HELLO))
        assert other.send_probe(f"127.0.0.1:{place[1]}") == 0


def test_what_is_no_request_ends_its_connection_only(
    engine: TransferEngine, memory: Registered
) -> None:
    place = ("127.0.0.1", engine.get_rpc_port())
    for request in (
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        HELLO + b"\x03\0\0\0\xff\xff\xff\xff",
        HELLO + b"\x63\0\0\0\0\0\0\0",
        HELLO + b"\x03\0\0\0\x08\0\0\0\xff\xff\xff\xff\0\0\0\0",
    ):
        with socket.create_connection(place) as connection:
            connection.settimeout(10)
            connection.sendall(request)
            answer = b""
            try:
                while more := connection.recv(4096):
                    answer += more
            except ConnectionResetError:
                pass  # it had not read all of the request
            assert len(answer) in (0, len(HELLO))
    assert engine.send_probe(f"127.0.0.1:{place[1]}") == 0
