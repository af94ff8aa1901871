//! Whether a term still lasts, told without a call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_types::{Epoch, Time};
use tokio::sync::watch;

use super::clock::Clock;

/// The end of a term that is over. No deadline: leases are longer than nothing.
const OVER: u64 = 0;

/// The part of a lease in which its holder may act: less a tenth, for clocks that do not run at
/// the same rate, and less another twentieth or 100 ms, whichever is shorter, for what happens
/// between a check and the act.
#[must_use]
pub fn safe_lease(ttl: Duration) -> Duration {
    ttl - ttl / 10 - (ttl / 20).min(Duration::from_millis(100))
}

/// The permission of one term's leader to act, as long as the term certainly lasts.
///
/// Valid until a [safe part](safe_lease) of the lease has passed since the moment before the last
/// successful renewal was sent. A term that is over stays over: after [`is_valid`](Self::is_valid)
/// has returned `false` once, it never returns `true` again.
#[derive(Clone)]
pub struct Authority(Arc<Inner>);

/// Extends and ends the [`Authority`] of one term; for implementations of elections.
#[derive(Clone)]
pub struct Fence(Arc<Inner>);

struct Inner {
    epoch: Epoch,
    clock: Arc<dyn Clock>,
    /// Milliseconds of the clock; [`OVER`] when the term is over.
    end: AtomicU64,
    over: watch::Sender<bool>,
}

impl Authority {
    /// Returns the epoch of the term.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// Returns whether the term certainly lasts. Takes no lock; costs one look at the clock.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.remaining().is_some()
    }

    /// Returns the time for which the term lasts if it is not renewed; `None` when it is over.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.0.remaining()
    }

    /// Waits until the term is over. The end that is due to time is noticed within a few
    /// milliseconds where the implementation's renewals run.
    pub async fn ended(&self) {
        let mut over = self.0.over.subscribe();
        // The sender is in `self`.
        let _ = over.wait_for(|over| *over).await;
    }
}

impl Fence {
    /// A term that lasts until `end`.
    #[must_use]
    pub fn new(epoch: Epoch, clock: Arc<dyn Clock>, end: Time) -> Self {
        let end = AtomicU64::new(end.as_millis());
        Self(Arc::new(Inner { epoch, clock, end, over: watch::Sender::new(false) }))
    }

    /// Returns the authority that this fence limits.
    #[must_use]
    pub fn authority(&self) -> Authority {
        Authority(Arc::clone(&self.0))
    }

    /// Extends the term until `end`, unless it is over already, and returns whether it lasts.
    pub fn extend(&self, end: Time) -> bool {
        let mut now_ends = self.0.end.load(Ordering::Acquire);
        // An end that is not in the past by now, or that no call has found over since.
        while self.0.lasts_until(now_ends) {
            let end = end.as_millis().max(now_ends);
            match self.0.end.compare_exchange(now_ends, end, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.0.remaining().is_some(),
                Err(changed) => now_ends = changed,
            }
        }
        self.end();
        false
    }

    /// Ends the term.
    pub fn end(&self) {
        self.0.end.store(OVER, Ordering::Release);
        self.0.over.send_if_modified(|over| !std::mem::replace(over, true));
    }
}

impl Inner {
    fn lasts_until(&self, end: u64) -> bool {
        end != OVER && self.clock.now().as_millis() < end
    }

    fn remaining(&self) -> Option<Duration> {
        let mut end = self.end.load(Ordering::Acquire);
        loop {
            let left = Time::from_millis(end) - self.clock.now();
            if end != OVER && !left.is_zero() {
                return Some(left);
            }
            // What was seen to be over must not be extended afterwards. If it was extended in
            // the meantime, the lease was renewed in time and no caller has seen its end.
            match self.end.compare_exchange(end, OVER, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.over.send_if_modified(|over| !std::mem::replace(over, true));
                    return None;
                }
                Err(changed) => end = changed,
            }
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = Time::from_millis(self.end.load(Ordering::Acquire));
        f.debug_struct("Term").field("epoch", &self.epoch).field("end", &end).finish()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authority").field(&self.0).finish()
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::ManualClock;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn term() -> (Arc<ManualClock>, Fence, Authority) {
        let clock = Arc::new(ManualClock::default());
        let fence = Fence::new(Epoch::new(3), clock.clone(), Time::ORIGIN + SECOND);
        let authority = fence.authority();
        (clock, fence, authority)
    }

    #[test]
    fn a_term_lasts_as_long_as_it_is_extended() {
        let (clock, fence, authority) = term();
        for second in 1..5 {
            assert_eq!(authority.remaining(), Some(SECOND));
            clock.advance(SECOND / 2);
            assert!(fence.extend(Time::ORIGIN + SECOND / 2 * second + SECOND));
        }
        // An extension that arrives late does not shorten it.
        assert!(fence.extend(Time::ORIGIN + SECOND / 2));
        assert_eq!(authority.remaining(), Some(SECOND));
    }

    #[test]
    fn a_term_that_was_seen_to_be_over_stays_so() {
        let (clock, fence, authority) = term();
        clock.advance(SECOND);
        assert!(!authority.is_valid());
        assert!(!fence.extend(Time::ORIGIN + SECOND * 9));
        assert!(!authority.is_valid());
    }

    #[test]
    fn a_term_that_nobody_looked_at_is_not_extended_late() {
        let (clock, fence, authority) = term();
        clock.advance(SECOND);
        assert!(!fence.extend(Time::ORIGIN + SECOND * 9));
        assert!(!authority.is_valid());
    }

    #[tokio::test]
    async fn the_end_wakes_those_who_wait_for_it() {
        let (_, fence, authority) = term();
        let waiting = tokio::spawn({
            let authority = authority.clone();
            async move { authority.ended().await }
        });
        fence.end();
        waiting.await.unwrap();
        assert!(!authority.is_valid());
    }

    #[test]
    fn a_term_ends_before_its_lease() {
        assert_eq!(safe_lease(Duration::from_secs(2)), Duration::from_millis(1700));
        assert_eq!(safe_lease(Duration::from_secs(10)), Duration::from_millis(8900));
    }

    /// Threads that look while another extends: none sees a term rise again.
    #[test]
    fn no_thread_sees_a_term_begin_again() {
        let clock = Arc::new(super::super::clock::BootClock);
        for _ in 0..50 {
            let now = clock.now();
            let fence = Fence::new(Epoch::new(1), clock.clone(), now + Duration::from_millis(2));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let authority = fence.authority();
                        while authority.is_valid() {}
                        let later = clock.now() + Duration::from_millis(1);
                        while clock.now() < later {
                            assert!(!authority.is_valid());
                        }
                    });
                }
                let until = now + Duration::from_millis(4);
                while clock.now() < until {
                    fence.extend(clock.now() + Duration::from_millis(1));
                }
            });
        }
    }
}
