//! The credit of reporters: reports that turn out to be wrong use it up.

use std::collections::HashMap;

use mc_types::Time;

/// Sources that are known at a time. Those that have all their credit are forgotten first.
const MAX_SOURCES: usize = 4096;

/// In thousandths of a report. A millisecond gives one back.
const FULL: i64 = 64_000;
const REPORT: i64 = 1_000;
/// The cost of a wrong report beside its price.
const PENALTY: i64 = 16_000;
/// A source that was wrong all the time is heard again after ten minutes.
const LOWEST: i64 = -600_000;

/// The credit of each source: 64 reports at once, one a second after that. A report that was
/// right costs nothing, a wrong one seventeen.
#[derive(Debug, Default)]
pub(crate) struct Credits(HashMap<u64, Credit>);

#[derive(Clone, Copy, Debug)]
struct Credit {
    left: i64,
    at: Time,
}

impl Credit {
    fn settle(&mut self, now: Time) {
        let millis = i64::try_from((now - self.at).as_millis()).unwrap_or(FULL);
        self.left = self.left.saturating_add(millis).min(FULL);
        self.at = now.max(self.at);
    }
}

impl Credits {
    /// Takes the price of a report; `false` when the source has no credit left.
    pub(crate) fn take(&mut self, source: u64, now: Time) -> bool {
        if !self.0.contains_key(&source) && self.0.len() >= MAX_SOURCES {
            self.0.retain(|_, credit| {
                credit.settle(now);
                credit.left < FULL
            });
            if self.0.len() >= MAX_SOURCES {
                return false;
            }
        }
        let credit = self.0.entry(source).or_insert(Credit { left: FULL, at: now });
        credit.settle(now);
        let may = credit.left >= REPORT;
        if may {
            credit.left -= REPORT;
        }
        may
    }

    /// Gives the price back of a report that was right, or that could not be verified.
    pub(crate) fn give_back(&mut self, source: u64) {
        if let Some(credit) = self.0.get_mut(&source) {
            credit.left = (credit.left + REPORT).min(FULL);
        }
    }

    /// A report was wrong.
    pub(crate) fn penalize(&mut self, source: u64) {
        if let Some(credit) = self.0.get_mut(&source) {
            credit.left = (credit.left - PENALTY).max(LOWEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_right_reports_on_and_who_is_wrong_soon_no_more() {
        let mut credits = Credits::default();
        let (honest, liar, now) = (1, 2, Time::from_millis(5));
        for _ in 0..1000 {
            assert!(credits.take(honest, now));
            credits.give_back(honest);
        }
        let mut wrong = 0;
        while credits.take(liar, now) {
            credits.penalize(liar);
            wrong += 1;
        }
        assert_eq!(wrong, 4);
        // Many wrong reports at once are heard of for ten minutes, however many they were.
        let other = 3;
        assert_eq!((0..100).filter(|_| credits.take(other, now)).count(), 64);
        (0..64).for_each(|_| credits.penalize(other));
        assert!(!credits.take(other, Time::from_millis(600_000)));
        assert!(credits.take(other, Time::from_millis(602_000)));
    }

    #[test]
    fn sources_are_bounded() {
        let mut credits = Credits::default();
        let now = Time::from_millis(5);
        let taken = (0..2 * MAX_SOURCES as u64).filter(|&source| credits.take(source, now));
        assert_eq!(taken.count(), MAX_SOURCES);
        assert!(credits.take(u64::MAX, Time::from_millis(2_000)), "they have their credit back");
    }
}
