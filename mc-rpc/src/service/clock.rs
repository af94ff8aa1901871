//! The time, as a master is told it.

use std::sync::Arc;

use mc_environment::BootTime;
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
    origin: BootTime,
}

impl SystemClock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: BootTime::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        Time::ORIGIN + BootTime::now().since(self.origin)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
}
