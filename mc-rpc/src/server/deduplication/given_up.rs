//! Tokens of calls that were executed and whose answers are not kept.

/// Ranges that are told apart.
const MAX_RANGES: usize = 256;

/// A set of tokens, as ranges of both ends in ascending order. Tokens are given out one
/// after the other, so that the ranges are few. When they are not, the gap between the two
/// lowest counts as part of them: a call with a token from there is refused and not
/// executed.
#[derive(Debug, Default)]
pub(super) struct GivenUp(Vec<(u64, u64)>);

impl GivenUp {
    /// Every token up to `highest`.
    pub(super) fn up_to(highest: u64) -> Self {
        Self(vec![(0, highest)])
    }

    pub(super) fn highest(&self) -> Option<u64> {
        self.0.last().map(|(_, last)| *last)
    }

    pub(super) fn contains(&self, token: u64) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= token);
        after.checked_sub(1).is_some_and(|at| token <= self.0[at].1)
    }

    pub(super) fn insert(&mut self, token: u64) {
        let ranges = &mut self.0;
        let at = ranges.partition_point(|(first, _)| *first <= token);
        let before = at.checked_sub(1).map(|at| ranges[at].1);
        if before.is_some_and(|last| token <= last) {
            return;
        }
        let joins_before = before.is_some_and(|last| last + 1 == token);
        let joins_after = ranges.get(at).is_some_and(|(first, _)| token + 1 == *first);
        match (joins_before, joins_after) {
            (true, true) => {
                ranges[at - 1].1 = ranges[at].1;
                ranges.remove(at);
            }
            (true, false) => ranges[at - 1].1 = token,
            (false, true) => ranges[at].0 = token,
            (false, false) => ranges.insert(at, (token, token)),
        }
        if ranges.len() > MAX_RANGES {
            ranges[1].0 = ranges[0].0;
            ranges.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn ends_of_the_range_of_tokens() {
        let mut given_up = GivenUp::default();
        for token in [u64::MAX, 0, u64::MAX - 1, 1] {
            assert!(!given_up.contains(token));
            given_up.insert(token);
            assert!(given_up.contains(token));
        }
        assert_eq!(given_up.0, [(0, 1), (u64::MAX - 1, u64::MAX)]);
        given_up.insert(u64::MAX);
        assert_eq!((given_up.0.len(), given_up.highest()), (2, Some(u64::MAX)));
    }

    #[test]
    fn gaps_are_bounded_and_the_lowest_are_closed() {
        let mut given_up = GivenUp::default();
        for token in (0..10_000).step_by(2) {
            given_up.insert(token);
        }
        assert_eq!(given_up.0.len(), MAX_RANGES);
        assert!(given_up.contains(1) && !given_up.contains(9_997));
    }

    proptest! {
        #[test]
        fn it_is_the_set_while_it_has_few_ranges(
            tokens in prop::collection::vec(0..400_u64, 0..200),
        ) {
            let mut given_up = GivenUp::default();
            for &token in &tokens {
                given_up.insert(token);
            }
            let set: BTreeSet<u64> = tokens.into_iter().collect();
            for token in 0..400 {
                prop_assert_eq!(given_up.contains(token), set.contains(&token));
            }
        }
    }
}
