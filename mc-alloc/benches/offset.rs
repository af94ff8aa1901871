//! The cost of an allocation in a pool that is full: one live allocation chosen at
//! random is freed when the next one does not fit.
//!
//! `cargo bench -p mc-alloc`. Each time covers the allocation, the frees that it needs,
//! and the choosing of their victims.

mod pool;

use std::collections::VecDeque;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use mc_alloc::{AllocateError, Allocation, OffsetAllocator};
use pool::{GIB, KIB, MIB, Pool};

/// A pool without alignment.
fn unaligned(
    capacity: u64,
) -> Pool<OffsetAllocator, impl Fn(&mut OffsetAllocator, u64) -> Result<Allocation, AllocateError>>
{
    Pool::new(OffsetAllocator::new(capacity), |space, size| space.allocate(size))
}

fn uniform(c: &mut Criterion) {
    pool::uniform(c, "uniform", unaligned);
}

fn mixed(c: &mut Criterion) {
    let any = |random: &mut fastrand::Rng| random.u64(KIB..=64 * MIB);
    let mut pool = unaligned(2 * GIB).churned(any);
    c.bench_function("random/1KiB-64MiB", |b| {
        b.iter(|| {
            let size = any(&mut pool.random);
            pool.put(size);
        });
    });
    let aligned = |space: &mut OffsetAllocator, size| space.allocate_aligned(size, 4 * KIB);
    let mut pool = Pool::new(OffsetAllocator::new(2 * GIB), aligned).churned(any);
    c.bench_function("random/1KiB-64MiB@4KiB", |b| {
        b.iter(|| {
            let size = any(&mut pool.random);
            pool.put(size);
        });
    });
    let pair = |random: &mut fastrand::Rng| if random.bool() { 3_274_752 } else { 643 * KIB };
    let mut pool = unaligned(64 * GIB).churned(pair);
    c.bench_function("pair/3274752-658432", |b| {
        b.iter(|| {
            let size = pair(&mut pool.random);
            pool.put(size);
        });
    });
}

/// The same work with a thousand and a million live allocations, with the oldest as the
/// victim and with a random one. Random victims show what cache misses cost once the
/// tables outgrow the caches, the caller's list of live allocations included.
fn scale(c: &mut Criterion) {
    let mut group = c.benchmark_group("scale");
    for live in [1_000, 1_000_000] {
        let mut pool = unaligned(live * 64 * KIB).churned(|_| 64 * KIB);
        group.bench_function(format!("random/{live}"), |b| {
            b.iter(|| pool.put(black_box(64 * KIB)));
        });
        let mut space = pool.space;
        let mut live_by_age: VecDeque<_> = pool.live.into();
        live_by_age.make_contiguous().sort_by_key(|allocation| allocation.extent().offset());
        group.bench_function(format!("oldest/{live}"), |b| {
            b.iter(|| {
                let oldest = live_by_age.pop_front().expect("the pool is full");
                space.free(oldest).expect("made by this allocator");
                live_by_age.push_back(space.allocate(black_box(64 * KIB)).expect("just freed"));
            });
        });
    }
    group.finish();
}

/// The last allocation is freed at once, so everything stays in the cache.
fn hot(c: &mut Criterion) {
    let mut space = OffsetAllocator::new(2 * GIB);
    c.bench_function("hot/64KiB", |b| {
        b.iter(|| {
            let allocation = space.allocate(black_box(64 * KIB)).expect("the pool is empty");
            space.free(allocation).expect("made by this allocator");
        });
    });
}

criterion_group!(benches, uniform, mixed, scale, hot);
criterion_main!(benches);
