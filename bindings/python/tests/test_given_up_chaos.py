"""Callers of three kinds that give up at random, use their memory for something else at once and
go on, while masters, nodes and the node agent stand still or are killed: a key has the bytes of one
call for it, and nothing comes into memory that was given back.

MC_CHAOS_SECONDS (45) is how long it goes on; MC_TEST_SEED the seed, which is printed.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import random
import signal
import struct
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as GaveUp
from pathlib import Path

import mc_store
from _cluster import PATIENCE, Master, Node, free_port, suspend, wait_until
from mc_store.mooncake.store import MooncakeDistributedStore

KIB, MIB = 1 << 10, 1 << 20
SIZES = [64 * KIB, MIB, 4 * MIB]

#: Keys that all callers share.
KEYS = [f"key-{number}" for number in range(30)]

#: Pieces of memory that a caller takes in turn, whatever becomes of the calls before.
SLOTS = 3

#: Calls of one caller that may be under way, abandoned ones included.
UNDER_WAY = 8

#: Seconds after which a call is abandoned.
SHORTEST, LONGEST = 0.1, 2.0

#: What memory is filled with that was given back: no value consists of it.
ANOTHER_USE = b"\xdd"

#: Longer than bytes are late: no call of these tests lasts that long.
LATE = 12.0


class Ledger:
    """Which values were meant for which key, and what came of the calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key_of: dict[int, str] = {}
        self._next = 1
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def value(self, key: str, size: int) -> bytes:
        """A value for this key, unlike all others."""
        with self._lock:
            number = self._next
            self._next += 1
            self._key_of[number] = key
        return struct.pack("<Q", number) * (size // 8)

    def check(self, who: str, key: str, value: bytes) -> None:
        """Notes a fault unless the value is one that was meant for this key."""
        number = struct.unpack("<Q", value[:8])[0]
        with self._lock:
            meant = self._key_of.get(number)
            self.counts[f"{who} got"] += 1
            if meant != key:
                self.faults.append(f"{who} got a value of {meant} under {key}")
            elif value != value[:8] * (len(value) // 8):
                self.faults.append(f"{who} got a mixture under {key}")

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def fault(self, what: str) -> None:
        with self._lock:
            self.faults.append(what)


class Blocking(threading.Thread):
    """A caller of the Mooncake module, as LMCache's connector is: calls in threads, each with a
    time limit, and memory that is used anew when it is over."""

    def __init__(
        self, name: str, store: MooncakeDistributedStore, slots: list[int], world: World, seed: int
    ) -> None:
        super().__init__(name=name)
        self.store, self.slots, self.world = store, slots, world
        self.random = random.Random(seed)
        self.pool = ThreadPoolExecutor(UNDER_WAY)
        self.calls: list[Future[int]] = []

    def run(self) -> None:
        try:
            turn = 0
            while not self.world.is_over:
                turn += 1
                self.step(self.slots[turn % SLOTS])
            self.pool.shutdown()
        except Exception as error:
            self.world.ledger.fault(f"{self.name}: {error!r}")

    def step(self, address: int) -> None:
        key, ledger = self.random.choice(KEYS), self.world.ledger
        if self.random.random() < 0.4:
            value = self.store.get(key)
            if value:
                ledger.check(self.name, key, value)
            return
        if self.random.random() < 0.1:
            self.store.remove(key, True)
            return
        value = ledger.value(key, self.random.choice(SIZES))
        ctypes.memmove(address, value, len(value))
        call = self.store.upsert_from if self.random.random() < 0.5 else self.store.put_from
        under_way = self.pool.submit(call, key, address, len(value))
        self.calls = [call for call in self.calls if not call.done()]
        try:
            code = under_way.result(self.random.uniform(SHORTEST, LONGEST))
            ledger.count(f"{self.name} put" if code == 0 else f"{self.name} put failed")
        except GaveUp:
            ledger.count(f"{self.name} gave up")
            ctypes.memset(address, ANOTHER_USE[0], SIZES[-1])
            self.calls.append(under_way)
        wait_until(
            lambda: sum(not call.done() for call in self.calls) < UNDER_WAY - 1,
            what="calls that were given up",
        )


class Cancelling(threading.Thread):
    """A caller of the asyncio client, whose calls are cancelled."""

    name = "async"

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(name=self.name)
        self.world, self.random = world, random.Random(seed)
        self.given_back: list[tuple[float, bytearray]] = []
        self.is_connected = threading.Event()

    def run(self) -> None:
        try:
            asyncio.run(self.work())
        except Exception as error:
            self.world.ledger.fault(f"async: {error!r}")

    async def work(self) -> None:
        config = {"shared_memory": False}
        async with mc_store.AsyncClient(self.world.master.address, config=config) as client:
            self.is_connected.set()
            buffers, turn = [bytearray(SIZES[-1]) for _ in range(SLOTS)], 0
            while not self.world.is_over:
                turn += 1
                await self.step(client, buffers[turn % SLOTS])
                self.look(everything=False)
        self.look(everything=True)

    async def step(self, client: mc_store.AsyncClient, buffer: bytearray) -> None:
        key, ledger = self.random.choice(KEYS), self.world.ledger
        patience = self.random.uniform(SHORTEST, LONGEST)
        gets = self.random.random() < 0.5
        target = bytearray(SIZES[-1])
        try:
            if gets:
                length = await asyncio.wait_for(client.get_into(key, target), patience)
                ledger.check("async", key, bytes(target[:length]))
            else:
                value = ledger.value(key, self.random.choice(SIZES))
                buffer[: len(value)] = value
                view = memoryview(buffer)[: len(value)]
                await asyncio.wait_for(client.put(key, view), patience)
                ledger.count("async put")
        except TimeoutError:
            if gets:
                target[:] = ANOTHER_USE * len(target)
                self.given_back.append((time.monotonic(), target))
            else:
                buffer[:] = ANOTHER_USE * len(buffer)
            ledger.count("async gave up")
        except mc_store.StoreError:
            ledger.count("async failed")

    def look(self, *, everything: bool) -> None:
        """Looks at memory to which no late bytes can come any more."""
        for since, memory in self.given_back[:]:
            if everything or time.monotonic() - since > LATE:
                self.given_back.remove((since, memory))
                if memory.count(ANOTHER_USE) != len(memory):
                    self.world.ledger.fault("bytes came into memory that was given back")


class World:
    """A master with a journal, two nodes, and a node agent without room."""

    def __init__(self, journal: Path) -> None:
        self.flags = [f"--metadata_dir={journal}", "--default_kv_lease_ttl=500"]
        self.port = free_port()
        self.master = Master(self.flags, port=self.port)
        self.nodes = [self.node(), self.node()]
        self.agent = Node(self.master.address, "1MB", ["--host=127.0.0.1"])
        self.ledger, self.is_over = Ledger(), False

    def node(self) -> Node:
        return Node(self.master.address, "128MB", ["--host=127.0.0.1"])

    def harm(self, chance: random.Random) -> str:
        """Does one harm, and mends it."""
        what = chance.choice(["master", "node", "agent"])
        if chance.random() < 0.25 and what != "agent":
            return self.kill(what, chance)
        programs = {"master": self.master, "node": chance.choice(self.nodes), "agent": self.agent}
        program = programs[what]
        suspend(program.pid)
        # Not a wait: the harm lasts so long.
        time.sleep(chance.uniform(0.3, 2.5))
        program.signal(signal.SIGCONT)
        return f"{what} stood still"

    def kill(self, what: str, chance: random.Random) -> str:
        if what == "master":
            self.master.kill()
            self.master = Master(self.flags, port=self.port)
        else:
            at = chance.randrange(len(self.nodes))
            self.nodes[at].kill()
            self.nodes[at] = self.node()
        return f"{what} was killed"

    def close(self) -> None:
        for program in [self.agent, *self.nodes, self.master]:
            program.kill()


def registered(store: MooncakeDistributedStore, memory: mmap.mmap) -> list[int]:
    """The addresses of pieces of this memory."""
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    assert store.register_buffer(address, len(memory)) == 0
    return [address + slot * SIZES[-1] for slot in range(SLOTS)]


def test_callers_that_give_up_leave_no_foreign_byte(tmp_path: Path) -> None:
    seconds = float(os.environ.get("MC_CHAOS_SECONDS", "45"))
    seed = int(os.environ.get("MC_TEST_SEED") or time.time())
    print(f"MC_TEST_SEED={seed}")
    chance = random.Random(seed)
    world = World(tmp_path / "journal")
    stores = [MooncakeDistributedStore() for _ in range(3)]
    memories = [mmap.mmap(-1, SLOTS * SIZES[-1]) for _ in range(2)]
    try:
        callers: list[threading.Thread] = []
        for store, memory, shared in zip(stores[:2], memories, ["true", "false"], strict=True):
            os.environ["MC_STORE_SHARED_MEMORY"] = shared
            code = store.setup("127.0.0.1", "", 0, 64 * MIB, "tcp", "", world.master.address)
            assert code == 0
            slots = registered(store, memory)
            name = "store beside shared memory" if shared == "true" else "store"
            callers.append(Blocking(name, store, slots, world, chance.getrandbits(32)))
        room = 2 * SLOTS * SIZES[-1]
        assert stores[2].setup_dummy(room, room, world.agent.dummy_address) == 0
        slots = [stores[2].alloc_from_mem_pool(SIZES[-1]) for _ in range(SLOTS)]
        callers.append(Blocking("thin", stores[2], slots, world, chance.getrandbits(32)))
        cancelling = Cancelling(world, chance.getrandbits(32))
        callers.append(cancelling)
        for caller in callers:
            caller.start()
        assert cancelling.is_connected.wait(PATIENCE), world.ledger.faults
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            world.ledger.count(world.harm(chance))
        world.is_over = True
        for caller in callers:
            caller.join(2 * PATIENCE)
            assert not caller.is_alive(), f"{caller.name} has not ended"
        for key in KEYS:
            if value := stores[1].get(key):
                world.ledger.check("the last look", key, value)
    finally:
        os.environ.pop("MC_STORE_SHARED_MEMORY", None)
        world.is_over = True
        for store in stores:
            store.close()
        world.close()
    counts = world.ledger.counts
    told = ", ".join(f"{what} {number}" for what, number in sorted(counts.items()))
    print(f"{seconds:.0f} s: {told}")
    assert not world.ledger.faults, world.ledger.faults[:20]
    for who in ["store", "thin", "async"]:
        for what in ["put", "got", "gave up"]:
            assert counts[f"{who} {what}"] > 0, f"{who} never {what}: {counts}"
