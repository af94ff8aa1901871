//! The reads of a client, counted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_meta::ReadProgress;
use parking_lot::Mutex;

use crate::method::Method;

/// Counts the reads of one client, so that its calls tell the master which of them are over: the
/// master gives the space of removed and replaced objects to others then, instead of keeping it for
/// as long as a read may last. Clones count together; clients of one cluster share one.
///
/// A client whose configuration [counts](crate::ClientConfig::count_reads) says of *every* call that
/// returns replicas that it belongs to the reads that are [open](Self::begin).
///
/// ```
/// let mut config = mc_rpc::ClientConfig::default();
/// let reads = config.count_reads();
/// // With a client of this configuration:
/// let read = reads.begin();
/// // Ask the master where an object is, and read it there.
/// drop(read);
/// ```
#[derive(Clone, Debug)]
pub struct ReadCounter(Arc<ReadsUnderWay>);

impl Default for ReadCounter {
    /// A counter of which no call tells.
    fn default() -> Self {
        Self::new(0)
    }
}

#[derive(Debug)]
struct ReadsUnderWay {
    reader: u128,
    state: Mutex<State>,
    /// The last number up to which a master was told that all are over.
    told: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    /// Reads that are over, from the oldest one that is not on.
    is_over: VecDeque<bool>,
}

impl ReadCounter {
    /// A counter with this number among all clients, which cannot be guessed; nothing is told with 0.
    pub(super) fn new(reader: u128) -> Self {
        Self(Arc::new(ReadsUnderWay { reader, state: Mutex::default(), told: AtomicU64::new(0) }))
    }

    /// Begins a read, before the master is asked. It is over when the returned guard is dropped: from
    /// then on the caller may not use the memory that the master named.
    #[must_use = "the read is over when this is dropped"]
    pub fn begin(&self) -> OpenRead {
        let mut state = self.0.state.lock();
        state.begun += 1;
        state.is_over.push_back(false);
        OpenRead { counter: self.clone(), number: state.begun }
    }

    /// Returns the progress of reads that a call reports when it is sent now, if there is any to
    /// report.
    pub(crate) fn progress(&self, method: Method) -> Option<ReadProgress> {
        if self.0.reader == 0 {
            return None;
        }
        let (begun, over) = self.counts();
        let tells = if method.reads() {
            // With no read open, no later call would say when this call's caller is done.
            over < begun
        } else {
            self.0.told.load(Ordering::Relaxed) < over
        };
        if !tells {
            return None;
        }
        self.0.told.fetch_max(over, Ordering::Relaxed);
        Some(ReadProgress { reader: self.0.reader, begun, over })
    }

    /// Returns whether there are reads that are over and of which no call has told.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.0.reader != 0 && self.0.told.load(Ordering::Relaxed) < self.counts().1
    }

    /// The reads that were begun, and the number up to which all are over.
    fn counts(&self) -> (u64, u64) {
        let state = self.0.state.lock();
        (state.begun, state.begun - state.is_over.len() as u64)
    }
}

/// A read under way.
#[derive(Debug)]
pub struct OpenRead {
    counter: ReadCounter,
    number: u64,
}

impl Drop for OpenRead {
    fn drop(&mut self) {
        let mut state = self.counter.0.state.lock();
        let first = state.begun - state.is_over.len() as u64 + 1;
        let at = (self.number - first) as usize; // its own place is still there
        state.is_over[at] = true;
        while state.is_over.front() == Some(&true) {
            state.is_over.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(reads: &ReadCounter, method: Method) -> Option<(u64, u64)> {
        reads.progress(method).map(|said| (said.begun, said.over))
    }

    #[test]
    fn reads_end_in_any_order_and_are_told_in_theirs() {
        let reads = ReadCounter::new(7);
        assert_eq!(said(&reads, Method::Remove), None);
        let (a, b, c) = (reads.begin(), reads.begin(), reads.begin());
        assert_eq!(said(&reads, Method::GetReplicaList), Some((3, 0)));
        drop(b);
        assert_eq!(said(&reads, Method::GetReplicaList), Some((3, 0)));
        assert_eq!(said(&reads, Method::Remove), None);
        drop(a);
        assert!(reads.has_news());
        assert_eq!(said(&reads, Method::Remove), Some((3, 2)));
        assert_eq!(said(&reads, Method::Remove), None, "told already");
        assert!(!reads.has_news());
        let d = reads.begin();
        drop(c);
        assert_eq!(said(&reads, Method::BatchGetReplicaList), Some((4, 3)));
        drop(d);
        assert_eq!(said(&reads, Method::Ping), Some((4, 4)));
    }

    #[test]
    fn a_question_outside_of_reads_tells_nothing() {
        let reads = ReadCounter::new(7);
        drop(reads.begin());
        assert_eq!(said(&reads, Method::GetReplicaList), None);
        assert_eq!(said(&reads, Method::ExistKey), Some((1, 1)));
    }
}
