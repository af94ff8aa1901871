//! What keeps an object from being taken away, on the master's side.

use core::time::Duration;

use mc_types::Time;

/// How long leases and soft pins last; the same for every object of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long an access protects an object.
    pub lease: Duration,
    /// How long a soft pin lasts after the last access.
    pub soft_pin: Duration,
}

/// The protection of one object. Sixteen bytes: since every lease and every soft
/// pin of a master has the same length, the time of the last access says when
/// each of them ends.
///
/// ```
/// use core::time::Duration;
/// use mc_lease::{Protection, Terms};
/// use mc_types::Time;
///
/// let terms = Terms { lease: Duration::from_secs(5), soft_pin: Duration::from_secs(60) };
/// let at = Time::from_millis;
/// let mut object = Protection::committed(at(0), false);
/// assert!(!object.is_leased(&terms, at(0)));
/// object.access(at(1_000));
/// assert_eq!(object.lease_remaining(&terms, at(2_000)), Duration::from_secs(4));
/// assert!(!object.is_leased(&terms, at(6_000)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    touched: Time,
    leased: bool,
    soft_pin: bool,
}

impl Protection {
    /// The protection of an object whose put has just ended: no lease, and a
    /// soft pin if its writer asked for one.
    #[must_use]
    pub const fn committed(now: Time, soft_pin: bool) -> Self {
        Self { touched: now, leased: false, soft_pin }
    }

    /// Grants a lease from `now` on, or extends the one there is; begins the
    /// soft pin anew if the object has one, even one that had lapsed.
    ///
    /// A `now` before the last access changes nothing but the lease: a lease
    /// once granted is never shortened.
    pub fn access(&mut self, now: Time) {
        self.touched = self.touched.max(now);
        self.leased = true;
    }

    /// When the object was last accessed, or committed when it never was.
    #[must_use]
    pub const fn last_touched(&self) -> Time {
        self.touched
    }

    /// What is left of the lease; zero when none is active.
    #[must_use]
    pub fn lease_remaining(&self, terms: &Terms, now: Time) -> Duration {
        if self.leased { (self.touched + terms.lease) - now } else { Duration::ZERO }
    }

    /// Whether a lease is active.
    #[must_use]
    pub fn is_leased(&self, terms: &Terms, now: Time) -> bool {
        !self.lease_remaining(terms, now).is_zero()
    }

    /// When the lease ends or ended; the time of the commit when there was none.
    #[must_use]
    pub fn lease_end(&self, terms: &Terms) -> Time {
        if self.leased { self.touched + terms.lease } else { self.touched }
    }

    /// Whether the object's writer asked for a soft pin, lapsed or not.
    #[must_use]
    pub const fn wants_soft_pin(&self) -> bool {
        self.soft_pin
    }

    /// Whether a soft pin is in force.
    #[must_use]
    pub fn is_soft_pinned(&self, terms: &Terms, now: Time) -> bool {
        self.soft_pin && now < self.touched + terms.soft_pin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms =
        Terms { lease: Duration::from_millis(5_000), soft_pin: Duration::from_millis(60_000) };

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn a_lease_ends_at_its_deadline_and_not_before() {
        let mut object = Protection::committed(at(0), false);
        object.access(at(10));
        assert!(object.is_leased(&TERMS, at(5_009)));
        assert!(!object.is_leased(&TERMS, at(5_010)));
    }

    #[test]
    fn an_earlier_access_shortens_nothing() {
        let mut object = Protection::committed(at(0), false);
        object.access(at(1_000));
        object.access(at(500));
        assert_eq!(object.lease_end(&TERMS), at(6_000));
    }

    #[test]
    fn access_revives_a_lapsed_soft_pin() {
        let mut object = Protection::committed(at(0), true);
        assert!(object.is_soft_pinned(&TERMS, at(59_999)));
        assert!(!object.is_soft_pinned(&TERMS, at(60_000)));
        object.access(at(70_000));
        assert!(object.is_soft_pinned(&TERMS, at(129_999)));
    }

    #[test]
    fn the_end_of_time_overflows_nothing() {
        let mut object = Protection::committed(at(u64::MAX), true);
        object.access(at(u64::MAX));
        assert!(!object.is_leased(&TERMS, at(u64::MAX)));
    }

    #[test]
    fn protection_stays_small() {
        assert!(size_of::<Protection>() <= 16);
    }
}
