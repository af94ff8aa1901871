//! The time, as a master is told it.

use core::time::Duration;
use std::sync::Arc;

use mc_types::Time;

/// Tells the time to a state machine that has no clock of its own.
pub trait Clock: Send + Sync + 'static {
    /// The time now; never goes back.
    fn now(&self) -> Time;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Time {
        (**self).now()
    }
}

/// The system's monotonic clock; its origin is when it was made.
///
/// On Linux it counts the time during which the host is suspended (`CLOCK_BOOTTIME`),
/// which [`std::time::Instant`] does not. Leases, grants and tickets end by this clock, and
/// other hosts' clocks go on while this one sleeps. If it stood still, then after a
/// suspension a grant would last longer here than its client and the nodes believe, and a
/// client that died meanwhile would count as alive. On other systems it is
/// [`std::time::Instant`].
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Moment,
}

impl SystemClock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Moment::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        Time::ORIGIN + Moment::now().since(self.origin)
    }
}

/// A moment on the system's clock.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
struct Moment(Duration);

#[cfg(target_os = "linux")]
impl Moment {
    fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // Counted from when the host started: neither part is negative.
        Self(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A moment on the system's clock.
#[cfg(not(target_os = "linux"))]
#[derive(Clone, Copy, Debug)]
struct Moment(std::time::Instant);

#[cfg(not(target_os = "linux"))]
impl Moment {
    fn now() -> Self {
        Self(std::time::Instant::now())
    }

    fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_begins_at_its_origin_and_goes_on() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(first - Time::ORIGIN < Duration::from_secs(60), "{first}");
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while clock.now() == first {
            assert!(std::time::Instant::now() < deadline, "the clock stands still");
        }
        assert!(clock.now() > first);
    }

    /// Both clocks run at one rate while the host is awake.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_of_a_suspended_host_is_counted() {
        use rustix::time::{ClockId, clock_gettime};
        let awake = clock_gettime(ClockId::Monotonic);
        let all = Moment::now();
        let awake = Duration::new(awake.tv_sec as u64, awake.tv_nsec as u32);
        // A host that was never suspended shows the same on both.
        assert!(all.0 + Duration::from_millis(1) >= awake, "{all:?} {awake:?}");
    }
}
