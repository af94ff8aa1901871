"""Every object of the module, dropped in children while threads of the parent use the store."""

from __future__ import annotations

from _cluster import Cluster, run_python

CODE = """
import asyncio, gc, os, signal, sys, threading, time, warnings
import mc_store
from mc_store.mooncake import store as module
from mc_store.mooncake.async_store import MooncakeDistributedStoreAsync
warnings.simplefilter("ignore")  # of forking with threads
address, key = sys.argv[1:]
store = MooncakeDistributedStoreAsync()
assert store.setup("127.0.0.1", "", 0, 16 << 20, "tcp", "", address) == 0
store.put(key, bytes(100_000))
client = mc_store.Client(address)
loop = asyncio.new_event_loop()
aclient = loop.run_until_complete(mc_store.AsyncClient.connect(address))
allocator = module.MooncakeHostMemAllocator()
pool = module.BufferPool(store)
descriptor = store.get_replica_desc(key)[0]
memory = descriptor.get_memory_descriptor()
assert store.batch_get_session_start([key]) == [0]

async def begun():
    call = aclient.get(key)
    try:
        call.send(None)
    except StopIteration:
        pass
    return call

objects = {
    "store": store, "client": client, "async client": aclient,
    "handle": store.get_buffer(key), "buffer": client[key],
    "call": aclient.get(key), "begun call": loop.run_until_complete(begun()),
    "allocator": allocator, "pool": pool, "lease": pool.acquire(5000),
    "replica": descriptor, "memory": memory, "range": memory.buffer_descriptor,
    "config": module.ReplicateConfig(), "event": module.StoreEventInfo(),
    "parallelism": module.TensorParallelism(), "pin": module.SoftPinAction.ENABLE,
}
own = allocator.alloc(4096)
stop = threading.Event()

def work():
    while not stop.is_set():
        assert store.get_buffer(key).size() == 100_000
        assert len(client[key]) == 100_000

def allocate():
    while not stop.is_set():
        assert allocator.free(allocator.alloc(4096)) == 0

def lease():
    while not stop.is_set():
        pool.acquire(5000).release()
        assert store.batch_get_session_start([key]) == [0]

threads = [threading.Thread(target=target, daemon=True) for target in (work, work, allocate, lease)]
for thread in threads:
    thread.start()

def child(name):
    if name == "allocator":
        block = allocator.alloc(4096)
        assert block and allocator.free(block) == 0
    elif name == "store":
        for call in (lambda: store.get(key), lambda: store.register_buffer(own, 4096)):
            try:
                call()
            except RuntimeError as error:
                assert "fork" in str(error), error
            else:
                raise AssertionError("a store that survives a fork")
        store.batch_get_session_end([key])
    elif name == "lease":
        objects[name].release()
    elif name in ("call", "begun call"):
        objects[name].close()
    globals().pop({"async client": "aclient"}.get(name, name), None)
    del objects[name]
    gc.collect()

end = time.monotonic() + 8
forks = 0
while time.monotonic() < end:
    for name in list(objects):
        pid = os.fork()
        if pid == 0:
            # A child that waits for a lock of the parent's threads waits for ever.
            signal.alarm(10)
            code = 1
            try:
                child(name)
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        assert status == 0, (name, forks, status)
        forks += 1
stop.set()
for thread in threads:
    thread.join()
assert store.get(key) == bytes(100_000)
objects["begun call"].close()
print("forks", forks)
"""


def test_every_object_in_children_while_threads_use_the_store(cluster: Cluster, key: str) -> None:
    done = run_python(CODE, cluster.address, key, seconds=60)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.startswith("forks "), (done.stdout, done.stderr)
