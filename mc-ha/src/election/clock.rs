//! The clock by which leases are measured.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_environment::BootTime;
use mc_types::Time;

/// Tells the time to leases and terms.
pub trait Clock: Debug + Send + Sync {
    /// Returns the current time, which never goes back.
    fn now(&self) -> Time;
}

/// The time since the host started, including the time in which it was suspended
/// (`CLOCK_BOOTTIME`): the leases of a suspended host run out on the others.
///
/// On systems other than Linux it is [`Instant`](std::time::Instant), which may stand still then.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    #[cfg(target_os = "linux")]
    fn now(&self) -> Time {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // A clock that counts from the start is never negative.
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        Time::ORIGIN + now
    }

    #[cfg(not(target_os = "linux"))]
    fn now(&self) -> Time {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        Time::ORIGIN + START.get_or_init(std::time::Instant::now).elapsed()
    }
}

/// The time since a moment, by the clock that it was read from.
impl Clock for BootTime {
    fn now(&self) -> Time {
        Time::ORIGIN + self.clock().now().since(*self)
    }
}

/// A clock that a test sets forward.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Sets the clock forward.
    pub fn advance(&self, duration: Duration) {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_millis(self.0.load(Ordering::SeqCst))
    }
}
