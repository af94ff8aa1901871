//! The rules by which a cache can give things up.

use super::classes::{CLASSES, Classes};
use crate::policy::Handle;

/// A rule for the order of eviction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// The entry that was unused for the longest time for its weight; but one that was used
    /// once when these are more than `probation` in 256 of all.
    Oldest {
        /// How much longer the things of a class are kept than those of the first.
        weights: [u32; CLASSES],
        probation: Option<u32>,
    },
    /// The newest of the lowest class.
    Newest,
}

/// All rules, the one by which a cache begins first.
pub(super) const RULES: [Rule; 6] = [
    Rule::Oldest { weights: powers(0), probation: None },
    Rule::Oldest { weights: powers(1), probation: None },
    Rule::Oldest { weights: powers(4), probation: None },
    Rule::Oldest { weights: powers(1), probation: Some(26) },
    Rule::Oldest { weights: powers(1), probation: Some(0) },
    Rule::Newest,
];

/// Uses, to this power.
const fn powers(exponent: u32) -> [u32; CLASSES] {
    let mut weights = [1; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        weights[class] = (class as u32 + 1).pow(exponent);
        class += 1;
    }
    weights
}

impl Rule {
    /// The thing that goes first; `None` only when there is none.
    pub(super) fn victim(&self, things: &Classes, now: u32) -> Option<Handle> {
        match self {
            Self::Newest => (0..CLASSES).find_map(|class| things.hottest(class)),
            Self::Oldest { weights, probation } => {
                let over = |part: u32| things.len_of(0) * 256 > things.len() * part as usize;
                if probation.is_some_and(over) {
                    return things.coldest(0);
                }
                oldest(weights, things, now)
            }
        }
    }
}

fn oldest(weights: &[u32; CLASSES], things: &Classes, now: u32) -> Option<Handle> {
    let mut oldest = None;
    // Two quotients of age and weight, the first of which is that of nothing, are compared without a division:
    // ages are below 2^32, and weights too.
    let (mut most, mut per) = (0, 1);
    for (class, handle) in things.coldest_of_each() {
        let age = u64::from(things.get(handle).map_or(0, |node| now.wrapping_sub(node.used)));
        let weight = u64::from(weights[class]);
        if oldest.is_none() || age * per > most * weight {
            (oldest, most, per) = (Some(handle), age, weight);
        }
    }
    oldest
}

#[cfg(test)]
mod tests {
    use super::super::classes::Node;
    use super::*;
    use alloc::vec::Vec;

    /// Things that were used at 1, 2, 3, …, of these classes.
    fn things(classes: &[usize]) -> Classes {
        let mut things = Classes::new();
        for (handle, class) in classes.iter().enumerate() {
            things.put(handle as Handle, Node::new(8, *class, handle as u32 + 1));
        }
        things
    }

    /// Returns the first victim of each rule at `now`.
    fn victims(classes: &[usize], now: u32) -> Vec<Handle> {
        let things = things(classes);
        RULES.iter().map(|rule| rule.victim(&things, now).unwrap()).collect()
    }

    #[test]
    fn rules_differ_in_what_uses_are_worth() {
        // Of class 7 and used at 1, of class 1 at 3, of class 0 at 6 and 7.
        let classes = [7, 7, 1, 1, 1, 0, 0];
        assert_eq!(victims(&classes, 7), [0, 2, 5, 5, 5, 6]);
        // The older all are, the less does it matter when the latest were used.
        assert_eq!(victims(&classes, 1000), [0, 5, 5, 5, 5, 6]);
        assert!(RULES.iter().all(|rule| rule.victim(&Classes::new(), 7).is_none()));
    }

    #[test]
    fn what_was_used_once_is_on_probation() {
        // Three of 31 are less than a tenth, one more is not.
        let mut classes = [1; 31].to_vec();
        classes[28..].fill(0);
        assert_eq!(victims(&classes, 32)[3..5], [0, 28]);
        classes[27] = 0;
        assert_eq!(victims(&classes, 32)[3..5], [27, 27]);
    }
}
