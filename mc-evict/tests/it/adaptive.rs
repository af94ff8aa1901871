//! The adaptive policy beside the others, on requests of many kinds.

use mc_evict::{EvictionPolicy, Handle, Item, PolicyKind, Verdict};

use crate::workload::Workload;

/// A cache for numbered blocks.
struct Cache {
    policy: Box<dyn EvictionPolicy>,
    /// For each block, the handle that it is held under.
    handles: Vec<Option<Handle>>,
    /// For each handle, the block that it names.
    blocks: Vec<u32>,
    free: Vec<Handle>,
}

impl Cache {
    fn new(kind: PolicyKind, room: usize, blocks: usize) -> Self {
        let free = (0..room as Handle).rev().collect();
        Self { policy: kind.build(), handles: vec![None; blocks], blocks: vec![0; room], free }
    }

    fn use_block(&mut self, block: u32) {
        let hash = (u64::from(block) + 1).wrapping_mul(MIX);
        if let Some(handle) = self.handles[block as usize] {
            return self.policy.access(handle);
        }
        if self.free.is_empty() {
            self.policy.evict(&mut |handle| {
                if !self.free.is_empty() {
                    return Verdict::Stop;
                }
                self.handles[self.blocks[handle as usize] as usize] = None;
                self.free.push(handle);
                Verdict::Evict
            });
        }
        let handle = self.free.pop().expect("a full cache has a victim");
        self.blocks[handle as usize] = block;
        self.handles[block as usize] = Some(handle);
        self.policy.insert(handle, Item::new(hash));
    }
}

/// The odd number closest to the golden part of 2^64.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The part of all blocks that were found with all before them in their request. The blocks of a
/// request are used from the last to the first.
fn hits(kind: PolicyKind, room: usize, Workload { requests, unique, .. }: &Workload) -> f64 {
    let mut cache = Cache::new(kind, room, *unique);
    let (mut hits, mut blocks) = (0, 0);
    for request in requests {
        let is_held = |block: &&u32| cache.handles[**block as usize].is_some();
        hits += request.iter().take_while(is_held).count();
        blocks += request.len();
        for block in request.iter().rev() {
            cache.use_block(*block);
        }
    }
    hits as f64 / blocks as f64
}

#[test]
fn it_is_as_good_as_the_best_of_the_others() {
    for workload in Workload::all(1, 60_000) {
        for part in [0.02, 0.1, 0.4] {
            let room = (workload.unique as f64 * part) as usize;
            let adaptive = hits(PolicyKind::Adaptive, room, &workload);
            for other in [PolicyKind::Lru, PolicyKind::S3Fifo, PolicyKind::Sieve] {
                let hits = hits(other, room, &workload);
                let name = workload.name;
                assert!(
                    adaptive >= hits - 0.02,
                    "{name} at {part}: {adaptive:.4}, {other} {hits:.4}"
                );
            }
        }
    }
}

#[test]
fn it_is_far_better_than_recency_where_that_misleads() {
    let workloads = Workload::all(2, 60_000);
    for (name, part, least) in [
        ("zipf", 0.05, 0.09),
        ("loop", 0.4, 0.3),
        ("zipf_scan", 0.1, 0.08),
        ("one_hit", 0.05, 0.1),
        ("documents", 0.05, 0.08),
        ("bursts", 0.1, 0.02),
        ("shared_prompts", 0.02, 0.1),
        ("tenants", 0.1, 0.05),
        ("chat_scan", 0.1, 0.04),
    ] {
        let workload = workloads.iter().find(|workload| workload.name == name).unwrap();
        let room = (workload.unique as f64 * part) as usize;
        let gain =
            hits(PolicyKind::Adaptive, room, workload) - hits(PolicyKind::Lru, room, workload);
        assert!(gain >= least, "{name}: {gain:.4}");
    }
}

#[test]
fn it_is_nowhere_far_worse_than_recency_with_little_room() {
    for workload in Workload::all(3, 6_000) {
        for room in [1, 2, 30] {
            let adaptive = hits(PolicyKind::Adaptive, room, &workload);
            let lru = hits(PolicyKind::Lru, room, &workload);
            let gain = adaptive - lru;
            // Where a prompt alone fills the cache there is little to learn from.
            assert!(gain >= -0.12, "{} with room for {room}: {gain:.4}", workload.name);
        }
    }
}
