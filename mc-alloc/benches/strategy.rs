//! The cost of choosing among a thousand segments: the first candidate of a placement
//! of one replica, and the first three of a placement of three.
//!
//! `cargo bench -p mc-alloc --bench strategy`. Segments are asked through a view that
//! reads a list of plain numbers, so the time is the strategy's own.

use std::hint::black_box;

use criterion::{Bencher, Criterion, criterion_group, criterion_main};
use mc_alloc::strategy::{
    AllocationStrategy, FreeRatioFirst, LeastFragmented, LocalFirst, RandomStrategy, Request,
    RoundRobin, Segments, place,
};

const SEGMENTS: usize = 1000;
const PER_HOST: usize = 8;

struct Cluster {
    available: Vec<u64>,
    /// The writer's host and its rack.
    near: [Vec<usize>; 2],
}

impl Cluster {
    fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(7);
        Self {
            available: (0..SEGMENTS).map(|_| random.u64(1..1 << 30)).collect(),
            near: [(0..PER_HOST).collect(), (PER_HOST..20 * PER_HOST).collect()],
        }
    }
}

impl Segments for Cluster {
    fn capacity(&self, _: usize) -> u64 {
        1 << 30
    }

    fn available(&self, segment: usize) -> u64 {
        self.available[segment]
    }

    fn host(&self, segment: usize) -> u64 {
        (segment / PER_HOST) as u64
    }

    fn near(&self, distance: u32) -> Option<&[usize]> {
        self.near.get(distance as usize).map(Vec::as_slice)
    }
}

/// Takes as many candidates as replicas are wanted.
fn take(b: &mut Bencher<'_>, strategy: &impl AllocationStrategy, cluster: &Cluster, wanted: usize) {
    let mut seed = 0;
    b.iter(|| {
        seed += 1;
        let request = Request::new(SEGMENTS, seed).view(cluster).wanted(wanted).size(4096);
        strategy.candidates(black_box(request)).take(wanted).sum::<usize>()
    });
}

/// The same, and keeps replicas on distinct hosts.
fn spread(
    b: &mut Bencher<'_>,
    strategy: &impl AllocationStrategy,
    cluster: &Cluster,
    wanted: usize,
) {
    let mut seed = 0;
    b.iter(|| {
        seed += 1;
        let request = Request::new(SEGMENTS, seed).view(cluster).wanted(wanted).size(4096);
        let candidates = strategy.candidates(black_box(request));
        place(request, candidates, Some).map(|(segment, _)| segment).sum::<usize>()
    });
}

fn each(c: &mut Criterion, name: &str, strategy: &impl AllocationStrategy) {
    let cluster = Cluster::new();
    let mut group = c.benchmark_group(name);
    for wanted in [1, 3] {
        group.bench_function(format!("candidates/{wanted}"), |b| {
            take(b, strategy, &cluster, wanted);
        });
        group.bench_function(format!("place/{wanted}"), |b| spread(b, strategy, &cluster, wanted));
    }
    group.finish();
}

fn strategies(c: &mut Criterion) {
    each(c, "random", &RandomStrategy::default());
    each(c, "round-robin", &RoundRobin::default());
    each(c, "free-ratio-first", &FreeRatioFirst::default());
    each(c, "least-fragmented", &LeastFragmented::default());
    each(c, "local-first", &LocalFirst::default());
}

criterion_group!(benches, strategies);
criterion_main!(benches);
