//! Protection of an object from removal and eviction, on the master's side.

use core::time::Duration;

use mc_types::Time;

use crate::SoftPin;

/// Durations of leases and soft pins; the same for every object of a master whose writer chose no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The time for which an access protects an object.
    pub lease: Duration,
    /// The duration of a soft pin that was given none of its own, counted from `soft_pin_from`.
    pub soft_pin: Duration,
    /// The start of a soft pin's time.
    pub soft_pin_from: SoftPinFrom,
}

/// The event from which a soft pin's time is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SoftPinFrom {
    /// The last access: a pin lasts while the object is in use, and an access
    /// revives one that had lapsed.
    #[default]
    LastAccess,
    /// The end of the put: a pin ends at a time known from the start, whatever
    /// readers do, and stays ended. Such a pin lasts at most 2^32 − 1 ms (49 days).
    Commit,
}

/// The protection of one object. Sixteen bytes: the times of the commit and of the last
/// access, with the duration of a soft pin in two bytes, say when the lease and the pin end.
///
/// ```
/// use core::time::Duration;
/// use mc_lease::{Protection, SoftPin, SoftPinFrom, Terms};
/// use mc_types::Time;
///
/// let terms = Terms {
///     lease: Duration::from_secs(5),
///     soft_pin: Duration::from_secs(60),
///     soft_pin_from: SoftPinFrom::LastAccess,
/// };
/// let at = Time::from_millis;
/// let mut object = Protection::committed(at(0), SoftPin::NONE);
/// assert!(!object.is_leased(&terms, at(0)));
/// object.access(at(1_000));
/// assert_eq!(object.lease_remaining(&terms, at(2_000)), Duration::from_secs(4));
/// assert!(!object.is_leased(&terms, at(6_000)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    touched: Time,
    /// Milliseconds from the commit to `touched`. Saturates: the commit is then so
    /// long ago that a pin counted from it is over.
    since_commit: u32,
    leased: bool,
    soft_pin: SoftPin,
}

const _: () = assert!(size_of::<Protection>() == 16, "kept once per object");

/// The longest pin that can be counted from a commit.
const MAX_PIN_FROM_COMMIT: Duration = Duration::from_millis(u32::MAX as u64);

impl Protection {
    /// The protection of an object whose put has just ended: no lease, and the
    /// soft pin that its writer asked for.
    #[must_use]
    pub const fn committed(now: Time, soft_pin: SoftPin) -> Self {
        Self { touched: now, since_commit: 0, leased: false, soft_pin }
    }

    /// Grants a lease from `now` on, or extends the one there is. A soft pin that
    /// is counted from the last access begins anew, even one that had lapsed.
    ///
    /// A `now` before the last access changes nothing but the lease: a lease
    /// once granted is never shortened.
    pub fn access(&mut self, now: Time) {
        let passed = (now - self.touched).as_millis();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.since_commit = self.since_commit.saturating_add(passed);
        self.touched = self.touched.max(now);
        self.leased = true;
    }

    /// When the object was last accessed, or committed when it never was.
    #[must_use]
    pub const fn last_touched(&self) -> Time {
        self.touched
    }

    /// The rest of the lease; zero when none is active.
    #[must_use]
    pub fn lease_remaining(&self, terms: &Terms, now: Time) -> Duration {
        if self.leased { (self.touched + terms.lease) - now } else { Duration::ZERO }
    }

    /// Returns whether a lease is active.
    #[must_use]
    pub fn is_leased(&self, terms: &Terms, now: Time) -> bool {
        !self.lease_remaining(terms, now).is_zero()
    }

    /// When the lease ends or ended; the time of the commit when there was none.
    #[must_use]
    pub fn lease_end(&self, terms: &Terms) -> Time {
        if self.leased { self.touched + terms.lease } else { self.touched }
    }

    /// Returns whether the object's writer asked for a soft pin, lapsed or not.
    #[must_use]
    pub const fn wants_soft_pin(&self) -> bool {
        self.soft_pin.is_wanted()
    }

    /// The soft pin that the object's writer asked for.
    #[must_use]
    pub const fn soft_pin(&self) -> SoftPin {
        self.soft_pin
    }

    /// Returns whether a soft pin is in force.
    #[must_use]
    pub fn is_soft_pinned(&self, terms: &Terms, now: Time) -> bool {
        self.soft_pin_end(terms).is_some_and(|end| now < end)
    }

    /// When the soft pin ends or ended, as far as is known by now: with
    /// [`SoftPinFrom::LastAccess`] each access moves it. `None` when the writer
    /// asked for no pin.
    #[must_use]
    pub fn soft_pin_end(&self, terms: &Terms) -> Option<Time> {
        let duration = self.soft_pin.duration(terms);
        self.soft_pin.is_wanted().then(|| match terms.soft_pin_from {
            SoftPinFrom::LastAccess => self.touched + duration,
            SoftPinFrom::Commit => {
                let since = Duration::from_millis(u64::from(self.since_commit));
                let committed = Time::ORIGIN + (self.touched.since_origin() - since);
                committed + duration.min(MAX_PIN_FROM_COMMIT)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        lease: Duration::from_millis(5_000),
        soft_pin: Duration::from_millis(60_000),
        soft_pin_from: SoftPinFrom::LastAccess,
    };
    const FIXED: Terms = Terms { soft_pin_from: SoftPinFrom::Commit, ..TERMS };

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn a_lease_ends_at_its_deadline_and_not_before() {
        let mut object = Protection::committed(at(0), SoftPin::NONE);
        object.access(at(10));
        assert!(object.is_leased(&TERMS, at(5_009)));
        assert!(!object.is_leased(&TERMS, at(5_010)));
    }

    #[test]
    fn an_earlier_access_shortens_nothing() {
        let mut object = Protection::committed(at(0), SoftPin::STANDARD);
        object.access(at(1_000));
        object.access(at(500));
        assert_eq!(object.lease_end(&TERMS), at(6_000));
        assert_eq!(object.soft_pin_end(&TERMS), Some(at(61_000)));
        assert_eq!(object.soft_pin_end(&FIXED), Some(at(60_000)));
    }

    #[test]
    fn access_revives_a_lapsed_soft_pin() {
        let mut object = Protection::committed(at(0), SoftPin::STANDARD);
        assert!(object.is_soft_pinned(&TERMS, at(59_999)));
        assert!(!object.is_soft_pinned(&TERMS, at(60_000)));
        object.access(at(70_000));
        assert!(object.is_soft_pinned(&TERMS, at(129_999)));
    }

    #[test]
    fn a_pin_of_its_own_duration_ends_by_that() {
        let brief = SoftPin::lasting(Duration::from_millis(100));
        let mut object = Protection::committed(at(0), brief);
        object.access(at(1_000));
        assert_eq!(object.soft_pin_end(&TERMS), Some(at(1_100)));
        assert_eq!(object.soft_pin_end(&FIXED), Some(at(100)));
        assert_eq!(Protection::committed(at(0), SoftPin::NONE).soft_pin_end(&TERMS), None);
    }

    #[test]
    fn a_soft_pin_counted_from_the_commit_is_not_moved_by_accesses() {
        let mut object = Protection::committed(at(1_000), SoftPin::STANDARD);
        for now in [1_000, 1_001, 40_000, 39_000, 60_999] {
            object.access(at(now));
            assert_eq!(object.soft_pin_end(&FIXED), Some(at(61_000)));
        }
        assert!(object.is_soft_pinned(&FIXED, at(60_999)));
        assert!(!object.is_soft_pinned(&FIXED, at(61_000)));
        object.access(at(70_000));
        assert!(!object.is_soft_pinned(&FIXED, at(70_000)));
    }

    #[test]
    fn a_soft_pin_counted_from_the_commit_ends_for_good() {
        let forever = Terms { soft_pin: Duration::MAX, ..FIXED };
        let limit = u64::from(u32::MAX);
        let mut object = Protection::committed(at(7), SoftPin::STANDARD);
        object.access(at(limit));
        assert!(object.is_soft_pinned(&forever, at(limit + 6)));
        for now in [limit + 7, limit * 3, u64::MAX] {
            assert!(!object.is_soft_pinned(&forever, at(now)));
            object.access(at(now));
            assert!(!object.is_soft_pinned(&forever, at(now)));
        }
    }

    #[test]
    fn no_pin_was_asked_for_and_none_is_there() {
        let object = Protection::committed(at(0), SoftPin::NONE);
        assert_eq!(object.soft_pin_end(&TERMS), None);
        assert_eq!(object.soft_pin_end(&FIXED), None);
        assert!(!object.is_soft_pinned(&FIXED, at(0)));
    }

    #[test]
    fn the_end_of_time_overflows_nothing() {
        let mut object = Protection::committed(at(u64::MAX), SoftPin::STANDARD);
        object.access(at(u64::MAX));
        assert!(!object.is_leased(&TERMS, at(u64::MAX)));
    }

    #[test]
    fn protection_stays_small() {
        assert!(size_of::<Protection>() <= 16);
    }
}
