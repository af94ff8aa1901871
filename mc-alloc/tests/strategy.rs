//! What every placement of the random strategy keeps to.

use std::collections::BTreeSet;

use mc_alloc::strategy::{AllocationStrategy, RandomStrategy, Request};
use proptest::prelude::*;

proptest! {
    #[test]
    fn candidates_are_distinct_permitted_and_as_many_as_promised(
        segments in 0_usize..40,
        preferred in proptest::collection::vec(0_usize..45, 0..6),
        excluded in proptest::collection::vec(0_usize..45, 0..40),
        retries in 0_usize..50,
        seed in any::<u64>(),
    ) {
        let strategy = RandomStrategy::new(retries);
        let request = Request::new(segments, seed).preferred(&preferred).excluded(&excluded);
        let all: Vec<usize> = strategy.candidates(request).collect();
        prop_assert_eq!(&all, &strategy.candidates(request).collect::<Vec<_>>());

        let permitted: BTreeSet<usize> =
            (0..segments).filter(|segment| !excluded.contains(segment)).collect();
        let offered: BTreeSet<usize> = all.iter().copied().collect();
        prop_assert_eq!(offered.len(), all.len(), "an index came twice");
        prop_assert!(offered.is_subset(&permitted));

        let mut first = Vec::new();
        for &segment in &preferred {
            if permitted.contains(&segment) && !first.contains(&segment) {
                first.push(segment);
            }
        }
        prop_assert_eq!(&all[..first.len()], &first[..]);
        let others = permitted.len() - first.len();
        prop_assert_eq!(all.len() - first.len(), others.min(retries));
        if segments <= retries {
            prop_assert_eq!(offered, permitted);
        }
    }
}
