//! The offset allocator against the published port of the same original.

mod churn;
mod space;

use std::io::Write;

use mc_alloc::OffsetAllocator;
use serde::{Deserialize, Serialize};

pub(super) use self::churn::check_disjoint;
use self::churn::{Churn, Mix, Steady};
use self::space::{Ours, Published, Space};
use crate::cpu_clock::CpuClock;
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::process::{self, Peer, Task};
use crate::scale::Scale;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Names of the figures that exist for each implementation.
const IMPLEMENTATIONS: [&str; 2] = [Ours::NAME, Published::NAME];

/// From this size on the lowest utilisation counts: smaller objects are no use
/// that the allocator is for, and the tables of the published port would need
/// gigabytes.
const LEAST_SIZE: u64 = 495;

/// From this size on the time per allocation counts: the live allocations' tables
/// fit into the caches, so that the algorithm is compared and not the memory.
const LEAST_TIMED: u64 = 128 * KIB;

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    uniform(scale, report)?;
    random(scale, report)?;
    pair(scale, report)?;
    mixed(scale, report)?;
    scaling(scale, report)?;
    memory(scale, report)
}

/// Adds one figure for each implementation, ours beside the other.
fn add_both<W: Write>(
    report: &mut Report<W>,
    values: [f64; 2],
    figure: impl Fn(f64) -> Figure,
) -> Result<(), BenchError> {
    let [ours, published] = values;
    let [ours_name, published_name] = IMPLEMENTATIONS;
    report.add(figure(ours).with("impl", ours_name).versus(published_name, published))?;
    report.add(figure(published).with("impl", published_name))
}

/// Workload (a): objects of one size, for sizes that match no bin.
fn uniform<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let count = scale.pick(1_000_000, 200_000, 2_000);
    let sizes: Vec<u64> = match scale {
        Scale::Full | Scale::Quick => uniform_sizes(),
        Scale::Smoke => uniform_sizes().into_iter().filter(|size| *size >= 256 * KIB).collect(),
    };
    let mut results = [Uniform::default(), Uniform::default()];
    for size in sizes.into_iter().filter(|size| *size >= LEAST_SIZE) {
        // Both take turns, so that a slow moment of the machine hits both.
        results[0].add(size, &uniform_once::<Ours>(size, count)?);
        results[1].add(size, &uniform_once::<Published>(size, count)?);
    }
    let [ours, published] = &results;
    let worst = |name: &'static str, of: fn(&Uniform) -> (f64, u64)| {
        [(ours, IMPLEMENTATIONS[0]), (published, IMPLEMENTATIONS[1])].map(|(result, by)| {
            let (value, size) = of(result);
            Figure::new(name, value, "ratio").with("impl", by).with("worst_size", size)
        })
    };
    for (name, of) in [
        ("uniform_util_min", (|result| result.utilisation) as fn(&Uniform) -> (f64, u64)),
        ("uniform_packing_min", |result| result.packing),
    ] {
        let [first, second] = worst(name, of);
        let rival = second.value;
        report.add(first.versus(IMPLEMENTATIONS[1], rival))?;
        report.add(second)?;
    }
    add_both(report, [ours.mean_ns(), published.mean_ns()], |ns| {
        Figure::new("uniform_ns", ns, "ns").with("allocations", count).with("sizes", ">=128KiB")
    })
}

/// 32·4^k below 64 MiB, each as it is, a little less, a little more, and a tenth
/// less and more.
fn uniform_sizes() -> Vec<u64> {
    let bases = (0..).map(|k| 32_u64 << (2 * k)).take_while(|base| *base < 64 * MIB);
    bases.flat_map(|base| [base, base - 17, base + 17, base * 9 / 10, base * 11 / 10]).collect()
}

/// The worst and the mean over sizes.
struct Uniform {
    utilisation: (f64, u64),
    packing: (f64, u64),
    ns_sum: f64,
    timed: u32,
}

impl Default for Uniform {
    fn default() -> Self {
        let none = (f64::INFINITY, 0);
        Self { utilisation: none, packing: none, ns_sum: 0.0, timed: 0 }
    }
}

impl Uniform {
    fn add(&mut self, size: u64, steady: &Steady) {
        let pool = uniform_pool(size);
        let bound = (pool / size * size) as f64 / pool as f64;
        let packing = steady.utilisation / bound;
        if steady.utilisation < self.utilisation.0 {
            self.utilisation = (steady.utilisation, size);
        }
        if packing < self.packing.0 {
            self.packing = (packing, size);
        }
        if size >= LEAST_TIMED {
            self.ns_sum += steady.ns_per_allocation;
            self.timed += 1;
        }
    }

    fn mean_ns(&self) -> f64 {
        self.ns_sum / f64::from(self.timed)
    }
}

const fn uniform_pool(size: u64) -> u64 {
    if size < KIB { 128 * MIB } else { 2 * GIB }
}

fn uniform_once<S: Space>(size: u64, count: u64) -> Result<Steady, BenchError> {
    let pool = uniform_pool(size);
    let mut churn = Churn::<S>::new(pool, 1, 2 * pool / size);
    churn.fill(size)?;
    let steady = churn.steady(count, |_| size)?;
    churn.check()?;
    Ok(steady)
}

/// Workload (b): sizes without any order.
fn random<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    fn once<S: Space>(count: u64) -> Result<Steady, BenchError> {
        let mut churn = Churn::<S>::new(2 * GIB, 1, 1 << 16);
        let steady = churn.steady(count, |random| random.u64(KIB..=64 * MIB))?;
        churn.check()?;
        Ok(steady)
    }
    let count = scale.pick(1_000_000, 1_000_000, 5_000);
    let (ours, published) = (once::<Ours>(count)?, once::<Published>(count)?);
    add_both(report, [ours.utilisation, published.utilisation], |value| {
        Figure::new("random_util_avg", value, "ratio").with("allocations", count)
    })?;
    add_both(report, [ours.ns_per_allocation, published.ns_per_allocation], |ns| {
        Figure::new("random_ns", ns, "ns").with("allocations", count)
    })
}

/// Workload (c): the two block sizes of a model with sparse attention, in runs.
fn pair<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    // Both sizes are whole KiB, and in KiB the pool fits into 32 bits.
    const UNIT: u64 = KIB;
    const LIVE: u64 = TIB / ((3_274_752 + 658_432) / 2);
    fn once<S: Space>(pool: u64, rounds: u64) -> Result<Steady, BenchError> {
        let mut churn = Churn::<S>::new(pool, UNIT, 4 * LIVE);
        churn.evicted_part = 0.05;
        let mut runs = fastrand::Rng::with_seed(churn::SEED);
        let start = CpuClock::start();
        let mut count = 0;
        for _ in 0..rounds {
            let run = runs.u64(1..=128);
            for size in [3_274_752, 658_432] {
                for _ in 0..run {
                    churn.put(size)?;
                }
            }
            count += 2 * run;
        }
        let ns_per_allocation = start.nanos() / count as f64;
        churn.check()?;
        Ok(Steady { utilisation: churn.when_full(), ns_per_allocation })
    }
    let (pool, rounds) = scale.pick((TIB, 50_000), (TIB, 20_000), (GIB * 8, 500));
    let (ours, published) = (once::<Ours>(pool, rounds)?, once::<Published>(pool, rounds)?);
    let unit = |figure: Figure| figure.with("rounds", rounds).with("published_unit_bytes", UNIT);
    add_both(report, [ours.utilisation, published.utilisation], |value| {
        unit(Figure::new("pair_util_avg", value, "ratio"))
    })?;
    add_both(report, [ours.ns_per_allocation, published.ns_per_allocation], |ns| {
        unit(Figure::new("pair_ns", ns, "ns"))
    })
}

/// Workload (d): pages, index blocks and layers in a pool that stays 80 % full.
fn mixed<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    fn once<S: Space>(count: u64) -> Result<(Steady, f64), BenchError> {
        let pool = 2 * GIB;
        let mut churn = Churn::<S>::new(pool, 1, 1 << 18);
        let mix = Mix { small: 4 * KIB, medium: 256 * KIB, large: 3_271_557 };
        let (steady, failed) = churn.at_level(count, pool / 5 * 4, mix)?;
        churn.check()?;
        Ok((steady, failed as f64 / count as f64))
    }
    let count = scale.pick(2_000_000, 1_000_000, 5_000);
    let (ours, published) = (once::<Ours>(count)?, once::<Published>(count)?);
    let both = |of: fn(&Steady) -> f64| [of(&ours.0), of(&published.0)];
    add_both(report, both(|steady| steady.ns_per_allocation), |ns| {
        Figure::new("churn_ns", ns, "ns").with("allocations", count)
    })?;
    add_both(report, both(|steady| steady.utilisation), |value| {
        Figure::new("churn_util_avg", value, "ratio").with("level", 0.8)
    })?;
    for (failed, by) in [(ours.1, IMPLEMENTATIONS[0]), (published.1, IMPLEMENTATIONS[1])] {
        report.add(Figure::new("churn_failed", failed, "ratio").with("impl", by))?;
    }
    Ok(())
}

/// The cost of an allocation with a thousand and with a million live ones, among
/// as many gaps of all sizes.
fn scaling<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let (few, many) = scale.pick((1_000, 1_000_000), (1_000, 1_000_000), (100, 10_000));
    let count = scale.pick(3_000_000, 1_000_000, 5_000);
    for (victims, recent) in [("recent", true), ("random", false)] {
        let mut ns = [0.0; 2];
        for (live, ns) in [few, many].into_iter().zip(&mut ns) {
            let mut churn = Churn::<Ours>::new(2 * live * 97 * KIB, 1, 0);
            *ns = churn.among_gaps(live, count, recent)?;
            churn.check()?;
            let figure = Figure::new("scale_ns", *ns, "ns").with("live", live);
            report.add(figure.with("victims", victims))?;
        }
        let figure = Figure::new("scale_ratio", ns[1] / ns[0], "ratio").with("victims", victims);
        report.add(figure.with("live", format!("{many}/{few}")))?;
    }
    Ok(())
}

/// The parameters of [`measure_memory`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemoryTask {
    /// Live allocations.
    pub(crate) live: u64,
    /// Whether there are gaps between them.
    pub(crate) fragmented: bool,
}

impl Task for MemoryTask {
    const ROLE: &'static str = "alloc_memory";
    const NAME: &'static str = "allocator";
}

fn memory<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let live = scale.pick(1_000_000, 1_000_000, 100_000);
    for (state, fragmented) in [("packed", false), ("fragmented", true)] {
        let (_, bytes) = Peer::start::<_, f64>(&MemoryTask { live, fragmented })?;
        let figure = Figure::new("bytes_per_alloc", bytes, "B").with("live", live);
        report.add(figure.with("state", state))?;
    }
    Ok(())
}

/// Measures the resident memory of an allocator's own tables, in a process where
/// nothing else takes or returns memory.
pub(crate) fn measure_memory(task: &MemoryTask) -> Result<(), BenchError> {
    let count = if task.fragmented { 2 * task.live } else { task.live };
    let mut random = fastrand::Rng::with_seed(churn::SEED);
    let mut held = Vec::with_capacity(count as usize);
    // Touched before the first reading, so that only the allocator grows after it.
    held.resize_with(count as usize, || None);
    let mut order: Vec<usize> = (0..count as usize).collect();
    random.shuffle(&mut order);
    let before = process::own_resident_bytes()?;
    let mut space = OffsetAllocator::new(count * 128 * KIB);
    for place in &mut held {
        let allocation = space.allocate(random.u64(64 * KIB..=128 * KIB));
        let found = |error| BenchError::wrong("allocating in an empty pool", format!("{error}"));
        *place = Some(allocation.map_err(found)?);
    }
    for &at in order.iter().take((count - task.live) as usize) {
        if let Some(allocation) = held[at].take()
            && let Err(error) = space.free(allocation)
        {
            return Err(BenchError::wrong("freeing", error.to_string()));
        }
    }
    let after = process::own_resident_bytes()?;
    // Freed before the second reading, it would hide as much of the tables.
    drop(order);
    if space.live() as u64 != task.live {
        return Err(BenchError::wrong("counting", format!("{} are live", space.live())));
    }
    process::say(&(after.saturating_sub(before) as f64 / task.live as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_definition() {
        let sizes = uniform_sizes();
        assert_eq!(sizes.len(), 55);
        assert_eq!(sizes[..5], [32, 15, 49, 28, 35]);
        assert!(sizes.contains(&(32 * MIB + 17)) && sizes.contains(&LEAST_SIZE));
    }

    #[test]
    fn the_bound_is_reached_by_whole_objects_only() {
        let mut result = Uniform::default();
        let size = 32 * MIB + 17;
        let steady = uniform_once::<Ours>(size, 100).unwrap();
        result.add(size, &steady);
        assert!(result.utilisation.0 < 0.985 && result.packing.0 > 0.999);
    }
}
