//! Settings of a copier.

use std::time::Duration;

/// Settings of a [`Copier`](super::Copier).
///
/// ```
/// use std::time::Duration;
/// use mc_cuda::CopierOptions;
/// let options = CopierOptions::default().slots(4).slot_len(1 << 20).limit(Duration::from_secs(2));
/// ```
#[derive(Clone, Debug)]
pub struct CopierOptions {
    pub(super) slot_len: usize,
    pub(super) slots: usize,
    pub(super) limit: Duration,
    pub(super) uses_batches: bool,
}

impl Default for CopierOptions {
    /// 16 slots of 2 MiB, 10 seconds for a copy, and batches where the driver has them.
    fn default() -> Self {
        let limit = Duration::from_secs(10);
        Self { slot_len: 2 << 20, slots: 16, limit, uses_batches: true }
    }
}

impl CopierOptions {
    /// Bytes of each slot.
    #[must_use]
    pub fn slot_len(mut self, bytes: usize) -> Self {
        self.slot_len = bytes.max(1);
        self
    }

    /// The number of slots.
    #[must_use]
    pub fn slots(mut self, number: usize) -> Self {
        self.slots = number.max(1);
        self
    }

    /// The time that a copy may take, with the engine's work that it waits for.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Whether copies of several pieces are given to `cuMemcpyBatchAsync`, which some drivers have trouble with.
    #[must_use]
    pub fn batches(mut self, are_used: bool) -> Self {
        self.uses_batches = are_used;
        self
    }
}
