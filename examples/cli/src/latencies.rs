//! Latencies of a run.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longest time that is told apart, in microseconds: an hour.
const LONGEST: u64 = 3_600_000_000;

/// The latencies of one kind of call, in microseconds with three digits.
#[derive(Clone, Debug)]
pub struct Latencies {
    micros: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        let micros = Histogram::new_with_bounds(1, LONGEST, 3);
        Self { micros: micros.expect("the bounds are apart and three digits are allowed") }
    }
}

impl Latencies {
    /// Counts a call. One that took longer than an hour counts as an hour.
    pub fn record(&mut self, took: Duration) {
        self.micros.saturating_record(u64::try_from(took.as_micros()).unwrap_or(LONGEST));
    }

    /// Adds the calls of another.
    pub fn merge(&mut self, other: &Self) {
        self.micros += &other.micros;
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.micros.len()
    }

    /// Returns the time, in microseconds, that this part of all calls, from 0 to 1, stayed
    /// within; 0 without calls.
    #[must_use]
    pub fn quantile_us(&self, part: f64) -> u64 {
        if self.micros.is_empty() { 0 } else { self.micros.value_at_quantile(part) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn extreme_times_are_kept_in_bounds() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_us(0.5), 0);
        latencies.record(Duration::ZERO);
        latencies.record(Duration::MAX);
        assert_eq!(latencies.count(), 2);
        assert_eq!(latencies.quantile_us(0.0), 0);
        let longest = latencies.quantile_us(1.0);
        assert!(longest.abs_diff(LONGEST) <= LONGEST / 1000, "{longest}");
    }

    proptest! {
        #[test]
        fn quantiles_match_a_sorted_list(
            times in prop::collection::vec(1u64..10_000_000, 1..200), split: prop::sample::Index
        ) {
            let (one, other) = times.split_at(split.index(times.len()));
            let (mut all, mut rest) = (Latencies::default(), Latencies::default());
            one.iter().for_each(|&time| all.record(Duration::from_micros(time)));
            other.iter().for_each(|&time| rest.record(Duration::from_micros(time)));
            all.merge(&rest);
            prop_assert_eq!(all.count(), times.len() as u64);
            let mut sorted = times.clone();
            sorted.sort_unstable();
            for part in [0.5, 0.99] {
                let rank = ((sorted.len() as f64 * part).ceil() as usize).max(1);
                let exact = sorted[rank - 1];
                let shown = all.quantile_us(part);
                prop_assert!(shown.abs_diff(exact) <= exact / 500 + 1, "{} {}", shown, exact);
            }
        }
    }
}
