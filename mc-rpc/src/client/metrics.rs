//! What a client counts of its calls.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::OnceLock;

use crate::method::Method;

/// How many buckets a [`Latencies`] has.
const BUCKETS: usize = 28;

/// The latencies of calls, in buckets whose limits are powers of two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Latencies {
    buckets: [u64; BUCKETS],
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filled = self.buckets().filter(|&(_, calls)| calls != 0);
        f.debug_map().entries(filled).finish()
    }
}

impl Latencies {
    /// Each bucket's upper limit and how many calls took less than that and at least the
    /// limit before: below 1 µs, 2 µs, 4 µs and so on. The last bucket has the rest too.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let limits = (0..BUCKETS).map(|place| Duration::from_micros(1 << place));
        limits.zip(self.buckets)
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The upper limit of the bucket in which this part of all calls, from 0 to 1, has
    /// ended; `None` before the first call.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut calls = 0;
        self.buckets()
            .find(|(_, more)| {
                calls += more;
                calls >= wanted
            })
            .map(|(limit, _)| limit)
    }
}

/// The figures of one method's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MethodMetrics {
    /// The method.
    pub method: Method,
    /// Calls that have ended. A call that its caller gave up is not counted.
    pub calls: u64,
    /// Calls among them that ended in an [`RpcError`](crate::RpcError), refusals included.
    pub failures: u64,
    /// How often a call was sent again, on another connection.
    pub retries: u64,
    /// Bytes of the requests, frame headers included.
    pub bytes_sent: u64,
    /// Bytes of the answers, frame headers included.
    pub bytes_received: u64,
    /// The latencies of the calls, from beginning to end, waits included.
    pub latencies: Latencies,
}

/// The figures of a client since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientMetrics {
    /// Each method that was called, in the order of their numbers.
    pub methods: Vec<MethodMetrics>,
    /// Connections that were made.
    pub connections_made: u64,
    /// Connections that broke.
    pub connections_lost: u64,
}

/// The counters behind [`ClientMetrics`].
pub(super) struct Counters {
    methods: Box<[OnceLock<Box<MethodCounters>>]>,
    pub(super) connections_made: AtomicU64,
    pub(super) connections_lost: AtomicU64,
}

#[derive(Default)]
struct MethodCounters {
    failures: AtomicU64,
    retries: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    /// How many calls there were follows from these.
    latencies: [AtomicU64; BUCKETS],
}

/// What one call came to.
#[derive(Clone, Copy, Default)]
pub(super) struct Ended {
    pub(super) failed: bool,
    pub(super) retries: u32,
    pub(super) sent: usize,
    pub(super) received: usize,
    pub(super) took: Duration,
}

impl Default for Counters {
    fn default() -> Self {
        let most = Method::ALL.iter().map(|method| method.number()).max().unwrap_or(0);
        Self {
            methods: (0..=most).map(|_| OnceLock::new()).collect(),
            connections_made: AtomicU64::new(0),
            connections_lost: AtomicU64::new(0),
        }
    }
}

impl Counters {
    /// Three additions for a call that went well.
    pub(super) fn count(&self, method: Method, ended: Ended) {
        let counters = self.methods[usize::from(method.number())].get_or_init(Box::default);
        counters.latencies[bucket(ended.took)].fetch_add(1, Ordering::Relaxed);
        counters.bytes_sent.fetch_add(ended.sent as u64, Ordering::Relaxed);
        counters.bytes_received.fetch_add(ended.received as u64, Ordering::Relaxed);
        if ended.failed {
            counters.failures.fetch_add(1, Ordering::Relaxed);
        }
        if ended.retries != 0 {
            counters.retries.fetch_add(ended.retries.into(), Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> ClientMetrics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let methods = Method::ALL.iter().filter_map(|&method| {
            let counters = self.methods[usize::from(method.number())].get()?;
            let latencies = Latencies { buckets: counters.latencies.each_ref().map(load) };
            Some(MethodMetrics {
                method,
                calls: latencies.count(),
                failures: load(&counters.failures),
                retries: load(&counters.retries),
                bytes_sent: load(&counters.bytes_sent),
                bytes_received: load(&counters.bytes_received),
                latencies,
            })
        });
        ClientMetrics {
            methods: methods.collect(),
            connections_made: load(&self.connections_made),
            connections_lost: load(&self.connections_lost),
        }
    }
}

fn bucket(took: Duration) -> usize {
    let micros = took.as_micros().min(u64::MAX.into()) as u64;
    ((u64::BITS - micros.leading_zeros()) as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        for (nanos, place) in
            [(0, 0), (999, 0), (1000, 1), (1999, 1), (2000, 2), (4_000_000, 12), (u64::MAX, 27)]
        {
            assert_eq!(bucket(Duration::from_nanos(nanos)), place, "{nanos}");
        }
    }

    #[test]
    fn calls_are_counted_by_method() {
        let counters = Counters::default();
        let good =
            Ended { sent: 30, received: 20, took: Duration::from_micros(5), ..Ended::default() };
        counters.count(Method::ExistKey, good);
        let bad = Ended { failed: true, retries: 2, took: Duration::from_secs(1), ..good };
        counters.count(Method::ExistKey, bad);
        counters.count(Method::Ping, good);
        let read = counters.read();
        let methods: Vec<_> = read.methods.iter().map(|counted| counted.method).collect();
        assert_eq!(methods, [Method::ExistKey, Method::Ping]);
        let exist = &read.methods[0];
        assert_eq!((exist.calls, exist.failures, exist.retries), (2, 1, 2));
        assert_eq!((exist.bytes_sent, exist.bytes_received), (60, 40));
        assert_eq!(exist.latencies.quantile(0.5), Some(Duration::from_micros(8)));
        assert_eq!(exist.latencies.quantile(1.0), Some(Duration::from_micros(1 << 20)));
        assert_eq!(Latencies { buckets: [0; BUCKETS] }.quantile(0.5), None);
    }
}
