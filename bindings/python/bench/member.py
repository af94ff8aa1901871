"""One member of a cluster under measurement: serves memory, or measures calls as JSON lines.

Only what both systems offer is used, so that the same file measures either:

    python member.py serve   MODULE MASTER METADATA BYTES    contributes memory until it is killed
    python member.py measure MODULE MASTER METADATA SIZES    p50 of each call, in microseconds
    python member.py fresh   MODULE MASTER METADATA SIZES    p50 of puts into pages not used before
    python member.py rate    MODULE MASTER METADATA THREADS  metadata calls of that many threads
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

#: Bytes moved for each size, and the bounds of how many calls that makes.
VOLUME, FEWEST, MOST = 256 << 20, 20, 1000


def emit(name: str, value: float, **labels: object) -> None:
    print(json.dumps({"name": name, "value": value, **labels}), flush=True)


def fail(what: str) -> NoReturn:
    """Ends at once: Mooncake does not survive an orderly exit everywhere."""
    os.write(2, f"wrong answer: {what}\n".encode())
    os._exit(1)


def p50(call: Callable[[int], bool], count: int, what: str) -> float:
    times = []
    for nth in range(count):
        begin = time.perf_counter()
        good = call(nth)
        times.append(time.perf_counter() - begin)
        if not good:
            fail(what)
    return sorted(times)[count // 2] * 1e6


def measure(store: Any, size: int) -> None:
    tag = f"{os.getpid()}-{time.time_ns()}-{size}"
    count = max(FEWEST, min(MOST, VOLUME // size))
    value = os.urandom(size)
    keys = [f"{tag}/{nth}" for nth in range(count)]
    target = (ctypes.c_char * size)()
    address = ctypes.addressof(target)
    if store.register_buffer(address, size) != 0:
        fail("register_buffer")

    def record(name: str, call: Callable[[int], bool]) -> None:
        emit(name, p50(call, count, name), size=size)

    record("put", lambda nth: store.put(keys[nth], value) == 0)
    record("get", lambda nth: len(store.get(keys[nth])) == size)
    record("get_into", lambda nth: store.get_into(keys[nth], address, size) == size)
    record("exist", lambda nth: store.is_exist(keys[nth]) == 1)
    if store.get(keys[0]) != value or target.raw != value:
        fail("content")
    for key in keys:
        store.remove(key, True)


def fresh(store: Any, size: int) -> None:
    """Puts that nothing makes room for: each is written where nothing was written before."""
    keys = [f"fresh-{size}/{nth}" for nth in range(max(FEWEST, VOLUME // size))]
    value = os.urandom(size)
    emit(
        "fresh_put", p50(lambda nth: store.put(keys[nth], value) == 0, len(keys), "put"), size=size
    )
    if any(store.get(key) != value for key in keys):
        fail("content")


def rate(store: Any, threads: int, seconds: float = 2.0) -> None:
    counts = [0] * threads
    begin = time.perf_counter()

    def call(place: int) -> None:
        while time.perf_counter() - begin < seconds:
            for nth in range(64):
                if store.is_exist(f"absent-{nth}") != 0:
                    fail("is_exist")
            counts[place] += 64

    callers = [threading.Thread(target=call, args=(place,)) for place in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    emit("exist_rate", sum(counts) / (time.perf_counter() - begin), threads=threads)
    keys = [f"absent-{nth}" for nth in range(1000)]
    emit("batch_exist_1000", p50(lambda _: len(store.batch_is_exist(keys)) == 1000, 200, "batch"))


def main() -> None:
    role, module, master, metadata, argument = sys.argv[1:]
    store = importlib.import_module(module).MooncakeDistributedStore()
    segment = int(argument) if role == "serve" else 0
    code = store.setup("127.0.0.1", metadata, segment, 256 << 20, "tcp", "", master)
    if code != 0:
        fail(f"setup: {code}")
    if role == "serve":
        print("ready", flush=True)
        threading.Event().wait()
    elif role == "rate":
        rate(store, int(argument))
    else:
        for size in argument.split(","):
            (fresh if role == "fresh" else measure)(store, int(size))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
