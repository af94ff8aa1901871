//! Which rule finds most.

use core::array;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use super::rule::RULES;

/// Uses after which what was found before counts half.
const WINDOW: u32 = 8192;
/// Uses between two looks.
const LOOK: u32 = 64;

/// What the shadows of each rule have found, and the rule that is followed.
///
/// The parts of a cache share one and lock nothing: what one counts while another halves the
/// counts may count half or whole, and decides nothing.
#[derive(Debug)]
pub(super) struct Arbiter {
    found: [AtomicU32; RULES.len()],
    uses: AtomicU32,
    choice: AtomicUsize,
    /// Uses of all parts, wrapping around.
    now: AtomicU32,
}

impl Default for Arbiter {
    fn default() -> Self {
        Self {
            found: array::from_fn(|_| AtomicU32::new(0)),
            uses: AtomicU32::new(0),
            choice: AtomicUsize::new(0),
            now: AtomicU32::new(0),
        }
    }
}

impl Arbiter {
    /// The number of the rule that is followed.
    pub(super) fn choice(&self) -> usize {
        self.choice.load(Relaxed)
    }

    /// Adds uses to those of all parts, and returns their number.
    pub(super) fn tell(&self, uses: u32) -> u32 {
        self.now.fetch_add(uses, Relaxed).wrapping_add(uses)
    }

    pub(super) fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    /// Counts a use of something that the shadows of the rules in this set of bits had.
    pub(super) fn record(&self, found: u32) {
        const ALL: u32 = (1 << RULES.len()) - 1;
        if found != 0 && found != ALL {
            for (at, count) in self.found.iter().enumerate() {
                if found >> at & 1 != 0 {
                    count.fetch_add(1, Relaxed);
                }
            }
        }
        let uses = self.uses.fetch_add(1, Relaxed) + 1;
        if uses.is_multiple_of(LOOK) {
            self.choose();
        }
        if uses == WINDOW {
            self.uses.fetch_sub(WINDOW / 2, Relaxed);
            for count in &self.found {
                count.fetch_sub(count.load(Relaxed) / 2, Relaxed);
            }
        }
    }

    /// Follows the rule that has found most, if it has found so many more that this is not
    /// chance.
    fn choose(&self) {
        let of = |rule: usize| self.found[rule].load(Relaxed);
        let current = self.choice();
        // Of equal ones the first.
        let best = (0..RULES.len()).rev().max_by_key(|rule| of(*rule)).unwrap_or(current);
        let most = of(best);
        let chance = 2 + most.isqrt() / 2 + most / 512;
        if most.saturating_sub(of(current)) > chance {
            self.choice.store(best, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(arbiter: &Arbiter, uses: u32, found: impl Fn(u32) -> u32) {
        for n in 0..uses {
            arbiter.record(found(n));
        }
    }

    #[test]
    fn the_rule_that_finds_more_is_followed_until_another_does() {
        let arbiter = Arbiter::default();
        see(&arbiter, 10 * WINDOW, |_| (1 << RULES.len()) - 1);
        assert_eq!(arbiter.choice(), 0, "all are alike");
        see(&arbiter, WINDOW, |n| 1 | u32::from(n % 8 == 0) << 1 | 1 << 4);
        assert_eq!(arbiter.choice(), 0, "another finds as much");
        see(&arbiter, WINDOW, |n| if n % 16 == 0 { 1 << 4 } else { 1 | 1 << 4 });
        assert_eq!(arbiter.choice(), 4);
        see(&arbiter, 4 * WINDOW, |n| if n % 2 == 0 { 1 } else { 0 });
        assert_eq!(arbiter.choice(), 0, "what was long ago counts less and less");
    }

    #[test]
    fn chance_changes_nothing() {
        let arbiter = Arbiter::default();
        // Two rules that find as much, in turns.
        see(&arbiter, 4 * WINDOW, |n| if n % 2 == 0 { 1 } else { 1 << 3 });
        assert_eq!(arbiter.choice(), 0);
    }

    #[test]
    fn parts_tell_each_other_of_uses() {
        let arbiter = Arbiter::default();
        assert_eq!((arbiter.tell(3), arbiter.tell(u32::MAX), arbiter.now()), (3, 2, 2));
    }
}
