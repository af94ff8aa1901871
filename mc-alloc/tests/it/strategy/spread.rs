//! Where the replicas of one object go.

use std::collections::BTreeSet;

use mc_alloc::strategy::place;
use proptest::prelude::*;

use super::*;

/// Segments on these hosts, with room everywhere.
fn on_hosts(hosts: impl IntoIterator<Item = u64>) -> Cluster {
    let mut cluster = with_free(hosts.into_iter().map(|host| 100 + host));
    for segment in &mut cluster.segments {
        segment.host = segment.available - 100;
    }
    cluster
}

/// The segments of the replicas, when `has_room` tells where there is room.
fn placed(
    strategy: &dyn DynAllocationStrategy,
    request: Request<'_>,
    has_room: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let candidates = strategy.candidates_boxed(request);
    place(request, candidates, |at| has_room(at).then_some(())).map(|(at, ())| at).collect()
}

#[test]
fn two_hosts_of_three_segments_hold_three_replicas() {
    let cluster = on_hosts([0, 0, 0, 1, 1, 1]);
    for (name, strategy) in all() {
        for seed in 0..100 {
            let request = Request::new(6, seed).view(&cluster).wanted(3);
            let segments = placed(&*strategy, request, |_| true);
            assert_eq!(segments.iter().collect::<BTreeSet<_>>().len(), 3, "{name}");
            let hosts: Vec<u64> = segments.iter().map(|at| cluster.segments[*at].host).collect();
            // The first two apart, the third beside one of them.
            assert_ne!(hosts[0], hosts[1], "{name} {seed}: {segments:?}");
        }
    }
}

#[test]
fn one_host_is_better_than_fewer_replicas() {
    let cluster = on_hosts([0, 0, 0, 1]);
    for (name, strategy) in all() {
        let request = Request::new(4, 3).view(&cluster).wanted(3);
        let segments = placed(&*strategy, request, |at| at != 3);
        assert_eq!(segments.iter().collect::<BTreeSet<_>>().len(), 3, "{name}");
        // And one replica is better than none.
        assert_eq!(placed(&*strategy, request, |at| at == 1), [1], "{name}");
        assert_eq!(placed(&*strategy, request, |_| false), [], "{name}");
        assert_eq!(placed(&*strategy, request.wanted(0), |_| true), [], "{name}");
    }
}

#[test]
fn preferred_segments_are_used_though_they_share_a_host() {
    let cluster = on_hosts([0, 0, 1, 2]);
    for (name, strategy) in all() {
        let request = Request::new(4, 3).view(&cluster).wanted(3).preferred(&[1, 0]);
        assert_eq!(placed(&*strategy, request, |_| true)[..2], [1, 0], "{name}");
    }
}

#[test]
fn a_replica_that_is_added_keeps_clear_of_those_that_are_there() {
    let cluster = on_hosts([0, 0, 1, 1, 2, 2]);
    for (name, strategy) in all() {
        for seed in 0..50 {
            let request = Request::new(6, seed).view(&cluster).holders(&[0, 3]);
            let added = placed(&*strategy, request, |_| true);
            assert!(added == [4] || added == [5], "{name}: {added:?}");
            // Where the third host is full, another segment of the first two will do.
            let added = placed(&*strategy, request, |at| at < 4);
            assert!(added == [1] || added == [2], "{name}: {added:?}");
        }
    }
}

#[test]
fn one_replica_asks_nothing_and_tries_no_more_than_it_needs() {
    let cluster = on_hosts([0; 100]);
    let request = Request::new(100, 1).view(&cluster);
    let mut tried = Vec::new();
    let replicas = place(request, [5, 9, 9, 200, 11, 12], |at| {
        tried.push(at);
        (at == 11).then_some("here")
    });
    assert_eq!(replicas.collect::<Vec<_>>(), [(11, "here")]);
    assert_eq!(tried, [5, 9, 9, 11]);
    assert_eq!(cluster.questions(), 0);
}

proptest! {
    /// Whatever the candidates, replicas are as many and as far apart as they allow.
    #[test]
    fn replicas_are_on_as_many_hosts_as_the_candidates_allow(
        hosts in proptest::collection::vec(0_u64..5, 1..20),
        room in proptest::collection::vec(any::<bool>(), 20),
        candidates in proptest::collection::vec(0_usize..22, 0..40),
        excluded in proptest::collection::vec(0_usize..20, 0..4),
        wanted in 0_usize..6,
    ) {
        let cluster = on_hosts(hosts.iter().copied());
        let request = Request::new(hosts.len(), 0).view(&cluster).wanted(wanted);
        let request = request.excluded(&excluded);
        let mut tries = 0;
        let segments: Vec<usize> = place(request, candidates.iter().copied(), |at| {
            tries += 1;
            room[at].then_some(())
        })
        .map(|(at, ())| at)
        .collect();
        prop_assert!(tries <= candidates.len());
        // A candidate's host is looked up once, and once more when it is used.
        prop_assert!(cluster.questions() <= candidates.len() + wanted);

        let usable: BTreeSet<usize> = candidates
            .iter()
            .copied()
            .filter(|at| *at < hosts.len() && room[*at] && !excluded.contains(at))
            .collect();
        let distinct: BTreeSet<usize> = segments.iter().copied().collect();
        prop_assert_eq!(distinct.len(), segments.len());
        prop_assert!(distinct.is_subset(&usable));
        prop_assert_eq!(segments.len(), wanted.min(usable.len()));
        let count = |segments: &BTreeSet<usize>| {
            segments.iter().map(|at| hosts[*at]).collect::<BTreeSet<u64>>().len()
        };
        prop_assert_eq!(count(&distinct), wanted.min(count(&usable)));
    }
}
