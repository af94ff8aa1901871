//! Latencies, counted without a lock in buckets that are never wider than an eighth of
//! what they hold.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The finest that is told apart. A whole part of a microsecond, so that powers of two
/// in microseconds are limits of buckets.
const UNIT_NANOS: u64 = 125;

/// Buckets in each power of two, as a power of two.
const FINENESS: u32 = 3;
const PER_OCTAVE: usize = 1 << FINENESS;

/// The last octave ends at 268 s. What took longer is counted in its last bucket.
const LAST_OCTAVE: u32 = 30;
const BUCKETS: usize = (LAST_OCTAVE - FINENESS + 2) as usize * PER_OCTAVE;

/// The bucket whose lower limit is below `took` and whose upper limit is not.
fn bucket(took: Duration) -> usize {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let units = nanos.saturating_sub(1) / UNIT_NANOS;
    if units < PER_OCTAVE as u64 {
        return units as usize;
    }
    let octave = u64::BITS - 1 - units.leading_zeros();
    if octave > LAST_OCTAVE {
        return BUCKETS - 1;
    }
    let within = (units >> (octave - FINENESS)) as usize % PER_OCTAVE;
    (octave - FINENESS + 1) as usize * PER_OCTAVE + within
}

/// The longest that is counted in a bucket.
fn limit(bucket: usize) -> Duration {
    let (octave, within) = (bucket / PER_OCTAVE, bucket % PER_OCTAVE);
    let units = match octave {
        0 => within as u64 + 1,
        octave => (PER_OCTAVE as u64 + within as u64 + 1) << (octave - 1),
    };
    Duration::from_nanos(units * UNIT_NANOS)
}

/// Counts latencies without a lock.
///
/// ```
/// use std::time::Duration;
/// static CALLS: mc_rpc::LatencyRecorder = mc_rpc::LatencyRecorder::new();
/// CALLS.record(Duration::from_micros(3));
/// assert_eq!(CALLS.read().quantile(1.0), Some(Duration::from_micros(3)));
/// ```
pub struct LatencyRecorder {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl LatencyRecorder {
    /// Creates a recorder that has counted nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0) }
    }

    /// Counts one call: two additions.
    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(took)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns what was counted so far.
    #[must_use]
    pub fn read(&self) -> LatencyHistogram {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let buckets: Box<[u64]> = self.buckets.iter().map(load).collect();
        LatencyHistogram { count: buckets.iter().sum(), nanos: load(&self.nanos), buckets }
    }
}

impl Default for LatencyRecorder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LatencyRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

/// The latencies of calls, as counted by a [`LatencyRecorder`].
///
/// Resolved to 125 ns below one microsecond and to an eighth of the value above, up to
/// 268 s; what took longer counts as that.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    buckets: Box<[u64]>,
    count: u64,
    nanos: u64,
}

impl LatencyHistogram {
    /// Calls that were timed.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// How long they took together.
    #[must_use]
    pub const fn total(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// How long one took on average; `None` before the first.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        self.nanos.checked_div(self.count).map(Duration::from_nanos)
    }

    /// The time within which this part of all calls, from 0 to 1, was done, rounded up by
    /// an eighth at most; `None` before the first call.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = ((self.count as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let reached = self.buckets.iter().position(|calls| {
            seen += calls;
            seen >= wanted
        });
        reached.map(limit)
    }

    /// Returns the calls of all of these.
    #[must_use]
    pub fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let (mut buckets, mut count, mut nanos) = (vec![0; BUCKETS], 0, 0_u64);
        for one in all {
            buckets.iter_mut().zip(&one.buckets).for_each(|(sum, more)| *sum += more);
            count += one.count;
            nanos = nanos.wrapping_add(one.nanos);
        }
        Self { buckets: buckets.into(), count, nanos }
    }

    /// Returns how many calls took 2 to the power of `exponent` microseconds at most.
    #[must_use]
    pub fn within_micros(&self, exponent: u32) -> u64 {
        let below = (exponent as usize + 1) * PER_OCTAVE;
        self.buckets.iter().take(below).sum()
    }
}

impl fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatencyHistogram")
            .field("count", &self.count)
            .field("total", &self.total())
            .field("median", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_whose_limits_enclose_it() {
        for shift in 0..38 {
            for near in [-1_i64, 0, 1, 77] {
                let nanos = ((1_u64 << shift) as i64 + near).max(0) as u64;
                let took = Duration::from_nanos(nanos);
                let at = bucket(took);
                assert!(took <= limit(at), "{took:?} above {:?}", limit(at));
                if at > 0 {
                    assert!(took > limit(at - 1), "{took:?} not above {:?}", limit(at - 1));
                }
                let wide = limit(at).saturating_sub(took).as_nanos() as u64;
                assert!(wide <= UNIT_NANOS + nanos / PER_OCTAVE as u64, "{took:?}: {wide}");
            }
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        assert_eq!(limit(BUCKETS - 1), Duration::from_nanos((1 << 31) * UNIT_NANOS));
    }

    #[test]
    fn powers_of_two_in_microseconds_are_limits() {
        let recorder = LatencyRecorder::new();
        for exponent in 0..28 {
            recorder.record(Duration::from_micros(1 << exponent));
            recorder.record(Duration::from_micros(1 << exponent) + Duration::from_nanos(1));
        }
        let histogram = recorder.read();
        for exponent in 0..28 {
            assert_eq!(histogram.within_micros(exponent), 2 * u64::from(exponent) + 1);
        }
    }

    #[test]
    fn quantiles_are_off_by_an_eighth_at_most() {
        let recorder = LatencyRecorder::new();
        assert_eq!((recorder.read().quantile(0.5), recorder.read().mean()), (None, None));
        for micros in 1..=1000 {
            recorder.record(Duration::from_micros(micros));
        }
        let histogram = recorder.read();
        assert_eq!(histogram.count(), 1000);
        assert_eq!(histogram.mean(), Some(Duration::from_nanos(500_500)));
        for (part, exact) in [(0.5, 500), (0.9, 900), (0.99, 990), (1.0, 1000)] {
            let found = histogram.quantile(part).unwrap();
            let exact = Duration::from_micros(exact);
            assert!(exact <= found && found <= exact * 9 / 8, "{part}: {found:?}");
        }
    }
}
