//! Counters of a tier below memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_rpc::{LatencyHistogram, LatencyRecorder};

/// The counters of one tier.
#[derive(Debug, Default)]
pub(in crate::client) struct TierCounters {
    reads: LatencyRecorder,
    read_bytes: AtomicU64,
    missing: AtomicU64,
    failed_reads: AtomicU64,
    writes: LatencyRecorder,
    written_bytes: AtomicU64,
    failed_writes: AtomicU64,
    dropped: AtomicU64,
    late: AtomicU64,
    no_room: AtomicU64,
    deleted: AtomicU64,
    evicted: AtomicU64,
    complaints: AtomicU64,
}

/// A client's counters of a tier below memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierMetrics {
    /// Time of the reads that have ended, whatever their outcome.
    pub reads: LatencyHistogram,
    /// Bytes read.
    pub read_bytes: u64,
    /// Reads of objects that were not there.
    pub missing: u64,
    /// Reads that failed, or found damaged bytes.
    pub failed_reads: u64,
    /// Reads, or parts of them, that the tier gave no answer to in time.
    pub timed_out_reads: u64,
    /// Reads, or parts of them, that were not tried because the tier gave others no answer.
    pub skipped_reads: u64,
    /// Time of the writes that have ended, whatever their outcome.
    pub writes: LatencyHistogram,
    /// Bytes written.
    pub written_bytes: u64,
    /// Writes that failed.
    pub failed_writes: u64,
    /// Objects that were not written because too many waited.
    pub dropped: u64,
    /// Objects that were not written because the master would have given them up before they were.
    pub late: u64,
    /// Objects that were not written because the medium has no room, and evicting others makes none.
    pub no_room: u64,
    /// Objects that were deleted because they were removed.
    pub deleted: u64,
    /// Objects that were deleted to make room.
    pub evicted: u64,
    /// Objects that wait to be written or are being written.
    pub waiting: u64,
}

impl TierCounters {
    /// Counts a read: its bytes, or `None` when the object was not there.
    pub(in crate::client) fn read(&self, took: Duration, outcome: Result<Option<u64>, ()>) {
        self.reads.record(took);
        match outcome {
            Ok(Some(bytes)) => add(&self.read_bytes, bytes),
            Ok(None) => add(&self.missing, 1),
            Err(()) => add(&self.failed_reads, 1),
        }
    }

    pub(in crate::client) fn written(&self, took: Duration, outcome: Result<u64, ()>) {
        self.writes.record(took);
        match outcome {
            Ok(bytes) => add(&self.written_bytes, bytes),
            Err(()) => add(&self.failed_writes, 1),
        }
    }

    /// Counts an object that is not written because `limit` others wait. The log tells of the first,
    /// the second, the fourth and so on.
    pub(in crate::client) fn dropped(&self, limit: usize) {
        let count = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(
                count,
                limit,
                "objects are put faster than they can be written below memory; some are not written"
            );
        }
    }

    /// Counts an object that would be written too late. The log tells of the first, the second, the fourth and
    /// so on.
    pub(in crate::client) fn late(&self) {
        let count = self.late.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::warn!(
                count,
                "objects wait longer to be written below memory than the master waits for them; those are \
                 not written"
            );
        }
    }

    /// Counts an object that is not written because the medium has no room.
    pub(in crate::client) fn no_room(&self) {
        add(&self.no_room, 1);
    }

    pub(in crate::client) fn deleted(&self, objects: u64) {
        add(&self.deleted, objects);
    }

    pub(in crate::client) fn evicted(&self, objects: u64) {
        add(&self.evicted, objects);
    }

    /// Logs the first failure, the second, the fourth and so on.
    pub(in crate::client) fn complain(&self, log: impl FnOnce(u64)) {
        let count = self.complaints.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            log(count);
        }
    }

    pub(in crate::client) fn metrics(&self, waiting: usize) -> TierMetrics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TierMetrics {
            reads: self.reads.read(),
            read_bytes: load(&self.read_bytes),
            missing: load(&self.missing),
            failed_reads: load(&self.failed_reads),
            // What bounds the reads counts these.
            timed_out_reads: 0,
            skipped_reads: 0,
            writes: self.writes.read(),
            written_bytes: load(&self.written_bytes),
            failed_writes: load(&self.failed_writes),
            dropped: load(&self.dropped),
            late: load(&self.late),
            no_room: load(&self.no_room),
            deleted: load(&self.deleted),
            evicted: load(&self.evicted),
            waiting: waiting as u64,
        }
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
