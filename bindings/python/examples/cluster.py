"""Two clients of a cluster, and arrays that go from one to the other without a copy in between.

mc-master &
mc-node --global_segment_size=1GB &
python cluster.py 127.0.0.1:50051
"""

# %% Two clients: in a deployment each is a process of its own, on a host of its own.
import sys

import mc_store
import numpy as np

master = sys.argv[1]
prefill = mc_store.Client(master)
decode = mc_store.Client(master)

# %% Keys and values of 16 tokens in 32 layers, put from where the array is.
rng = np.random.default_rng(seed=17)
block = rng.standard_normal((32, 2, 16, 128), dtype=np.float32)
stored = prefill.put("prompt-17/block-0", block)
print(f"{block.nbytes >> 10} KiB put" if stored else "it was there")

# %% And got into an array that the receiver has already, as an engine has its cache.
cache = np.empty((4, *block.shape), dtype=block.dtype)
size = decode.get_into("prompt-17/block-0", cache[3])
assert size == block.nbytes
assert np.array_equal(cache[3], block)

# %% Without such an array: one over the memory that the client read into, read-only.
received = decode.get("prompt-17/block-0")
array = np.frombuffer(received, dtype=np.float32).reshape(block.shape)
assert np.array_equal(array, block)
assert not array.flags.writeable

# %% Many at once cost as many round trips to the master as one.
blocks = {f"prompt-17/block-{at}": np.full(4096, at, dtype=np.int32) for at in range(1, 9)}
prefill.put_many(blocks)
for name, found in zip(blocks, decode.get_many([*blocks]), strict=True):
    assert found is not None, f"{name} was evicted"
    assert np.array_equal(np.frombuffer(found, dtype=np.int32), blocks[name])

# %% Part of a value: keys and values of the first layer alone.
layer = decode.get_range("prompt-17/block-0", 0, block[0].nbytes)
assert bytes(layer) == block[0].tobytes()
print(f"{len(blocks) + 1} blocks received")

# %%
prefill.close()
decode.close()
