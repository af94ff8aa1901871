"""Calls that take a pointer, beyond memory that is registered."""

from __future__ import annotations

import ctypes

from mc_store.mooncake.store import MooncakeDistributedStore

INVALID_PARAMS = -600
REGISTERED = 32
VALUE = bytes(range(1, 47))


def test_nothing_is_written_or_read_behind_a_registration(
    store: MooncakeDistributedStore, key: str
) -> None:
    memory = bytearray(b"g" * 128)
    base = ctypes.addressof((ctypes.c_char * 128).from_buffer(memory)) + 32
    guarded = bytes(memory)
    size = len(VALUE)
    assert store.put(key, VALUE) == 0
    assert store.register_buffer(base, REGISTERED) == 0
    ranges = store.get_into_ranges([base], [[key]], [[[0]]], [[[0]]], [[[size]]])
    assert ranges == [[[INVALID_PARAMS]]]
    # Where the range begins behind the buffer that it is in, too.
    ranges = store.get_into_ranges([base], [[key]], [[[REGISTERED]]], [[[0]]], [[[8]]])
    assert ranges == [[[INVALID_PARAMS]]]
    for address in (base, base - 8):
        assert store.get_into(key, address, size) == INVALID_PARAMS
        assert store.batch_get_into([key], [address], [size]) == [INVALID_PARAMS]
        several = store.batch_get_into_multi_buffers([key], [[address]], [[size]])
        assert several == [INVALID_PARAMS]
        assert store.put_from(f"{key}other", address, size) == INVALID_PARAMS
    assert store.is_exist(f"{key}other") == 0
    assert bytes(memory) == guarded
    # Ranges that fit are read, and memory that was never registered or is no more costs a copy.
    ranges = store.get_into_ranges([base], [[key]], [[[0]]], [[[0]]], [[[REGISTERED]]])
    assert ranges == [[[REGISTERED]]]
    assert bytes(memory[64:]) == guarded[64:]
    assert store.unregister_buffer(base) == 0
    ranges = store.get_into_ranges([base], [[key]], [[[0]]], [[[0]]], [[[size]]])
    assert ranges == [[[INVALID_PARAMS]]]
    assert store.get_into(key, base, size) == size
