//! Copies, moves, tasks and drain jobs in any order, over memory that is written and read
//! as clients do it: no reader finds other bytes than those of the put it asked for, and
//! all space comes back.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mc_meta::{
    Master, Placement, PutGrant, ReplicateConfig, Segment, SegmentStatus, TaskKind, TaskStatus,
    TransferGrant, TransferKind,
};
use mc_types::{ClientId, Generation, JobId, Time};
use proptest::prelude::*;

use super::*;

const SEGMENTS: u128 = 4;
const KEYS: u8 = 5;

#[derive(Clone, Debug)]
enum Op {
    Put {
        key: u8,
        len: u64,
        replicas: u32,
    },
    Upsert {
        key: u8,
        len: u64,
        replicas: u32,
    },
    Remove {
        key: u8,
        force: bool,
    },
    /// A put that is left unfinished.
    Begin {
        key: u8,
        len: u64,
        replace: bool,
    },
    /// The client of an unfinished put gives it up.
    Revoke {
        at: prop::sample::Index,
        late: LateWrites,
    },
    /// Bytes of an unfinished put arrive, or of one that was revoked while they could.
    WritePut {
        at: prop::sample::Index,
    },
    Get {
        key: u8,
    },
    Start {
        key: u8,
        kind: TransferKind,
        source: u128,
        targets: Vec<u128>,
    },
    Finish {
        at: prop::sample::Index,
        /// `None` ends it.
        revoke: Option<LateWrites>,
    },
    /// A client that has not been heard of for long writes after all.
    WriteLate {
        at: prop::sample::Index,
    },
    Unmount {
        segment: u128,
        grace: u64,
    },
    Mount {
        segment: u128,
    },
    Silence {
        segment: u128,
    },
    Drain {
        segment: u128,
    },
    Cancel {
        at: prop::sample::Index,
    },
    Copy {
        key: u8,
        target: u128,
    },
    Work {
        client: u128,
        well: bool,
    },
    Pass {
        millis: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..KEYS;
    let segment = || 0..SEGMENTS;
    let index = any::<prop::sample::Index>;
    let late = || prop_oneof![Just(LateWrites::Possible), Just(LateWrites::Impossible)];
    let kind = prop_oneof![Just(TransferKind::Copy), Just(TransferKind::Move)];
    let targets = prop::collection::vec(segment(), 1..4);
    prop_oneof![
        8 => (key(), 1..90u64, 1..4u32)
            .prop_map(|(key, len, replicas)| Op::Put { key, len, replicas }),
        4 => (key(), 1..90u64, 1..4u32)
            .prop_map(|(key, len, replicas)| Op::Upsert { key, len, replicas }),
        2 => (key(), any::<bool>()).prop_map(|(key, force)| Op::Remove { key, force }),
        8 => key().prop_map(|key| Op::Get { key }),
        10 => (key(), kind, segment(), targets)
            .prop_map(|(key, kind, source, targets)| Op::Start { key, kind, source, targets }),
        8 => (index(), prop::option::weighted(0.3, late()))
            .prop_map(|(at, revoke)| Op::Finish { at, revoke }),
        4 => (key(), 1..90u64, any::<bool>())
            .prop_map(|(key, len, replace)| Op::Begin { key, len, replace }),
        3 => (index(), late()).prop_map(|(at, late)| Op::Revoke { at, late }),
        3 => index().prop_map(|at| Op::WritePut { at }),
        3 => index().prop_map(|at| Op::WriteLate { at }),
        1 => (segment(), prop_oneof![Just(0), 1..20_000u64])
            .prop_map(|(segment, grace)| Op::Unmount { segment, grace }),
        3 => segment().prop_map(|segment| Op::Mount { segment }),
        1 => segment().prop_map(|segment| Op::Silence { segment }),
        1 => segment().prop_map(|segment| Op::Drain { segment }),
        1 => index().prop_map(|at| Op::Cancel { at }),
        2 => (key(), segment()).prop_map(|(key, target)| Op::Copy { key, target }),
        8 => (segment(), prop::bool::weighted(0.8))
            .prop_map(|(client, well)| Op::Work { client, well }),
        10 => prop_oneof![4 => 0..3_000u64, 1 => 0..400_000u64]
            .prop_map(|millis| Op::Pass { millis }),
    ]
}

/// A transfer that its client has begun.
struct Open {
    key: String,
    kind: TransferKind,
    client: ClientId,
    grant: TransferGrant,
    due: Time,
}

/// A put that its client may be writing.
struct Unfinished {
    key: String,
    grant: PutGrant,
    due: Time,
}

/// A reader that may read until its lease ends.
struct Reader {
    generation: Generation,
    place: Placement,
    until: Time,
}

struct World {
    master: Master,
    now: Time,
    /// The bytes of each mounted segment, as the put that they belong to.
    memory: HashMap<*const Segment, (Arc<Segment>, Vec<u64>)>,
    silent: [bool; SEGMENTS as usize],
    open: Vec<Open>,
    puts: Vec<Unfinished>,
    readers: Vec<Reader>,
    jobs: Vec<JobId>,
}

fn named(number: u128) -> String {
    format!("segment-{number}")
}

impl World {
    fn new() -> Self {
        let mut config = settings();
        config.client_ttl = Duration::from_secs(10);
        config.client_return_timeout = Duration::from_secs(60);
        config.shards = 2;
        let master = Master::new(config, 1).unwrap().with_secret(SECRET);
        let mut world = Self {
            master,
            now: at(0),
            memory: HashMap::new(),
            silent: [true; SEGMENTS as usize],
            open: Vec::new(),
            puts: Vec::new(),
            readers: Vec::new(),
            jobs: Vec::new(),
        };
        (0..SEGMENTS).for_each(|number| world.mount(number));
        world
    }

    fn mount(&mut self, number: u128) {
        // One that leaves, or another's of the name, is not our matter here.
        let mounted = self.master.mount_segment(self.now, owner(number), segment(number, 200));
        self.silent[number as usize] = mounted.is_err();
    }

    fn bytes(&mut self, place: &Placement) -> &mut [u64] {
        let (_, bytes) = self
            .memory
            .entry(Arc::as_ptr(&place.segment))
            .or_insert_with(|| (Arc::clone(&place.segment), vec![0; 200]));
        let from = place.extent.offset() as usize;
        &mut bytes[from..from + place.extent.len() as usize]
    }

    fn write(&mut self, place: &Placement, generation: Generation) {
        self.bytes(place).fill(generation.as_u64());
    }

    fn check(&mut self, place: &Placement, generation: Generation, whose: &str) {
        let bytes = self.bytes(place);
        assert!(bytes.iter().all(|it| *it == generation.as_u64()), "{whose} finds {bytes:?}");
    }

    fn put(&mut self, name: &str, len: u64, replicas: u32, replace: bool, ends: bool) {
        let config = ReplicateConfig::default().replicas(replicas);
        let put = PutStart { key: key(name), slice_lengths: &[len], config: &config };
        let granted = if replace {
            self.master.upsert_start(self.now, WRITER, &put)
        } else {
            self.master.put_start(self.now, WRITER, &put)
        };
        let Ok(grant) = granted else { return };
        if !ends {
            let due = self.now + grant.time_left;
            self.puts.push(Unfinished { key: name.into(), grant, due });
            return;
        }
        let generation = grant.handle.generation;
        for place in &grant.placements {
            self.write(place, generation);
        }
        end(&self.master, self.now, name, generation).unwrap();
    }

    fn write_put(&mut self, at: usize) {
        let PutGrant { handle, placements, .. } = self.puts[at].grant.clone();
        for place in &placements {
            self.write(place, handle.generation);
        }
    }

    fn revoke(&mut self, at: usize, late: LateWrites) {
        let Unfinished { key: name, grant, .. } = &self.puts[at];
        let _ = self.master.put_revoke(self.now, WRITER, key(name), grant.handle, late);
        if late == LateWrites::Impossible {
            self.puts.remove(at);
        }
    }

    fn get(&mut self, name: &str) {
        let Ok(list) = self.master.get_replica_list(self.now, key(name)) else { return };
        assert!(!list.placements.is_empty());
        for place in list.placements {
            self.check(&place, list.generation, "a reader that comes");
            let (generation, until) = (list.generation, self.now + list.lease);
            self.readers.push(Reader { generation, place, until });
        }
    }

    fn begin(
        &mut self,
        client: ClientId,
        name: &str,
        kind: TransferKind,
        source: &str,
        targets: &[&str],
    ) -> bool {
        let grant = match kind {
            TransferKind::Copy => {
                self.master.copy_start(self.now, client, key(name), source, targets)
            }
            TransferKind::Move => {
                self.master.move_start(self.now, client, key(name), source, targets[0])
            }
        };
        let Ok(grant) = grant else { return false };
        self.check(&grant.source, grant.generation, "a copy");
        if kind == TransferKind::Move || !grant.targets.is_empty() {
            let due = self.now + grant.time_left;
            self.open.push(Open { key: name.into(), kind, client, grant, due });
        }
        true
    }

    fn write_targets(&mut self, at: usize) {
        let grant = self.open[at].grant.clone();
        for place in &grant.targets {
            self.write(place, grant.generation);
        }
    }

    fn finish(&mut self, at: usize, revoke: Option<LateWrites>) -> bool {
        if revoke.is_none() {
            self.write_targets(at);
        }
        let Open { key: name, kind, client, grant, .. } = &self.open[at];
        let (master, now, key, handle) = (&self.master, self.now, key(name), grant.handle);
        let result = match (kind, revoke) {
            (TransferKind::Copy, None) => master.copy_end(now, *client, key, handle),
            (TransferKind::Copy, Some(late)) => master.copy_revoke(now, *client, key, handle, late),
            (TransferKind::Move, None) => master.move_end(now, *client, key, handle),
            (TransferKind::Move, Some(late)) => master.move_revoke(now, *client, key, handle, late),
        };
        // Bytes of a revoked transfer may still arrive.
        if revoke != Some(LateWrites::Possible) {
            self.open.remove(at);
        }
        result.is_ok()
    }

    fn work(&mut self, number: u128, well: bool) {
        if self.silent[number as usize] {
            return;
        }
        let client = owner(number);
        for task in self.master.fetch_tasks(self.now, client, 2) {
            let name = task.key.as_str();
            let begun = match &task.kind {
                TaskKind::Copy { source, targets } => {
                    let targets: Vec<&str> = targets.iter().map(|it| &**it).collect();
                    let open = self.open.len();
                    let begun = self.begin(client, name, TransferKind::Copy, source, &targets);
                    begun && self.open.len() > open
                }
                TaskKind::Move { source, target } => {
                    self.begin(client, name, TransferKind::Move, source, &[target])
                }
            };
            // A client that does not work well leaves what it has begun.
            let done = begun && well && self.finish(self.open.len() - 1, None);
            let status = if done { TaskStatus::Success } else { TaskStatus::Failed };
            let _ = self.master.mark_task_to_complete(self.now, client, task.id, status, "");
        }
    }

    fn apply(&mut self, op: Op) {
        let name = |key: u8| format!("key-{key}");
        match op {
            Op::Put { key, len, replicas } => self.put(&name(key), len, replicas, false, true),
            Op::Upsert { key, len, replicas } => self.put(&name(key), len, replicas, true, true),
            Op::Begin { key, len, replace } => self.put(&name(key), len, 2, replace, false),
            Op::Revoke { at, late } if !self.puts.is_empty() => {
                self.revoke(at.index(self.puts.len()), late);
            }
            Op::WritePut { at } if !self.puts.is_empty() => {
                self.write_put(at.index(self.puts.len()));
            }
            Op::Remove { key: number, force } => {
                // Those who read it go on until their leases end.
                let _ = self.master.remove(self.now, key(&name(number)), force);
            }
            Op::Get { key } => self.get(&name(key)),
            Op::Start { key, kind, source, targets } => {
                let targets: Vec<String> = targets.into_iter().map(named).collect();
                let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
                self.begin(WRITER, &name(key), kind, &named(source), &targets);
            }
            Op::Finish { at, revoke } if !self.open.is_empty() => {
                self.finish(at.index(self.open.len()), revoke);
            }
            Op::WriteLate { at } if !self.open.is_empty() => {
                self.write_targets(at.index(self.open.len()));
            }
            Op::Unmount { segment: number, grace } => {
                let (client, id) = (owner(number), segment(number, 200).id);
                let _ = if grace == 0 {
                    self.master.unmount_segment(self.now, client, id)
                } else {
                    let grace = Duration::from_millis(grace);
                    self.master.graceful_unmount_segment(self.now, client, id, grace)
                };
            }
            Op::Mount { segment } => self.mount(segment),
            Op::Silence { segment } => self.silent[segment as usize] = true,
            Op::Drain { segment } => {
                let job = self.master.create_drain_job(self.now, &[&*named(segment)], &[], 2);
                self.jobs.extend(job);
            }
            Op::Cancel { at } if !self.jobs.is_empty() => {
                let _ =
                    self.master.cancel_drain_job(self.now, self.jobs[at.index(self.jobs.len())]);
            }
            Op::Copy { key: number, target } => {
                let targets = [&*named(target)];
                let _ = self.master.create_copy_task(self.now, key(&name(number)), &targets);
            }
            Op::Work { client, well } => self.work(client, well),
            Op::Pass { millis } => self.pass(millis),
            Op::Finish { .. } | Op::WriteLate { .. } | Op::Cancel { .. } => {}
            Op::Revoke { .. } | Op::WritePut { .. } => {}
        }
        self.check_all();
    }

    fn pass(&mut self, millis: u64) {
        // No client that is there is silent for longer than it may be.
        for step in (0..millis).step_by(5_000) {
            let now = self.now + Duration::from_millis(step);
            for number in (0..SEGMENTS).filter(|number| !self.silent[*number as usize]) {
                self.master.ping(now, owner(number));
            }
            while self.master.tick(now) {}
        }
        self.now = self.now + Duration::from_millis(millis);
        while self.master.tick(self.now) {}
        let now = self.now;
        self.readers.retain(|reader| reader.until > now);
        self.open.retain(|open| open.due > now);
        self.puts.retain(|put| put.due > now);
    }

    fn check_all(&mut self) {
        let reading = self.readers.iter().map(|it| (it.place.clone(), it.generation));
        for (place, generation) in reading.collect::<Vec<_>>() {
            if place.segment.status().is_readable() {
                self.check(&place, generation, "a reader under lease");
            }
        }
        // No two replicas overlap, unfinished ones included.
        let mut ends = BTreeMap::new();
        for number in 0..KEYS {
            let Ok(info) = self.master.describe(self.now, key(&format!("key-{number}"))) else {
                continue;
            };
            for place in info.replicas.iter().map(|it| &it.placement) {
                let at = (place.segment.spec().id, place.extent.offset());
                if place.segment.status() != SegmentStatus::Unmounted {
                    let other = ends.insert(at, place.extent.len());
                    assert_eq!(other, None, "two replicas at {at:?}");
                }
            }
        }
        let mut last = None;
        for ((id, offset), len) in ends {
            if let Some((other, end)) = last.replace((id, offset + len)) {
                assert!(other != id || end <= offset, "replicas overlap in {id}");
            }
        }
    }

    /// From now on every client works well, until nothing is left to do.
    fn settle(&mut self) {
        self.pass(30_000);
        (0..SEGMENTS).for_each(|number| self.mount(number));
        let mut rounds = 0;
        while !self
            .jobs
            .iter()
            .all(|job| self.master.query_drain_job(*job).is_ok_and(|info| info.status.is_final()))
        {
            (0..SEGMENTS).for_each(|number| self.work(number, true));
            self.pass(2_000);
            self.check_all();
            // A put that waits for space waits for ever unless some is freed.
            rounds += 1;
            if rounds == 1_000 {
                for job in &self.jobs {
                    let _ = self.master.cancel_drain_job(self.now, *job);
                }
            }
            assert!(rounds < 2_000, "{:?}", self.master.list_drain_jobs());
        }
        self.pass(2_000_000);
        let report = self.master.report();
        assert_eq!(
            (report.totals.transfers, report.totals.tasks_pending, report.totals.tasks_processing),
            (0, 0, 0)
        );
        let mut held = 0;
        for number in 0..KEYS {
            if let Ok(info) = self.master.describe(self.now, key(&format!("key-{number}"))) {
                let present = info.replicas.iter().map(|it| &it.placement);
                held += present.map(|place| place.extent.len()).sum::<u64>();
            }
        }
        assert_eq!(report.totals.used, held, "all other space has come back");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nobody_finds_foreign_bytes_and_all_space_comes_back(
        ops in prop::collection::vec(op(), 1..150)
    ) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
        }
        world.settle();
    }
}
