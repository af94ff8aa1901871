//! Time limits for a stream's progress.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Bytes that count as progress. Fewer do not buy a peer more time, so that one
/// byte now and then cannot hold a stream for ever.
const PROGRESS: u64 = 64 << 10;

/// Longest time that a task waits; longer ones could not be added to a point in time.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// When a stream last moved on, in either direction.
pub(super) struct Clock {
    timeout: Duration,
    started: Instant,
    /// Last progress, in microseconds since `started`.
    last: AtomicU64,
    /// Bytes moved since then.
    moved: AtomicU64,
    /// Whether this side lets the peer wait.
    paused: AtomicBool,
}

/// A stream made no progress for `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stalled {
    pub(super) after: Duration,
}

impl Clock {
    pub(super) fn new(timeout: Duration) -> Self {
        let (last, moved) = (AtomicU64::new(0), AtomicU64::new(0));
        let timeout = timeout.min(LONGEST);
        Self { timeout, started: Instant::now(), last, moved, paused: AtomicBool::new(false) }
    }

    /// Takes note of bytes moved.
    pub(super) fn moved(&self, bytes: usize) {
        let bytes = bytes as u64;
        if self.moved.fetch_add(bytes, Ordering::Relaxed) + bytes >= PROGRESS {
            self.renew();
        }
    }

    /// Takes note of the end of an operation.
    pub(super) fn renew(&self) {
        let now = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
    }

    /// Waits for `event`, which the peer has no part in, without a limit.
    ///
    /// # Cancellation
    /// The clock stays stopped: the caller that drops the future ends the stream.
    pub(super) async fn paused<T>(&self, event: impl Future<Output = T>) -> T {
        self.paused.store(true, Ordering::Relaxed);
        let event = event.await;
        self.paused.store(false, Ordering::Relaxed);
        self.renew();
        event
    }

    /// Waits for what `work` comes to.
    ///
    /// # Errors
    /// [`Stalled`] when there was no progress for too long before.
    pub(super) async fn watch<T>(&self, work: impl Future<Output = T>) -> Result<T, Stalled> {
        let mut work = pin!(work);
        let mut sleep = pin!(sleep_until(self.deadline()));
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(outcome));
            }
            while sleep.as_mut().poll(cx).is_ready() {
                let deadline = self.deadline();
                if deadline <= Instant::now() {
                    return Poll::Ready(Err(Stalled { after: self.timeout }));
                }
                sleep.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await
    }

    fn deadline(&self) -> Instant {
        if self.paused.load(Ordering::Relaxed) {
            return Instant::now() + self.timeout;
        }
        self.started + Duration::from_micros(self.last.load(Ordering::Relaxed)) + self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn only_real_progress_moves_the_deadline() {
        let clock = Clock::new(Duration::from_secs(10));
        clock.watch(sleep(Duration::from_secs(9))).await.unwrap();
        clock.moved(PROGRESS as usize);
        let began = Instant::now();
        let work = async {
            sleep(Duration::from_secs(6)).await;
            clock.moved(PROGRESS as usize - 1);
            sleep(Duration::from_secs(3)).await;
            clock.moved(1);
            sleep(Duration::from_secs(9)).await;
            clock.moved(1000);
            pending::<()>().await;
        };
        assert_eq!(clock.watch(work).await, Err(Stalled { after: Duration::from_secs(10) }));
        assert_eq!(began.elapsed().as_secs(), 19);
        clock.renew();
        assert!(clock.watch(sleep(Duration::from_secs(9))).await.is_ok());
        let waits = clock.paused(sleep(Duration::from_secs(99)));
        let late = async {
            waits.await;
            sleep(Duration::from_secs(9)).await;
            Instant::now()
        };
        let late = clock.watch(late).await.unwrap();
        assert_eq!((late - began).as_secs(), 19 + 9 + 99 + 9);
    }
}
