//! The totals of a master, minute by minute for an hour.

use core::time::Duration;
use std::collections::VecDeque;

use mc_meta::{MetricKind, Totals};
use mc_types::Time;
use parking_lot::Mutex;

/// The time between two looks at the totals.
const MINUTE: Duration = Duration::from_secs(60);
/// Minutes that are remembered.
const MINUTES: usize = 60;

/// Some of the last hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Minute {
    /// Time since its end.
    pub ago: Duration,
    /// Its length: a minute, or less for the one that is not over.
    pub lasted: Duration,
    /// The counts of counters in it, and the gauges at its end.
    pub totals: Totals,
}

/// Remembers a master's totals of the last hour. It has no clock: every time is an argument.
///
/// ```
/// use core::time::Duration;
/// use mc_meta::Totals;
/// use mc_rpc::History;
/// use mc_types::Time;
///
/// let mut totals = Totals::default();
/// let (history, begin) = (History::default(), Time::ORIGIN);
/// history.note(begin, || totals);
/// totals.evicted_objects = 7;
/// let minutes = history.minutes(begin + Duration::from_secs(30), &totals);
/// assert_eq!((minutes.len(), minutes[0].totals.evicted_objects), (1, 7));
/// ```
#[derive(Debug, Default)]
pub struct History(Mutex<VecDeque<(Time, Totals)>>);

impl History {
    /// Notes the totals, once a minute however often it is called.
    pub fn note(&self, now: Time, totals: impl FnOnce() -> Totals) {
        let mut looks = self.0.lock();
        if looks.back().is_some_and(|(last, _)| now - *last < MINUTE) {
            return;
        }
        if looks.len() > MINUTES {
            looks.pop_front();
        }
        looks.push_back((now, totals()));
    }

    /// The last hour, or as much of it as the master has been there, the oldest minute first. `totals` are those of now.
    #[must_use]
    pub fn minutes(&self, now: Time, totals: &Totals) -> Vec<Minute> {
        let mut looks: Vec<(Time, Totals)> = self.0.lock().iter().copied().collect();
        looks.push((now, *totals));
        let between = |pair: &[(Time, Totals)]| {
            let [(begin, before), (end, after)] = pair else { unreachable!("windows of two") };
            Minute { ago: now - *end, lasted: *end - *begin, totals: since(after, before) }
        };
        looks.windows(2).map(between).filter(|minute| !minute.lasted.is_zero()).collect()
    }
}

/// The counts between two looks.
fn since(after: &Totals, before: &Totals) -> Totals {
    let mut counted = *after;
    for ((metric, now), (_, then)) in after.values().zip(before.values()) {
        if metric.kind == MetricKind::Counter {
            counted.set(metric.name, now.saturating_sub(then));
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ORIGIN + Duration::from_secs(seconds)
    }

    #[test]
    fn an_hour_is_remembered_minute_by_minute() {
        let history = History::default();
        let mut totals = Totals::default();
        assert_eq!(history.minutes(at(0), &totals), []);
        for second in 0..2 * 3600 {
            history.note(at(second), || totals);
            totals.get_hits += 1;
            totals.objects = second;
        }
        let minutes = history.minutes(at(7200), &totals);
        assert_eq!(minutes.len(), MINUTES + 1);
        let hits: u64 = minutes.iter().map(|minute| minute.totals.get_hits).sum();
        assert_eq!(hits, 61 * 60);
        for minute in &minutes {
            assert_eq!((minute.lasted, minute.totals.get_hits), (MINUTE, 60));
        }
        assert_eq!((minutes[0].ago, minutes[60].ago), (Duration::from_secs(3600), Duration::ZERO));
        assert_eq!((minutes[0].totals.objects, minutes[60].totals.objects), (3599, 7199));
    }

    #[test]
    fn a_tick_that_comes_late_makes_a_longer_minute() {
        let (history, totals) = (History::default(), Totals::default());
        history.note(at(0), || totals);
        history.note(at(59), || unreachable!("a minute is not over"));
        history.note(at(600), || totals);
        let minutes = history.minutes(at(630), &totals);
        let lasted: Vec<u64> = minutes.iter().map(|minute| minute.lasted.as_secs()).collect();
        assert_eq!(lasted, [600, 30]);
    }
}
