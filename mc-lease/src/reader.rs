//! A lease as its holder sees it.

use core::time::Duration;

use mc_types::Time;

/// A lease held by a reader, on the reader's own clock.
///
/// The master sends what remains of the lease, not a time of day. The reader
/// counts from the moment it *asked*, not from the answer: the grant happened
/// somewhere between the two, so counting from the earlier one can only end too
/// soon. A slack allows for clocks that run at different speeds.
///
/// ```
/// use core::time::Duration;
/// use mc_lease::ReaderLease;
/// use mc_types::Time;
///
/// let asked = Time::from_millis(100);
/// let lease = ReaderLease::granted(asked, Duration::from_secs(5));
/// assert!(lease.is_active(Time::from_millis(5_000)));
/// assert!(!lease.is_active(Time::from_millis(5_100)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderLease {
    usable_until: Time,
}

impl ReaderLease {
    /// One part in this many of a lease is left unused as slack. Quartz clocks
    /// differ by less than one part in a thousand.
    const SLACK_PARTS: u32 = 256;

    /// A lease of `remaining` that was asked for at `asked_at`.
    #[must_use]
    pub fn granted(asked_at: Time, remaining: Duration) -> Self {
        let slack = remaining / Self::SLACK_PARTS;
        Self { usable_until: asked_at + (remaining - slack) }
    }

    /// Returns whether bytes read until `now` are still protected.
    #[must_use]
    pub fn is_active(&self, now: Time) -> bool {
        now < self.usable_until
    }

    /// The time for which the reader may still count on it.
    #[must_use]
    pub fn remaining(&self, now: Time) -> Duration {
        self.usable_until - now
    }
}
