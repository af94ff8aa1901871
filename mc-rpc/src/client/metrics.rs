//! Counters of a client's calls.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::OnceLock;

use crate::latency::{LatencyHistogram, LatencyRecorder};
use crate::method::Method;

/// The figures of one method's calls.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub latencies: LatencyHistogram,
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
    latencies: LatencyRecorder,
}

/// The outcome of one call.
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
    /// Four additions for a call that went well.
    pub(super) fn count(&self, method: Method, ended: Ended) {
        let counters = self.methods[usize::from(method.number())].get_or_init(Box::default);
        counters.latencies.record(ended.took);
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
            let latencies = counters.latencies.read();
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(exist.latencies.quantile(0.5), Some(Duration::from_micros(5)));
        assert_eq!(exist.latencies.quantile(1.0), Some(Duration::from_micros(1 << 20)));
    }
}
