//! Time that also passes while the host is suspended.

use std::ops::Add;
use std::time::Duration;

/// A moment on this host's clock that counts from its start and goes on while the host is
/// suspended, as `CLOCK_BOOTTIME` of Linux does. On other systems it is as good as
/// [`Instant`](std::time::Instant), which may stand still meanwhile.
///
/// Leases and grants are measured with it: a node that wakes up from a suspension must not
/// believe that they still hold.
///
/// ```
/// use std::time::Duration;
/// use mc_transport::BootTime;
/// let deadline = BootTime::now() + Duration::from_secs(5);
/// assert!(!deadline.has_passed());
/// assert!(deadline.remaining() <= Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(Duration);

impl BootTime {
    /// The current moment. Takes about 30 ns.
    #[must_use]
    pub fn now() -> Self {
        Self(since_boot())
    }

    /// Time since `earlier`; zero when that is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns whether the moment is now or in the past.
    #[must_use]
    pub fn has_passed(self) -> bool {
        Self::now() >= self
    }

    /// Time until the moment; zero when it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.since(Self::now())
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // A clock that counts from the start is never negative.
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_and_saturates() {
        let before = BootTime::now();
        let after = BootTime::now();
        assert!(after >= before && before.has_passed());
        assert_eq!(before.since(after + Duration::from_secs(1)), Duration::ZERO);
        let never = after + Duration::MAX;
        assert!(!never.has_passed() && never + Duration::MAX == never);
    }
}
