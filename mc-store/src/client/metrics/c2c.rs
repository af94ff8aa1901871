//! Counters of a client's conversions.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mc_rpc::{LatencyHistogram, LatencyRecorder};

/// Why an object was not converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum C2cSkip {
    /// Too many objects waited.
    QueueFull,
    /// The target model's key had a value already.
    Existing,
    /// The object was removed or evicted before it was read, or replaced before what was made from it
    /// was stored.
    SourceGone,
    /// The object could not be read.
    ReadFailed,
    /// The weights, or the shape of a model, could not be had.
    Weights,
    /// The object's length does not fit the model's shape.
    WrongLength,
    /// The object, or a result, has infinite or undefined elements.
    NotFinite,
    /// The projector needs the target model's own object; see [`Client::convert`](crate::Client::convert).
    NeedsTarget,
    /// There was no memory, or no thread.
    NoMemory,
    /// The converted object could not be stored.
    PutFailed,
}

impl C2cSkip {
    /// Every cause.
    pub const ALL: [Self; 10] = [
        Self::QueueFull,
        Self::Existing,
        Self::SourceGone,
        Self::ReadFailed,
        Self::Weights,
        Self::WrongLength,
        Self::NotFinite,
        Self::NeedsTarget,
        Self::NoMemory,
        Self::PutFailed,
    ];

    /// The name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Existing => "existing",
            Self::SourceGone => "source_gone",
            Self::ReadFailed => "read_failed",
            Self::Weights => "weights",
            Self::WrongLength => "wrong_length",
            Self::NotFinite => "not_finite",
            Self::NeedsTarget => "needs_target",
            Self::NoMemory => "no_memory",
            Self::PutFailed => "put_failed",
        }
    }

    /// Whether an operator should hear of it.
    pub(in crate::client) const fn is_failure(self) -> bool {
        !matches!(self, Self::Existing | Self::SourceGone)
    }
}

#[derive(Debug, Default)]
pub(in crate::client) struct Counts {
    queued: AtomicUsize,
    converted: AtomicU64,
    read_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    skipped: [AtomicU64; C2cSkip::ALL.len()],
    latency: LatencyRecorder,
    flop: AtomicU64,
    busy_nanos: AtomicU64,
}

impl Counts {
    pub(in crate::client) fn queued(&self, count: usize) {
        self.queued.fetch_add(count, Ordering::Relaxed);
    }

    pub(in crate::client) fn waiting(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// They wait no longer.
    pub(in crate::client) fn taken(&self, count: usize) {
        self.queued.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns how many were skipped for this cause before.
    pub(in crate::client) fn skipped(&self, cause: C2cSkip, count: usize) -> u64 {
        self.skipped[cause as usize].fetch_add(count as u64, Ordering::Relaxed)
    }

    /// A conversion in memory has ended.
    pub(in crate::client) fn computed(&self, flop: u64, took: Duration) {
        self.flop.fetch_add(flop, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.busy_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// A converted object is stored.
    pub(in crate::client) fn converted(&self, read: usize, stored: usize, since_put: Duration) {
        self.converted.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(read as u64, Ordering::Relaxed);
        self.stored_bytes.fetch_add(stored as u64, Ordering::Relaxed);
        self.latency.record(since_put);
    }

    pub(in crate::client) fn read(&self) -> C2cMetrics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        C2cMetrics {
            queued: self.waiting(),
            converted: load(&self.converted),
            read_bytes: load(&self.read_bytes),
            stored_bytes: load(&self.stored_bytes),
            skipped: C2cSkip::ALL
                .map(|cause| (cause, load(&self.skipped[cause as usize])))
                .to_vec(),
            latency: self.latency.read(),
            flop: load(&self.flop),
            busy: Duration::from_nanos(load(&self.busy_nanos)),
        }
    }
}

/// The outcome of the conversions of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct C2cMetrics {
    /// Conversions that wait or are under way.
    pub queued: usize,
    /// Converted objects that were stored.
    pub converted: u64,
    /// Bytes of the objects that they were made from.
    pub read_bytes: u64,
    /// Bytes of the converted objects.
    pub stored_bytes: u64,
    /// Conversions that were not made, by cause.
    pub skipped: Vec<(C2cSkip, u64)>,
    /// Time from the end of a put to that of its converted object's put.
    pub latency: LatencyHistogram,
    /// Floating-point operations of the matrix products.
    pub flop: u64,
    /// Time that threads spent on conversions, all of them together.
    pub busy: Duration,
}

impl C2cMetrics {
    /// Conversions that were not made for this cause.
    #[must_use]
    pub fn skipped(&self, cause: C2cSkip) -> u64 {
        self.skipped.iter().find(|(of, _)| *of == cause).map_or(0, |(_, count)| *count)
    }

    /// Operations in a nanosecond of one thread: GFLOP/s.
    #[must_use]
    pub fn gflops(&self) -> f64 {
        let nanos = self.busy.as_nanos();
        if nanos == 0 { 0.0 } else { self.flop as f64 / nanos as f64 }
    }
}
