//! Time as an argument.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A moment on a monotonic clock, in whole milliseconds since an origin that
/// the caller chooses. The state machines never read a clock: they are told
/// what time it is, so the same commands at the same times give the same result.
///
/// Arithmetic saturates: no duration a peer can send overflows it.
///
/// ```
/// use core::time::Duration;
/// use mc_types::Time;
/// let granted = Time::from_millis(100);
/// let expires = granted + Duration::from_secs(5);
/// assert_eq!(expires - granted, Duration::from_secs(5));
/// assert_eq!(granted - expires, Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The clock's origin.
    pub const ORIGIN: Self = Self(0);

    /// The moment this many milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the origin.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Time since the origin.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }
}

impl Sub for Time {
    type Output = Duration;

    /// The duration from `earlier` to this time; zero when it is not later.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} s", self.0 / 1000, self.0 % 1000)
    }
}
