//! One suite that every strategy passes.

use std::collections::BTreeSet;

use mc_alloc::strategy::{DEFAULT_RETRIES, DynAllocationStrategy, RandomStrategy, RoundRobin};
use proptest::prelude::*;

use super::*;

/// One request and the cluster that it is made to.
#[derive(Debug)]
struct Case {
    cluster: Cluster,
    preferred: Vec<usize>,
    excluded: Vec<usize>,
    holders: Vec<usize>,
    wanted: usize,
    size: u64,
    seed: u64,
    turn: u64,
}

impl Case {
    fn request(&self) -> Request<'_> {
        Request::new(self.cluster.segments.len(), self.seed)
            .view(&self.cluster)
            .preferred(&self.preferred)
            .excluded(&self.excluded)
            .holders(&self.holders)
            .wanted(self.wanted)
            .size(self.size)
            .turn(self.turn)
    }

    fn permitted(&self) -> BTreeSet<usize> {
        let taken = |at: &usize| self.excluded.contains(at) || self.holders.contains(at);
        (0..self.cluster.segments.len()).filter(|at| !taken(at)).collect()
    }

    /// The preferred segments that may be used, as a strategy should offer them.
    fn first(&self, permitted: &BTreeSet<usize>) -> Vec<usize> {
        let mut first = Vec::new();
        for &at in &self.preferred {
            if permitted.contains(&at) && !first.contains(&at) {
                first.push(at);
            }
        }
        first
    }
}

fn case() -> impl Strategy<Value = Case> {
    let described = (0_u64..1000, 0_u64..1000, 0_u64..1000, 0_u64..4).prop_map(
        |(capacity, available, largest_free, host)| Described {
            capacity,
            available,
            largest_free,
            host,
        },
    );
    let indices = |most| proptest::collection::vec(0_usize..45, 0..most);
    // The answers need not agree with each other, nor name segments that exist once
    // and only once: a strategy bears a view that is out of date.
    let cluster = (
        proptest::collection::vec(described, 0..40),
        proptest::collection::vec(indices(20), 0..20),
    );
    (
        cluster,
        (indices(6), indices(40), indices(4)),
        0_usize..5,
        0_u64..1000,
        any::<u64>(),
        any::<u64>(),
    )
        .prop_map(|((segments, near), named, wanted, size, seed, turn)| {
            let (preferred, excluded, mut holders) = named;
            // Replicas are in segments that exist.
            holders.retain(|at| *at < segments.len());
            let cluster = Cluster { segments, near, ..Cluster::default() };
            Case { cluster, preferred, excluded, holders, wanted, size, seed, turn }
        })
}

/// Checks the promises of every strategy with its default settings.
fn conforms(name: &str, strategy: &dyn DynAllocationStrategy, case: &Case) {
    let offered = order(strategy, case.request());
    assert_eq!(offered, order(strategy, case.request()), "{name}: equal requests, equal answers");

    let permitted = case.permitted();
    let distinct: BTreeSet<usize> = offered.iter().copied().collect();
    assert_eq!(distinct.len(), offered.len(), "{name}: an index came twice");
    assert!(distinct.is_subset(&permitted), "{name}: {offered:?} beyond {permitted:?}");

    let first = case.first(&permitted);
    assert_eq!(offered[..first.len()], first, "{name}: preferred first, in their order");

    let others = permitted.len() - first.len();
    let promised = others.min(DEFAULT_RETRIES * case.wanted);
    assert!(offered.len() - first.len() >= promised, "{name}: too few are offered");

    let mut candidates = strategy.candidates_boxed(case.request());
    assert_eq!(candidates.by_ref().count(), offered.len());
    assert_eq!(candidates.next(), None, "{name}: what has ended stays so");
}

/// Checks the promises of a strategy that tries a number of others at random or in turn.
fn tries_as_many_as_promised(
    strategy: &dyn DynAllocationStrategy,
    retries: usize,
    case: &Case,
) -> Result<(), TestCaseError> {
    let permitted = case.permitted();
    let first = case.first(&permitted).len();
    let others = permitted.len() - first;
    let offered = order(strategy, case.request()).len() - first;
    prop_assert_eq!(offered, others.min(retries * case.wanted));
    Ok(())
}

proptest! {
    #[test]
    fn every_strategy_conforms(case in case()) {
        for (name, strategy) in all() {
            conforms(name, &*strategy, &case);
        }
    }

    #[test]
    fn retries_are_bounded(case in case(), retries in 0_usize..20) {
        tries_as_many_as_promised(&RandomStrategy::new(retries), retries, &case)?;
        tries_as_many_as_promised(&RoundRobin::new(retries), retries, &case)?;
    }
}

#[test]
fn where_all_are_excluded_none_is_offered() {
    let cluster = with_free([10; 8]);
    let everything: Vec<usize> = (0..8).collect();
    for (name, strategy) in all() {
        let request = Request::new(8, 1).view(&cluster).wanted(3).preferred(&[2]);
        assert_eq!(order(&*strategy, request.excluded(&everything)), [], "{name}");
        assert_eq!(order(&*strategy, request.holders(&everything)), [], "{name}");
        assert_eq!(order(&*strategy, Request::new(0, 1).preferred(&[0])), [], "{name}");
    }
}

#[test]
fn a_bare_count_is_enough() {
    for (name, strategy) in all() {
        let mut offered = order(&*strategy, Request::new(6, 1));
        offered.sort_unstable();
        assert_eq!(offered, [0, 1, 2, 3, 4, 5], "{name}");
    }
}

#[test]
fn the_seed_decides() {
    for (name, strategy) in all() {
        let orders: BTreeSet<Vec<usize>> =
            (0..20).map(|seed| order(&*strategy, Request::new(1000, seed))).collect();
        assert!(orders.len() > 15, "{name}");
    }
}

/// The work is in the candidates, not in the segments.
#[test]
fn of_many_segments_few_are_asked_about() {
    let mut cluster = with_free((0..100_000).map(|n| n % 1000));
    cluster.near = vec![vec![7, 8], (1000..2000).collect()];
    // Most questions for three replicas: 18 are sampled, two answers to each.
    for ((name, strategy), most) in all().into_iter().zip([0, 0, 36, 18, 3]) {
        let request = Request::new(100_000, 5).view(&cluster).wanted(3);
        assert_eq!(strategy.candidates_boxed(request).take(3).count(), 3);
        let asked = cluster.questions();
        assert!(asked <= most, "{name} asked {asked} times");
        // All are refused, and the strategy gives up.
        assert!(strategy.candidates_boxed(request).count() < 100, "{name}");
        assert!(cluster.questions() <= 4 * most, "{name}");
    }
    // More than could be walked through.
    for (name, strategy) in all() {
        let request = Request::new(usize::MAX, 5).wanted(3);
        assert_eq!(strategy.candidates_boxed(request).take(30).count(), 30, "{name}");
    }
}
