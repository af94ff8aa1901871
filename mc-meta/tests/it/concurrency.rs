//! Many threads on one master. The bytes are simulated: a writer stores its
//! generation in every byte it was granted, a reader checks that it finds the
//! generation it was promised for as long as it was promised. Meanwhile segments
//! come, go, and are away for a while, and a journal follows the effects.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use mc_meta::{
    Effect, EffectSink, LateWrites, ListCursor, Master, MasterConfig, Placement, PutEnd, PutGrant,
    PutStart, ReplicateConfig, SegmentSpec, SegmentStatus, SpaceView,
};
use mc_types::{ClientId, Extent, Generation, KeyRef, SegmentId, Sequence, Time};

use crate::common::segment;

const WORKERS: u64 = 4;
const ROUNDS: u64 = 150_000;
/// For workers that have read or copied nothing by then.
const MOST_ROUNDS: u64 = 20 * ROUNDS;
const KEYS: u64 = 48;
const SEGMENTS: u64 = 4;
const SEGMENT_SIZE: u64 = 160;
/// Mountings of a segment; each has memory of its own.
const MOUNTINGS: u64 = 400;
const LEASE: Duration = Duration::from_millis(10);

/// The cluster that the threads share.
struct World {
    master: Master,
    journal: Journal,
    clock: AtomicU64,
    memory: Vec<AtomicU64>,
    done: AtomicBool,
}

impl World {
    fn new() -> Self {
        let mut config = MasterConfig::default();
        config.shards = 8;
        config.lease_ttl = LEASE;
        config.client_ttl = Duration::from_millis(30);
        config.client_return_timeout = Duration::from_millis(200);
        // No writer is slower than these.
        config.put_start_discard_timeout = Duration::from_secs(1 << 40);
        config.put_start_release_timeout = Duration::from_secs(1 << 40);
        config.eviction_high_watermark_ratio = 0.8;
        let journal = Journal::default();
        Self {
            master: Master::new(config, 3).unwrap().with_sink(journal.clone()),
            journal,
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
            id: SegmentId::from_u128(number.into()),
            base: number * SEGMENT_SIZE,
            ..segment(slot.into(), SEGMENT_SIZE)
        };
        self.master.mount_segment(self.now(), client(slot), spec).unwrap();
    }

    fn bytes(&self, at: &Placement) -> &[AtomicU64] {
        let from = at.segment.spec().base + at.extent.offset();
        &self.memory[from as usize..(from + at.extent.len()) as usize]
    }

    fn write(&self, places: &[Placement], generation: Generation) {
        for byte in places.iter().flat_map(|at| self.bytes(at)) {
            byte.store(generation.as_u64(), Ordering::SeqCst);
        }
    }
}

fn client(number: u64) -> ClientId {
    ClientId::from_u128(u128::from(number))
}

fn name_of(slot: u64) -> String {
    format!("segment-{slot}")
}

/// The state according to the effects.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    /// Objects, and whether each is readable.
    objects: BTreeMap<(String, Generation), bool>,
    /// Space without an owner that a writer or a reader may still be using.
    kept: Vec<(SegmentId, Extent)>,
}

/// Where space is, but for segments that are gone.
fn there(space: SpaceView<'_>) -> Vec<(SegmentId, Extent)> {
    let placements = space.placements();
    let there = placements.iter().filter(|at| at.segment.status() != SegmentStatus::Unmounted);
    there.map(|at| (at.segment.spec().id, at.extent)).collect()
}

impl EffectSink for Journal {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        let mut told = self.0.lock().unwrap();
        let Told { objects, kept } = &mut *told;
        match *effect {
            Effect::SpaceKept { space, .. } => kept.extend(there(space)),
            Effect::SpaceFreed { space } => {
                for place in there(space) {
                    let at = kept.iter().position(|other| *other == place);
                    kept.swap_remove(at.expect("what is freed was kept"));
                }
            }
            Effect::SegmentGone { segment } => kept.retain(|(id, _)| *id != segment.spec().id),
            Effect::Began { object } => {
                let name = (object.key().as_str().to_owned(), object.generation());
                assert_eq!(objects.insert(name, false), None);
            }
            Effect::Stored { object, .. } => {
                let name = (object.key().as_str().to_owned(), object.generation());
                assert_eq!(objects.insert(name, true), Some(false));
                let key = object.key().as_str();
                let from = (key.to_owned(), Generation::new(0));
                let same = objects.range(from..).take_while(|((other, _), _)| other == key);
                assert_eq!(same.filter(|(_, readable)| **readable).count(), 1, "one at a time");
            }
            Effect::Removed { key, generation, .. } => {
                assert_eq!(objects.remove(&(key.as_str().to_owned(), generation)), Some(true));
            }
            Effect::Abandoned { key, generation, .. } => {
                assert_eq!(objects.remove(&(key.as_str().to_owned(), generation)), Some(false));
            }
            _ => {}
        }
    }
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

struct Worker<'a> {
    world: &'a World,
    number: u64,
    client: ClientId,
    dice: Dice,
    /// The newest generation of each key that this worker has read.
    newest: BTreeMap<u64, Generation>,
    granted: Vec<Generation>,
    checked_reads: u64,
    transfers: u64,
}

impl<'a> Worker<'a> {
    fn new(world: &'a World, number: u64) -> Self {
        Self {
            world,
            number,
            client: client(100 + number),
            dice: Dice(0x9e37_79b9_7f4a_7c15 ^ (number + 1)),
            newest: BTreeMap::new(),
            granted: Vec::new(),
            checked_reads: 0,
            transfers: 0,
        }
    }

    fn work(mut self) -> Self {
        let master = &self.world.master;
        for round in 0..MOST_ROUNDS {
            // On a busy machine segments may be away for most of the time.
            if round >= ROUNDS && self.checked_reads > 0 && self.transfers > 0 {
                break;
            }
            if self.dice.below(8) == 0 {
                self.world.clock.fetch_add(1, Ordering::SeqCst);
            }
            let number = self.dice.below(KEYS);
            let name = format!("key-{number}");
            let key = KeyRef::new(&name).unwrap();
            match self.dice.below(16) {
                // Upserts preempt others' puts, which may then write for longer than a
                // test can wait. So each worker has keys of its own for them.
                0..6 if number < KEYS / 2 => self.put(key, false),
                0..6 if number % WORKERS == self.number => self.put(key, true),
                0..6 => {}
                6..12 => self.get(number, key),
                12 => self.transfer(key),
                13 => {
                    let _ = master.remove(self.world.now(), key, false);
                }
                14 => {
                    master.batch_replica_clear(self.world.now(), self.client, &[key], None);
                }
                _ => {
                    master.exist(self.world.now(), key);
                    master.list_keys("key-", ListCursor::default(), 10);
                }
            }
        }
        self
    }

    fn put(&mut self, key: KeyRef<'_>, upsert: bool) {
        let World { master, .. } = self.world;
        let mut config = ReplicateConfig::default().replicas(1 + self.dice.below(2) as u32);
        if self.dice.below(8) == 0 {
            config = config.soft_pin();
        }
        config.with_hard_pin = self.dice.below(64) == 0;
        if self.dice.below(3) == 0 {
            config = config.group(format!("group-{}", self.dice.below(6)));
        }
        let lens = [1 + self.dice.below(30)];
        let start = PutStart { key, slice_lengths: &lens, config: &config };
        let now = self.world.now();
        let granted = match upsert {
            true => master.upsert_start(now, self.client, &start),
            false => master.put_start(now, self.client, &start),
        };
        let Ok(PutGrant { handle, placements, .. }) = granted else { return };
        let generation = handle.generation;
        self.granted.push(generation);
        self.world.write(&placements, generation);
        let now = self.world.now();
        if self.dice.below(8) == 0 {
            let late = match self.dice.below(2) {
                0 => LateWrites::Possible,
                _ => LateWrites::Impossible,
            };
            let _ = master.put_revoke(now, self.client, key, handle, late);
        } else {
            let put = PutEnd::new(key, handle);
            let _ = master.put_end(now, self.client, &put);
        }
    }

    fn get(&mut self, number: u64, key: KeyRef<'_>) {
        let asked = self.world.now();
        let Ok(list) = self.world.master.get_replica_list(asked, key) else { return };
        let expected = list.generation.as_u64();
        for at in &list.placements {
            let mut bytes = self.world.bytes(at).iter();
            let intact = bytes.all(|byte| byte.load(Ordering::SeqCst) == expected);
            if self.world.now() < asked + list.lease {
                assert!(intact, "{key} changed under lease at {asked}");
                self.checked_reads += 1;
            }
        }
        let newest = self.newest.entry(number).or_insert(list.generation);
        assert!(*newest <= list.generation, "{key} went back in time");
        *newest = list.generation;
    }

    /// Copies or moves an object from anywhere to anywhere.
    fn transfer(&mut self, key: KeyRef<'_>) {
        let World { master, .. } = self.world;
        let now = self.world.now();
        let (from, to) = (name_of(self.dice.below(SEGMENTS)), name_of(self.dice.below(SEGMENTS)));
        let copies = self.dice.below(2) == 0;
        let granted = match copies {
            true => master.copy_start(now, self.client, key, &from, &[&to]),
            false => master.move_start(now, self.client, key, &from, &to),
        };
        let Ok(grant) = granted else { return };
        self.world.write(&grant.targets, grant.generation);
        let (now, named) = (self.world.now(), grant.handle);
        let ended = match copies {
            true => master.copy_end(now, self.client, key, named),
            false => master.move_end(now, self.client, key, named),
        };
        self.transfers += u64::from(ended.is_ok());
    }
}

/// Time passes, segments come and go, and are away for a while.
fn run_the_cluster(world: &World) -> u64 {
    let mut mounted: Vec<u64> = (0..SEGMENTS).collect();
    let mut away = SEGMENTS;
    let mut next_change = 0;
    let mut returns = 0;
    while !world.done.load(Ordering::SeqCst) {
        let now = world.now();
        for slot in (0..SEGMENTS).filter(|slot| *slot != away) {
            world.master.ping(now, client(slot));
        }
        world.master.tick(now);
        if now >= Time::from_millis(next_change * 50) {
            let slot = next_change % SEGMENTS;
            next_change += 1;
            if away < SEGMENTS {
                returns += u64::from(come_back(world, &mut mounted[away as usize]));
            }
            // Every third is silent for a while instead of leaving, while there is memory for its return and
            // for one more at the end.
            let may_return = mounted[slot as usize] + SEGMENTS * 2 < MOUNTINGS;
            away = if next_change.is_multiple_of(3) && may_return { slot } else { SEGMENTS };
            if away == SEGMENTS {
                replace(world, &mut mounted[slot as usize], next_change.is_multiple_of(2));
            }
        }
        thread::yield_now();
    }
    for number in &mut mounted {
        come_back(world, number);
    }
    returns
}

/// Mounts what was away: as it was if the master still has it, else other memory.
/// True when it was as it was.
fn come_back(world: &World, number: &mut u64) -> bool {
    let id = SegmentId::from_u128(u128::from(*number));
    let segments = world.master.report().segments;
    let known = segments.iter().any(|segment| segment.spec.id == id);
    if !known {
        *number += SEGMENTS;
        assert!(*number < MOUNTINGS, "memory for more mountings is needed");
    }
    world.mount(*number);
    known
}

/// Mounts other memory, while there is some, after it was unmounted or in its place.
fn replace(world: &World, number: &mut u64, unmount: bool) {
    if *number + SEGMENTS * 4 > MOUNTINGS {
        return;
    }
    if unmount {
        let id = SegmentId::from_u128(u128::from(*number));
        world.master.unmount_segment(world.now(), client(*number % SEGMENTS), id).unwrap();
    }
    *number += SEGMENTS;
    world.mount(*number);
}

#[test]
fn readers_find_what_they_were_promised_whatever_others_do() {
    let world = World::new();
    (0..SEGMENTS).for_each(|number| world.mount(number));
    let (workers, returns) = thread::scope(|scope| {
        let work = |number| {
            scope.spawn({
                let world = &world;
                move || Worker::new(world, number).work()
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(work).collect();
        let cluster = scope.spawn(|| run_the_cluster(&world));
        let workers: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        world.done.store(true, Ordering::SeqCst);
        let returns = cluster.join().unwrap();
        (workers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), returns)
    });

    let granted: Vec<Generation> = workers.iter().flat_map(|seen| seen.granted.clone()).collect();
    let distinct: BTreeSet<Generation> = granted.iter().copied().collect();
    assert_eq!(distinct.len(), granted.len(), "no generation is given twice");
    assert!(workers.iter().all(|seen| seen.checked_reads > 0 && seen.transfers > 0));
    assert!(returns > 0 && world.master.report().totals.evicted_objects > 0);
    assert_eq!(world.master.report().totals.put_starts, granted.len() as u64);
    check_the_end(&world);
}

/// Everything adds up when all is quiet.
fn check_the_end(world: &World) {
    let master = &world.master;
    // Space that was kept for readers is back by then.
    let now = world.now() + LEASE;
    for slot in 0..SEGMENTS {
        master.ping(now, client(slot));
    }
    while master.tick(now) {}
    let report = master.report();
    let away = report.segments.iter().filter(|segment| !segment.status.is_readable());
    assert_eq!(away.count(), 0);
    assert_eq!(
        (report.totals.processing, report.totals.transfers),
        (0, 0),
        "every put was ended or lost"
    );
    let mut used = 0;
    let mut listed = BTreeSet::new();
    let mut at = Some(ListCursor::default());
    while let Some(cursor) = at {
        let page = master.list_keys("", cursor, 7);
        for info in page.keys {
            used += info.len * u64::from(info.replicas);
            assert!(listed.insert(info.key.as_str().to_owned()), "listed once");
        }
        at = page.next;
    }
    let (told, kept) = {
        let told = world.journal.0.lock().unwrap();
        let keys: BTreeSet<String> = told.objects.keys().map(|(key, _)| key.clone()).collect();
        (keys, told.kept.iter().map(|(_, extent)| extent.len()).sum::<u64>())
    };
    assert_eq!(told, listed, "who only heard the effects knows the same");
    // The client of a copy whose source was lost or replaced has its time to write there.
    assert_eq!(report.totals.used, used + kept, "every byte in use belongs to something");
    let end = Time::from_millis(u64::MAX - 1);
    for slot in 0..SEGMENTS {
        master.ping(end, client(slot));
    }
    while master.tick(end) {}
    master.remove_all(end, true);
    let left = master.report();
    assert_eq!(
        (left.totals.objects, left.totals.used, left.segments.len() as u64),
        (0, 0, SEGMENTS)
    );
    assert!(left.segments.iter().all(|segment| segment.largest_free == SEGMENT_SIZE));
}
