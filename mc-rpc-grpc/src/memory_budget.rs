//! The memory of one connection, and the time that its answers have waited.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use bytes::{Bytes, BytesMut};
use mc_rpc::{Buffered, Refusal};
use mc_types::ErrorCode;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Requests and answers of one connection.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    /// Bytes in the buffers of all connections that hold many.
    server: Arc<AtomicUsize>,
    max: usize,
    own: Mutex<Own>,
}

#[derive(Debug, Default)]
struct Own {
    bytes: usize,
    counted: Buffered,
    /// Since when answers wait to be taken. The number tells those of one moment apart.
    waiting: BTreeSet<(Instant, u64)>,
    waited: u64,
}

impl MemoryBudget {
    pub(super) fn new(server: Arc<AtomicUsize>, max: usize) -> Arc<Self> {
        Arc::new(Self { server, max, own: Mutex::default() })
    }

    /// Something that holds no bytes yet.
    pub(super) fn nothing(self: &Arc<Self>) -> Reservation {
        Reservation { memory_budget: Arc::clone(self), bytes: 0 }
    }

    /// Something that waits to be taken from this moment on.
    pub(super) fn wait(self: &Arc<Self>, since: Instant) -> Waiting {
        let mut own = self.own.lock();
        own.waited += 1;
        let entry = (since, own.waited);
        own.waiting.insert(entry);
        Waiting { memory_budget: Arc::clone(self), entry }
    }

    /// Since when the oldest has been waiting.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.own.lock().waiting.first().map(|&(since, _)| since)
    }

    /// Counts `now` bytes where there were `before`. Whether that stays within the limit.
    fn count(&self, before: usize, now: usize) -> bool {
        let mut own = self.own.lock();
        let bytes = own.bytes - before + now;
        own.bytes = bytes;
        own.counted.set(bytes, &self.server, self.max)
    }
}

/// Bytes that count as long as this lives.
#[derive(Debug)]
pub(super) struct Reservation {
    memory_budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl Reservation {
    /// Holds that many bytes now.
    ///
    /// # Errors
    /// [`ErrorCode::Overloaded`] when the server holds too many; the caller is to release them.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<(), Refusal> {
        let before = core::mem::replace(&mut self.bytes, bytes);
        if self.memory_budget.count(before, bytes) {
            return Ok(());
        }
        Err(Refusal::new(
            ErrorCode::Overloaded,
            "the master holds too many large requests at once; retry shortly",
        ))
    }

    /// The bytes of an answer, counted until they have been written. The call is executed,
    /// so that its answer is kept whatever the server holds.
    pub(super) fn answer(mut self, bytes: BytesMut) -> Bytes {
        let before = core::mem::replace(&mut self.bytes, bytes.capacity());
        self.memory_budget.count(before, self.bytes);
        let waiting = self.memory_budget.wait(Instant::now());
        Bytes::from_owner(Answer { bytes, _held: self, _waiting: waiting })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory_budget.count(self.bytes, 0);
    }
}

/// Waits as long as this lives.
#[derive(Debug)]
pub(super) struct Waiting {
    memory_budget: Arc<MemoryBudget>,
    entry: (Instant, u64),
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.memory_budget.own.lock().waiting.remove(&self.entry);
    }
}

struct Answer {
    bytes: BytesMut,
    _held: Reservation,
    _waiting: Waiting,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use std::sync::atomic::Ordering;

    /// A connection that holds no more does not count.
    const SMALL_BUFFERS: usize = 256 << 10;

    #[test]
    fn only_large_holdings_count_and_only_growth_is_refused() {
        let server = Arc::new(AtomicUsize::new(0));
        let total = || server.load(Ordering::Relaxed);
        let memory_budget = MemoryBudget::new(Arc::clone(&server), 1 << 20);
        let mut small = memory_budget.nothing();
        small.resize(SMALL_BUFFERS).unwrap();
        assert_eq!(total(), 0);
        let mut large = memory_budget.nothing();
        large.resize(1).unwrap();
        assert_eq!(total(), SMALL_BUFFERS + 1);
        large.resize(512 << 10).unwrap();
        assert_eq!(total(), SMALL_BUFFERS + (512 << 10));

        let other = MemoryBudget::new(Arc::clone(&server), 1 << 20);
        let mut beyond = other.nothing();
        beyond.resize(SMALL_BUFFERS).unwrap();
        assert_eq!(beyond.resize(512 << 10).unwrap_err().code, ErrorCode::Overloaded);
        beyond.resize(500 << 10).unwrap();
        drop(beyond);

        let answer = large.answer(BytesMut::zeroed(2 << 20));
        assert_eq!(total(), SMALL_BUFFERS + (2 << 20));
        let part = answer.slice(..10);
        drop(answer);
        assert_eq!(total(), SMALL_BUFFERS + (2 << 20));
        drop(part);
        assert_eq!(total(), 0);
        drop(small);
        assert_eq!(total(), 0);
    }

    #[test]
    fn the_oldest_waits_longest() {
        let memory_budget = MemoryBudget::new(Arc::default(), 0);
        let now = Instant::now();
        assert_eq!(memory_budget.oldest(), None);
        let late = memory_budget.wait(now + Duration::from_secs(1));
        let (first, second) = (memory_budget.wait(now), memory_budget.wait(now));
        assert_eq!(memory_budget.oldest(), Some(now));
        drop(first);
        assert_eq!(memory_budget.oldest(), Some(now));
        drop(second);
        assert_eq!(memory_budget.oldest(), Some(now + Duration::from_secs(1)));
        drop(late);
        assert_eq!(memory_budget.oldest(), None);
    }
}
