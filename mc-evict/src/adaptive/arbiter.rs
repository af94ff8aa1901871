//! The choice of the rule with most hits.

use super::rule::RULES;

/// Uses after which what was found before counts half.
const WINDOW: u32 = 8192;
/// Uses between two looks.
const LOOK: u32 = 64;

/// The hits of each rule's shadows, and the rule that is followed.
#[derive(Clone, Debug, Default)]
pub(super) struct Arbiter {
    found: [u32; RULES.len()],
    uses: u32,
    choice: usize,
}

impl Arbiter {
    /// The number of the rule that is followed.
    pub(super) const fn choice(&self) -> usize {
        self.choice
    }

    /// Counts a use of something that the shadows of the rules in this set of bits had.
    pub(super) fn record(&mut self, found: u32) {
        const ALL: u32 = (1 << RULES.len()) - 1;
        if found != ALL {
            for (at, count) in self.found.iter_mut().enumerate() {
                *count += found >> at & 1;
            }
        }
        self.uses += 1;
        if self.uses.is_multiple_of(LOOK) {
            self.choose();
        }
        if self.uses == WINDOW {
            self.uses /= 2;
            self.found.iter_mut().for_each(|count| *count -= *count / 2);
        }
    }

    /// Follows the rule that has found most, if it has found so many more that this is not
    /// chance.
    fn choose(&mut self) {
        // Of equal ones the first.
        let best = (0..RULES.len()).rev().max_by_key(|rule| self.found[*rule]);
        let best = best.unwrap_or(self.choice);
        let most = self.found[best];
        let chance = 2 + most.isqrt() / 2 + most / 512;
        if most.saturating_sub(self.found[self.choice]) > chance {
            self.choice = best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(arbiter: &mut Arbiter, uses: u32, found: impl Fn(u32) -> u32) {
        for n in 0..uses {
            arbiter.record(found(n));
        }
    }

    #[test]
    fn the_rule_that_finds_more_is_followed_until_another_does() {
        let mut arbiter = Arbiter::default();
        see(&mut arbiter, 10 * WINDOW, |_| (1 << RULES.len()) - 1);
        assert_eq!(arbiter.choice(), 0, "all are alike");
        see(&mut arbiter, WINDOW, |n| 1 | u32::from(n % 8 == 0) << 1 | 1 << 4);
        assert_eq!(arbiter.choice(), 0, "another finds as much");
        see(&mut arbiter, WINDOW, |n| if n % 16 == 0 { 1 << 4 } else { 1 | 1 << 4 });
        assert_eq!(arbiter.choice(), 4);
        see(&mut arbiter, 4 * WINDOW, |n| if n % 2 == 0 { 1 } else { 0 });
        assert_eq!(arbiter.choice(), 0, "what was long ago counts less and less");
    }

    #[test]
    fn chance_changes_nothing() {
        let mut arbiter = Arbiter::default();
        // Two rules that find as much, in turns.
        see(&mut arbiter, 4 * WINDOW, |n| if n % 2 == 0 { 1 } else { 1 << 3 });
        assert_eq!(arbiter.choice(), 0);
    }
}
