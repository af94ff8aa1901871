//! Which disks of peers are left alone because they gave no answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_types::Endpoint;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use super::breaker::{Breaker, Turn};

/// Most disks that are known to be late. Of more than these all are asked again.
const MAX_LATE: usize = 1024;

/// The disks of peers, by the peers' endpoints.
#[derive(Debug)]
pub(in crate::client) struct PeerDisks {
    limit: Duration,
    /// Of those that were late and have not answered since.
    late: Mutex<HashMap<Endpoint, Breaker>>,
    timed_out: AtomicU64,
    skipped: AtomicU64,
}

impl PeerDisks {
    pub(in crate::client) fn new(limit: Duration) -> Self {
        Self {
            limit,
            late: Mutex::default(),
            timed_out: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// The time limit of a read.
    pub(in crate::client) const fn limit(&self) -> Duration {
        self.limit
    }

    /// The turn to read from the disk at `endpoint`; `None`, with as many `reads` counted, while it is
    /// left alone.
    pub(in crate::client) fn turn(
        &self,
        endpoint: &Endpoint,
        reads: usize,
    ) -> Option<DiskTurn<'_>> {
        let mut late = self.late.lock();
        let turn = late.get_mut(endpoint).map_or(Turn::Usual, |it| it.turn(Instant::now()));
        if turn == Turn::Skip {
            self.skipped.fetch_add(reads as u64, Ordering::Relaxed);
            return None;
        }
        Some(DiskTurn { disks: self, endpoint: endpoint.clone(), turn })
    }

    /// Reads without an answer in time, and those that were left out.
    pub(in crate::client) fn counts(&self) -> (u64, u64) {
        (self.timed_out.load(Ordering::Relaxed), self.skipped.load(Ordering::Relaxed))
    }
}

/// Reads of one disk. Without an outcome, they were cancelled.
pub(in crate::client) struct DiskTurn<'a> {
    disks: &'a PeerDisks,
    endpoint: Endpoint,
    turn: Turn,
}

impl DiskTurn<'_> {
    pub(in crate::client) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Takes note of what the reads came to: how many got no answer in time.
    pub(in crate::client) fn outcome(mut self, timed_out: usize) {
        let turn = std::mem::replace(&mut self.turn, Turn::Usual);
        let (disks, endpoint) = (self.disks, &self.endpoint);
        disks.timed_out.fetch_add(timed_out as u64, Ordering::Relaxed);
        let mut late = disks.late.lock();
        if timed_out == 0 {
            if let Some(mut breaker) = late.remove(endpoint)
                && breaker.answered()
            {
                info!(%endpoint, "the disk of a node answers again and is read from");
            }
            return;
        }
        if late.len() >= MAX_LATE && !late.contains_key(endpoint) {
            late.clear();
        }
        let breaker = late.entry(endpoint.clone()).or_default();
        if let Some(rest) = breaker.failed(turn, Instant::now()) {
            warn!(
                %endpoint, limit = ?disks.limit, ?rest,
                "the disk of a node does not answer in time; what it alone has counts as missing until \
                 it does"
            );
        }
    }
}

impl Drop for DiskTurn<'_> {
    fn drop(&mut self) {
        if self.turn == Turn::Probe
            && let Some(breaker) = self.disks.late.lock().get_mut(&self.endpoint)
        {
            breaker.withdrawn(Instant::now());
        }
    }
}
