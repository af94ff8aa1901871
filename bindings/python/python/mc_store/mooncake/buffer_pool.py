"""Pools of registered memory: :class:`BufferPool`, also called ``RegisteredBufferPool``."""

from mc_store.mooncake._buffer_pool import (
    BufferLease,
    BufferPool,
    PoolExhausted,
    PoolTimeout,
    RegisteredBufferPool,
)

__all__ = ["BufferLease", "BufferPool", "PoolExhausted", "PoolTimeout", "RegisteredBufferPool"]
