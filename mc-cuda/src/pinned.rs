//! Memory of the host that GPUs copy from and to directly.

use std::ptr::NonNull;
use std::sync::Arc;

use mc_memory::Memory;

use crate::context::Context;
use crate::error::CudaError;

/// Pinned memory of the host; unpinned and released when it is dropped.
struct Pinned {
    context: Arc<Context>,
    base: NonNull<u8>,
}

// SAFETY: the pointer is only handed back to the driver, from any thread.
unsafe impl Send for Pinned {}
// SAFETY: nothing can be done with a shared one.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.context.unpin(self.base);
    }
}

/// Takes `len` bytes of pinned memory.
pub(crate) fn pinned(context: &Arc<Context>, len: usize) -> Result<Memory, CudaError> {
    let base = context.pin(len)?;
    let owner = Pinned { context: Arc::clone(context), base };
    // SAFETY: the driver gave `len` bytes that any thread may read and write until they are
    // unpinned, which the owner does when it is dropped; no other code knows them. An
    // allocation is never longer than `isize::MAX`.
    Ok(unsafe { Memory::from_raw(base, len, owner) })
}
