"""A prefill node puts blocks, a decode node on another machine gets and checks them.

    ROLE=prefill MASTER_SERVER=10.0.0.1:50051 python prefill_decode.py
    ROLE=decode MASTER_SERVER=10.0.0.1:50051 python prefill_decode.py

Either may start first: decode waits for the blocks, prefill for decode to have them all. The
variables are those of Mooncake's `stress_cluster_benchmark.py`; SEGMENT_SIZE,
BLOCK_SIZE (bytes) and BLOCKS say how much.
"""

# %%
import hashlib
import os
import time

import mc_store

role = os.environ["ROLE"]
master = os.getenv("MASTER_SERVER", "127.0.0.1:50051")
segment_size = os.getenv("SEGMENT_SIZE", "1GB")
block_size = int(os.getenv("BLOCK_SIZE", str(1 << 20)))
blocks = int(os.getenv("BLOCKS", "256"))
# Names the run, so that blocks left by another run are not taken for this one's.
run = os.getenv("RUN", "0")

DONE = f"run-{run}/decode-has-it"


def key(block: int) -> str:
    return f"run-{run}/block-{block}"


def content(block: int) -> bytes:
    """The output of a model, simulated: different for every block, the same in both roles."""
    return hashlib.shake_128(key(block).encode()).digest(block_size)


def rate(seconds: float) -> str:
    return f"{blocks} blocks, {blocks * block_size / seconds / 1e6:.0f} MB/s"


# %% Prefill contributes memory, which is why it stays until the other side has read it.
def prefill() -> None:
    with mc_store.Client(master, segment_size=segment_size) as client:
        values = [content(block) for block in range(blocks)]
        started = time.perf_counter()
        for block, value in enumerate(values):
            # A hard pin: without one, unread blocks may be evicted.
            client.put(key(block), value, hard_pin=True)
        print(f"prefill: {rate(time.perf_counter() - started)}", flush=True)
        while DONE not in client:
            time.sleep(0.01)
        print("prefill: success", flush=True)


# %% Decode needs no memory but what it reads into.
def decode() -> None:
    with mc_store.Client(master) as client:
        keys = [key(block) for block in range(blocks)]
        while client.longest_prefix(keys) < blocks:
            time.sleep(0.01)
        cache = bytearray(block_size)
        seconds = 0.0
        for block in range(blocks):
            started = time.perf_counter()
            size = client.get_into(key(block), cache)
            seconds += time.perf_counter() - started
            if size != block_size or cache != content(block):
                raise SystemExit(f"block {block} is not what prefill put")
        client.put(DONE, b"1")
        print(f"decode: {rate(seconds)}", flush=True)
        print("decode: success", flush=True)


# %%
{"prefill": prefill, "decode": decode}[role]()
