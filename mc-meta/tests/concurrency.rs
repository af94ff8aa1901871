//! Many threads on one master. The bytes are simulated: a writer stores its
//! generation in every byte it was granted, a reader checks that it finds the
//! generation it was promised for as long as it was promised.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use mc_meta::{Master, MasterConfig, PutEnd, PutStart, ReplicateConfig, SegmentSpec};
use mc_types::{ClientId, Generation, KeyRef, RemoteKey, SegmentId, Time};

const WORKERS: u64 = 4;
const ROUNDS: u64 = 200_000;
const KEYS: u64 = 48;
const SEGMENTS: u64 = 4;
const SEGMENT_SIZE: u64 = 160;
/// Mountings of a segment; each has memory of its own.
const MOUNTINGS: u64 = 400;
const LEASE: Duration = Duration::from_millis(10);

/// The cluster that the threads share.
struct World {
    master: Master,
    clock: AtomicU64,
    memory: Vec<AtomicU64>,
    done: AtomicBool,
}

impl World {
    fn new() -> Self {
        let mut config = MasterConfig::default();
        config.shards = 8;
        config.lease_ttl = LEASE;
        // Nobody dies here, and no writer is slower than these.
        config.client_ttl = Duration::from_secs(1 << 40);
        config.put_start_discard_timeout = Duration::from_secs(1 << 40);
        config.put_start_release_timeout = Duration::from_secs(1 << 40);
        config.eviction_high_watermark_ratio = 0.8;
        Self {
            master: Master::new(config, 3).unwrap(),
            clock: AtomicU64::new(0),
            memory: (0..MOUNTINGS * SEGMENT_SIZE).map(|_| AtomicU64::new(0)).collect(),
            done: AtomicBool::new(false),
        }
    }

    fn now(&self) -> Time {
        Time::from_millis(self.clock.load(Ordering::SeqCst))
    }

    /// Mounts the memory of this number. Each holds the name of every
    /// `SEGMENTS`th, and one name is mounted once at a time.
    fn mount(&self, number: u64) {
        let slot = number % SEGMENTS;
        let spec = SegmentSpec {
            id: SegmentId::from_u128(u128::from(number)),
            name: format!("segment-{slot}").into(),
            base: number * SEGMENT_SIZE,
            size: SEGMENT_SIZE,
            endpoint: format!("mem://node-{slot}").parse().unwrap(),
            remote_key: RemoteKey::from_bytes([0; 16]),
        };
        self.master.mount_segment(self.now(), client(slot), spec).unwrap();
    }

    fn bytes(&self, at: &mc_meta::Placement) -> &[AtomicU64] {
        let from = at.segment.spec().base + at.extent.offset();
        &self.memory[from as usize..(from + at.extent.len()) as usize]
    }
}

fn client(number: u64) -> ClientId {
    ClientId::from_u128(u128::from(number))
}

/// A worker's own random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[derive(Default)]
struct Seen {
    /// The newest generation of each key that this worker has read.
    newest: BTreeMap<u64, Generation>,
    granted: Vec<Generation>,
    checked_reads: u64,
}

fn work(world: &World, worker: u64) -> Seen {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (worker + 1));
    let mut seen = Seen::default();
    for _ in 0..ROUNDS {
        if dice.below(8) == 0 {
            world.clock.fetch_add(1, Ordering::SeqCst);
        }
        let number = dice.below(KEYS);
        let name = format!("key-{number}");
        let key = KeyRef::new(&name).unwrap();
        match dice.below(10) {
            0..4 => put(world, worker, key, &mut dice, &mut seen),
            4..8 => get(world, number, key, &mut seen),
            8 => {
                let _ = world.master.remove(world.now(), key, false);
            }
            _ => {
                world.master.exist(world.now(), key);
                world.master.list_keys("key-", Default::default(), 10);
            }
        }
    }
    seen
}

fn put(world: &World, worker: u64, key: KeyRef<'_>, dice: &mut Dice, seen: &mut Seen) {
    let mut config = ReplicateConfig::default().replicas(1 + dice.below(2) as u32);
    config.with_soft_pin = dice.below(8) == 0;
    let lens = [1 + dice.below(30)];
    let start = PutStart { key, slice_lengths: &lens, config: &config };
    let owner = client(100 + worker);
    let Ok(grant) = world.master.put_start(world.now(), owner, &start) else { return };
    seen.granted.push(grant.generation);
    let generation = Some(grant.generation);
    for byte in grant.placements.iter().flat_map(|at| world.bytes(at)) {
        byte.store(grant.generation.as_u64(), Ordering::SeqCst);
    }
    if dice.below(8) == 0 {
        let _ = world.master.put_revoke(world.now(), owner, key, generation);
    } else {
        // Fails only when every segment of it was unmounted meanwhile.
        let _ =
            world.master.put_end(world.now(), owner, &PutEnd { key, generation, checksums: &[] });
    }
}

fn get(world: &World, number: u64, key: KeyRef<'_>, seen: &mut Seen) {
    let asked = world.now();
    let Ok(list) = world.master.get_replica_list(asked, key) else { return };
    for at in &list.placements {
        let intact = world
            .bytes(at)
            .iter()
            .all(|byte| byte.load(Ordering::SeqCst) == list.generation.as_u64());
        if world.now() < asked + list.lease {
            assert!(intact, "{key} changed under lease at {asked}");
            seen.checked_reads += 1;
        }
    }
    let newest = seen.newest.entry(number).or_insert(list.generation);
    assert!(*newest <= list.generation, "{key} went back in time");
    *newest = list.generation;
}

/// Time passes, segments come and go.
fn run_the_cluster(world: &World) {
    let mut mounted: Vec<u64> = (0..SEGMENTS).collect();
    let mut next_change = 0;
    while !world.done.load(Ordering::SeqCst) {
        let now = world.now();
        world.master.tick(now);
        let slot = (next_change % SEGMENTS) as usize;
        let next = mounted[slot] + SEGMENTS;
        if now >= Time::from_millis(next_change * 100) && next < MOUNTINGS {
            // Every other time the new one takes the old one's place unasked.
            if (next_change / SEGMENTS).is_multiple_of(2) {
                let id = SegmentId::from_u128(u128::from(mounted[slot]));
                world.master.unmount_segment(now, client(slot as u64), id).unwrap();
            }
            world.mount(next);
            mounted[slot] = next;
            next_change += 1;
        }
        thread::yield_now();
    }
}

#[test]
fn readers_find_what_they_were_promised_whatever_others_do() {
    let world = World::new();
    (0..SEGMENTS).for_each(|number| world.mount(number));
    let seen: Vec<Seen> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                scope.spawn({
                    let world = &world;
                    move || work(world, worker)
                })
            })
            .collect();
        let cluster = scope.spawn(|| run_the_cluster(&world));
        let seen = workers.into_iter().map(|worker| worker.join());
        let seen: Vec<_> = seen.collect();
        world.done.store(true, Ordering::SeqCst);
        cluster.join().unwrap();
        seen.into_iter().map(|seen| seen.unwrap()).collect()
    });

    let granted: Vec<Generation> = seen.iter().flat_map(|seen| seen.granted.clone()).collect();
    let distinct: BTreeSet<Generation> = granted.iter().copied().collect();
    assert_eq!(distinct.len(), granted.len(), "no generation is given twice");
    assert!(seen.iter().all(|seen| seen.checked_reads > 0));
    assert!(world.master.report().evicted_objects > 0);

    let now = world.now();
    while world.master.tick(now) {}
    let report = world.master.report();
    assert_eq!(report.put_starts, granted.len() as u64);
    assert_eq!(report.processing, 0, "every put was ended, revoked or lost");
    let mut used = 0;
    let mut at = Some(Default::default());
    while let Some(cursor) = at {
        let page = world.master.list_keys("", cursor, 7);
        used += page.keys.iter().map(|info| info.len * u64::from(info.replicas)).sum::<u64>();
        at = page.next;
    }
    assert_eq!(report.used, used, "every byte in use belongs to an object");
    world.master.remove_all(now, true);
    assert_eq!((world.master.report().used, world.master.report().objects), (0, 0));
}
