//! The memory that policies take, counted where it is allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mc_evict::{Item, PolicyKind, Verdict};

static HELD: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: all is left to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Relaxed);
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer is from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Tests of one process share the counters.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes for each thing held and of the largest allocation, when a cache of `held`
/// things has seen ten times as many, every other one twice.
fn cost(kind: PolicyKind, held: u32) -> (f64, usize) {
    let before = HELD.load(Relaxed);
    LARGEST.store(0, Relaxed);
    let mut policy = kind.build();
    for round in 0..10 * held {
        let mut handle = round;
        if round >= held {
            let mut taken = None;
            policy.evict(&mut |victim| {
                if taken.is_some() {
                    return Verdict::Stop;
                }
                taken = Some(victim);
                Verdict::Evict
            });
            handle = taken.expect("a full cache has a victim");
        }
        let hash = u64::from(round / 2 + round % 2 * held * 4 + 1);
        policy.insert(handle, Item::new(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        policy.access(round % held);
    }
    let bytes = (HELD.load(Relaxed) - before) as f64 / f64::from(held);
    (bytes, LARGEST.load(Relaxed))
}

/// The most bytes that the shadows of the adaptive policy take.
const SHADOWS: f64 = 1.6e6;

#[test]
fn bytes_for_each_thing() {
    let _alone = ALONE.lock().unwrap();
    for (kind, most) in [
        (PolicyKind::Lru, 8.5),
        (PolicyKind::Fifo, 8.5),
        (PolicyKind::Sieve, 9.5),
        (PolicyKind::S3Fifo, 31.0),
        (PolicyKind::WTinyLfu, 21.0),
        // Beside what the shadows of a large cache take.
        (PolicyKind::Adaptive, 32.0 + SHADOWS / 200_000.0),
    ] {
        let (bytes, largest) = cost(kind, 200_000);
        assert!(bytes <= most, "{kind}: {bytes:.1} bytes for each thing");
        // Nothing that grows with what is held is copied in one piece.
        assert!(largest <= 64 << 10, "{kind}: {largest} bytes at once");
    }
}

#[test]
fn small_caches_cost_little() {
    let _alone = ALONE.lock().unwrap();
    let (bytes, _) = cost(PolicyKind::Adaptive, 30);
    assert!(bytes * 30.0 <= 128.0 * 1024.0, "{bytes:.0} bytes for each of 30");
    let (bytes, _) = cost(PolicyKind::Adaptive, 10_000);
    assert!(bytes <= 34.0 + SHADOWS / 10_000.0, "{bytes:.1} bytes for each of ten thousand");
}
