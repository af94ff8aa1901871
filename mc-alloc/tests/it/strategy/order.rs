//! In which order each strategy offers segments, and how load spreads by it.

use mc_alloc::strategy::{
    AllocationStrategy as _, DEFAULT_SAMPLE, FreeRatioFirst, LeastFragmented, LocalFirst,
    RoundRobin, place,
};

use super::*;

#[test]
fn a_round_begins_where_the_one_before_ended() {
    let strategy = RoundRobin::default();
    let pairs: Vec<Vec<usize>> = (0..4)
        .map(|turn| {
            let request = Request::new(5, 99).wanted(2).turn(turn);
            order(&strategy, request)[..2].to_vec()
        })
        .collect();
    assert_eq!(pairs, [[0, 1], [2, 3], [4, 0], [1, 2]]);
    // Far along, and past what a usize counts.
    let request = Request::new(10, 0).wanted(3).turn(u64::MAX);
    assert_eq!(order(&strategy, request)[0] as u128, u128::from(u64::MAX) * 3 % 10);
}

#[test]
fn rounds_load_all_segments_alike() {
    let mut load = [0; 7];
    for turn in 0..7 * 11 {
        let request = Request::new(7, turn);
        for (at, ()) in place(request, RoundRobin::default().candidates(request), |_| Some(())) {
            load[at] += 1;
        }
    }
    assert_eq!(load, [11; 7]);
}

#[test]
fn the_emptier_part_of_a_sample_comes_first() {
    let mut cluster = with_free([100, 300, 500, 700, 0, 900, 800, 600, 400, 200, 150, 250]);
    // A small segment is as good as a large one with the same part free.
    cluster.segments[4] = Described { capacity: 10, available: 10, ..cluster.segments[4] };
    for seed in 0..200 {
        let request = Request::new(12, seed).view(&cluster);
        let sample = &order(&FreeRatioFirst::default(), request)[..DEFAULT_SAMPLE];
        let ratio = |at: &usize| {
            let segment = &cluster.segments[*at];
            segment.available as f64 / segment.capacity as f64
        };
        assert!(sample.is_sorted_by(|a, b| ratio(a) >= ratio(b)), "{sample:?}");

        // Unless the object does not fit there.
        let sample = &order(&FreeRatioFirst::default(), request.size(500))[..DEFAULT_SAMPLE];
        let fits = |at: &usize| cluster.segments[*at].available >= 500;
        assert!(sample.is_sorted_by_key(|at| !fits(at)), "{sample:?}");
    }
}

#[test]
fn the_largest_region_of_a_sample_comes_first() {
    let mut cluster = with_free([900; 12]);
    for (segment, largest_free) in cluster.segments.iter_mut().zip([5, 9, 1, 7, 3, 8, 2, 6]) {
        segment.largest_free = largest_free;
    }
    for seed in 0..200 {
        let request = Request::new(12, seed).view(&cluster);
        let sample = &order(&LeastFragmented::default(), request)[..DEFAULT_SAMPLE];
        let largest = |at: &usize| cluster.segments[*at].largest_free;
        assert!(sample.is_sorted_by(|a, b| largest(a) >= largest(b)), "{sample:?}");
    }
}

#[test]
fn the_nearest_come_first_and_at_random() {
    let mut cluster = with_free([10; 12]);
    // The rings of the caller may overlap.
    cluster.near = vec![vec![3, 8], vec![3, 5, 6, 8], vec![], vec![9]];
    let mut firsts = [0; 12];
    for seed in 0..200 {
        let request = Request::new(12, seed).view(&cluster);
        let mut offered = order(&LocalFirst::default(), request);
        firsts[offered[0]] += 1;
        assert_eq!(offered.len(), 12);
        offered[..2].sort_unstable();
        offered[2..4].sort_unstable();
        assert_eq!(offered[..5], [3, 8, 5, 6, 9]);
    }
    assert!(firsts[3].min(firsts[8]) > 60, "{firsts:?}");
}

#[test]
fn a_full_rack_does_not_hide_the_others() {
    let mut cluster = with_free([10; 100]);
    cluster.near = vec![vec![0], (1..90).collect()];
    let offered = order(&LocalFirst::new(5), Request::new(100, 1).view(&cluster));
    assert_eq!(offered.len(), 1 + 5 + 5);
    assert_eq!(offered[0], 0);
    assert!(offered[1..6].iter().all(|at| (1..90).contains(at)));
}

/// Returns the part of `puts` that goes to segment 0 when it is empty and the others are at 0.9.
fn part_of_the_empty(strategy: &dyn DynAllocationStrategy, segments: usize, puts: u64) -> f64 {
    let cluster = with_free((0..segments).map(|at| if at == 0 { 1000 } else { 100 }));
    let first = |seed| {
        let request = Request::new(segments, seed).view(&cluster).size(10);
        strategy.candidates_boxed(request).next()
    };
    (0..puts).filter(|seed| first(*seed) == Some(0)).count() as f64 / puts as f64
}

#[test]
fn a_node_that_comes_back_empty_does_not_get_everything() {
    let strategies: [&dyn DynAllocationStrategy; 2] =
        [&FreeRatioFirst::default(), &LeastFragmented::default()];
    for strategy in strategies {
        for (segments, sample) in [(4, 2.0), (8, 4.0), (12, 6.0), (100, 6.0), (1000, 6.0)] {
            let part = part_of_the_empty(strategy, segments, 20_000);
            let shares = part * segments as f64;
            // More than its share, or it would stay empty; the sample bounds it. Five
            // standard deviations of 20,000 draws at one in a thousand are 8 %.
            assert!(shares > 0.8 * sample && shares < 1.2 * sample, "{segments}: {shares}");
            assert!(part < 0.55);
        }
    }
}

#[test]
fn free_space_evens_out() {
    // One node of eight comes back empty while each put replaces a random object.
    let mut free = [100_u64; 8];
    free[0] = 1000;
    let mut random = fastrand::Rng::with_seed(5);
    let strategy = FreeRatioFirst::default();
    for seed in 0..4000 {
        let cluster = with_free(free);
        let request = Request::new(8, seed).view(&cluster).size(1);
        let candidates = strategy.candidates(request);
        let place_in = |at: usize| free[at].checked_sub(1).map(|less| free[at] = less);
        assert_eq!(place(request, candidates, place_in).count(), 1);
        let victim = loop {
            let at = random.usize(..8);
            if random.u64(..1000) >= free[at] {
                break at;
            }
        };
        free[victim] += 1;
    }
    let (least, most) = (free.iter().min(), free.iter().max());
    assert!(most.zip(least).is_some_and(|(most, least)| most - least < 100), "{free:?}");
}
