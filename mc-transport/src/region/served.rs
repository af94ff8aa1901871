//! Counts of what peers were served.

use std::sync::atomic::{AtomicU64, Ordering};

use mc_memory::Access;

/// Counts of the operations of peers in the memory that a node opened to them.
///
/// A process of the same host that maps the memory reads and writes it by itself: it does not
/// ask the node then, and nothing is counted here. That process counts it, as every reader
/// counts what it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedTotals {
    /// Reads let in.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes carried out.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
}

/// The counters behind [`ServedTotals`].
#[derive(Debug, Default)]
pub(super) struct ServedCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

impl ServedCounters {
    /// Two additions.
    pub(super) fn add(&self, access: Access, len: u64) {
        let (operations, bytes) = match access {
            Access::Read => (&self.reads, &self.read_bytes),
            Access::Write | Access::ReadWrite => (&self.writes, &self.written_bytes),
        };
        operations.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(len, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> ServedTotals {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServedTotals {
            reads: of(&self.reads),
            read_bytes: of(&self.read_bytes),
            writes: of(&self.writes),
            written_bytes: of(&self.written_bytes),
        }
    }
}
