//! Time that also passes while the host is suspended.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Add;
use std::time::Duration;

/// A clock that a simulation or a test hands in place of the system's; see [`BootClock::of`].
pub trait TimeSource: Send + Sync {
    /// Returns the time since the clock's start; never less than before.
    fn now(&self) -> Duration;
}

/// A clock that moments are read from: the system's, or one that was handed in.
///
/// A [`BootTime`] remembers the clock that it was read from, so that the receiver of a deadline
/// (a link, a region that is opened by tickets) measures it on that same clock.
#[derive(Clone, Copy, Default)]
pub struct BootClock(Option<&'static dyn TimeSource>);

impl BootClock {
    /// The system's clock.
    pub const SYSTEM: Self = Self(None);

    /// A clock that shows what `source` says, such as virtual time, or the skewed clock of one
    /// node.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mc_environment::{BootClock, TimeSource};
    /// /// One whose time stands still.
    /// struct Noon;
    /// impl TimeSource for Noon {
    ///     fn now(&self) -> Duration {
    ///         Duration::from_secs(12 * 3600)
    ///     }
    /// }
    /// let deadline = BootClock::of(&Noon).now() + Duration::from_nanos(1);
    /// assert!(!deadline.has_passed());
    /// ```
    #[must_use]
    pub const fn of(source: &'static dyn TimeSource) -> Self {
        Self(Some(source))
    }

    /// Returns the current moment. Takes about 30 ns on the system's clock.
    #[must_use]
    pub fn now(self) -> BootTime {
        let at = match self.0 {
            None => since_boot(),
            Some(source) => source.now(),
        };
        BootTime { at, clock: self }
    }
}

impl fmt::Debug for BootClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_none() { "BootClock::SYSTEM" } else { "BootClock::of(..)" })
    }
}

/// A moment on this host's clock that counts from its start and runs on while the host is
/// suspended, as `CLOCK_BOOTTIME` of Linux does. On other systems it is as good as
/// [`Instant`](std::time::Instant), which may stand still meanwhile.
///
/// Leases and grants are measured with it: a node that wakes up from a suspension must not
/// believe that they still hold.
///
/// ```
/// use std::time::Duration;
/// use mc_environment::BootTime;
/// let deadline = BootTime::now() + Duration::from_secs(5);
/// assert!(!deadline.has_passed());
/// assert!(deadline.remaining() <= Duration::from_secs(5));
/// ```
///
/// Two moments are compared by the time since their clock's start; comparing those of different
/// clocks means nothing.
#[derive(Clone, Copy)]
pub struct BootTime {
    /// Since the clock's start.
    at: Duration,
    clock: BootClock,
}

impl BootTime {
    /// The current moment on the system's clock. Takes about 30 ns.
    #[must_use]
    pub fn now() -> Self {
        BootClock::SYSTEM.now()
    }

    /// Returns the clock that it was read from.
    #[must_use]
    pub const fn clock(self) -> BootClock {
        self.clock
    }

    /// Time since `earlier`; zero when that is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.at.saturating_sub(earlier.at)
    }

    /// Whether the moment is now or in the past, by its clock.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.clock.now() >= self
    }

    /// Time until the moment by its clock; zero when it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.since(self.clock.now())
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self { at: self.at.saturating_add(duration), clock: self.clock }
    }
}

impl PartialEq for BootTime {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for BootTime {}

impl PartialOrd for BootTime {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for BootTime {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl Hash for BootTime {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.at.hash(state);
    }
}

impl fmt::Debug for BootTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BootTime").field(&self.at).finish()
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
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

    #[test]
    fn a_deadline_is_measured_on_the_clock_that_it_was_read_from() {
        static MILLIS: AtomicU64 = AtomicU64::new(1);
        struct Stepped;
        impl TimeSource for Stepped {
            fn now(&self) -> Duration {
                Duration::from_millis(MILLIS.load(Relaxed))
            }
        }
        let clock = BootClock::of(&Stepped);
        let deadline = clock.now() + Duration::from_millis(10);
        assert!(!deadline.has_passed());
        assert_eq!(deadline.remaining(), Duration::from_millis(10));
        MILLIS.store(11, Relaxed);
        assert!(deadline.has_passed() && deadline.clock().now() == deadline);
    }

    /// Both clocks run at one rate while the host is awake.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_of_a_suspended_host_is_counted() {
        use rustix::time::{ClockId, clock_gettime};
        let awake = clock_gettime(ClockId::Monotonic);
        let all = BootTime::now();
        let awake = Duration::new(awake.tv_sec as u64, awake.tv_nsec as u32);
        // A host that was never suspended shows the same on both.
        assert!(all.at + Duration::from_millis(1) >= awake, "{all:?} {awake:?}");
    }
}
