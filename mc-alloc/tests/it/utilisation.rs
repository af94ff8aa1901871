//! How much of a pool can be used before an allocation fails, after long churn.
//!
//! Method: allocate without end. Each time an allocation fails, free live allocations
//! chosen at random, one or a share of them, and try again.

use mc_alloc::{Allocation, OffsetAllocator};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const ROUNDS: usize = 55_000;
const SEED: u64 = 20_240_815;

struct Churn {
    space: OffsetAllocator,
    live: Vec<Allocation>,
    random: fastrand::Rng,
    align: u64,
    /// The part of the live allocations that is freed when an allocation fails; at
    /// least one is.
    evicted: f64,
    /// Utilisation at each failure.
    at_failures: Mean,
    /// Utilisation after each success.
    at_successes: Mean,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    fn value(&self) -> f64 {
        self.sum / self.count
    }
}

impl Churn {
    fn new(pool: u64, evicted: f64) -> Self {
        println!("seed {SEED}");
        Self {
            space: OffsetAllocator::new(pool),
            live: Vec::new(),
            random: fastrand::Rng::with_seed(SEED),
            align: 1,
            evicted,
            at_failures: Mean::default(),
            at_successes: Mean::default(),
        }
    }

    fn utilisation(&self) -> f64 {
        self.space.used() as f64 / self.space.capacity() as f64
    }

    fn free_one(&mut self) {
        let victim = self.random.usize(..self.live.len());
        self.space.free(self.live.swap_remove(victim)).expect("it is live");
    }

    fn put(&mut self, size: u64) {
        loop {
            if let Ok(allocation) = self.space.allocate_aligned(size, self.align) {
                self.live.push(allocation);
                self.at_successes.add(self.utilisation());
                return;
            }
            self.at_failures.add(self.utilisation());
            let victims = (self.live.len() as f64 * self.evicted) as usize;
            for _ in 0..victims.max(1) {
                self.free_one();
            }
        }
    }

    /// Forgets what was measured: what follows is the steady state.
    fn measure_from_here(&mut self) {
        self.at_failures = Mean::default();
        self.at_successes = Mean::default();
    }
}

/// Sizes around powers of two, which match no size class.
fn awkward_sizes(exponents: std::ops::RangeInclusive<u32>) -> impl Iterator<Item = u64> {
    exponents.flat_map(|exponent| {
        let power = 1_u64 << exponent;
        [power - 17, power, power + 17, power / 10 * 9, power / 10 * 11]
    })
}

#[test]
fn one_size_fills_all_but_the_remainder() {
    let pool = 64 * MIB;
    let mut lowest = f64::INFINITY;
    for size in awkward_sizes(9..=25) {
        let whole = (pool / size * size) as f64 / pool as f64;
        let count = (pool / size) as usize;
        let mut churn = Churn::new(pool, 0.0);
        while let Ok(allocation) = churn.space.allocate(size) {
            churn.live.push(allocation);
        }
        assert_eq!(churn.live.len(), count, "size {size}");
        // Random holes, filled again.
        for _ in 0..10 {
            for _ in 0..count / 2 {
                churn.free_one();
            }
            for _ in 0..count / 2 {
                churn.put(size);
            }
        }
        churn.measure_from_here();
        for _ in 0..count.clamp(10, 10_000) {
            churn.put(size);
        }
        let reached = churn.at_failures.value().min(churn.at_successes.value());
        assert!(reached >= 0.995 * whole, "size {size}: {reached} of {whole}");
        lowest = lowest.min(reached / whole);
    }
    println!("one size: {lowest:.4} of the whole objects at worst");
}

/// The cache of a model with sparse attention: blocks of keys and values, and blocks
/// of its indexer, which come in runs of each.
#[test]
fn two_sizes_in_runs() {
    let mut churn = Churn::new(TIB, 0.05);
    for round in 0..ROUNDS {
        if round == ROUNDS / 5 {
            churn.measure_from_here();
        }
        let run = churn.random.usize(1..=128);
        for size in [3_274_752, 643 * KIB] {
            for _ in 0..run {
                churn.put(size);
            }
        }
    }
    let reached = churn.at_failures.value();
    println!("pair: {reached:.4}");
    assert!(reached >= 0.998, "{reached}");
}

#[test]
fn random_sizes_from_a_kibibyte_to_64_mebibytes() {
    let mut churn = Churn::new(2 * GIB, 0.0);
    for round in 0..200_000 {
        if round == 20_000 {
            churn.measure_from_here();
        }
        let size = churn.random.u64(KIB..=64 * MIB);
        churn.put(size);
    }
    let reached = churn.at_successes.value();
    println!("random: {reached:.4} at failures {:.4}", churn.at_failures.value());
    assert!(reached >= 0.86, "{reached}");
}

#[test]
fn an_alignment_that_divides_every_size_changes_nothing() {
    let page = 4 * KIB;
    let [aligned, unaligned] = [page, 1].map(|align| {
        let mut churn = Churn::new(2 * GIB, 0.0);
        churn.align = align;
        for _ in 0..50_000 {
            let size = page * churn.random.u64(1..=16_384);
            churn.put(size);
        }
        churn.space.snapshot()
    });
    assert_eq!(aligned, unaligned);
}

/// No size is a multiple of the alignment, so almost every allocation leaves a pad.
#[test]
fn random_sizes_at_multiples_of_a_page() {
    let mut churn = Churn::new(2 * GIB, 0.0);
    churn.align = 4 * KIB;
    for round in 0..200_000 {
        if round == 20_000 {
            churn.measure_from_here();
        }
        let size = churn.random.u64(KIB..=64 * MIB);
        churn.put(size);
    }
    let reached = churn.at_successes.value();
    println!("random, aligned: {reached:.4}");
    assert!(reached >= 0.86, "{reached}");
}
