//! Counters of the workers.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longest time that is told apart, in microseconds: an hour.
const LONGEST: u64 = 3_600_000_000;

/// Times of one kind of call, in microseconds with three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
}

impl Latencies {
    fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST, 3);
        Self { histogram: histogram.expect("the bounds are apart and three digits are allowed") }
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.histogram.saturating_record(u64::try_from(time.as_micros()).unwrap_or(LONGEST));
    }

    /// The number of recorded times.
    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The time that this part of all calls stayed within, in microseconds; zero
    /// when there was no call.
    pub(crate) fn quantile_us(&self, part: f64) -> u64 {
        if self.histogram.is_empty() { 0 } else { self.histogram.value_at_quantile(part) }
    }

    fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all histograms have the same bounds");
    }
}

/// The counts of one worker, or of several together.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) blocks: u64,
    /// Blocks of the prefixes that were read: they need not be computed.
    pub(crate) hit_blocks: u64,
    /// Blocks that the lookup had promised and the get no longer found.
    pub(crate) vanished_blocks: u64,
    pub(crate) stored_blocks: u64,
    /// Puts of blocks that were there behind a gap, or that another worker had put
    /// or was putting.
    pub(crate) existing_blocks: u64,
    /// Puts refused for lack of space.
    pub(crate) refused_blocks: u64,
    pub(crate) bytes_got: u64,
    pub(crate) bytes_put: u64,
    pub(crate) wrong_bytes: u64,
    pub(crate) lookup: Latencies,
    pub(crate) get: Latencies,
    pub(crate) put: Latencies,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            requests: 0,
            blocks: 0,
            hit_blocks: 0,
            vanished_blocks: 0,
            stored_blocks: 0,
            existing_blocks: 0,
            refused_blocks: 0,
            bytes_got: 0,
            bytes_put: 0,
            wrong_bytes: 0,
            lookup: Latencies::new(),
            get: Latencies::new(),
            put: Latencies::new(),
        }
    }

    /// Adds the counts of another worker.
    pub(crate) fn merge(&mut self, other: &Self) {
        // Taken apart, so that a new field cannot be forgotten.
        let Self {
            requests,
            blocks,
            hit_blocks,
            vanished_blocks,
            stored_blocks,
            existing_blocks,
            refused_blocks,
            bytes_got,
            bytes_put,
            wrong_bytes,
            lookup,
            get,
            put,
        } = other;
        self.requests += requests;
        self.blocks += blocks;
        self.hit_blocks += hit_blocks;
        self.vanished_blocks += vanished_blocks;
        self.stored_blocks += stored_blocks;
        self.existing_blocks += existing_blocks;
        self.refused_blocks += refused_blocks;
        self.bytes_got += bytes_got;
        self.bytes_put += bytes_put;
        self.wrong_bytes += wrong_bytes;
        self.lookup.merge(lookup);
        self.get.merge(get);
        self.put.merge(put);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn extreme_times_are_kept_in_bounds() {
        let mut latencies = Latencies::new();
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
            let (mut all, mut rest) = (Tally::new(), Tally::new());
            one.iter().for_each(|&time| all.get.record(Duration::from_micros(time)));
            other.iter().for_each(|&time| rest.get.record(Duration::from_micros(time)));
            all.merge(&rest);
            prop_assert_eq!(all.get.count(), times.len() as u64);
            let mut sorted = times.clone();
            sorted.sort_unstable();
            for part in [0.5, 0.99] {
                let rank = ((sorted.len() as f64 * part).ceil() as usize).max(1);
                let exact = sorted[rank - 1];
                let shown = all.get.quantile_us(part);
                prop_assert!(shown.abs_diff(exact) <= exact / 500 + 1, "{} {}", shown, exact);
            }
        }
    }
}
