//! When a tier that gives no answers, or takes no objects, is left alone, and when it is asked again.

use std::time::Duration;

use tokio::time::Instant;

/// Reads in a row that get no answer in time, or writes that fail, after which the tier is left alone.
const FAILURES: u32 = 3;

/// How long it is left alone, the first time; twice as long each time after that it failed again.
const FIRST_REST: Duration = Duration::from_secs(1);

/// The longest: a tier that is mended serves again after this time and a read.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// The state of a tier's answers. Time is an argument.
#[derive(Debug, Default)]
pub(in crate::client) struct Breaker {
    state: State,
    /// Failures in a row.
    failures: u32,
    /// How long the tier was left alone the last time; zero since it answered.
    rest: Duration,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// The tier answers, or has not been late often enough.
    #[default]
    Asked,
    /// The tier is left alone until then.
    Resting { until: Instant },
    /// One read finds out whether it answers again.
    Probed,
}

/// How the tier may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Turn {
    /// As one of many.
    Usual,
    /// As the one that finds out whether the tier answers again.
    Probe,
    /// The operation must not be tried.
    Skip,
}

impl Breaker {
    /// Whether it may be asked now. A probe has to be told of: [`answered`](Self::answered),
    /// [`failed`](Self::failed) or [`withdrawn`](Self::withdrawn).
    pub(in crate::client) fn turn(&mut self, now: Instant) -> Turn {
        match self.state {
            State::Asked => Turn::Usual,
            State::Resting { until } if now >= until => {
                self.state = State::Probed;
                Turn::Probe
            }
            State::Resting { .. } | State::Probed => Turn::Skip,
        }
    }

    /// Takes note of an answer that came in time, or of an object that was taken; `true` when the tier was left alone until now.
    pub(in crate::client) fn answered(&mut self) -> bool {
        let was_resting = self.state != State::Asked;
        *self = Self::default();
        was_resting
    }

    /// Takes note of a read without an answer in time, or of a write that failed; for how long the tier is
    /// left alone, when that begins now.
    pub(in crate::client) fn failed(&mut self, turn: Turn, now: Instant) -> Option<Duration> {
        let rests = match (turn, &self.state) {
            (Turn::Usual, State::Asked) => {
                self.failures += 1;
                self.failures >= FAILURES
            }
            (Turn::Probe, State::Probed) => true,
            // Of what began before the tier was left alone.
            _ => false,
        };
        rests.then(|| {
            self.rest = (self.rest * 2).clamp(FIRST_REST, LONGEST_REST);
            self.state = State::Resting { until: now + self.rest };
            self.rest
        })
    }

    /// Takes note of a probe whose caller has gone, or that could not be made: the next turn is one.
    pub(in crate::client) fn withdrawn(&mut self, now: Instant) {
        if self.state == State::Probed {
            self.state = State::Resting { until: now };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_rests_longer_each_time_until_it_answers() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut breaker = Breaker::default();
        for _ in 0..2 {
            assert_eq!(breaker.turn(start), Turn::Usual);
            assert_eq!(breaker.failed(Turn::Usual, start), None);
        }
        assert!(!breaker.answered(), "it was never left alone");
        assert_eq!(breaker.failed(Turn::Usual, start), None, "they are counted anew");
        assert_eq!(breaker.failed(Turn::Usual, start), None);
        assert_eq!(breaker.failed(Turn::Usual, start), Some(FIRST_REST));
        assert_eq!(breaker.failed(Turn::Usual, start), None, "it began before");
        assert_eq!(breaker.turn(start), Turn::Skip);
        let (mut now, mut rests) = (1, Vec::new());
        for _ in 0..7 {
            assert_eq!(breaker.turn(at(now)), Turn::Probe);
            assert_eq!(breaker.turn(at(now)), Turn::Skip, "one probe at a time");
            let rest = breaker.failed(Turn::Probe, at(now)).unwrap().as_secs();
            assert_eq!(breaker.turn(at(now + rest - 1)), Turn::Skip);
            rests.push(rest);
            now += rest;
        }
        assert_eq!(rests, [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(breaker.turn(at(now)), Turn::Probe);
        breaker.withdrawn(at(now));
        assert_eq!(breaker.turn(at(now)), Turn::Probe, "in the place of the one that has gone");
        assert!(breaker.answered());
        assert_eq!(breaker.turn(at(now)), Turn::Usual);
        assert_eq!([0; 3].map(|_| breaker.failed(Turn::Usual, at(now)))[2], Some(FIRST_REST));
    }
}
