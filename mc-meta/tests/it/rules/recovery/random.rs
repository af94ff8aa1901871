//! Random commands, with masters made of what is recorded of them along the way.

use std::collections::BTreeMap;

use mc_meta::{AllocationStrategy, ExportPage};
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const KEYS: usize = 6;
const SEGMENTS: u128 = 4;

#[derive(Clone, Debug)]
enum Op {
    Mount {
        segment: u128,
        stranger: bool,
    },
    Reattach {
        segment: u128,
        stranger: bool,
    },
    Unmount {
        segment: u128,
        stranger: bool,
    },
    Graceful {
        segment: u128,
        stranger: bool,
    },
    /// Begins a drain job.
    Drain {
        segment: u128,
    },
    /// Cancels the drain jobs at work.
    CancelDrains,
    Reopen {
        segment: u128,
    },
    Start {
        key: usize,
        len: u64,
        upsert: bool,
        config: ReplicateConfig,
        stranger: bool,
    },
    End {
        key: usize,
        stranger: bool,
    },
    Revoke {
        key: usize,
        stranger: bool,
    },
    Put {
        key: usize,
        len: u64,
        config: ReplicateConfig,
    },
    Get {
        key: usize,
    },
    Remove {
        key: usize,
        force: bool,
    },
    Copy {
        key: usize,
        to: u128,
    },
    Move {
        key: usize,
        to: u128,
    },
    EndTransfer {
        key: usize,
    },
    RevokeTransfer {
        key: usize,
    },
    /// A file's write ends or is revoked, the memory beside it is revoked, or the file is evicted.
    File {
        key: usize,
        fate: u8,
    },
    Ping {
        stranger: bool,
    },
    Tick,
    Pass {
        millis: u64,
    },
    /// Rebuilds from an export and from all records.
    Check,
    /// Requests the next page of an export while commands run.
    Page,
    /// Ends the master, and continues with one that is rebuilt from all records.
    Restart,
}

fn config() -> impl Strategy<Value = ReplicateConfig> {
    (1u32..4, 0u8..12).prop_map(|(replicas, kind)| {
        let config = ReplicateConfig::default().replicas(replicas);
        match kind {
            0 => config.soft_pin(),
            1 => config.hard_pin(),
            2 | 3 => config.group("one"),
            4 => config.group("other"),
            5 => config.parent(key("key-0").to_owned()),
            _ => config,
        }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..KEYS;
    let segment = 0..SEGMENTS;
    let len = 1u64..400;
    let stranger = any::<bool>;
    let millis = prop_oneof![5 => 0u64..60, 3 => 60u64..600, 1 => 600u64..5000];
    prop_oneof![
        3 => (segment.clone(), stranger()).prop_map(|(segment, stranger)| Op::Mount { segment, stranger }),
        3 => (segment.clone(), stranger()).prop_map(|(segment, stranger)| Op::Reattach { segment, stranger }),
        1 => (segment.clone(), stranger()).prop_map(|(segment, stranger)| Op::Unmount { segment, stranger }),
        1 => (segment.clone(), stranger()).prop_map(|(segment, stranger)| Op::Graceful { segment, stranger }),
        3 => segment.clone().prop_map(|segment| Op::Drain { segment }),
        1 => Just(Op::CancelDrains),
        1 => segment.clone().prop_map(|segment| Op::Reopen { segment }),
        4 => (key.clone(), len.clone(), stranger(), config(), stranger()).prop_map(
            |(key, len, upsert, config, stranger)| Op::Start { key, len, upsert, config, stranger }
        ),
        3 => (key.clone(), stranger()).prop_map(|(key, stranger)| Op::End { key, stranger }),
        1 => (key.clone(), stranger()).prop_map(|(key, stranger)| Op::Revoke { key, stranger }),
        6 => (key.clone(), len, config()).prop_map(|(key, len, config)| Op::Put { key, len, config }),
        3 => key.clone().prop_map(|key| Op::Get { key }),
        2 => (key.clone(), stranger()).prop_map(|(key, force)| Op::Remove { key, force }),
        3 => (key.clone(), segment.clone()).prop_map(|(key, to)| Op::Copy { key, to }),
        3 => (key.clone(), segment).prop_map(|(key, to)| Op::Move { key, to }),
        3 => key.clone().prop_map(|key| Op::EndTransfer { key }),
        1 => key.prop_map(|key| Op::RevokeTransfer { key }),
        4 => (0..KEYS, 0u8..4).prop_map(|(key, fate)| Op::File { key, fate }),
        3 => stranger().prop_map(|stranger| Op::Ping { stranger }),
        2 => Just(Op::Tick),
        3 => millis.prop_map(|millis| Op::Pass { millis }),
        1 => Just(Op::Check),
        8 => Just(Op::Page),
        2 => Just(Op::Restart),
    ]
}

fn small() -> MasterConfig {
    let mut config = MasterConfig::default();
    config.shards = 3;
    config.allocation_strategy = AllocationStrategy::Random;
    config.lease_ttl = Duration::from_millis(100);
    config.soft_pin_ttl = Duration::from_millis(300);
    config.client_ttl = Duration::from_millis(700);
    config.client_return_timeout = Duration::from_millis(500);
    config.put_start_discard_timeout = Duration::from_millis(200);
    config.put_start_release_timeout = Duration::from_millis(900);
    config
}

/// An export under way.
struct Pages {
    records: Vec<Record>,
    next: Option<ExportCursor>,
    /// Records of the journal when it began.
    since: usize,
}

struct World {
    master: Master,
    journal: Journal,
    now: Time,
    /// The last put of each key, and the last copy or move.
    puts: BTreeMap<usize, PutHandle>,
    transfers: BTreeMap<usize, TransferHandle>,
    pages: Option<Pages>,
    /// Bytes of each segment.
    size: u64,
}

const NO_PUT: PutHandle =
    PutHandle { generation: Generation::new(0), token: PutToken::from_u64(0) };
const NO_TRANSFER: TransferHandle =
    TransferHandle { id: TransferId::new(NO_PUT.generation.as_u64()), token: NO_PUT.token };

fn client(stranger: bool) -> ClientId {
    if stranger { STRANGER } else { NODE }
}

impl World {
    fn new(config: MasterConfig, size: u64) -> Self {
        let journal = Journal::default();
        let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
        for number in 0..SEGMENTS / 2 {
            master.mount_segment(at(0), NODE, segment(number, size)).unwrap();
        }
        let (puts, transfers) = (BTreeMap::new(), BTreeMap::new());
        Self { master, journal, now: at(0), puts, transfers, pages: None, size }
    }

    /// Answers are not looked at: what counts is that state and records agree.
    fn run(&mut self, op: &Op) {
        let Self { master, now, size, puts, transfers, .. } = self;
        let now = *now;
        let put_of = |number: &usize| puts.get(number).copied().unwrap_or(NO_PUT);
        let transfer_of = |number: &usize| transfers.get(number).copied().unwrap_or(NO_TRANSFER);
        let name = |number: &usize| format!("key-{number}");
        match op {
            Op::Mount { segment: number, stranger } => {
                let _ = master.mount_segment(now, client(*stranger), segment(*number, *size));
            }
            Op::Reattach { segment: number, stranger } => {
                let spec = segment(*number, *size);
                let _ = master.reattach_segment(now, client(*stranger), &spec);
            }
            Op::Unmount { segment, stranger } => {
                let id = SegmentId::from_u128(*segment);
                let _ = master.unmount_segment(now, client(*stranger), id);
            }
            Op::Graceful { segment, stranger } => {
                let (id, grace) = (SegmentId::from_u128(*segment), Duration::from_millis(300));
                let _ = master.graceful_unmount_segment(now, client(*stranger), id, grace);
            }
            Op::Drain { segment } => {
                let _ = master.create_drain_job(now, &[&format!("segment-{segment}")], &[], 2);
            }
            Op::CancelDrains => {
                for job in master.list_drain_jobs() {
                    let _ = master.cancel_drain_job(now, job.id);
                }
            }
            Op::Reopen { segment } => {
                let _ = master.reopen_segment(now, &format!("segment-{segment}"));
            }
            Op::Start { key: number, len, upsert, config, stranger } => {
                let (name, lengths) = (name(number), [*len, 7]);
                let put = PutStart { key: key(&name), slice_lengths: &lengths, config };
                let client = client(*stranger);
                let granted = if *upsert {
                    master.upsert_start(now, client, &put)
                } else {
                    master.put_start(now, client, &put)
                };
                puts.extend(granted.ok().map(|grant| (*number, grant.handle)));
            }
            Op::End { key: number, stranger } => {
                let (name, checksums) = (name(number), [1, 2].map(Checksum::from_crc32c));
                let put =
                    PutEnd { checksums: &checksums, ..PutEnd::new(key(&name), put_of(number)) };
                let _ = master.put_end(now, client(*stranger), &put);
            }
            Op::Revoke { key: number, stranger } => {
                let _ = master.put_revoke(
                    now,
                    client(*stranger),
                    key(&name(number)),
                    put_of(number),
                    LateWrites::Impossible,
                );
            }
            Op::Put { key: number, len, config } => {
                let _ = put_as(master, now, &name(number), *len, config);
            }
            Op::Get { key: number } => {
                let _ = master.get_replica_list(now, key(&name(number)));
            }
            Op::Remove { key: number, force } => {
                let _ = master.remove(now, key(&name(number)), *force);
            }
            Op::Copy { key: number, to } | Op::Move { key: number, to } => {
                let (name, to) = (name(number), format!("segment-{to}"));
                let Ok(info) = master.describe(now, key(&name)) else { return };
                let Some(replica) = info.replicas.first() else { return };
                let from = replica.placement.segment.spec().name.clone();
                let granted = if matches!(op, Op::Copy { .. }) {
                    master.copy_start(now, WRITER, key(&name), &from, &[&to])
                } else {
                    master.move_start(now, WRITER, key(&name), &from, &to)
                };
                transfers.extend(granted.ok().map(|grant| (*number, grant.handle)));
            }
            Op::EndTransfer { key: number } => {
                let _ = master.copy_end(now, WRITER, key(&name(number)), transfer_of(number));
                let _ = master.move_end(now, WRITER, key(&name(number)), transfer_of(number));
            }
            Op::RevokeTransfer { key: number } => {
                let _ = master.copy_revoke(
                    now,
                    WRITER,
                    key(&name(number)),
                    transfer_of(number),
                    LateWrites::Impossible,
                );
            }
            Op::File { key: number, fate } => {
                let name = name(number);
                let name = key(&name);
                let _ = match fate {
                    0 => master.file_put_end(now, WRITER, name, put_of(number)),
                    1 => master.file_put_revoke(now, WRITER, name, put_of(number)),
                    2 => master.memory_put_revoke(
                        now,
                        WRITER,
                        name,
                        put_of(number),
                        LateWrites::Impossible,
                    ),
                    _ => {
                        let kind = mc_meta::ReplicaKind::SharedFile;
                        let _ = master.evict_from_tier(now, WRITER, name, None, kind);
                        Ok(())
                    }
                };
            }
            Op::Ping { stranger } => drop(master.ping(now, client(*stranger))),
            Op::Tick => drop(master.tick(now)),
            Op::Pass { millis } => self.now = now + Duration::from_millis(*millis),
            Op::Check => self.check(),
            Op::Page => self.page(),
            Op::Restart => self.restart(),
        }
    }

    /// Runs a command, after which no segment takes new objects that was closed to them before, but
    /// where the command is to open it.
    fn run_and_watch(&mut self, op: &Op) {
        let before = purposes(&self.master, self.now);
        self.run(op);
        for (id, after) in purposes(&self.master, self.now) {
            let was = before.get(&id).map(|(status, _)| *status);
            let may_be = |status| match op {
                Op::Reopen { segment } if id.as_u128() == *segment => true,
                Op::Graceful { .. } => status == SegmentStatus::GracefullyUnmounting,
                _ => false,
            };
            match was {
                Some(SegmentStatus::GracefullyUnmounting) => {
                    assert_eq!(Some(&after), before.get(&id));
                }
                Some(was @ SegmentStatus::Drained) => {
                    assert!(after.0 == was || may_be(after.0), "{id} is {after:?} after {op:?}");
                }
                _ => {}
            }
        }
    }

    /// The journal continues with the records of the next life.
    fn restart(&mut self) {
        let config = self.master.config().clone();
        let rebuilt = rebuild_in_parts(config, &self.journal.records(), self.now, 2);
        assert_eq!(rebuilt.report.dropped.total(), 0, "{:?}", rebuilt.report);
        self.go_on(rebuilt);
    }

    fn go_on(&mut self, Rebuilt { master, corrections, .. }: Rebuilt) {
        self.journal.correct(&corrections);
        self.master = master.with_sink(self.journal.clone());
        // An export cannot continue with another master.
        self.pages = None;
    }

    fn check(&self) {
        self.compare(&export(&self.master, self.now), "an export");
        self.compare(&self.journal.records(), "all records");
    }

    fn page(&mut self) {
        let pages = self.pages.get_or_insert_with(|| Pages {
            records: Vec::new(),
            next: Some(ExportCursor::default()),
            since: self.journal.records().len(),
        });
        let Some(cursor) = pages.next else { return };
        let ExportPage { records, next, .. } = self.master.export(self.now, cursor);
        pages.records.extend(records);
        pages.next = next;
        if next.is_none() {
            let Pages { mut records, since, .. } = self.pages.take().unwrap();
            records.extend_from_slice(&self.journal.records()[since..]);
            self.compare(&records, "pages and what happened meanwhile");
        }
    }

    fn compare(&self, records: &[Record], source: &str) {
        let (master, report) = rebuild_with(self.master.config().clone(), records, self.now);
        assert_eq!(report.dropped.total(), 0, "{source}: {report:?}");
        assert_eq!(state(&master, self.now), state(&self.master, self.now), "{source}");
        check_books(&master, self.now);
        let (master, report) = rebuild_settled(self.master.config().clone(), records, self.now);
        assert_eq!(report.dropped.total(), 0, "{source}, settled: {report:?}");
        assert_eq!(state(&master, self.now), state(&self.master, self.now), "{source}, settled");
        check_books(&master, self.now);
        // Applying a record again changes nothing.
        let last = records.last().into_iter();
        let again: Vec<_> = records.iter().chain(last).cloned().collect();
        let (master, _) = rebuild_with(self.master.config().clone(), &again, self.now);
        assert_eq!(state(&master, self.now), state(&self.master, self.now), "{source}, twice");
    }
}

/// The status of each segment, and the time until its client must be back.
fn purposes(master: &Master, now: Time) -> BTreeMap<SegmentId, (SegmentStatus, Option<Duration>)> {
    let records = export(master, now).into_iter();
    let purposes = records.filter_map(|record| match record {
        Record::Segment { spec, status, grace, .. } => Some((spec.id, (status, grace))),
        _ => None,
    });
    purposes.collect()
}

/// A fault of a list of records.
#[derive(Clone, Debug)]
enum Damage {
    Lose(Index),
    Repeat(Index, Index),
    Swap(Index, Index),
    Generation(Index, u64),
    Place(Index, Index, u64),
    Length(Index, u64),
    Key(Index, usize),
    Segment(Index, u128, u64),
    Flags(Index),
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..1200, Just(u64::MAX), Just(1 << 63), any::<u64>()]
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        at().prop_map(Damage::Lose),
        (at(), at()).prop_map(|(from, to)| Damage::Repeat(from, to)),
        (at(), at()).prop_map(|(a, b)| Damage::Swap(a, b)),
        (at(), number()).prop_map(|(at, generation)| Damage::Generation(at, generation)),
        (at(), at(), number()).prop_map(|(at, from, offset)| Damage::Place(at, from, offset)),
        (at(), number()).prop_map(|(at, len)| Damage::Length(at, len)),
        (at(), 0..KEYS).prop_map(|(at, key)| Damage::Key(at, key)),
        (at(), 0..SEGMENTS + 1, number()).prop_map(|(at, id, size)| Damage::Segment(at, id, size)),
        at().prop_map(Damage::Flags),
    ]
}

/// An object among the records.
fn object<'a>(records: &'a mut [Record], at: &Index) -> Option<&'a mut ObjectRecord> {
    let objects = records.iter_mut().filter_map(|record| match record {
        Record::Object(object) => Some(object),
        _ => None,
    });
    let mut objects: Vec<_> = objects.collect();
    if objects.is_empty() { None } else { Some(objects.swap_remove(at.index(objects.len()))) }
}

fn harm(records: &mut Vec<Record>, damage: &Damage) {
    let len = records.len();
    if len == 0 {
        return;
    }
    match damage {
        Damage::Lose(at) => drop(records.remove(at.index(len))),
        Damage::Repeat(from, to) => {
            let record = records[from.index(len)].clone();
            records.insert(to.index(len), record);
        }
        Damage::Swap(a, b) => records.swap(a.index(len), b.index(len)),
        Damage::Generation(at, generation) => {
            if let Some(object) = object(records, at) {
                object.generation = Generation::new(*generation);
            }
        }
        Damage::Place(at, from, offset) => {
            let other = object(records, from).map(|object| object.replicas.clone());
            let (Some(object), Some(other)) = (object(records, at), other) else { return };
            object.replicas = other;
            for replica in &mut object.replicas {
                let extent = mc_types::Extent::new(*offset, object.slices.total_len());
                replica.extent = extent.unwrap_or(replica.extent);
            }
        }
        Damage::Length(at, len) => {
            if let Some(object) = object(records, at) {
                object.slices = one_slice(*len);
                for replica in &mut object.replicas {
                    let extent = mc_types::Extent::new(replica.extent.offset(), *len);
                    replica.extent = extent.unwrap_or(replica.extent);
                }
            }
        }
        Damage::Key(at, number) => {
            if let Some(object) = object(records, at) {
                object.key = key(&format!("key-{number}")).to_owned();
            }
        }
        Damage::Segment(at, id, size) => {
            let (spec, status) = (segment(*id, *size), SegmentStatus::Draining);
            let segment = Record::Segment { spec, client: STRANGER, status, grace: None };
            records.insert(at.index(len), segment);
        }
        Damage::Flags(at) => {
            if let Some(object) = object(records, at) {
                object.complete = !object.complete;
                object.group = Some("one".into());
                object.reserved.clone_from(&object.replicas);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn records_say_what_the_master_holds(
        kind in 0u8..3,
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let (mut config, mut size) = (small(), 1000);
        match kind {
            0 => (config.memory_allocator, size) = (mc_meta::MemoryAllocator::Slab, 8 << 20),
            1 => config.shared_tier = Some(mc_meta::SharedTierConfig::with_capacity(2000)),
            _ => {}
        }
        let mut world = World::new(config, size);
        for op in &ops {
            world.run_and_watch(op);
        }
        world.check();
    }

    #[test]
    fn damaged_records_give_a_sound_master(
        ops in proptest::collection::vec(op(), 20..80),
        damages in proptest::collection::vec(damage(), 1..6),
        from_journal in any::<bool>(),
        is_settled in any::<bool>(),
    ) {
        let mut world = World::new(small(), 1000);
        for op in ops.iter().filter(|op| !matches!(op, Op::Check | Op::Page | Op::Restart)) {
            world.run(op);
        }
        let mut records = if from_journal {
            world.journal.records()
        } else {
            export(&world.master, world.now)
        };
        for damage in &damages {
            harm(&mut records, damage);
        }
        let rebuild = if is_settled { rebuild_settled } else { rebuild_with };
        let (master, _) = rebuild(small(), &records, world.now);
        check_books(&master, world.now);
        reattach_all(&master, &mut world.now);
        // It can be worked with, and gives everything back.
        world.master = master;
        for op in &ops {
            if !matches!(op, Op::Check | Op::Page | Op::Restart) {
                world.run(op);
            }
        }
        check_books(&world.master, world.now);
        let now = world.now + Duration::from_secs(3600);
        world.master.ping(world.now, NODE);
        while world.master.tick(now) {}
        let twice = now + Duration::from_secs(3600);
        while world.master.tick(twice) {}
        let report = world.master.report();
        prop_assert_eq!((report.totals.objects, report.segments.len()), (0, 0));
    }

    #[test]
    fn a_life_goes_on_from_damaged_records(
        kind in 0u8..3,
        ops in proptest::collection::vec(op(), 20..80),
        damages in proptest::collection::vec(damage(), 1..6),
    ) {
        let (mut config, mut size) = (small(), 1000);
        match kind {
            0 => (config.memory_allocator, size) = (mc_meta::MemoryAllocator::Slab, 8 << 20),
            1 => config.shared_tier = Some(mc_meta::SharedTierConfig::with_capacity(2000)),
            _ => {}
        }
        let mut world = World::new(config.clone(), size);
        let commands: Vec<_> =
            ops.iter().filter(|op| !matches!(op, Op::Check | Op::Page | Op::Restart)).collect();
        commands.iter().for_each(|op| world.run(op));
        let mut records = world.journal.records();
        for damage in &damages {
            harm(&mut records, damage);
        }
        let rebuilt = rebuild_in_parts(config.clone(), &records, world.now, 3);
        world.journal = Journal::default();
        world.journal.0.lock().unwrap().extend(records);
        world.go_on(rebuilt);
        for op in [None].into_iter().chain(commands.into_iter().map(Some)) {
            op.into_iter().for_each(|op| world.run(op));
            let records = world.journal.records();
            let (again, _) = rebuild_with(config.clone(), &records, world.now);
            prop_assert_eq!(state(&again, world.now), state(&world.master, world.now));
        }
    }

    #[test]
    fn the_master_is_the_same_for_any_number_of_parts(
        ops in proptest::collection::vec(op(), 20..80),
        damages in proptest::collection::vec(damage(), 0..6),
    ) {
        let mut world = World::new(small(), 1000);
        ops.iter().filter(|op| !matches!(op, Op::Check | Op::Page)).for_each(|op| world.run(op));
        let mut records = world.journal.records();
        for damage in &damages {
            harm(&mut records, damage);
        }
        let mut config = small();
        config.shards = 8;
        let result = |parts| {
            let Rebuilt { master, report, corrections, .. } =
                rebuild_in_parts(config.clone(), &records, world.now, parts);
            (export(&master, world.now), report, corrections)
        };
        let one = result(1);
        for parts in [2, 3, 7, 100] {
            prop_assert_eq!(&result(parts), &one);
        }
    }
}
