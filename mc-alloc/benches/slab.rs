//! The cost of an allocation from slabs, alone and shared.
//!
//! `cargo bench -p mc-alloc --bench slab`. Each time covers the allocation, the frees that
//! it needs, and the choosing of their victims.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use mc_alloc::{Allocation, Allocator, OffsetAllocator, SharedAllocator, SlabAllocator};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

struct Pool {
    space: SlabAllocator,
    live: Vec<Allocation>,
    random: fastrand::Rng,
}

impl Pool {
    fn new(range: u64) -> Self {
        Self {
            space: SlabAllocator::new(range),
            live: Vec::new(),
            random: fastrand::Rng::with_seed(7),
        }
    }

    /// Puts until the pool has been turned over four times.
    fn churned(mut self, mut size: impl FnMut(&mut fastrand::Rng) -> u64) -> Self {
        let mut put = 0;
        while put < 4 * self.space.capacity() {
            let size = size(&mut self.random);
            self.put(size);
            put += size;
        }
        self
    }

    fn put(&mut self, size: u64) {
        loop {
            if let Ok(allocation) = self.space.allocate(size, 1) {
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
fn uniform(c: &mut Criterion) {
    let mut group = c.benchmark_group("slab/uniform");
    for (name, size) in [("64KiB", 64 * KIB), ("128KiB-17", 128 * KIB - 17), ("1MiB+17", MIB + 17)]
    {
        let mut pool = Pool::new(2 * GIB).churned(|_| size);
        group.bench_function(name, |b| b.iter(|| pool.put(black_box(size))));
    }
    group.finish();
}

/// Nothing is full and nothing is freed but the last allocation: the whole of the fast
/// path, and with one object the way of a slab out of the pool and back.
fn hot(c: &mut Criterion) {
    for (name, held) in [("slab/hot/64KiB", 1), ("slab/reassign/64KiB", 0)] {
        let mut space = SlabAllocator::new(2 * GIB);
        let held: Vec<_> = (0..held).map(|_| space.allocate(64 * KIB, 1)).collect();
        c.bench_function(name, |b| {
            b.iter(|| {
                let allocation = space.allocate(black_box(64 * KIB), 1).expect("the pool is empty");
                space.free(allocation).expect("made by this allocator");
            });
        });
        drop(held);
    }
}

/// The same work with a thousand and a million live allocations.
fn scale(c: &mut Criterion) {
    let mut group = c.benchmark_group("slab/scale");
    for live in [1_000_u64, 1_000_000] {
        let mut pool = Pool::new(live * 64 * KIB).churned(|_| 64 * KIB);
        group.bench_function(format!("random/{live}"), |b| {
            b.iter(|| pool.put(black_box(64 * KIB)));
        });
    }
    group.finish();
}

/// A buffer taken and dropped by one thread.
fn shared(c: &mut Criterion) {
    let slabs = SharedAllocator::new(SlabAllocator::new(2 * GIB));
    let _held = slabs.allocate(64 * KIB, 1).expect("the pool is empty");
    c.bench_function("shared/slab/64KiB", |b| {
        b.iter(|| drop(slabs.allocate(black_box(64 * KIB), 1).expect("the pool is empty")));
    });
    let regions = SharedAllocator::new(OffsetAllocator::new(2 * GIB));
    c.bench_function("shared/offset/64KiB", |b| {
        b.iter(|| drop(regions.allocate(black_box(64 * KIB), 1).expect("the pool is empty")));
    });
}

criterion_group!(benches, uniform, hot, scale, shared);
criterion_main!(benches);
