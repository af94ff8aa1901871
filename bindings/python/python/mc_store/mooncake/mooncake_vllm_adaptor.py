"""The store and the transfer engine under another module name of older releases of Mooncake."""

from __future__ import annotations

from mc_store.mooncake.distributed_object_store import DistributedObjectStore
from mc_store.mooncake.engine import TransferEngine, TransferOpcode

__all__ = ["MooncakeDistributedStore", "mooncake_vllm_adaptor"]

MooncakeDistributedStore = DistributedObjectStore


class mooncake_vllm_adaptor(TransferEngine):
    """The transfer engine with the method names of older releases of Mooncake."""

    initializeExt = TransferEngine.initialize_ext
    allocateManagedBuffer = TransferEngine.allocate_managed_buffer
    freeManagedBuffer = TransferEngine.free_managed_buffer
    writeBytesToBuffer = TransferEngine.write_bytes_to_buffer
    readBytesFromBuffer = TransferEngine.read_bytes_from_buffer
    expRegisterMemory = TransferEngine.register_memory
    expUnregisterMemory = TransferEngine.unregister_memory

    def transferSync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode | int = TransferOpcode.Read,
    ) -> int:
        """Reads ``length`` bytes of a peer, or writes them with the opcode 1.

        Returns 0, or a negative number for a failure.
        """
        if isinstance(opcode, int):
            opcode = TransferOpcode(opcode)
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, opcode)
