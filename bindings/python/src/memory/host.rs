//! Memory, by address, that processes of this host can share.

use std::collections::BTreeMap;

use mc_transport::{Memory, MemoryError, MemorySlice};
use parking_lot::RwLock;

use crate::fork::PerProcess;

/// All blocks that this process has allocated, by first address. A freed block lives on until no
/// store and no transfer uses it.
static BLOCKS: PerProcess<RwLock<BTreeMap<usize, Memory>>> = PerProcess::new();

/// Allocates and frees the memory of `MooncakeHostMemAllocator`.
pub(crate) struct HostMemory;

impl HostMemory {
    /// Allocates `len` zeroed bytes and returns the address of the first.
    pub(crate) fn allocate(len: usize) -> Result<usize, MemoryError> {
        let memory = Memory::options().shared().allocate(len)?;
        let address = memory.whole().address().expose_provenance();
        BLOCKS.get().write().insert(address, memory);
        Ok(address)
    }

    /// Frees the block that begins at `address`; returns `false` if no block begins there.
    pub(crate) fn free(address: usize) -> bool {
        BLOCKS.get().write().remove(&address).is_some()
    }

    /// Returns the `len` bytes at `address`; `None` if they are not within one block.
    pub(crate) fn find(address: usize, len: usize) -> Option<MemorySlice> {
        let blocks = BLOCKS.get().read();
        let (&first, block) = blocks.range(..=address).next_back()?;
        block.slice(address - first, len)
    }
}
