//! A pool that is full: one live allocation chosen at random is freed when the next one does
//! not fit.

use std::hint::black_box;

use criterion::Criterion;
use mc_alloc::{AllocateError, Allocation, Allocator};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

pub(crate) struct Pool<A, F> {
    pub(crate) space: A,
    pub(crate) live: Vec<Allocation>,
    pub(crate) random: fastrand::Rng,
    allocate: F,
}

impl<A: Allocator, F: Fn(&mut A, u64) -> Result<Allocation, AllocateError>> Pool<A, F> {
    /// An empty pool that takes bytes of `space` by `allocate`.
    pub(crate) fn new(space: A, allocate: F) -> Self {
        Self { space, live: Vec::new(), random: fastrand::Rng::with_seed(7), allocate }
    }

    /// Puts until the pool has been turned over four times.
    pub(crate) fn churned(mut self, mut size: impl FnMut(&mut fastrand::Rng) -> u64) -> Self {
        let mut put = 0;
        while put < 4 * self.space.capacity() {
            let size = size(&mut self.random);
            self.put(size);
            put += size;
        }
        self
    }

    pub(crate) fn put(&mut self, size: u64) {
        loop {
            if let Ok(allocation) = (self.allocate)(&mut self.space, size) {
                self.live.push(allocation);
                return;
            }
            let victim = self.random.usize(..self.live.len());
            let allocation = self.live.swap_remove(victim);
            self.space.free(allocation).expect("made by this allocator");
        }
    }
}

/// A full pool of one size; one random object makes way.
pub(crate) fn uniform<A, F>(c: &mut Criterion, group: &str, pool: impl Fn(u64) -> Pool<A, F>)
where
    A: Allocator,
    F: Fn(&mut A, u64) -> Result<Allocation, AllocateError>,
{
    let mut group = c.benchmark_group(group);
    for (name, size) in [("64KiB", 64 * KIB), ("128KiB-17", 128 * KIB - 17), ("1MiB+17", MIB + 17)]
    {
        let mut pool = pool(2 * GIB).churned(|_| size);
        group.bench_function(name, |b| b.iter(|| pool.put(black_box(size))));
    }
    group.finish();
}
