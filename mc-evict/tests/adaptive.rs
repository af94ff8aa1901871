//! The adaptive policy beside LRU, on requests of many kinds.

mod workload;

use mc_evict::{Adaptive, EvictionPolicy, Handle, Item, Lru, Verdict};

use workload::Workload;

/// A cache for numbered blocks.
struct Cache<P> {
    policy: P,
    room: usize,
    /// For each block, the handle that it is held under.
    handles: Vec<Option<Handle>>,
    /// For each handle, the block that it names.
    blocks: Vec<u32>,
    free: Vec<Handle>,
}

impl<P: EvictionPolicy> Cache<P> {
    fn new(policy: P, room: usize, blocks: usize) -> Self {
        let free = (0..room as Handle).rev().collect();
        Self { policy, room, handles: vec![None; blocks], blocks: vec![0; room], free }
    }

    fn use_block(&mut self, block: u32) {
        if let Some(handle) = self.handles[block as usize] {
            return self.policy.access(handle);
        }
        let Self { policy, handles, blocks, free, .. } = self;
        policy.evict(&mut |handle| {
            if !free.is_empty() {
                return Verdict::Stop;
            }
            handles[blocks[handle as usize] as usize] = None;
            free.push(handle);
            Verdict::Evict
        });
        let handle = self.free.pop().expect("a full cache has a victim");
        self.blocks[handle as usize] = block;
        self.handles[block as usize] = Some(handle);
        self.policy.insert(handle, Item::new((u64::from(block) + 1).wrapping_mul(MIX)));
    }
}

/// The odd number closest to the golden part of 2^64.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The part of all blocks that were found with all before them in their request.
fn prefix_hits(policy: impl EvictionPolicy, room: usize, workload: &Workload) -> f64 {
    let mut cache = Cache::new(policy, room, workload.unique);
    let (mut hits, mut blocks) = (0, 0);
    for request in &workload.requests {
        let is_held = |block: &&u32| cache.handles[**block as usize].is_some();
        hits += request.iter().take_while(is_held).count();
        blocks += request.len();
        for block in request {
            cache.use_block(*block);
        }
        assert!(cache.policy.len() <= cache.room);
    }
    hits as f64 / blocks as f64
}

fn gain(workload: &Workload, room: usize) -> f64 {
    let adaptive = prefix_hits(Adaptive::new(), room, workload);
    let lru = prefix_hits(Lru::new(), room, workload);
    adaptive - lru
}

#[test]
fn it_is_nowhere_worse_than_lru() {
    for workload in Workload::all(1, 60_000) {
        for part in [0.1, 0.2, 0.4] {
            let gain = gain(&workload, (workload.unique as f64 * part) as usize);
            assert!(gain >= -0.005, "{} at {part}: {gain:.4}", workload.name);
        }
    }
}

#[test]
fn it_is_far_better_where_recency_misleads() {
    for (name, part, least) in [
        ("zipf", 0.05, 0.07),
        ("loop", 0.4, 0.3),
        ("zipf_scan", 0.1, 0.06),
        ("one_hit", 0.05, 0.08),
        ("documents", 0.05, 0.06),
        ("bursts", 0.1, 0.015),
    ] {
        let workloads = Workload::all(2, 60_000);
        let workload = workloads.iter().find(|workload| workload.name == name).unwrap();
        let gain = gain(workload, (workload.unique as f64 * part) as usize);
        assert!(gain >= least, "{name}: {gain:.4}");
    }
}

/// A master of 64 shards has 64 small policies.
#[test]
fn it_serves_small_shares_too() {
    for workload in Workload::all(3, 6_000) {
        for room in [1, 2, 30] {
            let gain = gain(&workload, room);
            assert!(gain >= -0.015, "{} with room for {room}: {gain:.4}", workload.name);
        }
    }
}
