//! Policies, strategies and sinks of the caller's own.

use mc_alloc::strategy::{AllocationStrategy as Strategy, Request};
use mc_evict::{EvictionPolicy, Handle, Item, Verdict};
use mc_meta::{Rebuild, Removal};

use std::sync::{Arc, Mutex};

use super::offload::{read, with_disks};
use super::promotion::with_one_on_disk;
use super::*;

/// Offers what came last first, whatever was used, and notes what is used below memory.
#[derive(Debug, Default)]
struct NewestFirst(Vec<Handle>, Arc<Mutex<Vec<Item>>>);

impl EvictionPolicy for NewestFirst {
    fn insert(&mut self, handle: Handle, _: Item) {
        if !self.0.contains(&handle) {
            self.0.push(handle);
        }
    }

    fn access(&mut self, _: Handle) {}

    fn remove(&mut self, handle: Handle) {
        self.0.retain(|held| *held != handle);
    }

    fn used_below(&mut self, item: Item) {
        self.1.lock().unwrap().push(item);
    }

    fn readmit(&mut self, handle: Handle, item: Item) {
        self.insert(handle, item);
    }

    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some(&handle) = self.0.last() {
            if verdict(handle) == Verdict::Stop {
                return;
            }
            self.0.pop();
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.0.last().copied()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn newest_first() -> Box<dyn EvictionPolicy> {
    Box::new(NewestFirst::default())
}

/// Offers the segments from the last to the first.
struct LastFirst;

impl Strategy for LastFirst {
    type Candidates<'a> = core::iter::Rev<core::ops::Range<usize>>;

    fn candidates<'a>(&'a self, request: Request<'a>) -> Self::Candidates<'a> {
        (0..request.segments).rev()
    }
}

#[test]
fn a_policy_is_told_of_reads_of_what_is_on_disks_alone() {
    let told = Arc::<Mutex<Vec<Item>>>::default();
    let (master, _) = with_one_on_disk(with_disks(false));
    let policy = NewestFirst(Vec::new(), Arc::clone(&told));
    let master = master.with_eviction_policy(|| Box::new(policy));
    assert_eq!(read(&master, at(2), "c"), Ok((true, 1)));
    assert!(told.lock().unwrap().is_empty(), "it is in memory");
    (0..2).for_each(|_| assert_eq!(read(&master, at(2), "a"), Ok((false, 1))));
    let told = told.lock().unwrap();
    assert!(told.len() == 2 && told[0] == told[1] && told[0].hash != 0, "{told:?}");
}

#[test]
fn a_policy_of_the_callers_own_decides_what_is_evicted() {
    let events = Recorder::default();
    let master = master(&[]).with_eviction_policy(newest_first).with_sink(events.clone());
    master.mount_segment(at(0), NODE, segment(0, 30)).unwrap();
    for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
        put(&master, at(n as u64), name, 10).unwrap();
    }
    // The order of use is that of the built-in policies.
    master.get_replica_list(secs(1), key("c")).unwrap();
    put(&master, secs(100), "d", 10).unwrap();
    put(&master, secs(200), "e", 10).unwrap();
    assert_eq!(events.removals(Removal::Evicted), ["c", "d"]);
}

#[test]
fn a_policy_is_told_of_the_objects_that_are_there() {
    let before = master(&[30]);
    for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
        put(&before, at(n as u64), name, 10).unwrap();
    }
    let mut rebuild = Rebuild::new(settings(), 1).unwrap();
    let mut cursor = Some(ExportCursor::default());
    while let Some(at_page) = cursor {
        let page = before.export(secs(1), at_page);
        page.records.iter().for_each(|record| rebuild.apply(record));
        cursor = page.next;
    }
    let events = Recorder::default();
    let after = rebuild.finish(secs(1)).unwrap().master;
    let after = after.with_secret(SECRET).with_eviction_policy(newest_first);
    let after = after.with_sink(events.clone());
    after.mount_segment(secs(1), NODE, segment(0, 30)).unwrap();
    put(&after, secs(100), "d", 10).unwrap();
    assert_eq!(events.removals(Removal::Evicted), ["c"]);
}

#[test]
fn a_strategy_of_the_callers_own_decides_where_objects_go() {
    let master = master(&[20, 20, 20]).with_allocation_strategy(LastFirst);
    let place = |name: &str| {
        let grant = put(&master, at(0), name, 10).unwrap();
        grant.placements[0].segment.spec().name.clone()
    };
    let places: Vec<_> = ["a", "b", "c", "d", "e", "f"].into_iter().map(place).collect();
    let expected = [2, 2, 1, 1, 0, 0].map(|number| format!("segment-{number}").into());
    assert_eq!(places, expected);
}

#[test]
fn every_sink_is_told_of_every_change() {
    let sinks = [Recorder::default(), Recorder::default(), Recorder::default()];
    let mut master = master(&[10]);
    for sink in &sinks {
        master = master.with_sink(sink.clone());
    }
    put(&master, at(0), "a", 10).unwrap();
    put(&master, secs(100), "b", 10).unwrap();
    for sink in &sinks {
        assert_eq!(sink.removals(Removal::Evicted), ["a"]);
    }
}
