"""One side of a transfer engine under measurement, or both: the peer waits, the other one writes.

Only what both systems offer is used, so that the same file measures either:

    python transfers.py serve MODULE BYTES            registers memory until it is killed
    python transfers.py write MODULE SESSION ADDRESS  GiB/s of batches, as JSON lines
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import sys
import time
from ctypes import addressof, c_char
from typing import Any, NoReturn

#: Bytes of the memory on each side, bytes of a batch, and how often it is written.
MEMORY, BATCH, ROUNDS = 256 << 20, 64 << 20, 12
SIZES = (1 << 20, 16 << 20)


def fail(what: str) -> NoReturn:
    """Ends at once: Mooncake does not survive an orderly exit everywhere."""
    os.write(2, f"wrong answer: {what}\n".encode())
    os._exit(1)


def start(module: str) -> Any:
    engine = importlib.import_module(module).TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        fail("initialize")
    return engine


class Memory:
    """Memory whose pages are there, registered with an engine; or a buffer of the engine's own."""

    def __init__(self, engine: Any, *, managed: bool) -> None:
        if managed:
            self.address = engine.allocate_managed_buffer(MEMORY)
            if self.address == 0:
                fail("allocate_managed_buffer")
        else:
            self._pages = (c_char * MEMORY).from_buffer(mmap.mmap(-1, MEMORY))
            self.address = addressof(self._pages)
            if engine.register_memory(self.address, MEMORY) != 0:
                fail("register_memory")
        for at in range(0, MEMORY, 4096):
            c_char.from_address(self.address + at).value = b"x"


def serve(module: str) -> None:
    engine = start(module)
    memories = [Memory(engine, managed=managed) for managed in (False, True)]
    places = [memory.address for memory in memories]
    print("ready", engine.get_rpc_port(), *places, flush=True)
    sys.stdin.read()


def write(module: str, session: str, addresses: list[str]) -> None:
    engine = start(module)
    for managed, address in zip((False, True), map(int, addresses), strict=True):
        memory = Memory(engine, managed=managed)
        for size in SIZES:
            offsets = range(0, BATCH, size)
            lists = (
                [memory.address + at for at in offsets],
                [address + at for at in offsets],
                [size] * len(offsets),
            )
            times = []
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                code = engine.batch_transfer_sync_write(session, *lists)
                times.append(time.perf_counter() - begin)
                if code != 0:
                    fail(f"batch_transfer_sync_write: {code}")
            rate = BATCH / (1 << 30) / sorted(times)[ROUNDS // 2]
            name = "engine_managed" if managed else "engine_write"
            print(json.dumps({"name": name, "value": rate, "size": size}), flush=True)


def main() -> None:
    role, module, *rest = sys.argv[1:]
    if role == "serve":
        serve(module)
    else:
        write(module, rest[0], rest[1:])
    os._exit(0)


if __name__ == "__main__":
    main()
