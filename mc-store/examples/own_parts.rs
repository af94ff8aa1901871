//! A master with parts of your own: which objects go first, where objects are placed, and who is
//! told of what happens.
//!
//! `cargo run -p mc-store --example own_parts`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_alloc::strategy::{AllocationStrategy, Request};
use mc_evict::{EvictionPolicy, Handle, Item, Verdict};
use mc_meta::{Effect, EffectSink, Removal};
use mc_store::{ByteSize, Client, Master, MasterConfig};
use mc_types::{Sequence, Time};

/// Offers what came first first, whatever was used. There is one for all objects of the master, and it is
/// called under one lock: that of a busy master has to be fast, as those of `mc-evict` are, and this one is
/// not (`contains` and `retain` look at every object).
#[derive(Debug, Default)]
struct OldestFirst(std::collections::VecDeque<Handle>);

impl EvictionPolicy for OldestFirst {
    fn insert(&mut self, handle: Handle, _: Item) {
        if !self.0.contains(&handle) {
            self.0.push_back(handle);
        }
    }

    fn access(&mut self, _: Handle) {}

    fn remove(&mut self, handle: Handle) {
        self.0.retain(|held| *held != handle);
    }

    fn readmit(&mut self, handle: Handle, item: Item) {
        self.insert(handle, item);
    }

    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some(&handle) = self.0.front() {
            if verdict(handle) == Verdict::Stop {
                return;
            }
            self.0.pop_front();
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.0.front().copied()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Fills one segment after the other, in the order in which they were mounted.
struct FillUp;

impl AllocationStrategy for FillUp {
    type Candidates<'a> = std::ops::Range<usize>;

    fn candidates<'a>(&'a self, request: Request<'a>) -> Self::Candidates<'a> {
        0..request.segments
    }
}

/// Counts what was evicted.
#[derive(Clone, Default)]
struct Evictions(Arc<AtomicU64>);

impl EffectSink for Evictions {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        if matches!(effect, Effect::Removed { cause: Removal::Evicted, .. }) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let state = mc_meta::Master::new(MasterConfig::default(), 1)?
        .with_eviction_policy(|| Box::new(OldestFirst::default()))
        .with_allocation_strategy(FillUp);
    let evictions = Evictions::default();
    let master = Master::builder().state(state).sink(evictions.clone()).start().await?;
    let node = Client::builder()
        .master(master.local_addr().to_string())
        .segment_name("node")
        .segment_size(ByteSize::mib(1))
        .connect()
        .await?;
    for n in 0..100 {
        node.put(&format!("block/{n}"), vec![n as u8; 64 << 10]).await?;
    }
    println!("100 blocks of 64 KiB in 1 MiB: {} evicted", evictions.0.load(Ordering::Relaxed));
    node.shutdown().await;
    master.shutdown().await;
    Ok(())
}
