//! Reads that their caller gives up.

use std::sync::Arc;

use parking_lot::RwLock;

/// Ends reads that have not come to their end, so that their memory can be used again at once.
///
/// Dropping [`Completions`](crate::Completions) abandons results, and the operations may still
/// fill their memory. Reads that have a `Cancel` leave it alone from the moment on that they are
/// cancelled, also when their bytes arrive later; the link serves other operations. All
/// reads of a batch may share one. Links whose [`Capabilities::cancels`] is `false`, as those of RDMA,
/// do not know it.
///
/// [`Capabilities::cancels`]: crate::Capabilities::cancels
///
/// ```
/// use mc_transport::{Cancel, Memory, Operation, RemoteSpan};
/// use mc_types::{Extent, RemoteKey};
///
/// let (memory, cancel) = (Memory::allocate(5)?, Cancel::new());
/// let from = RemoteSpan::new(RemoteKey::from_bytes([7; 16]), Extent::new(0, 5).unwrap());
/// let read = Operation::read(from, memory.whole()).cancelled_by(&cancel);
/// cancel.cancel();
/// # let _ = read;
/// # Ok::<(), mc_transport::MemoryError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    /// Whether the reads are cancelled. Those who put bytes into their memory share the lock meanwhile.
    state: Arc<RwLock<bool>>,
}

impl Cancel {
    /// A handle of reads that are yet to be made.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the reads. When this returns none of them touches its memory any more. It waits
    /// for a piece of bytes that is being copied at this moment, at most 256 KiB of each read.
    pub fn cancel(&self) {
        *self.state.write() = true;
    }

    /// Does `work`, which puts bytes into the memory of a read; `None` when the read is cancelled.
    /// For code that fills memory which its caller may give up; a cancellation waits for `work`,
    /// which must not take long.
    pub fn guard<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let is_cancelled = self.state.read();
        (!*is_cancelled).then(work)
    }
}

/// [`Cancel::guard`] where there may be nothing that cancels.
pub fn guarded<T>(cancel: Option<&Cancel>, work: impl FnOnce() -> T) -> Option<T> {
    match cancel {
        Some(cancel) => cancel.guard(work),
        None => Some(work()),
    }
}
