//! How long a request was on its way: from when its client sent it until the server gets to it,
//! in the socket most of all.

use core::time::Duration;

use tokio::time::Instant;

/// The clock of a connection, which the client starts when it sends its hello and the server
/// when it has read that.
///
/// What a request says of when it was sent, less the server's clock, is how long the request was on
/// its way, less how long the hello was, and the drift of the two clocks in addition. The least
/// such difference is therefore taken for a request that was not on its way at all: no request
/// seems to have waited for longer than it has, however slow the hello was. What is taken grows by
/// a thousandth of the time that passes without a request, which is twice the rate at which a clock
/// is corrected at the most (500 ppm, `adjtime(3)`): so two clocks of which one is slow do not make
/// good calls late in the course of days.
///
/// A clock that jumps, as a virtual machine's may that moves to another host, does so; a client
/// that is told early that its time is over makes a new connection.
#[derive(Debug)]
pub(super) struct Transit {
    hello: Instant,
    /// The difference of a request that was not on its way at all, in microseconds.
    none: i64,
    /// When the last request was looked at, in microseconds.
    last: i64,
}

impl Transit {
    /// Begins with the hello that was read at this time.
    pub(super) fn since(hello: Instant) -> Self {
        Self { hello, none: 0, last: 0 }
    }

    /// How long a request that was sent at `sent` has waited until `now`, at least.
    pub(super) fn waited(&mut self, sent: u64, now: Instant) -> Duration {
        let micros = |micros: u128| i64::try_from(micros).unwrap_or(i64::MAX);
        let now = micros(now.saturating_duration_since(self.hello).as_micros());
        let difference = now.saturating_sub(micros(sent.into()));
        let grown = now.saturating_sub(self.last) >> 10;
        self.last = now;
        self.none = self.none.saturating_add(grown).min(difference);
        Duration::from_micros(difference.saturating_sub(self.none).unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Returns the time that requests waited, which say that they were `sent`, by a server's clock
    /// that shows `now`, all in microseconds.
    fn waited(transit: &mut Transit, now: u64, sent: u64) -> u64 {
        let now = transit.hello + Duration::from_micros(now);
        transit.waited(sent, now).as_micros() as u64
    }

    fn begin() -> Transit {
        Transit::since(Instant::now())
    }

    #[test]
    fn what_waited_is_told_from_what_did_not() {
        let mut transit = begin();
        assert_eq!(waited(&mut transit, 200, 100), 100);
        let late = waited(&mut transit, 4 * SECOND, SECOND);
        assert!((2_990_000..=3_000_000).contains(&late), "{late}");
    }

    #[test]
    fn a_slow_hello_makes_no_call_late_and_hides_no_later_one() {
        let mut transit = begin();
        // The hello was on its way for three seconds.
        assert_eq!(waited(&mut transit, 100, 3 * SECOND), 0);
        let late = waited(&mut transit, 2 * SECOND, 3 * SECOND + 100);
        assert!((1_990_000..=2_000_000).contains(&late), "{late}");
    }

    #[test]
    fn no_drift_of_days_makes_a_good_call_late_or_hides_a_late_one() {
        for ppm in [-500_i64, -20, 0, 20, 500] {
            let mut transit = begin();
            let client = |now: u64| (now as i64 + now as i64 / 1_000_000 * ppm) as u64;
            for second in (0..7 * 86_400).step_by(10) {
                let now = second * SECOND;
                let good = waited(&mut transit, now + 200, client(now));
                assert!(good <= 200, "{ppm} ppm: {good} after {second} s");
            }
            let now = 7 * 86_400 * SECOND;
            let sent = client(now);
            let late = waited(&mut transit, now + 2 * SECOND, sent);
            assert!(late > 1_900_000, "{ppm} ppm: {late}");
        }
    }

    #[test]
    fn no_time_panics() {
        let values = [0, 1, SECOND, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX];
        for first in values {
            for second in values {
                let mut transit = begin();
                for (now, sent) in [(0, first), (1, second), (SECOND, first), (SECOND, second)] {
                    waited(&mut transit, now, sent);
                }
            }
        }
        // Nor one before the hello.
        let hello = Instant::now();
        let mut transit = Transit::since(hello + Duration::from_secs(1));
        assert_eq!(transit.waited(0, hello), Duration::ZERO);
    }
}
