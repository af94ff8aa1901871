"""Memory of a GPU, by the driver's own functions, and what the package does with it.

Run with the name of a case and the address that it needs.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
from typing import Any

import mc_store
import pytest
from mc_store.mooncake.engine import TransferEngine
from mc_store.mooncake.store import MooncakeDistributedStore, ReplicateConfig

CUDA = ctypes.CDLL("libcuda.so.1")
KIB, MIB = 1 << 10, 1 << 20
SEED = int(os.environ.get("MC_TEST_SEED", "1"))
RANDOM = random.Random(SEED)
REFUSED = -600


def cuda(name: str, *arguments: Any) -> None:
    """Calls a function of the driver."""
    code = getattr(CUDA, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def begin(device: int = 0) -> None:
    """Makes the primary context of a GPU current, as an engine does."""
    cuda("cuInit", 0)
    context = ctypes.c_void_p()
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    cuda("cuCtxSetCurrent", context)


class Block:
    """Memory of a GPU."""

    #: The stream that its bytes depend on.
    stream: int | None = None

    def __init__(self, size: int) -> None:
        self.size = size
        self.address = self.allocate()
        self.fill(bytes([0xA5]) * size)

    def allocate(self) -> int:
        address = ctypes.c_uint64()
        cuda("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.size))
        return address.value

    def fill(self, content: bytes, at: int = 0) -> None:
        cuda(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(self.address + at),
            content,
            ctypes.c_size_t(len(content)),
        )
        cuda("cuCtxSynchronize")

    def read(self, at: int = 0, size: int | None = None) -> bytes:
        size = self.size - at if size is None else size
        content = ctypes.create_string_buffer(size)
        cuda("cuMemcpyDtoH_v2", content, ctypes.c_uint64(self.address + at), ctypes.c_size_t(size))
        return content.raw

    def free(self) -> None:
        cuda("cuMemFree_v2", ctypes.c_uint64(self.address))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.address, False),
            "shape": (self.size,),
            "typestr": "|u1",
            "version": 3,
            "strides": None,
            "stream": self.stream,
        }


def store_at(master: str, protocol: str = "tcp") -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 * MIB, 64 * MIB, protocol, "", master) == 0
    return store


def content(size: int) -> bytes:
    return RANDOM.randbytes(size)


def single_calls(master: str) -> None:
    """Puts and gets at addresses, registered or not."""
    store, block, target = store_at(master), Block(4 * MIB), Block(4 * MIB)
    for nth, size in enumerate([1, 7, 4 * KIB, 1 * MIB, 3 * MIB + 5]):
        for registered in (False, True):
            key, value = f"single-{nth}-{registered}", content(size)
            block.fill(value, 3)
            if registered:
                assert store.register_buffer(block.address, block.size) == 0
                assert store.register_buffer(target.address, target.size) == 0
                assert store.register_buffer(target.address, 1) == REFUSED
            assert store.put_from(key, block.address + 3, size) == 0
            assert store.get(key) == value
            target.fill(bytes([0xA5]) * target.size)
            assert store.get_into(key, target.address + 9, size + 1) == size
            assert target.read(9, size) == value
            assert (target.read(0, 9), target.read(9 + size, 9)) == (bytes([0xA5]) * 9,) * 2
            assert store.upsert_from(key, target.address + 9, size) == 0
            if size > 1:
                assert store.get_into(key, target.address, size - 1) == REFUSED
            if registered:
                assert store.unregister_buffer(block.address) == 0
                assert store.unregister_buffer(target.address) == 0
    # What leaves its allocation is refused, and so is memory that was freed.
    assert store.put_from("beyond", block.address + 1, block.size) == REFUSED
    assert store.get_into("single-0-True", target.address + 1, target.size) == REFUSED
    assert store.register_buffer(block.address, block.size) == 0
    freed = block.address
    block.free()
    assert store.put_from("freed", freed, 16) == REFUSED
    again = Block(4 * MIB)
    if again.address == freed:
        # The same address is other memory, and has to be registered anew.
        assert store.put_from("freed", freed, 16) == REFUSED
    assert store.unregister_buffer(freed) == 0
    assert store.put_from("again", again.address, 16) == 0
    store.close()


def batch_calls(master: str) -> None:
    """Values of many pieces, of both kinds of memory."""
    store, cache, host = store_at(master), Block(32 * MIB), bytearray(MIB)
    host_at = ctypes.addressof(ctypes.c_char.from_buffer(host))
    keys = [f"batch-{n}" for n in range(6)]
    sizes, pieces, values = [], [], []
    for nth in range(len(keys)):
        lengths = [RANDOM.choice([1, 100, 4 * KIB, 28 * KIB, 64 * KIB]) for _ in range(20)]
        places = [RANDOM.randrange(0, 300) * 100 * KIB for _ in lengths]
        value = b""
        places = sorted(set(places))
        lengths = lengths[: len(places)]
        for at, length in zip(places, lengths, strict=True):
            part = content(length)
            cache.fill(part, at)
            value += part
        addresses = [cache.address + at for at in places]
        if nth % 3 == 2:
            # One piece in memory of the host.
            part = content(5000)
            host[:5000] = part
            addresses.append(host_at)
            lengths.append(5000)
            value += part
        assert store.batch_put_from_multi_buffers([keys[nth]], [addresses], [lengths]) == [0]
        sizes.append(lengths)
        pieces.append(addresses)
        values.append(value)
        assert store.get(keys[nth]) == value, keys[nth]
    target = Block(32 * MIB)
    into, at = [], 0
    for lengths in sizes:
        places = []
        for length in lengths:
            places.append(target.address + at)
            at += length + 13
        into.append(places)
    got = store.batch_get_into_multi_buffers(keys, into, sizes)
    assert got == [len(value) for value in values]
    for places, lengths, value in zip(into, sizes, values, strict=True):
        read = b"".join(
            target.read(place - target.address, length)
            for place, length in zip(places, lengths, strict=True)
        )
        assert read == value
    more = [f"more-{n}" for n in range(3)]
    starts = [cache.address + n * MIB for n in range(3)]
    assert store.batch_put_from(more, starts, [MIB] * 3) == [0] * 3
    ends = [target.address + n * MIB for n in range(3)]
    assert store.batch_get_into([*more, "none"], [*ends, ends[0]], [MIB] * 4) == [MIB] * 3 + [-704]
    assert target.read(0, 3 * MIB) == cache.read(0, 3 * MIB)
    config = ReplicateConfig()
    assert store.batch_upsert_from(more, ends, [MIB] * 3, config) == [0] * 3
    # Ranges, into memory that is registered.
    assert store.register_buffer(target.address, target.size) == 0
    target.fill(bytes(MIB))
    ranges = store.get_into_ranges(
        [target.address], [[more[1]]], [[[10, 5000]]], [[[7, 0]]], [[[100, 1]]]
    )
    assert ranges == [[[100, 1]]]
    assert target.read(10, 100) == cache.read(MIB + 7, 100)
    assert target.read(5000, 1) == cache.read(MIB, 1)
    del host_at
    store.close()


def clients(master: str) -> None:
    """Objects with `__cuda_array_interface__`, and the work of a stream that comes before."""
    with mc_store.Client(master, segment_size="64MB") as store:
        block, target = Block(MIB), Block(MIB)
        value = content(MIB)
        block.fill(value)
        store.put("array", block)
        assert store["array"] == value
        assert store.get_into("array", target) == MIB
        assert target.read() == value
        assert store.get_range_into("array", 100, target) == MIB - 100
        assert target.read(0, MIB - 100) == value[100:]
        assert store.get_many_into({"array": target, "none": Block(1)}) == [MIB, None]
        assert target.read() == value
        managed = Managed(MIB)
        store.put("managed", managed)
        assert store["managed"] == bytes([0xA5]) * MIB
        assert store.get_into("array", managed) == MIB
        assert managed.read() == value
        # A kernel that is queued fills the block later: the put waits for it, and for nothing else.
        stream = ctypes.c_void_p()
        cuda("cuStreamCreate", ctypes.byref(stream), 1)
        cuda(
            "mc_standin_fill",
            stream,
            ctypes.c_uint64(block.address),
            ctypes.c_size_t(MIB),
            7,
            ctypes.c_uint64(200_000),
        )
        block.stream = stream.value
        store.put("late", block)
        assert store["late"] == bytes([7]) * MIB
        with pytest.raises(ValueError, match="C-contiguous"):
            store.put("strided", Strided(block))


class Managed(Block):
    """Memory that the processor and the GPUs share."""

    def allocate(self) -> int:
        address, attached_to_all = ctypes.c_uint64(), 1
        size = ctypes.c_size_t(self.size)
        cuda("cuMemAllocManaged", ctypes.byref(address), size, attached_to_all)
        return address.value


class Strided:
    """Every other column of a block."""

    def __init__(self, block: Block) -> None:
        self.__cuda_array_interface__ = block.__cuda_array_interface__ | {
            "shape": (4, 8),
            "strides": (16, 2),
        }


def engines(master: str) -> None:
    """Transfers between the memories of two GPUs, by two engines."""
    del master
    one, two = TransferEngine(), TransferEngine()
    for engine in (one, two):
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    peer = f"127.0.0.1:{two.get_rpc_port()}"
    source, target = Block(4 * MIB), Block(4 * MIB)
    assert one.register_memory(source.address, source.size) == 0
    assert two.register_memory(target.address, target.size) == 0
    value = content(3 * MIB)
    source.fill(value)
    wrote = one.transfer_sync_write(peer, source.address, target.address + 5, len(value))
    assert (wrote, target.read(5, len(value))) == (0, value)
    other = content(2 * MIB)
    target.fill(other)
    read = one.transfer_sync_read(peer, source.address + 1, target.address, len(other))
    assert (read, source.read(1, len(other))) == (0, other)
    # One side in memory of the host.
    host = bytearray(MIB)
    host_at = ctypes.addressof(ctypes.c_char.from_buffer(host))
    assert one.register_memory(host_at, len(host)) == 0
    assert one.transfer_sync_read(peer, host_at, target.address, len(host)) == 0
    assert host == other[:MIB]
    assert one.unregister_memory(source.address) == 0
    assert two.unregister_memory(target.address) == 0
    assert one.transfer_sync_write(peer, source.address, target.address, 1) != 0
    for engine in (one, two):
        engine.shutdown() if hasattr(engine, "shutdown") else None


def every_call(master: str) -> None:
    """Each call that takes an address, with that of a GPU, by a member of the cluster."""
    _every_call(store_at(master))


def thin_client(agent: str) -> None:
    """The same by a client of a node agent."""
    store = MooncakeDistributedStore()
    assert store.setup_dummy(16 * MIB, 16 * MIB, agent) == 0
    _every_call(store)


def _every_call(store: MooncakeDistributedStore) -> None:
    import numpy as np
    from test_pointers_all import READS, WRITES

    assert store.put_tensor("tensor", np.arange(1000, dtype=np.int32)) == 0
    tensor, block = store.get("tensor"), Block(MIB)
    for registered in (False, True):
        if registered:
            assert store.register_buffer(block.address, block.size) == 0
        for name, call in READS.items():
            if "tensor" in name or (name.endswith("ranges") and not registered):
                # Tensors are refused, and ranges go into memory that is registered.
                continue
            block.fill(bytes([0xA5]) * 8192)
            call(store, "tensor", block.address + 64, len(tensor))
            assert block.read(64, len(tensor)) == tensor, name
        for name, call in WRITES.items():
            block.fill(tensor, 64)
            if "tensor" in name:
                refused = call(store, name, block.address + 64, len(tensor))
                assert refused in (REFUSED, [REFUSED]), name
                continue
            key = f"{name}-{registered}"
            call(store, key, block.address + 64, len(tensor))
            if name == "put_from_with_metadata":
                assert store.get(key) == tensor + tensor
            elif not name.endswith("buffer_ranges"):
                assert store.get(key) == tensor, name
    store.close()


def failures(master: str) -> None:
    """Copies that fail end with a refusal, and the client lives on."""
    store, block = store_at(master), Block(MIB)
    assert store.put_from("before", block.address, MIB) == 0
    inject("fail", "cuMemcpyDtoHAsync_v2", ":2")
    assert store.put_from("fails", block.address, MIB) == REFUSED
    _lives_on(store, block)
    inject("fail", "cuMemcpyHtoDAsync_v2", ":700")
    assert store.get_into("before", block.address, MIB) == REFUSED
    # The context is lost with that, and all that needs it.
    assert store.put_from("lost", block.address, MIB) == REFUSED
    assert store.get("host") == store.get("host") != b""
    store.close()


def hangs(master: str) -> None:
    """A copy that hangs ends its call after a while, and nothing else waits for it."""
    store, block = store_at(master), Block(MIB)
    assert store.put("host", content(1000)) == 0
    assert store.register_buffer(block.address, block.size) == 0
    inject("hang", "cuMemcpyDtoHAsync_v2")
    ended = []
    thread = threading.Thread(
        target=lambda: ended.append(store.put_from("hangs", block.address, MIB))
    )
    thread.start()
    while thread.is_alive():
        assert len(store.get("host")) == 1000
    assert ended == [REFUSED]
    again = store.put_from("fails at once", block.address, MIB)
    assert again == REFUSED, again
    # The copy that hangs still uses the memory: it may not be freed.
    assert not store._is_idle(block.address)
    assert CUDA.mc_standin_inject(b"resume=1") == 0
    while store.put_from("again", block.address, MIB) != 0:
        assert len(store.get("host")) == 1000
    assert store._is_idle(block.address, 30)
    assert store.unregister_buffer(block.address) == 0
    store.close()


def inject(what: str, function: str, code: str = "") -> None:
    """Has the next call of a function go wrong."""
    # Calls are counted from here on.
    assert CUDA.mc_standin_inject(f"{what}={function}:1{code}".encode()) == 0


def _lives_on(store: MooncakeDistributedStore, block: Block) -> None:
    host = content(1000)
    assert store.put("host", host) == 0
    assert store.get("host") == host
    assert store.get_into("host", block.address, MIB) == 1000
    assert block.read(0, 1000) == host


if __name__ == "__main__":
    begin()
    globals()[sys.argv[1]](sys.argv[2])
    found = ctypes.create_string_buffer(4096)
    count = CUDA.mc_standin_violations(found, ctypes.c_size_t(4096))
    assert count == 0, found.value.decode()
    print("well")
