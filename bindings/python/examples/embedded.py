"""A whole cluster inside one process, to try things out.

python embedded.py
"""

# %% A master, a segment of 64 MB and a client, in one line.
import mc_store

store = mc_store.local(segment_size="64MB")

# %% Blocks of a prompt, each with the hash of what comes before it as its key.
for block in range(4):
    store.put(f"prompt-17/block-{block}", bytes([block]) * 65536)

# %% A later request with the same beginning asks once how much of it is there.
wanted = [f"prompt-17/block-{block}" for block in range(6)]
cached = store.longest_prefix(wanted)
print(f"{cached} of {len(wanted)} blocks need not be computed")
assert cached == 4

# %% What is got is a view of the memory that it was read into; bytes() copies.
buffer = store.get(wanted[2])
view = memoryview(buffer)
assert len(view) == 65536
assert view[0] == 2
assert bytes(buffer) == bytes([2]) * 65536

# %% A value stays what it is: putting its key again changes nothing, upsert replaces it.
assert not store.put(wanted[0], b"another value")
store.upsert(wanted[0], b"another value")
assert bytes(store[wanted[0]]) == b"another value"

# %% What is missing raises a KeyError, or is the default.
try:
    store.get("prompt-99/block-0")
except KeyError as error:
    print(f"{type(error).__name__}: {error}")
assert store.get("prompt-99/block-0", None) is None

# %% Other processes of this host can join.
print(f"the master is at {store.master_addr}")
store.close()
