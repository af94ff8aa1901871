//! Whether the own disk takes objects: one that fails is left alone for a while.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::work::Written;

/// Writes in a row that fail before the disk is left alone.
const FAILURES: u32 = 4;

/// For how long: at first, and at most.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What the last writes say of the disk. While it is not fit the master evicts what is in this client's
/// memory as if there were no disk.
#[derive(Debug, Default)]
pub(super) struct Fitness {
    /// Writes that failed since the last one that did not.
    failures: u32,
    /// How long the disk is left alone, once it has failed so often.
    pause: Option<Duration>,
    /// When it is tried again.
    until: Option<Instant>,
}

impl Fitness {
    /// Whether the disk takes objects now.
    pub(super) fn is_fit(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Takes note of writes that ended.
    pub(super) fn note<'a>(&mut self, now: Instant, written: impl Iterator<Item = &'a Written>) {
        for written in written {
            match written {
                Written::At(_) => {
                    if self.pause.take().is_some() {
                        info!("the own disk takes objects again");
                    }
                    (self.failures, self.until) = (0, None);
                }
                Written::Failed(error) => self.failed(now, error),
                // Nothing was asked of the disk.
                Written::Gone | Written::TooLong => {}
            }
        }
    }

    fn failed(&mut self, now: Instant, error: &str) {
        self.failures += 1;
        // One try is enough after a pause; those that were under way say nothing new.
        let is_over = self.pause.is_some() && self.is_fit(now);
        if !is_over && (self.pause.is_some() || self.failures < FAILURES) {
            return;
        }
        let pause = self.pause.map_or(SHORTEST, |pause| (pause * 2).min(LONGEST));
        warn!(
            error,
            failures = self.failures,
            "the own disk fails; it is left alone for {pause:?}, and objects are evicted without it"
        );
        (self.pause, self.until) = (Some(pause), Some(now + pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Written {
        Written::Failed("an I/O error".into())
    }

    #[test]
    fn a_disk_that_fails_is_left_alone_for_longer_and_longer() {
        let (mut fitness, mut now) = (Fitness::default(), Instant::now());
        fitness.note(now, [failed(), failed(), Written::At(0), failed(), failed()].iter());
        fitness.note(now, [Written::TooLong, Written::Gone, failed()].iter());
        assert!(fitness.is_fit(now), "three in a row");
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            fitness.note(now, [failed(), failed()].iter());
            now += Duration::from_secs(seconds) - Duration::from_millis(1);
            assert!(!fitness.is_fit(now));
            now += Duration::from_millis(1);
            assert!(fitness.is_fit(now), "after {seconds} s");
        }
        fitness.note(now, [Written::At(0), failed()].iter());
        assert!(fitness.is_fit(now));
    }
}
