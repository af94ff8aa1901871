"""Stores and the life of a process: its end, its forks, its threads, its memory."""

from __future__ import annotations

import time
from collections.abc import Callable

from _cluster import Cluster, run_python

#: `store` is set up, with the address of a master as the first argument.
JOIN = """
import os, sys, threading, time
from mc_store.mooncake.store import MooncakeDistributedStore

def join(segment=0):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "", segment, 16 << 20, "tcp", "", sys.argv[1]) == 0
    return store

store = join()
"""

#: Seconds in which a process ends that nothing holds up.
END_QUICKLY = 10.0


def run(cluster: Cluster, code: str, *arguments: str, seconds: float = 60) -> str:
    """The output of `code`, which must not have complained."""
    done = run_python(JOIN + code, cluster.address, *arguments, seconds=seconds)
    assert "Traceback" not in done.stderr, done.stderr
    assert "panicked" not in done.stderr, done.stderr
    return done.stdout


def seconds_of(call: Callable[[], object]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


def test_exit_with_a_store_that_is_open(cluster: Cluster, key: str) -> None:
    code = """
member = join(segment=16 << 20)
assert store.put(sys.argv[2], b"value") == 0
view = memoryview(store.get_buffer(sys.argv[2]))
"""
    assert seconds_of(lambda: run(cluster, code, key)) < END_QUICKLY


def test_exit_with_daemon_threads_in_calls(cluster: Cluster, key: str) -> None:
    code = """
started = threading.Barrier(9)
def work(number):
    key = f"{sys.argv[2]}{number}"
    store.put(key, bytes(100_000))
    started.wait()
    while True:
        store.get(key)
        store.is_exist(key)
for number in range(8):
    threading.Thread(target=work, args=(number,), daemon=True).start()
started.wait()
"""
    assert seconds_of(lambda: run(cluster, code, key)) < END_QUICKLY


def test_exit_waits_for_threads_that_are_no_daemons(cluster: Cluster, key: str) -> None:
    code = """
def work():
    threading.main_thread().join()
    assert store.put(sys.argv[2], b"late") == 0
    print(store.get(sys.argv[2]))
threading.Thread(target=work).start()
"""
    assert run(cluster, code, key) == "b'late'\n"


def test_exit_by_system_exit_from_a_callback(cluster: Cluster) -> None:
    code = """
import atexit
atexit.register(lambda: print("was", store.is_exist("nothing")))
sys.exit(0)
"""
    assert run(cluster, code).startswith("was ")


def test_fork_is_refused_and_the_parent_goes_on(cluster: Cluster, key: str) -> None:
    code = """
assert store.put(sys.argv[2], b"value") == 0
buffer = store.get_buffer(sys.argv[2])
child = os.fork()
if child == 0:
    try:
        store.get(sys.argv[2])
    except RuntimeError as error:
        assert "fork" in str(error), error
    else:
        os._exit(3)
    # What was read before belongs to this process, too.
    assert bytes(buffer) == b"value"
    if sys.argv[3] == "anew":
        store.close()
        assert store.setup("127.0.0.1", "", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
        assert store.get(sys.argv[2]) == b"value"
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert store.get(sys.argv[2]) == b"value"
store.close()
print("parent")
"""
    # As it is, and after it was set up anew in the child.
    for child in ("as-it-is", "anew"):
        assert run(cluster, code, key, child) == "parent\n"


def test_fork_while_threads_are_in_calls(cluster: Cluster, key: str) -> None:
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
store.put(sys.argv[2], bytes(100_000))
stop = threading.Event()
def work():
    while not stop.is_set():
        assert len(store.get(sys.argv[2])) == 100_000
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            store.is_exist("k")
        except RuntimeError:
            del store
            os._exit(0)
        os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
"""
    run(cluster, code, key)


def test_handle_that_a_child_drops_while_threads_use_the_pool(cluster: Cluster, key: str) -> None:
    code = """
import signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
key = sys.argv[2]
store.put(key, bytes(100_000))
handle = store.get_buffer(key)
stop = threading.Event()
def work():
    while not stop.is_set():
        assert store.get_buffer(key).size() == 100_000
threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(2000):
    child = os.fork()
    if child == 0:
        # A child that waits for a lock of the parent's threads waits for ever.
        signal.alarm(5)
        del handle
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
assert len(bytes(handle)) == 100_000
"""
    run(cluster, code, key)


def test_multiprocessing_fork(cluster: Cluster) -> None:
    code = """
import multiprocessing
def work(queue):
    try:
        store.put("key", b"value")
    except RuntimeError as error:
        queue.put(str(error))
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
child = context.Process(target=work, args=(queue,))
child.start()
assert "fork" in queue.get()
child.join()
assert child.exitcode == 0, child.exitcode
assert store.health_check() == 0
"""
    run(cluster, code)


def test_memory_does_not_grow(cluster: Cluster, key: str) -> None:
    code = """
import ctypes, gc
key, size, missing = sys.argv[2], 16_384, sys.argv[2] + "missing"
buffer = ctypes.create_string_buffer(size)
pointer = ctypes.addressof(buffer)
assert store.register_buffer(pointer, size) == 0
store.put(key, bytes(size))
def calls(count):
    for _ in range(count):
        store.put(key, bytes(size))
        assert len(store.get(key)) == size
        assert store.is_exist(key) == 1
        assert store.get_into(key, pointer, size) == size
        assert len(store.get_batch([key, missing])) == 2
        assert store.get_buffer(key).size() == size
        assert store.get_size(missing) == -704
        try:
            store.put(3, 3)
        except TypeError:
            pass
def used():
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096, sys.getallocatedblocks()
calls(1_000)
before = used()
calls(2_000)
after = used()
print(after[0] - before[0], after[1] - before[1])
"""
    # Of each value, or of each call, something would be left 16,000 times.
    grown, blocks = map(int, run(cluster, code, key, seconds=120).split())
    assert grown < 8 << 20
    assert blocks < 1_000


def test_threads_use_one_store_while_it_is_closed(cluster: Cluster, key: str) -> None:
    code = """
import random
sys.setswitchinterval(1e-5)
end = time.monotonic() + 3
rounds = [0] * 8
def value(name):
    return name.encode() * 1_000
def work(number):
    pick = random.Random(number)
    while time.monotonic() < end:
        name = f"{sys.argv[2]}{pick.randrange(50)}"
        assert store.put(name, value(name)) in (0, -600, -601, -800, -900), "put"
        assert store.get(name) in (b"", value(name)), "get"
        assert store.is_exist(name) in (0, 1, -600, -601, -900), "exist"
        rounds[number] += 1
        if number == 0 and rounds[0] % 20 == 0:
            store.close()
            assert store.setup("127.0.0.1", "", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
errors = []
threading.excepthook = lambda failed: errors.append(failed)
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
assert all(rounds), rounds
assert store.put(sys.argv[2], b"after") == 0
assert store.get(sys.argv[2]) == b"after"
"""
    run(cluster, code, key, seconds=120)
