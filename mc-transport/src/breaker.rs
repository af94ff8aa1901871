//! When to leave a peer alone that cannot be reached.

use std::time::{Duration, Instant};

/// Settings of a [`Breaker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerConfig {
    /// Attempts that fail in a row before the next are refused at once. Default 3;
    /// zero never refuses any.
    pub failures: u32,
    /// The time for which they are refused first; each further failure doubles it.
    /// Default 250 ms.
    pub first_pause: Duration,
    /// The longest pause. Default 10 s.
    pub longest_pause: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 3,
            first_pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(10),
        }
    }
}

/// A circuit breaker for one peer: after some failures in a row it refuses further
/// attempts for a while, then lets a single one through, whose outcome decides.
///
/// It spares callers the time-out of a dead peer, and a peer that comes back the
/// crowd. It has no clock: `now` is an argument.
///
/// ```
/// use std::time::{Duration, Instant};
/// use mc_transport::{Breaker, BreakerConfig};
/// let mut breaker = Breaker::new(BreakerConfig::default());
/// let now = Instant::now();
/// for _ in 0..3 {
///     breaker.admit(now)?;
///     breaker.failed(now);
/// }
/// assert_eq!(breaker.admit(now), Err(Duration::from_millis(250)));
/// breaker.admit(now + Duration::from_millis(250))?;
/// breaker.succeeded();
/// breaker.admit(now + Duration::from_millis(250))?;
/// # Ok::<(), Duration>(())
/// ```
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    failures: u32,
    /// Attempts are refused until then.
    open_until: Option<Instant>,
}

impl Breaker {
    /// A breaker that has seen nothing yet.
    #[must_use]
    pub fn new(config: BreakerConfig) -> Self {
        Self { config, failures: 0, open_until: None }
    }

    /// Returns whether an attempt may be made now. One that is admitted after a pause is the
    /// only one until it [succeeded](Self::succeeded), [failed](Self::failed), or
    /// another pause went by without a word of it.
    ///
    /// # Errors
    /// The time to wait.
    pub fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        match self.open_until {
            None => Ok(()),
            Some(until) if now < until => Err(until - now),
            Some(_) => {
                self.open_until = Some(now + self.pause());
                Ok(())
            }
        }
    }

    /// Takes note that an attempt succeeded.
    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.open_until = None;
    }

    /// Takes note that an attempt failed.
    pub fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if self.config.failures > 0 && self.failures >= self.config.failures {
            self.open_until = Some(now + self.pause());
        }
    }

    /// Returns whether attempts are refused now.
    #[must_use]
    pub fn is_open(&self, now: Instant) -> bool {
        self.open_until.is_some_and(|until| now < until)
    }

    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(self.config.failures).min(20);
        self.config.first_pause.saturating_mul(1 << doublings).min(self.config.longest_pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut breaker = Breaker::new(BreakerConfig::default());
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            while let Err(wait) = breaker.admit(now) {
                pauses.push(wait.as_millis());
                now += wait;
            }
            breaker.failed(now);
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 10_000]);
        assert!(breaker.is_open(now));
        breaker.succeeded();
        assert!(!breaker.is_open(now));
        breaker.failed(now);
        assert!(breaker.admit(now).is_ok(), "it begins anew");
    }

    #[test]
    fn one_attempt_tests_the_water() {
        let mut breaker = Breaker::new(BreakerConfig::default());
        let now = Instant::now();
        (0..3).for_each(|_| breaker.failed(now));
        let later = now + 250 * MS;
        assert!(breaker.admit(later).is_ok());
        assert_eq!(breaker.admit(later + MS), Err(249 * MS), "the second waits for the first");
        assert!(breaker.admit(later + 250 * MS).is_ok(), "which may have been given up");
    }

    #[test]
    fn zero_never_opens() {
        let config = BreakerConfig { failures: 0, ..BreakerConfig::default() };
        let mut breaker = Breaker::new(config);
        let now = Instant::now();
        for _ in 0..100 {
            assert!(breaker.admit(now).is_ok());
            breaker.failed(now);
        }
    }
}
