//! The rules by which a cache can give things up.

use super::classes::{CLASSES, Classes};
use crate::policy::Handle;

/// Which thing goes first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// The one that was not used for the longest time for its weight; but one that was used
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

/// What a rule gives up first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub(super) handle: Handle,
    /// Of two parts of a cache, the one whose victim has more of it loses it.
    pub(super) urgency: u64,
}

/// The urgency of what goes before all that is ranked by its age.
const FIRST: u64 = 1 << 63;

impl Rule {
    /// The thing that goes first; `None` only when there is none.
    pub(super) fn victim(&self, things: &Classes, now: u32) -> Option<Victim> {
        match self {
            Self::Newest => (0..CLASSES).find_map(|class| {
                let handle = things.hottest(class)?;
                let rank = (CLASSES - class) as u64;
                Some(Victim { handle, urgency: rank << 32 | u64::from(!age(things, handle, now)) })
            }),
            Self::Oldest { weights, probation } => {
                let over = |part: u32| things.len_of(0) * 256 > things.len() * part as usize;
                if probation.is_some_and(over) {
                    let handle = things.coldest(0)?;
                    let urgency = FIRST | u64::from(age(things, handle, now));
                    return Some(Victim { handle, urgency });
                }
                oldest(weights, things, now)
            }
        }
    }
}

fn age(things: &Classes, handle: Handle, now: u32) -> u32 {
    things.get(handle).map_or(0, |node| now.wrapping_sub(node.used))
}

fn oldest(weights: &[u32; CLASSES], things: &Classes, now: u32) -> Option<Victim> {
    let mut oldest: Option<Victim> = None;
    for (class, weight) in weights.iter().enumerate() {
        let Some(handle) = things.coldest(class) else { continue };
        // With as many digits after the point as leave it below `FIRST`.
        let urgency = (u64::from(age(things, handle, now)) << 24) / u64::from(*weight);
        if oldest.is_none_or(|oldest| urgency > oldest.urgency) {
            oldest = Some(Victim { handle, urgency });
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

    /// What each rule gives up first at `now`.
    fn victims(classes: &[usize], now: u32) -> Vec<Handle> {
        let things = things(classes);
        let victim = |rule: &Rule| rule.victim(&things, now).map(|victim| victim.handle);
        RULES.iter().map(|rule| victim(rule).unwrap()).collect()
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

    #[test]
    fn the_part_with_the_more_urgent_victim_is_known() {
        let (young, old) = (things(&[0, 1]), things(&[0, 0, 1]));
        for rule in &RULES[..5] {
            let urgency = |things: &Classes, now| rule.victim(things, now).unwrap().urgency;
            assert!(urgency(&old, 9) > urgency(&young, 8), "{rule:?}");
        }
        // What is on probation goes before all that is not.
        let urgency = |things: &Classes, now| RULES[3].victim(things, now).unwrap().urgency;
        assert!(urgency(&things(&[0]), 2) > urgency(&things(&[1; 20]), u32::MAX));
        let newest = |things: &Classes| RULES[5].victim(things, 9).unwrap().urgency;
        assert!(newest(&things(&[0])) > newest(&things(&[1, 1, 1])));
    }
}
