//! Counters of a server.

use core::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::method::Method;

/// Room for every method's number.
const METHODS: usize = 128;

/// The figures of a server since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerMetrics {
    /// Connections that are open.
    pub connections: u64,
    /// Connections taken.
    pub accepted: u64,
    /// Connections not taken: too many, or without a credential that is known here.
    pub turned_away: u64,
    /// Connections closed because the peer did not keep to the protocol.
    pub closed_for_cause: u64,
    /// Connections told to go away, because they idled and others wanted their places or
    /// because they idled for too long.
    pub yielded: u64,
    /// Calls of each method, and how many of them were refused; methods that no client
    /// called are left out.
    pub calls: Vec<MethodCalls>,
    /// Calls that waited longer than their caller wanted, and were not executed.
    pub expired: u64,
    /// Calls cancelled by their caller before they were executed.
    pub cancelled: u64,
    /// Second attempts that got the answer of the first.
    pub repeated: u64,
    /// Calls whose answers were there and were refused then, because the changes that they show or made
    /// did not become durable in time.
    pub not_durable: u64,
    /// Bytes that came in calls.
    pub bytes_in: u64,
    /// Bytes that went out in answers.
    pub bytes_out: u64,
}

/// The calls of one method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodCalls {
    /// The method.
    pub method: Method,
    /// Calls answered, refusals included.
    pub calls: u64,
    /// Calls refused as a whole.
    pub refused: u64,
}

/// The counters behind [`ServerMetrics`].
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) turned_away: AtomicU64,
    pub(super) closed_for_cause: AtomicU64,
    pub(super) yielded: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) repeated: AtomicU64,
    pub(super) not_durable: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    calls: [AtomicU64; METHODS],
    refused: [AtomicU64; METHODS],
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

impl Default for Counters {
    fn default() -> Self {
        let zeros = || [const { AtomicU64::new(0) }; METHODS];
        Self {
            connections: AtomicU64::default(),
            accepted: AtomicU64::default(),
            turned_away: AtomicU64::default(),
            closed_for_cause: AtomicU64::default(),
            yielded: AtomicU64::default(),
            expired: AtomicU64::default(),
            cancelled: AtomicU64::default(),
            repeated: AtomicU64::default(),
            not_durable: AtomicU64::default(),
            bytes_in: AtomicU64::default(),
            bytes_out: AtomicU64::default(),
            calls: zeros(),
            refused: zeros(),
        }
    }
}

pub(super) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn called(&self, method: Method, refused: bool) {
        let at = usize::from(method.number());
        if let Some(calls) = self.calls.get(at) {
            add(calls, 1);
        }
        if refused && let Some(refused) = self.refused.get(at) {
            add(refused, 1);
        }
    }

    pub(super) fn read(&self) -> ServerMetrics {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let calls = |method: Method| {
            let at = usize::from(method.number());
            MethodCalls {
                method,
                calls: self.calls.get(at).map_or(0, of),
                refused: self.refused.get(at).map_or(0, of),
            }
        };
        ServerMetrics {
            connections: of(&self.connections),
            accepted: of(&self.accepted),
            turned_away: of(&self.turned_away),
            closed_for_cause: of(&self.closed_for_cause),
            yielded: of(&self.yielded),
            calls: Method::ALL
                .iter()
                .map(|method| calls(*method))
                .filter(|calls| calls.calls > 0)
                .collect(),
            expired: of(&self.expired),
            cancelled: of(&self.cancelled),
            repeated: of(&self.repeated),
            not_durable: of(&self.not_durable),
            bytes_in: of(&self.bytes_in),
            bytes_out: of(&self.bytes_out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_its_counters() {
        let counters = Counters::default();
        for &method in Method::ALL {
            counters.called(method, true);
        }
        let calls = counters.read().calls;
        assert_eq!(calls.len(), Method::ALL.len());
        assert!(calls.iter().all(|calls| (calls.calls, calls.refused) == (1, 1)));
    }
}
