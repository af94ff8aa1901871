//! The soft pin that the writer of an object asks for.

use core::time::Duration;

use crate::Terms;

/// The soft pin that the writer of an object asks for: none, one of the master's duration, or one of
/// a duration of its own.
///
/// Two bytes, because a master keeps one for each object: eleven bits of a duration in milliseconds and
/// its scale. Up to 2047 ms a duration is exact; a longer one is rounded up by less than a
/// thousandth, and the longest is more than a century.
///
/// ```
/// use core::time::Duration;
/// use mc_lease::SoftPin;
///
/// let hour = SoftPin::lasting(Duration::from_secs(3600));
/// let kept = hour.own_duration().ok_or("it has one")?;
/// assert!((3600.0..3603.6).contains(&kept.as_secs_f64()));
/// assert_eq!(SoftPin::STANDARD.own_duration(), None);
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SoftPin(u16);

/// Bits of a duration that are kept.
const KEPT: u32 = 11;

impl SoftPin {
    /// No soft pin.
    pub const NONE: Self = Self(0);
    /// One of the master's duration.
    pub const STANDARD: Self = Self(u16::MAX);
    /// The longest that is not [`STANDARD`](Self::STANDARD).
    const LONGEST: Self = Self(u16::MAX - 1);

    /// One of this duration, rounded up to what can be kept; none for a duration of zero.
    #[must_use]
    pub fn lasting(duration: Duration) -> Self {
        let Ok(millis) = u64::try_from(duration.as_nanos().div_ceil(1_000_000)) else {
            return Self::LONGEST;
        };
        let scale = (u64::BITS - millis.leading_zeros()).saturating_sub(KEPT);
        let kept = millis.div_ceil(1 << scale);
        // Rounding up may need a bit more.
        let (scale, kept) = if kept >> KEPT == 0 { (scale, kept) } else { (scale + 1, kept >> 1) };
        match (u16::try_from(scale), u16::try_from(kept)) {
            (Ok(scale @ 0..32), Ok(kept)) => Self((scale << KEPT | kept).min(Self::LONGEST.0)),
            _ => Self::LONGEST,
        }
    }

    /// Returns whether there is one.
    #[must_use]
    pub const fn is_wanted(self) -> bool {
        self.0 != Self::NONE.0
    }

    /// Its duration, if it is not the master's; zero for none.
    #[must_use]
    pub fn own_duration(self) -> Option<Duration> {
        let kept = u64::from(self.0 & ((1 << KEPT) - 1));
        (self != Self::STANDARD).then(|| Duration::from_millis(kept << (self.0 >> KEPT)))
    }

    /// Its duration under these terms; zero for none.
    #[must_use]
    pub fn duration(self, terms: &Terms) -> Duration {
        self.own_duration().unwrap_or(terms.soft_pin)
    }

    /// The two bytes, for a journal.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// The pin of these two bytes. Any two are one.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_durations_are_exact_and_none_is_no_pin() {
        for millis in 0..2048 {
            let pin = SoftPin::lasting(Duration::from_millis(millis));
            assert_eq!(pin.own_duration(), Some(Duration::from_millis(millis)));
            assert_eq!(pin.is_wanted(), millis > 0);
        }
        assert_eq!(SoftPin::lasting(Duration::from_nanos(1)), SoftPin::from_bits(1));
        assert!(SoftPin::STANDARD.is_wanted());
    }

    #[test]
    fn no_duration_is_too_long() {
        let century = Duration::from_secs(100 * 365 * 86_400);
        for long in [century, Duration::from_secs(u64::MAX), Duration::MAX] {
            assert!(SoftPin::lasting(long).own_duration() >= Some(century), "{long:?}");
        }
    }

    proptest! {
        #[test]
        fn a_duration_is_rounded_up_by_less_than_a_thousandth(millis in 1..1u64 << 41) {
            let pin = SoftPin::lasting(Duration::from_millis(millis));
            let kept = pin.own_duration().unwrap().as_millis() as u64;
            prop_assert!((millis..=millis + millis / 1000).contains(&kept), "{millis} {kept}");
            prop_assert_eq!(SoftPin::lasting(Duration::from_millis(kept)), pin);
        }

        #[test]
        fn bits_come_back(bits: u16) {
            prop_assert_eq!(SoftPin::from_bits(bits).to_bits(), bits);
        }
    }
}
