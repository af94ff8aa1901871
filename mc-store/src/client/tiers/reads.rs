//! Reads of a tier, which may hang: each has a time limit, and they have bounds together.
//!
//! A read blocks a thread, and nothing ends that before the medium answers. So what bounds the reads
//! stays with the thread: a medium that hangs holds as many threads as there are places, and no more,
//! and no other tier waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_environment::Environment;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::breaker::{Breaker, Turn};
use crate::client::metrics::TierMetrics;

/// Reads of a tier at a time: as many as a disk has use for.
const PLACES: usize = 32;

/// Bytes that a read may take at once.
pub(in crate::client) const MAX_READ: u64 = 8 << 20;

/// Bytes that the reads of a tier take together. A tier of 45 MB/s still gives them in the usual limit.
const BUDGET: u64 = 64 << 20;

/// The unit of the budget.
const UNIT: u64 = 4 << 10;

/// The bounds of the reads of one tier.
#[derive(Debug)]
pub(in crate::client) struct TierReads {
    /// For messages, such as "the shared tier".
    pub(in crate::client) name: &'static str,
    /// How long a read may take once it has its place, and all of them may wait while none ends.
    limit: Duration,
    places: Arc<Semaphore>,
    budget: Arc<Semaphore>,
    state: Mutex<State>,
    /// Told when the tier begins to be left alone.
    rests: Notify,
    timed_out: AtomicU64,
    skipped: AtomicU64,
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
    /// When a read last ended.
    ended: Instant,
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum NotRead {
    /// The tier gave no answer in time, or is left alone because it gave none before.
    Unanswered,
    /// The runtime ends, or the read panicked.
    Ending,
}

/// The permits of a read under way.
type ReadPermits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl TierReads {
    pub(in crate::client) fn new(name: &'static str, limit: Duration) -> Self {
        Self {
            name,
            limit,
            places: Arc::new(Semaphore::new(PLACES)),
            budget: Arc::new(Semaphore::new((BUDGET / UNIT) as usize)),
            state: Mutex::new(State { breaker: Breaker::default(), ended: Instant::now() }),
            rests: Notify::new(),
            timed_out: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// The time limit of a read.
    pub(in crate::client) const fn limit(&self) -> Duration {
        self.limit
    }

    /// Runs `work`, which reads `len` bytes and blocks, when others have left it room.
    ///
    /// # Errors
    /// [`NotRead`].
    ///
    /// # Cancellation
    /// Work that has begun goes on when this is dropped, and after its time limit; it holds its room
    /// until its end.
    pub(in crate::client) async fn read<T: Send + 'static>(
        &self,
        environment: &dyn Environment,
        len: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotRead> {
        let attempt = self.begin()?;
        let held = match attempt.turn {
            Turn::Probe => self.room_now(len),
            _ => self.room(len).await,
        };
        // Where all threads still wait for the medium, another one need not ask.
        let held = held.ok_or_else(|| self.skip())?;
        let reading = environment.blocking(move || {
            let _held = held;
            work()
        });
        match timeout(self.limit, reading).await {
            Ok(read) => {
                attempt.answered();
                read.and_then(Result::ok).ok_or(NotRead::Ending)
            }
            Err(_) => {
                attempt.late();
                Err(NotRead::Unanswered)
            }
        }
    }

    /// Adds what it has counted.
    pub(in crate::client) fn count(&self, metrics: &mut TierMetrics) {
        metrics.timed_out_reads = self.timed_out.load(Ordering::Relaxed);
        metrics.skipped_reads = self.skipped.load(Ordering::Relaxed);
    }

    fn begin(&self) -> Result<Attempt<'_>, NotRead> {
        match self.state.lock().breaker.turn(Instant::now()) {
            Turn::Skip => Err(self.skip()),
            turn => Ok(Attempt { reads: self, turn }),
        }
    }

    fn skip(&self) -> NotRead {
        self.skipped.fetch_add(1, Ordering::Relaxed);
        NotRead::Unanswered
    }

    fn room_now(&self, len: u64) -> Option<ReadPermits> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.budget).try_acquire_many_owned(units(len)).ok()?;
        Some((place, bytes))
    }

    /// Room for `len` bytes. `None` when the tier is left alone meanwhile, or no read has ended for as
    /// long as one may take.
    async fn room(&self, len: u64) -> Option<ReadPermits> {
        // There is none while others wait: what comes free is theirs.
        if let Some(held) = self.room_now(len) {
            return Some(held);
        }
        let mut rests = std::pin::pin!(self.rests.notified());
        rests.as_mut().enable();
        let begun = Instant::now();
        let mut room = std::pin::pin!(async {
            let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
            let bytes = Arc::clone(&self.budget).acquire_many_owned(units(len)).await.ok()?;
            Some((place, bytes))
        });
        loop {
            let patient_until = self.state.lock().ended.max(begun) + self.limit;
            tokio::select! {
                biased;
                held = &mut room => return held,
                () = &mut rests => return None,
                () = sleep_until(patient_until) => {
                    if self.state.lock().ended.max(begun) + self.limit <= patient_until {
                        return None;
                    }
                }
            }
        }
    }
}

/// Returns the units of the budget that `len` bytes take; any one read fits.
fn units(len: u64) -> u32 {
    // It fits: the budget is small.
    len.min(BUDGET).div_ceil(UNIT) as u32
}

/// A read that may ask the tier. Without an outcome, it was cancelled.
struct Attempt<'a> {
    reads: &'a TierReads,
    turn: Turn,
}

impl Attempt<'_> {
    fn answered(mut self) {
        self.turn = Turn::Usual;
        let mut state = self.reads.state.lock();
        state.ended = Instant::now();
        let is_back = state.breaker.answered();
        drop(state);
        if is_back {
            info!("{} answers again and is read from", self.reads.name);
        }
    }

    fn late(mut self) {
        let turn = std::mem::replace(&mut self.turn, Turn::Usual);
        self.reads.timed_out.fetch_add(1, Ordering::Relaxed);
        let rest = self.reads.state.lock().breaker.failed(turn, Instant::now());
        if let Some(rest) = rest {
            self.reads.rests.notify_waiters();
            warn!(
                limit = ?self.reads.limit, ?rest,
                "{} does not answer in time; what it alone has counts as missing until it does",
                self.reads.name
            );
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.turn == Turn::Probe {
            self.reads.state.lock().breaker.withdrawn(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use mc_testkit::eventually_async;

    use super::*;
    use mc_environment::System;

    const LIMIT: Duration = Duration::from_millis(200);

    fn hangs() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
        let (release, released) = mpsc::channel::<()>();
        (release, move || _ = released.recv())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_medium_that_hangs_holds_no_more_threads_than_there_are_places() {
        let reads = TierReads::new("a tier", LIMIT);
        let begun = Instant::now();
        let (releases, works): (Vec<_>, Vec<_>) = (0..PLACES * 3).map(|_| hangs()).unzip();
        let all = works.into_iter().map(|work| reads.read(&System, 1, work));
        let outcomes = futures_util::future::join_all(all).await;
        assert!(outcomes.iter().all(|it| *it == Err(NotRead::Unanswered)), "{outcomes:?}");
        let took = begun.elapsed();
        assert!(took >= LIMIT && took < LIMIT * 10, "{took:?}");
        assert_eq!(reads.places.available_permits(), 0, "they are the threads'");
        let mut metrics = TierMetrics::default();
        reads.count(&mut metrics);
        assert_eq!(metrics.timed_out_reads, PLACES as u64);
        assert_eq!(metrics.skipped_reads, 2 * PLACES as u64);
        // Misses at once, also the one that would find out.
        let (_release, work) = hangs();
        assert_eq!(reads.read(&System, 1, work).await, Err(NotRead::Unanswered));
        drop(releases);
        let is_asked = async || reads.read(&System, 1, || 7).await == Ok(7);
        eventually_async(Duration::from_secs(20), "the tier to be asked again", is_asked).await;
        assert_eq!(reads.read(&System, BUDGET * 2, || 8).await, Ok(8), "the longest has room");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn bytes_under_way_are_bounded() {
        let reads = TierReads::new("a tier", Duration::from_secs(20));
        let under_way = Arc::new(AtomicU64::new(0));
        let most = Arc::new(AtomicU64::new(0));
        let all = (0..40).map(|_| {
            let (under_way, most) = (Arc::clone(&under_way), Arc::clone(&most));
            reads.read(&System, MAX_READ, move || {
                let now = under_way.fetch_add(MAX_READ, Ordering::SeqCst) + MAX_READ;
                most.fetch_max(now, Ordering::SeqCst);
                std::thread::yield_now();
                under_way.fetch_sub(MAX_READ, Ordering::SeqCst);
            })
        });
        let outcomes = futures_util::future::join_all(all).await;
        assert!(outcomes.iter().all(Result::is_ok));
        assert!((MAX_READ..=BUDGET).contains(&most.load(Ordering::SeqCst)));
    }
}
