//! Progress of a run: a line on standard error for each tenth.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Counts finished values; tasks share it.
#[derive(Debug)]
pub(crate) struct Progress {
    verb: &'static str,
    total: u64,
    done: AtomicU64,
    started: Instant,
}

impl Progress {
    /// `verb` is what happens to a value: `put`, say.
    pub(crate) fn start(verb: &'static str, total: u64) -> Self {
        Self { verb, total, done: AtomicU64::new(0), started: Instant::now() }
    }

    /// One more value is finished.
    pub(crate) fn advance(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if is_tenth(done, self.total) {
            let seconds = self.started.elapsed().as_secs_f64();
            tell(&format!("{} {done} of {} after {seconds:.1} s", self.verb, self.total));
        }
    }
}

/// Writes a line about how the run goes.
pub(crate) fn tell(line: &str) {
    // Progress that cannot be shown is no reason to stop.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns whether the value that makes it `done` completes another tenth of all.
fn is_tenth(done: u64, total: u64) -> bool {
    let tenths = |done: u64| done.saturating_mul(10) / total.max(1);
    tenths(done) > tenths(done - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenth_is_told_once() {
        for total in [10, 11, 99, 12_031] {
            let told = (1..=total).filter(|&done| is_tenth(done, total)).count();
            assert_eq!(told, 10, "{total}");
        }
        assert!((1..=3).all(|done| is_tenth(done, 3)));
    }
}
