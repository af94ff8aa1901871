//! The cost of an allocation from slabs, alone and shared.
//!
//! `cargo bench -p mc-alloc --bench slab`. Each time covers the allocation, the frees that
//! it needs, and the choosing of their victims.

mod pool;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use mc_alloc::{
    AllocateError, Allocation, Allocator, OffsetAllocator, SharedAllocator, SlabAllocator,
};
use pool::{GIB, KIB, Pool};

/// A pool of slabs.
fn of_slabs(
    range: u64,
) -> Pool<SlabAllocator, impl Fn(&mut SlabAllocator, u64) -> Result<Allocation, AllocateError>> {
    Pool::new(SlabAllocator::new(range), |space, size| space.allocate(size, 1))
}

fn uniform(c: &mut Criterion) {
    pool::uniform(c, "slab/uniform", of_slabs);
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
        let mut pool = of_slabs(live * 64 * KIB).churned(|_| 64 * KIB);
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
