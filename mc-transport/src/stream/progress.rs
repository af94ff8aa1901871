//! Time limits for a peer's progress.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Bytes that count as progress. Fewer do not buy a peer more time, so that one
/// byte now and then cannot hold a connection for ever.
pub(crate) const PROGRESS: usize = 64 << 10;

/// A deadline that progress moves. Costs a timer registration when it is made
/// and when it is met, none on each wait; and asks for the time only in a wait
/// that has to wait.
pub(crate) struct ProgressTimeout {
    timeout: Duration,
    /// When the current wait began; `None` until it does.
    since: Option<Instant>,
    moved: usize,
    sleep: Pin<Box<Sleep>>,
}

/// The peer made no progress for `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stalled {
    pub(crate) after: Duration,
}

impl ProgressTimeout {
    pub(crate) fn new(timeout: Duration) -> Self {
        let now = Instant::now();
        Self { timeout, since: Some(now), moved: 0, sleep: Box::pin(sleep_until(now + timeout)) }
    }

    /// The time without progress that the peer may have.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Starts the clock afresh with the next wait.
    pub(crate) fn renew(&mut self) {
        self.since = None;
        self.moved = 0;
    }

    /// Starts the clock afresh as of `since`; `false` when it began later already.
    pub(crate) fn renew_from(&mut self, since: Instant) -> bool {
        let later = self.since.is_some_and(|began| began < since);
        if later {
            self.since = Some(since);
            self.moved = 0;
        }
        later
    }

    /// Takes note of bytes moved.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
        if self.moved >= PROGRESS {
            self.renew();
        }
    }

    /// Waits for `event`.
    ///
    /// # Errors
    /// [`Stalled`] when the deadline comes first.
    pub(crate) async fn wait<T>(&mut self, event: impl Future<Output = T>) -> Result<T, Stalled> {
        let mut event = pin!(event);
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = event.as_mut().poll(cx) {
                return Poll::Ready(Ok(outcome));
            }
            let since = *self.since.get_or_insert_with(Instant::now);
            while self.sleep.as_mut().poll(cx).is_ready() {
                let deadline = since + self.timeout;
                if deadline <= Instant::now() {
                    return Poll::Ready(Err(Stalled { after: self.timeout }));
                }
                self.sleep.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::time::{advance, sleep};

    #[tokio::test(start_paused = true)]
    async fn only_real_progress_moves_the_deadline() {
        let start = Instant::now();
        let mut progress = ProgressTimeout::new(Duration::from_secs(10));
        progress.wait(sleep(Duration::from_secs(6))).await.unwrap();
        progress.moved(PROGRESS - 1);
        advance(Duration::from_secs(1)).await;
        progress.moved(1);
        progress.wait(sleep(Duration::from_secs(9))).await.unwrap();
        progress.moved(100);
        let stalled = progress.wait(pending::<()>()).await.unwrap_err();
        assert_eq!(stalled.after, Duration::from_secs(10));
        assert_eq!(start.elapsed().as_secs(), 17);
        assert!(progress.wait(pending::<()>()).await.is_err(), "it stays overdue");
        progress.renew();
        assert!(progress.wait(sleep(Duration::from_secs(9))).await.is_ok());
    }
}
