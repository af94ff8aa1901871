//! Protection of an object from removal and eviction, and of its bytes from reuse, on the master's
//! side.

use core::time::Duration;

use mc_types::Time;

use crate::SoftPin;

/// Durations of leases and soft pins; the same for every object of a master whose writer chose no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The time for which an access protects an object from eviction, and from removal without
    /// force.
    pub lease: Duration,
    /// The duration of a soft pin that was given none of its own, counted from `soft_pin_from`.
    pub soft_pin: Duration,
    /// The start of a soft pin's time.
    pub soft_pin_from: SoftPinFrom,
}

/// The longest time for which a reader may use an object's bytes without asking again, however
/// long the lease is: as long as a transfer may stand still. What is removed by force keeps its
/// space for no longer than this after the last read.
pub const LONGEST_READ: Duration = Duration::from_secs(10);

impl Terms {
    /// The time for which a read may use the places that it was given: a lease, or [`LONGEST_READ`]
    /// where that is less. A longer read renews it.
    #[must_use]
    pub fn read(&self) -> Duration {
        self.lease.min(LONGEST_READ)
    }
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

/// The protection of one object. Sixteen bytes: the times of the commit, of the last access and of
/// the last read, with the duration of a soft pin in two bytes, say when the lease, the reads and
/// the pin end.
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
/// // No reader knows where the bytes are.
/// assert_eq!(object.read_end(&terms), None);
/// object.read(at(7_000), false);
/// assert_eq!(object.read_end(&terms), Some(at(12_000)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    touched: Time,
    /// Milliseconds from the commit to `touched`. Saturates: the commit is then so
    /// long ago that a pin counted from it is over.
    since_commit: u32,
    uses: Uses,
    soft_pin: SoftPin,
}

/// Whether an object was ever accessed, whether all of its readers say when they are done, and in
/// fourteen bits, how long before the last access it was last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Uses(u16);

impl Uses {
    const NEVER_READ: u16 = 0x3FFF;
    const SILENT: u16 = 0x4000;
    const ACCESSED: u16 = 0x8000;
    const NONE: Self = Self(Self::NEVER_READ);

    const fn is_accessed(self) -> bool {
        self.0 & Self::ACCESSED != 0
    }

    /// Milliseconds from the last read to the last access, unless no read can be under way still.
    const fn since_read(self) -> Option<u16> {
        let millis = self.0 & Self::NEVER_READ;
        if millis == Self::NEVER_READ { None } else { Some(millis) }
    }

    /// Whether a reader that may still be reading does not say when it is done.
    const fn is_silent(self) -> bool {
        self.0 & Self::SILENT != 0 && self.since_read().is_some()
    }

    /// An access, so long after the one before.
    fn access(&mut self, passed: u32) {
        let passed = u16::try_from(passed).unwrap_or(Self::NEVER_READ);
        let since = (self.0 & Self::NEVER_READ).saturating_add(passed).min(Self::NEVER_READ);
        self.0 = Self::ACCESSED | (self.0 & Self::SILENT) | since;
    }

    fn read(&mut self, tells: bool) {
        let is_silent = !tells || self.is_silent();
        self.0 = Self::ACCESSED | if is_silent { Self::SILENT } else { 0 };
    }
}

const _: () = assert!(LONGEST_READ.as_millis() < Uses::NEVER_READ as u128, "no read is forgotten");

const _: () = assert!(size_of::<Protection>() == 16, "kept once per object");

/// The longest pin that can be counted from a commit.
const MAX_PIN_FROM_COMMIT: Duration = Duration::from_millis(u32::MAX as u64);

impl Protection {
    /// The protection of an object whose put has just ended: no lease, and the
    /// soft pin that its writer asked for.
    #[must_use]
    pub const fn committed(now: Time, soft_pin: SoftPin) -> Self {
        Self { touched: now, since_commit: 0, uses: Uses::NONE, soft_pin }
    }

    /// Grants a lease from `now` on, or extends the one there is. A soft pin that
    /// is counted from the last access begins anew, even one that had lapsed.
    ///
    /// A `now` before the last access changes nothing but the lease: a lease
    /// once granted is never shortened.
    pub fn access(&mut self, now: Time) {
        // In milliseconds throughout: every read comes by here.
        let passed = now.as_millis().saturating_sub(self.touched.as_millis());
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.since_commit = self.since_commit.saturating_add(passed);
        self.touched = self.touched.max(now);
        self.uses.access(passed);
    }

    /// [Accesses](Self::access) the object for a reader, who is told where its bytes are and may
    /// use them for [the time of a read](Terms::read), or until it says that it is done, if it
    /// `tells`.
    pub fn read(&mut self, now: Time, tells: bool) {
        self.access(now);
        self.uses.read(tells);
    }

    /// Gives it another soft pin, or none. It is counted from the last access on, whatever the terms count one from
    /// that a writer asked for: [access](Self::access) the object first for a pin from now on.
    pub fn pin(&mut self, soft_pin: SoftPin) {
        if soft_pin.is_wanted() {
            self.since_commit = 0;
        }
        self.soft_pin = soft_pin;
    }

    /// Returns whether it was accessed since its commit.
    #[must_use]
    pub const fn is_accessed(&self) -> bool {
        self.uses.is_accessed()
    }

    /// When the object was read last; `None` when no client knows where its bytes are, or so long
    /// ago that the read is over.
    #[must_use]
    pub fn last_read(&self) -> Option<Time> {
        let before = Duration::from_millis(u64::from(self.uses.since_read()?));
        Some(Time::ORIGIN + (self.touched.since_origin() - before))
    }

    /// When the last read ends or ended that may use the bytes; `None` as of
    /// [`last_read`](Self::last_read).
    #[must_use]
    pub fn read_end(&self, terms: &Terms) -> Option<Time> {
        Some(self.last_read()? + terms.read())
    }

    /// Returns whether every client that may be reading reports the end of its reads.
    #[must_use]
    pub const fn readers_tell(&self) -> bool {
        !self.uses.is_silent()
    }

    /// When the object was last accessed, or committed when it never was.
    #[must_use]
    pub const fn last_touched(&self) -> Time {
        self.touched
    }

    /// The rest of the lease; zero when none is active.
    #[must_use]
    pub fn lease_remaining(&self, terms: &Terms, now: Time) -> Duration {
        if self.uses.is_accessed() { (self.touched + terms.lease) - now } else { Duration::ZERO }
    }

    /// Returns whether a lease is active.
    #[must_use]
    pub fn is_leased(&self, terms: &Terms, now: Time) -> bool {
        !self.lease_remaining(terms, now).is_zero()
    }

    /// When the lease ends or ended; the time of the commit when there was none.
    #[must_use]
    pub fn lease_end(&self, terms: &Terms) -> Time {
        if self.uses.is_accessed() { self.touched + terms.lease } else { self.touched }
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
    fn who_asks_whether_it_is_there_reads_nothing() {
        let mut object = Protection::committed(at(0), SoftPin::NONE);
        object.access(at(10));
        assert_eq!(object.read_end(&TERMS), None);
        object.read(at(20), false);
        for now in [20, 21, 15, 3_000, 5_019] {
            object.access(at(now));
            assert_eq!(object.read_end(&TERMS), Some(at(5_020)));
        }
        object.read(at(5_019), false);
        assert_eq!(object.read_end(&TERMS), Some(at(10_019)));
    }

    #[test]
    fn a_read_lasts_no_longer_than_a_transfer_however_long_the_lease_is() {
        let long = Terms { lease: Duration::from_secs(999_999), ..TERMS };
        let mut object = Protection::committed(at(0), SoftPin::NONE);
        object.read(at(1_000), false);
        assert_eq!(object.read_end(&long), Some(at(1_000) + LONGEST_READ));
        assert_eq!(object.lease_end(&long), at(1_000) + long.lease);
        // The read is over, and forgotten.
        object.access(at(40_000));
        assert_eq!(object.read_end(&long), None);
        assert!(object.is_leased(&long, at(41_000)));
        object.read(at(41_000), false);
        assert_eq!(object.read_end(&long), Some(at(41_000) + LONGEST_READ));
    }

    #[test]
    fn one_reader_that_says_nothing_is_waited_for_as_long_as_it_may_read() {
        let mut object = Protection::committed(at(0), SoftPin::NONE);
        object.read(at(10), true);
        assert!(object.readers_tell());
        object.read(at(20), false);
        object.access(at(21));
        object.read(at(30), true);
        assert!(!object.readers_tell());
        assert_eq!(object.last_read(), Some(at(30)));
        // It is done in any case.
        object.access(at(20_000));
        assert!(object.readers_tell() && object.last_read().is_none());
        object.read(at(20_001), true);
        assert!(object.readers_tell());
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
