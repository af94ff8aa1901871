//! The result of a run.

use std::fmt;
use std::time::Duration;

use mc_cli::Latencies;
use mc_types::ByteSize;

use crate::args::Workload;
use crate::error::StressError;

/// Values that were moved, and how fast.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) values: u64,
    pub(crate) value_len: usize,
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Latencies,
}

impl Moved {
    /// Rates and latencies of calls of the name `call`.
    fn rates(&self, call: &str) -> String {
        let millis = |part| self.latencies.quantile_us(part) as f64 / 1e3;
        let per_second = self.values as f64 / self.elapsed.as_secs_f64().max(1e-6);
        format!(
            "{per_second:.0} values/s, {:.2} GB/s, {call} p50 {:.2} ms, p99 {:.2} ms",
            per_second * self.value_len as f64 / 1e9,
            millis(0.5),
            millis(0.99)
        )
    }

    fn amount(&self) -> String {
        let size = ByteSize::bytes(self.value_len as u64);
        format!("{} values of {size} in {:.2} s", self.values, self.elapsed.as_secs_f64())
    }
}

/// The result of prefill.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) moved: Moved,
    /// Values that were there from an earlier run.
    pub(crate) existing: u64,
}

impl fmt::Display for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "put {}", self.moved.amount())?;
        if self.existing > 0 {
            write!(f, ", {} more were there", self.existing)?;
        }
        write!(f, ": {}", self.moved.rates("put"))
    }
}

/// The result of decode.
#[derive(Debug)]
pub(crate) struct Found {
    /// Everything that was read, right or wrong.
    pub(crate) moved: Moved,
    pub(crate) wrong: u64,
    pub(crate) missing: u64,
}

impl Found {
    pub(crate) fn nothing(workload: Workload) -> Self {
        let moved = Moved {
            values: 0,
            value_len: workload.value_len,
            elapsed: Duration::ZERO,
            latencies: Latencies::default(),
        };
        Self { moved, wrong: 0, missing: 0 }
    }

    /// Returns whether all is well.
    pub(crate) fn verdict(&self) -> Result<(), StressError> {
        match (self.wrong, self.missing) {
            (0, 0) => Ok(()),
            (wrong, missing) => Err(StressError::NotAllRight { wrong, missing }),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "checked {}: {} wrong, {} missing; {}",
            self.moved.amount(),
            self.wrong,
            self.missing,
            self.moved.rates("get")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_time_is_not_reported_as_none() {
        let mut all = Latencies::default();
        for took in [Duration::from_micros(10), Duration::from_millis(50)] {
            let mut one = Latencies::default();
            one.record(took);
            one.record(Duration::from_secs(7));
            all.merge(&one);
        }
        let moved =
            Moved { values: 4, value_len: 1, elapsed: Duration::from_secs(1), latencies: all };
        assert!(moved.rates("put").contains("p99 7"), "{}", moved.rates("put"));
    }
}
