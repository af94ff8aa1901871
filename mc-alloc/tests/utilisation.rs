//! How much of a pool can be used before an allocation fails, after long churn.
//!
//! Method: fill the pool; then, each time an allocation fails, free one live
//! allocation chosen at random and try again. The utilisation is averaged over the
//! moments at which an allocation failed.

use mc_alloc::{Allocation, OffsetAllocator};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SEED: u64 = 20_240_815;

struct Churn {
    space: OffsetAllocator,
    live: Vec<Allocation>,
    random: fastrand::Rng,
}

impl Churn {
    fn new(pool: u64) -> Self {
        println!("seed {SEED}");
        Self {
            space: OffsetAllocator::new(pool),
            live: Vec::new(),
            random: fastrand::Rng::with_seed(SEED),
        }
    }

    fn free_one(&mut self) {
        let victim = self.random.usize(..self.live.len());
        self.space.free(self.live.swap_remove(victim)).unwrap();
    }

    /// Average utilisation over the failures met while `allocations` of sizes drawn by
    /// `size` succeed.
    fn run(&mut self, allocations: usize, size: impl Fn(&mut fastrand::Rng) -> u64) -> f64 {
        let mut sum = 0.0;
        let mut failures = 0;
        for _ in 0..allocations {
            let size = size(&mut self.random);
            loop {
                match self.space.allocate(size) {
                    Ok(allocation) => break self.live.push(allocation),
                    Err(_) => {
                        sum += self.space.report().utilisation();
                        failures += 1;
                        self.free_one();
                    }
                }
            }
        }
        sum / f64::from(failures)
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
    for size in awkward_sizes(9..=25) {
        let whole = (pool / size * size) as f64 / pool as f64;
        let count = (pool / size) as usize;
        let mut churn = Churn::new(pool);
        while let Ok(allocation) = churn.space.allocate(size) {
            churn.live.push(allocation);
        }
        assert_eq!(churn.live.len(), count, "size {size}");
        // Random holes, filled again.
        for _ in 0..10 {
            for _ in 0..count / 2 {
                churn.free_one();
            }
            churn.run(count / 2, |_| size);
        }
        let reached = churn.run(count.clamp(10, 10_000), |_| size);
        assert!(reached >= 0.995 * whole, "size {size}: {reached} of {whole}");
    }
}

#[test]
fn one_size_after_another_fills_the_pool_again() {
    let pool = 64 * MIB;
    let mut churn = Churn::new(pool);
    for size in awkward_sizes(12..=22) {
        let whole = (pool / size * size) as f64 / pool as f64;
        // Every object of the size before has been displaced once this many have come.
        while churn.live.iter().any(|allocation| allocation.extent().len() != size) {
            churn.run(1, |_| size);
        }
        churn.live.drain(..).for_each(|allocation| churn.space.free(allocation).unwrap());
        assert_eq!(churn.space.largest_free(), pool);
        while let Ok(allocation) = churn.space.allocate(size) {
            churn.live.push(allocation);
        }
        let reached = churn.run(1000, |_| size);
        assert!(reached >= 0.995 * whole, "size {size}: {reached} of {whole}");
    }
}

#[test]
fn two_sizes_of_a_model_with_a_draft_model() {
    let mut churn = Churn::new(2 * GIB);
    let pair = |random: &mut fastrand::Rng| if random.bool() { 3_274_752 } else { 658_432 };
    churn.run(20_000, pair);
    let reached = churn.run(100_000, pair);
    println!("pair: {reached:.4}");
    assert!(reached >= 0.998, "{reached}");
}

#[test]
fn random_sizes_from_a_kibibyte_to_64_mebibytes() {
    let mut churn = Churn::new(2 * GIB);
    let any = |random: &mut fastrand::Rng| random.u64(KIB..=64 * MIB);
    churn.run(20_000, any);
    let reached = churn.run(100_000, any);
    println!("random: {reached:.4}");
    assert!(reached >= 0.86, "{reached}");
}
