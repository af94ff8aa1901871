//! Virtual time, and the clocks of hosts that show it wrongly.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mc_transport::{BootClock, TimeSource};
use tokio::time::Instant;

thread_local! {
    /// When the simulation of this thread began.
    static BEGUN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Clocks that no host has. They live as long as the process, because a moment refers to its
    /// clock for ever; so the next simulation uses them again.
    static FREE: RefCell<Vec<&'static Shown>> = const { RefCell::new(Vec::new()) };
}

/// Begins the virtual time of this thread's simulation at zero. Called in its runtime, whose clock
/// is paused.
pub fn begin_time() {
    BEGUN.set(Some(Instant::now()));
}

/// Returns the virtual time since [`begin_time`].
///
/// # Panics
/// When no simulation has begun on this thread.
#[must_use]
pub fn virtual_time() -> Duration {
    BEGUN.get().expect("a simulation has begun on this thread").elapsed()
}

/// The clock of one host: virtual time, a little fast or slow, and ahead after a suspension.
pub struct HostClock(&'static Shown);

struct Shown {
    /// Parts of a million that it gains.
    drift: AtomicI64,
    /// Nanoseconds that it is ahead.
    ahead: AtomicU64,
}

impl HostClock {
    /// A clock that gains `drift` parts of a million, or loses them if it is negative, and is
    /// `ahead` at the beginning.
    #[must_use]
    pub fn new(drift: i64, ahead: Duration) -> Self {
        let shown = FREE.with_borrow_mut(Vec::pop);
        let shown = shown.unwrap_or_else(|| {
            Box::leak(Box::new(Shown { drift: AtomicI64::new(0), ahead: AtomicU64::new(0) }))
        });
        shown.drift.store(drift, Relaxed);
        shown.ahead.store(ahead.as_nanos() as u64, Relaxed);
        Self(shown)
    }

    /// Lets the clock jump ahead, as when the host wakes up from a suspension.
    pub fn jump(&self, by: Duration) {
        self.0.ahead.fetch_add(by.as_nanos() as u64, Relaxed);
    }

    /// The clock as the client and the master read it.
    #[must_use]
    pub fn boot_clock(&self) -> BootClock {
        BootClock::of(self.0)
    }
}

impl Drop for HostClock {
    fn drop(&mut self) {
        let shown = self.0;
        FREE.with_borrow_mut(|free| free.push(shown));
    }
}

impl fmt::Debug for HostClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostClock").field("drift", &self.0.drift).finish_non_exhaustive()
    }
}

impl TimeSource for Shown {
    fn now(&self) -> Duration {
        let nanos = virtual_time().as_nanos() as u64;
        let gained = (nanos / 1_000_000) as i64 * self.drift.load(Relaxed);
        let shown = nanos.saturating_add_signed(gained);
        Duration::from_nanos(shown.saturating_add(self.ahead.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::run_simulated;

    #[test]
    fn clocks_drift_and_jump_and_never_go_back() {
        run_simulated(async {
            let fast = HostClock::new(1000, Duration::from_secs(7));
            let slow = HostClock::new(-1000, Duration::ZERO);
            let (fast_begin, slow_begin) = (fast.boot_clock().now(), slow.boot_clock().now());
            tokio::time::sleep(Duration::from_secs(1000)).await;
            slow.jump(Duration::from_secs(5));
            let gone = |begin: mc_transport::BootTime| begin.clock().now().since(begin);
            assert_eq!(gone(fast_begin), Duration::from_secs(1001));
            assert_eq!(gone(slow_begin), Duration::from_secs(999 + 5));
            assert_eq!(virtual_time(), Duration::from_secs(1000));
        });
    }
}
