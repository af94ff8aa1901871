"""The store under another module name of older releases of Mooncake, ``mooncake_vllm_adaptor``.

There the module has the transfer engine, too. This package has none: the class
``mooncake_vllm_adaptor`` exists, so that a program which imports it starts, and cannot be made.
"""

from __future__ import annotations

from mc_store.mooncake.distributed_object_store import DistributedObjectStore

__all__ = ["MooncakeDistributedStore", "mooncake_vllm_adaptor"]

MooncakeDistributedStore = DistributedObjectStore


class mooncake_vllm_adaptor:
    """The transfer engine of older releases of Mooncake, which this package does not have."""

    def __init__(self) -> None:
        """Raises ``NotImplementedError``, which names what to use instead."""
        raise NotImplementedError(
            "mc-store has no transfer engine: mooncake_vllm_adaptor.mooncake_vllm_adaptor cannot "
            "move bytes between addresses of two processes. Hand them over by key: "
            "MooncakeDistributedStore.put_from() in the one and get_into() in the other, or put() "
            "and get()"
        )
