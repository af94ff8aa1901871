//! Durations of one kind of call.

use std::time::Duration;

/// Durations, kept one by one: a run has at most a few million, and quantiles are
/// then exact.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    nanos: Vec<u64>,
}

impl Latencies {
    pub(crate) fn add(&mut self, duration: Duration) {
        // A call of five hundred years is not expected.
        self.nanos.push(duration.as_nanos() as u64);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.nanos.extend(other.nanos);
    }

    pub(crate) fn len(&self) -> usize {
        self.nanos.len()
    }

    /// The shortest duration that at least the part `q` of all do not exceed, in
    /// microseconds; no number when there are none.
    pub(crate) fn quantile_us(&mut self, q: f64) -> f64 {
        if self.nanos.is_empty() {
            return f64::NAN;
        }
        let rank = (self.nanos.len() as f64 * q).ceil() as usize;
        let at = rank.clamp(1, self.nanos.len()) - 1;
        let (_, nanos, _) = self.nanos.select_nth_unstable(at);
        *nanos as f64 / 1e3
    }

    /// The longest, in microseconds.
    pub(crate) fn max_us(&mut self) -> f64 {
        self.quantile_us(1.0)
    }

    /// `amount` in the median time, per second.
    pub(crate) fn rate_of(&mut self, amount: f64) -> f64 {
        amount / self.p50_us() * 1e6
    }

    /// The median, in microseconds.
    pub(crate) fn p50_us(&mut self) -> f64 {
        self.quantile_us(0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact() {
        let mut latencies = Latencies::default();
        assert!(latencies.p50_us().is_nan());
        for micros in (1..=100).rev() {
            latencies.add(Duration::from_micros(micros));
        }
        assert_eq!(latencies.p50_us(), 50.0);
        assert_eq!(latencies.quantile_us(0.99), 99.0);
        assert_eq!(latencies.quantile_us(0.0), 1.0);
        assert_eq!(latencies.max_us(), 100.0);
        assert_eq!(latencies.len(), 100);
        assert_eq!(latencies.rate_of(100.0), 2_000_000.0);
    }
}
