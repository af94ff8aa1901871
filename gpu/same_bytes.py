"""Every call, with memory of one kind on both sides: the bytes arrive as they were."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import Pool
from memory import KINDS, POISON, Driver, Plain, TorchTensor, torch_version
from rows import ABSENT, BROKEN, EQUAL, REFUSED, WRONG, Phase

KIB, MIB = 1 << 10, 1 << 20
MEMORY = 8 * MIB
SIZES = (1, 7, 4 * KIB, 64 * KIB + 1, MIB, 3 * MIB + 5)
#: Bytes around each range that have to stay as they were.
GUARD = 64


class Refused(Exception):
    """The package does not take such memory in this call."""


class Wrong(Exception):
    """Other bytes, another length, or bytes outside of the range."""


class Absent(Exception):
    """The package has no such call, or this kind of memory no such form."""


class Log:
    """The standard error of this process, which has the cause of each refusal.

    Of lines for debugging those count that tell of a refusal.
    """

    def __init__(self) -> None:
        self._at = 0
        self.rest()

    def rest(self) -> str:
        """The last line since the last call."""
        path = Path("/proc/self/fd/2")
        if not path.resolve().is_file():
            return ""
        with path.open("rb") as file:
            self._at = min(self._at, os.fstat(file.fileno()).st_size)
            file.seek(self._at)
            lines = file.read().decode(errors="replace").splitlines()
            self._at = file.tell()
        causes = [line for line in lines if "DEBUG" not in line or "rejected" in line]
        # Without the time.
        return re.sub(r"^\S+Z +", "", causes[-1]) if causes else ""


class Calls:
    """The calls of the store on a source and a target of one kind of memory."""

    def __init__(self, driver: Driver, pool: Pool, kind: str, seed: int) -> None:
        self.pool, self.random = pool, random.Random(f"{seed}-{kind}")
        self.kind = kind
        make = KINDS[kind]
        self.source, self.target = make(driver, MEMORY), make(driver, MEMORY)
        self.host = Plain(driver, MIB)
        self.store = pool.store(64 * MIB)
        self._keys = 0

    def key(self) -> str:
        self._keys += 1
        return f"{self.kind}-{self._keys}"

    def value(self, size: int) -> bytes:
        return self.random.randbytes(size)

    # Expectations.

    def accept(self, code: Any, wanted: Any, what: str = "") -> None:
        """A number below zero is a refusal, another one than the wanted one is a fault."""
        if code == wanted:
            return
        codes = code
        while isinstance(codes, list) and codes:
            codes = min(codes, key=lambda it: it if isinstance(it, int) else 0)
        if isinstance(codes, int) and codes < 0:
            raise Refused(f"{what} {codes}".strip())
        raise Wrong(f"{what} returned {code!r:.80}, not {wanted!r:.80}".strip())

    def stored(self, key: str, value: bytes) -> None:
        got = self.store.get(key)
        if got != value:
            raise Wrong(f"{len(value)} bytes of {key} were stored as {len(got)} bytes, or others")

    def arrived(self, value: bytes, at: int) -> None:
        """The value is at an offset of the target, and poison is before and behind it."""
        if not self.target.holds(value, at):
            raise Wrong(f"{len(value)} bytes did not arrive as they were")
        guard = bytes([POISON]) * GUARD
        before, behind = max(at - GUARD, 0), at + len(value)
        if self.target.read(before, at - before) != guard[: at - before]:
            raise Wrong("bytes before the range were written")
        if self.target.read(behind, GUARD) != guard:
            raise Wrong("bytes behind the range were written")

    # Memory.

    @contextmanager
    def registered(self) -> Iterator[None]:
        blocks = (self.source, self.target)
        for block in blocks:
            self.accept(self.store.register_buffer(block.address, block.size), 0, "register_buffer")
        try:
            yield
        finally:
            codes = [self.store.unregister_buffer(block.address) for block in blocks]
        self.accept(codes, [0, 0], "unregister_buffer")

    # The calls of MooncakeDistributedStore.

    def register_buffer(self) -> None:
        with self.registered():
            pass
        with self.registered():
            pass

    def _put_single(self, call: str) -> None:
        for size in SIZES:
            key, value = self.key(), self.value(size)
            self.source.write(value, 3)
            code = getattr(self.store, call)(key, self.source.address + 3, size)
            self.accept(code, 0)
            self.stored(key, value)

    def put_from(self) -> None:
        self._put_single("put_from")

    def put_from_registered(self) -> None:
        with self.registered():
            self._put_single("put_from")

    def upsert_from(self) -> None:
        for size in SIZES:
            key = self.key()
            for _ in range(2):
                value = self.value(size)
                self.source.write(value, 5)
                self.accept(self.store.upsert_from(key, self.source.address + 5, size), 0)
                self.stored(key, value)

    def get_into(self) -> None:
        for size in SIZES:
            key, value = self.key(), self.value(size)
            self.accept(self.store.put(key, value), 0, "put")
            self.target.fill()
            code = self.store.get_into(key, self.target.address + 9, size + GUARD)
            self.accept(code, size)
            self.arrived(value, 9)

    def get_into_registered(self) -> None:
        with self.registered():
            self.get_into()

    def batch_put_from(self) -> None:
        keys, values = self._several()
        places = [self.source.address + 11 + nth * MIB for nth in range(len(keys))]
        for nth, value in enumerate(values):
            self.source.write(value, 11 + nth * MIB)
        codes = self.store.batch_put_from(keys, places, list(map(len, values)))
        self.accept(codes, [0] * len(keys))
        for key, value in zip(keys, values, strict=True):
            self.stored(key, value)

    def batch_get_into(self) -> None:
        keys, values = self._several()
        for key, value in zip(keys, values, strict=True):
            self.accept(self.store.put(key, value), 0, "put")
        self.target.fill()
        sizes = list(map(len, values))
        places = [self.target.address + 100 + nth * MIB for nth in range(len(keys))]
        absent = self.store.batch_get_into([*keys, "absent"], [*places, places[0]], [*sizes, 1])
        self.accept(absent[:-1], sizes)
        if absent[-1] >= 0:
            raise Wrong(f"a key without a value returned {absent[-1]}")
        for nth, value in enumerate(values):
            self.arrived(value, 100 + nth * MIB)

    def _several(self) -> tuple[list[str], list[bytes]]:
        sizes = [1, 100, 4 * KIB, 28 * KIB, 64 * KIB, 512 * KIB]
        return [self.key() for _ in sizes], [self.value(size) for size in sizes]

    def _pieces(self) -> tuple[list[int], list[int]]:
        """Places without an order, some of them neighbours, and lengths of pieces of a value."""
        lengths = [self.random.choice((1, 100, 4 * KIB, 28 * KIB, 60 * KIB)) for _ in range(40)]
        slots = self.random.sample(range(1, MEMORY // (64 * KIB) - 1), len(lengths))
        places = [slot * 64 * KIB for slot in slots]
        # Neighbours, in order and out of it.
        first = places[0]
        lengths[:3] = [4 * KIB] * 3
        places[:3] = [first, first + 4 * KIB, first + 8 * KIB]
        return places, lengths

    def batch_put_from_multi_buffers(self) -> None:
        self._put_pieces(mixed=False)

    def batch_put_from_multi_buffers_mixed(self) -> None:
        self._put_pieces(mixed=True)

    def _put_pieces(self, *, mixed: bool) -> None:
        keys: list[str] = []
        addresses, sizes, values = [], [], []
        self.source.fill(0x5A)
        taken: set[int] = set()
        while len(keys) < 3:
            places, lengths = self._pieces()
            # The values are written before the one call that reads them all.
            pieces = [
                (at, n) for at, n in zip(places, lengths, strict=True) if at // 65536 not in taken
            ]
            taken |= {at // 65536 for at, _ in pieces}
            parts = [self.value(n) for _, n in pieces]
            for (at, _), part in zip(pieces, parts, strict=True):
                self.source.write(part, at)
            into = [self.source.address + at for at, _ in pieces]
            if mixed:
                own = self.value(5000)
                self.host.write(own, len(keys) * 8192)
                into.insert(1, self.host.address + len(keys) * 8192)
                parts.insert(1, own)
            keys.append(self.key())
            addresses.append(into)
            sizes.append(list(map(len, parts)))
            values.append(b"".join(parts))
        codes = self.store.batch_put_from_multi_buffers(keys, addresses, sizes)
        self.accept(codes, [0] * len(keys))
        for key, value in zip(keys, values, strict=True):
            self.stored(key, value)

    def put_from_multi_buffers(self) -> None:
        call = getattr(self.store, "put_from_multi_buffers", None)
        if call is None:
            raise Absent("no such call")
        places, lengths = self._pieces()
        parts = [self.value(length) for length in lengths]
        for at, part in zip(places, parts, strict=True):
            self.source.write(part, at)
        key = self.key()
        self.accept(call(key, [self.source.address + at for at in places], lengths), 0)
        self.stored(key, b"".join(parts))

    def batch_get_into_multi_buffers(self) -> None:
        for _ in range(3):
            places, lengths = self._pieces()
            parts = [self.value(length) for length in lengths]
            key, value = self.key(), b"".join(parts)
            self.accept(self.store.put(key, value), 0, "put")
            self.target.fill()
            into = [self.target.address + at for at in places]
            codes = self.store.batch_get_into_multi_buffers([key], [into], [lengths])
            self.accept(codes, [len(value)])
            for at, part in zip(places, parts, strict=True):
                if not self.target.holds(part, at):
                    raise Wrong(f"a piece of {len(part)} bytes did not arrive as it was")
            written, read = sum(lengths), self.target.read(0, MEMORY)
            poison = read.count(POISON) - sum(part.count(POISON) for part in parts)
            if poison != MEMORY - written:
                raise Wrong("bytes between the pieces were written")

    def get_into_ranges(self) -> None:
        key, value = self.key(), self.value(MIB)
        self.accept(self.store.put(key, value), 0, "put")
        self.target.fill()
        to, starts, sizes = [10, 5000, 2 * MIB], [7, 0, 100], [100, 1, MIB - 100]
        with self.registered():
            codes = self.store.get_into_ranges(
                [self.target.address], [[key]], [[to]], [[starts]], [[sizes]]
            )
            self.accept(codes, [[sizes]])
        for at, begin, size in zip(to, starts, sizes, strict=True):
            self.arrived(value[begin : begin + size], at)

    # mc_store.Client.

    def client_put(self) -> None:
        self._with_client(self._client_put)

    def client_get_into(self) -> None:
        self._with_client(self._client_get_into)

    def client_put_dlpack(self) -> None:
        self._with_client(self._client_put_dlpack)

    def _with_client(self, call: Callable[[Any], None]) -> None:
        import mc_store

        with mc_store.Client(self.pool.master) as client:
            call(client)

    def _client_put(self, client: Any) -> None:
        for size in SIZES:
            key, value = self.key(), self.value(size)
            self.source.write(value, 3)
            client.put(key, self.source.as_array(3, size))
            self.stored(key, value)

    def _client_put_dlpack(self, client: Any) -> None:
        if not isinstance(self.source, TorchTensor):
            raise Absent("only with PyTorch")
        tensor = self.source.tensor

        class Exported:
            __dlpack__ = tensor[:MIB].__dlpack__
            __dlpack_device__ = tensor[:MIB].__dlpack_device__

        key, value = self.key(), self.value(MIB)
        self.source.write(value)
        client.put(key, Exported())
        self.stored(key, value)

    def _client_get_into(self, client: Any) -> None:
        for size in SIZES:
            key, value = self.key(), self.value(size)
            self.accept(self.store.put(key, value), 0, "put")
            self.target.fill()
            self.accept(client.get_into(key, self.target.as_array(9, size)), size)
            self.arrived(value, 9)

    # mooncake.engine.

    def transfer_sync_write(self) -> None:
        self._transfer(write=True)

    def transfer_sync_read(self) -> None:
        self._transfer(write=False)

    def _transfer(self, *, write: bool) -> None:
        from mc_store.mooncake.engine import TransferEngine

        engines = TransferEngine(), TransferEngine()
        for engine in engines:
            code = engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
            self.accept(code, 0, "initialize")
        near, far = engines
        # The caller's memory is the source of a write, and the target of a read.
        own, other = (self.source, self.target) if write else (self.target, self.source)
        for engine, block in ((near, own), (far, other)):
            code = engine.register_memory(block.address, block.size)
            self.accept(code, 0, "register_memory")
        try:
            peer = f"127.0.0.1:{far.get_rpc_port()}"
            call = near.transfer_sync_write if write else near.transfer_sync_read
            for size in SIZES:
                value = self.value(size)
                self.target.fill()
                self.source.write(value, 3)
                mine, theirs = (3, 9) if write else (9, 3)
                self.accept(call(peer, own.address + mine, other.address + theirs, size), 0)
                self.arrived(value, 9)
        finally:
            codes = [near.unregister_memory(own.address), far.unregister_memory(other.address)]
        self.accept(codes, [0, 0], "unregister_memory")


#: In the order of the report.
CALLS: dict[str, Callable[[Calls], None]] = {
    "register_buffer, unregister_buffer": Calls.register_buffer,
    "put_from": Calls.put_from,
    "put_from, registered": Calls.put_from_registered,
    "get_into": Calls.get_into,
    "get_into, registered": Calls.get_into_registered,
    "upsert_from": Calls.upsert_from,
    "batch_put_from": Calls.batch_put_from,
    "batch_get_into": Calls.batch_get_into,
    "put_from_multi_buffers": Calls.put_from_multi_buffers,
    "batch_put_from_multi_buffers": Calls.batch_put_from_multi_buffers,
    "the same, with pieces of the host": Calls.batch_put_from_multi_buffers_mixed,
    "batch_get_into_multi_buffers": Calls.batch_get_into_multi_buffers,
    "get_into_ranges, registered": Calls.get_into_ranges,
    "engine: transfer_sync_write": Calls.transfer_sync_write,
    "engine: transfer_sync_read": Calls.transfer_sync_read,
    "Client.put of an array": Calls.client_put,
    "Client.put of DLPack alone": Calls.client_put_dlpack,
    "Client.get_into of an array": Calls.client_get_into,
}


def run(phase: Phase, driver: Driver, directory: str, seed: int, kind: str) -> None:
    """Runs each call with memory of one kind; from the nth one on with a kind like `device@5`."""
    kind, _, first = kind.partition("@")
    if kind == "torch" and torch_version() is None:
        phase.add("memory of PyTorch", ABSENT, kind=kind, note="no PyTorch that can use the GPU")
        return
    from mc_store import StoreError

    log = Log()
    with Pool(directory, 512 * MIB) as pool:
        calls = Calls(driver, pool, kind, seed)
        for what, call in list(CALLS.items())[int(first or 0) :]:
            status, note = EQUAL, ""
            log.rest()
            try:
                call(calls)
            except Wrong as error:
                status, note = WRONG, str(error)
            except Absent as error:
                status, note = ABSENT, str(error)
            except Refused as error:
                status, note = REFUSED, f"{error} ({log.rest()})"
            except (TypeError, ValueError, BufferError, StoreError) as error:
                status, note = REFUSED, f"{type(error).__name__}: {error}"
            except Exception as error:
                status, note = BROKEN, f"{type(error).__name__}: {error}"
            phase.add(what, status, kind=kind, note=note)
        calls.store.close()
