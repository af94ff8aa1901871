//! Memory that processes of this host can share, by address.

use std::collections::BTreeMap;

use mc_transport::{Memory, MemoryError, MemorySlice};
use parking_lot::RwLock;

use crate::fork::PerProcess;

/// All that this process has allocated, by its first address. A block that was freed lives on
/// until no store and no transfer names it.
static BLOCKS: PerProcess<RwLock<BTreeMap<usize, Memory>>> = PerProcess::new();

/// Allocates and frees what `MooncakeHostMemAllocator` hands out.
pub(crate) struct HostMemory;

impl HostMemory {
    /// Takes `len` zeroed bytes and returns the address of the first.
    pub(crate) fn allocate(len: usize) -> Result<usize, MemoryError> {
        let memory = Memory::options().shared().allocate(len)?;
        let address = memory.whole().address().expose_provenance();
        BLOCKS.get().write().insert(address, memory);
        Ok(address)
    }

    /// Gives the block back that begins at `address`; `false` when none does.
    pub(crate) fn free(address: usize) -> bool {
        BLOCKS.get().write().remove(&address).is_some()
    }

    /// The `len` bytes at `address`; `None` when they are not part of one block.
    pub(crate) fn find(address: usize, len: usize) -> Option<MemorySlice> {
        let blocks = BLOCKS.get().read();
        let (&first, block) = blocks.range(..=address).next_back()?;
        block.slice(address - first, len)
    }
}
