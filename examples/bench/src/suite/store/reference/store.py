"""Mooncake's store, measured as `mc-bench store` measures ours.

    python store.py serve   --master HOST:PORT --metadata URL --port P --segment BYTES
    python store.py measure --master HOST:PORT --metadata URL --port P --counts '{"4096": 1000}' ...

`serve` contributes memory, says "ready" and runs until its standard input ends. `measure`
is a client without memory of its own; it prints one JSON object per figure:

    {"name": "get_into_p50_us", "value": 99.4, "size": 4096}

Every byte that is read is compared. Whatever is wrong ends the run with exit code 1.
"""

import argparse
import ctypes
import json
import os
import sys
import time

from mooncake.store import MooncakeDistributedStore

BATCH = 100
BATCH_VALUE = 4096

# Larger than any batch or value, so that no call waits for room in it.
LOCAL_BUFFER = 256 << 20


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["serve", "measure"])
    parser.add_argument("--master", required=True)
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--segment", type=int, default=0)
    parser.add_argument("--counts", type=json.loads, default={}, help="calls, by size")
    parser.add_argument("--exist", type=int, default=0, help="calls")
    parser.add_argument("--rounds", type=int, default=0, help="batches")
    return parser.parse_args()


def fail(what):
    os.write(2, f"wrong answer of Mooncake: {what}\n".encode())
    # Its threads do not end by themselves.
    os._exit(1)


def check(good, what):
    if not good:
        fail(what)


def emit(name, value, **params):
    print(json.dumps({"name": name, "value": value, **params}), flush=True)


class Latencies:
    def __init__(self):
        self.seconds = []

    def time(self, call, *args):
        start = time.perf_counter()
        answer = call(*args)
        self.seconds.append(time.perf_counter() - start)
        return answer

    def quantile(self, q):
        """As mc-bench computes it: the shortest that the part `q` does not exceed."""
        rank = -int(-len(self.seconds) * q // 1)
        return sorted(self.seconds)[max(1, rank) - 1]

    def drop(self, warm_up):
        self.seconds = self.seconds[warm_up:]

    def report(self, call, size):
        emit(f"{call}_p50_us", self.quantile(0.5) * 1e6, size=size)
        emit(f"{call}_p99_us", self.quantile(0.99) * 1e6, size=size)


def singles(store, size, count):
    """Puts a value, gets it back in both ways, checks it and removes it."""
    target = (ctypes.c_char * size)()
    address = ctypes.addressof(target)
    check(store.register_buffer(address, size) == 0, "register_buffer")
    put, get_into, get = Latencies(), Latencies(), Latencies()
    values = [os.urandom(size) for _ in range(4)]
    warm_up = -(-count // 10)
    for turn in range(count + warm_up):
        key, value = f"single-{size}-{turn}", values[turn % 4]
        check(put.time(store.put, key, value) == 0, "put")
        ctypes.memset(address, 0, min(size, 64))
        check(get_into.time(store.get_into, key, address, size) == size, "get_into")
        check(memoryview(target).cast("B") == value, "bytes of get_into")
        check(get.time(store.get, key) == value, "bytes of get")
        check(store.remove(key, True) == 0, "remove")
    check(store.unregister_buffer(address) == 0, "unregister_buffer")
    for name, latencies in [("put", put), ("get_into", get_into), ("get", get)]:
        latencies.drop(warm_up)
        latencies.report(name, size)


def exist(store, count):
    check(store.put("exist", b"yes") == 0, "put")
    latencies = Latencies()
    for _ in range(count + count // 10):
        check(latencies.time(store.is_exist, "exist") == 1, "is_exist")
    latencies.drop(count // 10)
    emit("exist_p50_us", latencies.quantile(0.5) * 1e6)
    check(store.remove("exist", True) == 0, "remove")


def batches(store, rounds):
    """Values per second, put and got in batches, into memory of the caller."""
    values = [os.urandom(BATCH_VALUE) for _ in range(BATCH)]
    target = (ctypes.c_char * (BATCH * BATCH_VALUE))()
    address = ctypes.addressof(target)
    check(store.register_buffer(address, BATCH * BATCH_VALUE) == 0, "register_buffer")
    places = [address + n * BATCH_VALUE for n in range(BATCH)]
    sizes = [BATCH_VALUE] * BATCH
    put, get = Latencies(), Latencies()
    for turn in range(rounds + rounds // 10):
        keys = [f"batch-{turn}-{n}" for n in range(BATCH)]
        check(put.time(store.put_batch, keys, values) == 0, "put_batch")
        ctypes.memset(address, 0, BATCH * BATCH_VALUE)
        check(get.time(store.batch_get_into, keys, places, sizes) == sizes, "batch_get_into")
        check(memoryview(target).cast("B") == b"".join(values), "bytes of batch_get_into")
        for key in keys:
            check(store.remove(key, True) == 0, "remove")
    for name, latencies in [("put_batch_per_s", put), ("get_batch_per_s", get)]:
        latencies.drop(rounds // 10)
        emit(name, BATCH / latencies.quantile(0.5), size=BATCH_VALUE)


def main():
    a = arguments()
    store = MooncakeDistributedStore()
    host = f"127.0.0.1:{a.port}"
    code = store.setup(host, a.metadata, a.segment, LOCAL_BUFFER, "tcp", "", a.master)
    check(code == 0, f"setup gave {code}")
    if a.role == "serve":
        print("ready", flush=True)
        sys.stdin.read()
    else:
        for size, count in a.counts.items():
            singles(store, int(size), count)
        if a.exist:
            exist(store, a.exist)
        if a.rounds:
            batches(store, a.rounds)
    sys.stdout.flush()
    # Threads of Mooncake keep the process from ending otherwise.
    os._exit(0)


main()
