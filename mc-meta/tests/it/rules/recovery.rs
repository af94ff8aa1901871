//! Records of the state, and the state from records.

mod damage;
mod disks;
mod leases;
mod random;

use core::time::Duration;

use mc_meta::{
    Corrections, ExportCursor, GetError, ListCursor, Mounted, ObjectRecord, Rebuild, RebuildReport,
    Rebuilt, Record, RemoveError, SegmentInfo, SegmentStatus, UnmountError,
};
use mc_types::Checksum;

use super::*;

/// Keeps a record of every change.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<Record>>>);

impl Journal {
    pub(crate) fn records(&self) -> Vec<Record> {
        self.0.lock().unwrap().clone()
    }

    /// Keeps what a rebuild adds to the records of the lives before.
    pub(crate) fn correct(&self, corrections: &Corrections) {
        self.0.lock().unwrap().extend(corrections.records().map(|record| record.to_record()));
    }
}

impl EffectSink for Journal {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        self.0.lock().unwrap().extend(Record::from_effect(effect));
    }
}

/// All of an export.
pub(crate) fn export(master: &Master, now: Time) -> Vec<Record> {
    let mut records = Vec::new();
    let mut next = Some(ExportCursor::default());
    while let Some(cursor) = next {
        let page = master.export(now, cursor);
        records.extend(page.records);
        next = page.next;
    }
    records
}

pub(crate) fn rebuild_with(
    config: MasterConfig,
    records: &[Record],
    now: Time,
) -> (Master, RebuildReport) {
    rebuilt(config, records, now, None)
}

/// Rebuilds a master and settles it before every third record.
fn rebuild_settled(config: MasterConfig, records: &[Record], now: Time) -> (Master, RebuildReport) {
    rebuilt(config, records, now, Some(3))
}

fn rebuilt(
    config: MasterConfig,
    records: &[Record],
    now: Time,
    settle: Option<usize>,
) -> (Master, RebuildReport) {
    let mut rebuild = Rebuild::new(config, 1).unwrap().with_secret(SECRET);
    for (number, record) in records.iter().enumerate() {
        if settle.is_some_and(|settle| number % settle == 1) {
            rebuild.settle_on(&one_by_one).unwrap();
        }
        rebuild.apply(record);
    }
    let Rebuilt { master, report, .. } = rebuild.finish(now).unwrap();
    (master, report)
}

fn one_by_one(count: usize, task: &(dyn Fn(usize) + Sync)) {
    (0..count).for_each(task);
}

/// A master that is rebuilt in parts, on threads of their own.
fn rebuild_in_parts(config: MasterConfig, records: &[Record], now: Time, parts: usize) -> Rebuilt {
    let mut rebuild = Rebuild::in_parts(config, 1, parts).unwrap().with_secret(SECRET);
    rebuild.expect_objects(records.len());
    let on_threads = |count: usize, task: &(dyn Fn(usize) + Sync)| {
        std::thread::scope(|scope| {
            for number in 0..count {
                scope.spawn(move || task(number));
            }
        });
    };
    let (some, others) = records.split_at(records.len() / 2);
    for records in [some, others] {
        std::thread::scope(|scope| {
            for mut part in rebuild.parts() {
                scope.spawn(move || {
                    let own: Vec<_> = records.iter().map(Record::as_ref).collect();
                    own.chunks(50).for_each(|records| part.apply_all(records));
                });
            }
        });
        if records == some {
            rebuild.settle_on(&on_threads).unwrap();
        }
    }
    rebuild.finish_on(now, &on_threads).unwrap()
}

/// A master of what another exports, with its settings; nothing of it may be doubtful.
pub(crate) fn restart(master: &Master, now: Time) -> Master {
    let records = export(master, now);
    let (again, report) = rebuild_settled(master.config().clone(), &records, now);
    assert_eq!(report.dropped.total(), 0, "{report:?}");
    let (plain, plainly) = rebuild_with(master.config().clone(), &records, now);
    assert_eq!((state(&again, now), report), (state(&plain, now), plainly));
    again
}

/// Everything that a rebuilt master has in common with the former one, in an order of
/// its own. Space that was reserved is only kept.
#[derive(Debug, PartialEq)]
struct State {
    segments: Vec<(SegmentSpec, ClientId, SegmentStatus, Option<Duration>)>,
    objects: Vec<ObjectRecord>,
    /// Segment, offset and length.
    kept: Vec<(u128, u64, u64)>,
}

fn state(master: &Master, now: Time) -> State {
    let mut state = State { segments: Vec::new(), objects: Vec::new(), kept: Vec::new() };
    let place =
        |at: &mc_meta::Location| (at.segment.as_u128(), at.extent.offset(), at.extent.len());
    for record in export(master, now) {
        match record {
            Record::Segment { spec, client, status, grace } => {
                state.segments.push((spec, client, status, grace));
            }
            Record::Object(mut object) => {
                state.kept.extend(object.reserved.drain(..).map(|at| place(&at)));
                object.idle = Duration::ZERO;
                if object.replicas.is_empty() {
                    // An object that lost its memory is noticed at the next look.
                    object.group = None;
                    object.complete |= object.file == Some(ReplicaStatus::Complete);
                }
                state.objects.push(object);
            }
            Record::SpaceKept { space, .. } => state.kept.extend(space.iter().map(place)),
            Record::Generations { .. } | Record::TenantPolicy { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    state.objects.sort_by_key(|object| (object.key.clone(), object.generation));
    state.kept.sort_unstable();
    state
}

/// Checks that the segments' books are those of what the master says it holds, and that
/// no byte is given out twice.
fn check_books(master: &Master, now: Time) {
    let state = state(master, now);
    let mut extents = state.kept;
    for object in &state.objects {
        let replicas = object.replicas.iter();
        extents
            .extend(replicas.map(|at| (at.segment.as_u128(), at.extent.offset(), at.extent.len())));
    }
    extents.sort_unstable();
    for pair in extents.windows(2) {
        let [(segment, offset, len), (next, next_offset, _)] = *pair else { unreachable!() };
        assert!(segment != next || offset + len <= next_offset, "{pair:?} overlap");
    }
    for segment in master.report().segments {
        let id = segment.spec.id.as_u128();
        let own: Vec<_> = extents.iter().filter(|(segment, ..)| *segment == id).collect();
        assert_eq!(segment.allocations, own.len() as u64, "allocations of {id}");
        if master.config().memory_allocator == mc_meta::MemoryAllocator::Offset {
            assert_eq!(segment.used, own.iter().map(|(_, _, len)| len).sum::<u64>());
        }
    }
}

/// Every client comes back with all of its segments.
pub(crate) fn remount_all(master: &Master, now: Time) {
    for segment in master.report().segments {
        let mounted = master.mount_segment(now, segment.client, segment.spec);
        assert_eq!(mounted, Ok(Mounted::Reattached));
    }
}

/// Every client comes back with all of its segments, as it does when it is told that the master
/// does not count on it; none of them goes then, however much time passes, unless it is being unmounted.
fn reattach_all(master: &Master, now: &mut Time) {
    let segments = master.report().segments;
    for segment in &segments {
        assert_eq!(master.reattach_segment(*now, segment.client, &segment.spec), Ok(()));
    }
    let is_leaving = |it: &&SegmentInfo| it.status == SegmentStatus::GracefullyUnmounting;
    let there = master.report().segments;
    let staying: Vec<_> = there.iter().filter(|it| !is_leaving(it)).map(|it| it.spec.id).collect();
    let config = master.config();
    *now = *now + 2 * config.client_return_timeout.max(config.client_ttl);
    for segment in &segments {
        master.ping(*now, segment.client);
    }
    while master.tick(*now) {}
    let there = master.report().segments;
    let has = |id: &SegmentId| there.iter().any(|segment| segment.spec.id == *id);
    assert!(staying.iter().all(has), "what is back stays");
}

/// A master with something of everything.
fn busy(config: MasterConfig, journal: &Journal) -> Master {
    let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    for number in 0..4 {
        let client = if number < 3 { NODE } else { STRANGER };
        master.mount_segment(at(0), client, segment(number, 256 << 20)).unwrap();
    }
    for n in 0..40 {
        let config = match n % 5 {
            0 => ReplicateConfig::default().soft_pin(),
            1 => ReplicateConfig::default().hard_pin().replicas(3),
            2 => ReplicateConfig::default().group(format!("group-{}", n % 3)),
            3 => ReplicateConfig::default().parent(key("object-0").to_owned()),
            _ => ReplicateConfig::default().replicas(2),
        };
        put_as(&master, at(n), &format!("object-{n}"), 1000 + n, &config).unwrap();
    }
    let lengths = [100, 200, 300];
    let config = ReplicateConfig::default();
    let sliced = PutStart { key: key("sliced"), slice_lengths: &lengths, config: &config };
    let grant = master.put_start(at(50), WRITER, &sliced).unwrap();
    let checksums = [1, 2, 3].map(Checksum::from_crc32c);
    let end = PutEnd { checksums: &checksums, ..PutEnd::new(key("sliced"), grant.handle) };
    master.put_end(at(50), WRITER, &end).unwrap();
    for n in 0..10 {
        master.remove(at(60), key(&format!("object-{}", n * 4)), true).unwrap();
    }
    start(&master, at(70), "unfinished", 500).unwrap();
    start(&master, at(70), "revoked", 500).unwrap();
    master
        .put_revoke(at(71), WRITER, key("revoked"), newest_put(&master), LateWrites::Impossible)
        .unwrap();
    // The first of these puts is discarded while its writer may still be writing.
    start(&master, at(80), "twice", 700).unwrap();
    let later = at(80) + master.config().put_start_discard_timeout;
    put(&master, later, "twice", 800).unwrap();
    let upsert = |name: &str| {
        let put = PutStart { key: key(name), slice_lengths: &[900], config: &config };
        master.upsert_start(later, WRITER, &put).unwrap().handle.generation
    };
    master.get_replica_list(later, key("object-1")).unwrap();
    let generation = upsert("object-1");
    self::end(&master, later, "object-1", generation).unwrap();
    upsert("object-2");
    let segments: Vec<_> = [3, 7].map(|n| home_of(&master, &format!("object-{n}"))).into();
    let other = |name: &str| if name == "segment-1" { "segment-2" } else { "segment-1" };
    master
        .copy_start(later, WRITER, key("object-3"), &segments[0], &[other(&segments[0])])
        .unwrap();
    master.get_replica_list(later, key("object-7")).unwrap();
    master.move_start(later, WRITER, key("object-7"), &segments[1], other(&segments[1])).unwrap();
    master.move_end(later, WRITER, key("object-7"), newest_transfer(&master)).unwrap();
    master.unmount_segment(later, STRANGER, SegmentId::from_u128(3)).unwrap();
    let graceful = SegmentId::from_u128(0);
    master.graceful_unmount_segment(later, NODE, graceful, Duration::from_secs(60)).unwrap();
    master
}

/// The last moment before this.
fn before(time: Time) -> Time {
    at(time.as_millis() - 1)
}

/// The name of the segment with the first replica of an object.
fn home_of(master: &Master, name: &str) -> String {
    let info = master.describe(at(0), key(name)).unwrap();
    info.replicas[0].placement.segment.spec().name.to_string()
}

const LATER: Time = Time::from_millis(40_000);

#[test]
fn an_export_says_segments_before_what_lies_in_them() {
    let master = master(&[1 << 20, 1 << 20]);
    let now = secs(1);
    let grant = put(&master, now, "done", 100).unwrap();
    start(&master, now, "open", 50).unwrap();
    put(&master, now, "gone", 10).unwrap();
    master.remove(now, key("gone"), true).unwrap();
    let records = export(&master, secs(3));
    let Record::Generations { next } = &records[0] else { panic!("{:?}", records[0]) };
    assert_eq!(next.as_u64(), grant.handle.generation.as_u64() + 3);
    let segments = &records[1..3];
    assert!(segments.iter().all(|r| matches!(r, Record::Segment { client: NODE, .. })));
    let objects: Vec<_> = records[3..]
        .iter()
        .map(|record| match record {
            Record::Object(object) => (object.key.as_str(), object.complete, object.idle),
            other => panic!("{other:?}"),
        })
        .collect();
    let idle = Duration::from_secs(2);
    assert_eq!(objects, [("done", true, idle), ("open", false, idle)]);
}

#[test]
fn an_export_and_the_records_since_birth_say_the_same() {
    for memory in [mc_meta::MemoryAllocator::Offset, mc_meta::MemoryAllocator::Slab] {
        for shards in [1, 7] {
            let mut config = settings();
            (config.shards, config.memory_allocator) = (shards, memory);
            let journal = Journal::default();
            let master = busy(config.clone(), &journal);
            let before = state(&master, LATER);
            assert!(before.objects.len() > 20 && before.kept.len() >= 4, "{before:?}");
            for records in [export(&master, LATER), journal.records()] {
                let (again, report) = rebuild_with(config.clone(), &records, LATER);
                assert_eq!(report.dropped.total(), 0, "{report:?}");
                assert_eq!(state(&again, LATER), before);
                assert_eq!(report.objects as usize, before.objects.len());
                assert_eq!(report.unfinished, 2);
                assert_eq!(report.segments, 3);
                let kept: u64 = before.kept.iter().map(|(_, _, len)| len).sum();
                assert_eq!(report.kept_bytes, kept);
                check_books(&again, LATER);
            }
        }
    }
}

#[test]
fn what_administrators_see_is_the_same_when_the_clients_are_back() {
    let master = busy(settings(), &Journal::default());
    // An object that lost its segments is forgotten at the next look-up.
    while master.tick(LATER) {}
    let again = restart(&master, LATER);
    remount_all(&again, LATER);
    let page = master.list_keys("", ListCursor::default(), 1000);
    let mut keys = page.keys;
    assert!(keys.len() > 20);
    let mut keys_again = again.list_keys("", ListCursor::default(), 1000).keys;
    keys.sort_by_key(|info| info.key.clone());
    keys_again.sort_by_key(|info| info.key.clone());
    assert_eq!(keys_again, keys);
    for info in keys {
        let before = master.describe(LATER, info.key.as_ref()).unwrap();
        let after = again.describe(LATER, info.key.as_ref()).unwrap();
        assert_eq!((after.generation, after.owner), (before.generation, before.owner));
        assert_eq!(after.slices, before.slices);
        let places = |info: &mc_meta::ObjectInfo| -> Vec<_> {
            let place = |r: &mc_meta::ReplicaInfo| {
                (r.status, r.buffer, r.placement.segment.spec().id, r.placement.extent)
            };
            // What is being copied is not copied any more.
            let complete = |r: &&mc_meta::ReplicaInfo| r.status == ReplicaStatus::Complete;
            let is_complete = info.replicas.iter().any(|r| complete(&r));
            info.replicas.iter().filter(|r| complete(r) || !is_complete).map(place).collect()
        };
        assert_eq!(places(&after), places(&before));
    }
    let (before, after) = (master.report(), again.report());
    assert_eq!(
        (
            after.totals.objects,
            after.totals.processing,
            after.totals.used,
            after.totals.capacity,
            after.totals.clients
        ),
        (
            before.totals.objects,
            before.totals.processing,
            before.totals.used,
            before.totals.capacity,
            before.totals.clients
        )
    );
    let books = |report: &mc_meta::MasterReport| {
        let mut books: Vec<_> =
            report.segments.iter().map(|s| (s.spec.id, s.used, s.allocations)).collect();
        books.sort_unstable();
        books
    };
    assert_eq!(books(&after), books(&before));
}

#[test]
fn nobody_reads_from_a_segment_before_its_client_is_back() {
    let master = restart(&busy(settings(), &Journal::default()), LATER);
    let name = key("object-6");
    assert!(matches!(master.get_replica_list(LATER, name), Err(GetError::NotReady)));
    let no_room = start(&master, LATER, "new", 10).unwrap_err();
    assert_eq!(no_room, PutStartError::TooFewSegments { mounted: 0 });
    assert_eq!(master.report().totals.clients, 0);
    let statuses = master.report().segments;
    assert!(statuses.iter().all(|segment| segment.status == SegmentStatus::Suspended));
    assert_eq!(master.ping(LATER, NODE).status, mc_meta::ClientStatus::NeedRemount);
    remount_all(&master, LATER);
    master.get_replica_list(LATER, name).unwrap();
    assert_eq!(master.report().totals.clients, 1);
    put(&master, LATER, "new", 10).unwrap();
}

#[test]
fn a_drained_segment_stays_drained_after_a_restart() {
    let journal = Journal::default();
    let master = Master::new(settings(), 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    for number in 0..3 {
        master.mount_segment(at(0), NODE, segment(number, 100)).unwrap();
    }
    // One is drained, one is being drained as it holds an object, one takes new objects.
    put_as(&master, at(0), "held", 10, &ReplicateConfig::default().prefer("segment-1")).unwrap();
    let drains = [0, 1].map(|number| {
        master.create_drain_job(at(1), &[&format!("segment-{number}")], &["segment-2"], 1).unwrap()
    });
    while master.tick(at(2)) {}
    assert!(master.query_drain_job(drains[0]).unwrap().status.is_final());
    let expected = [SegmentStatus::Drained, SegmentStatus::Draining, SegmentStatus::Ok];
    for records in [journal.records(), export(&master, LATER)] {
        let (again, _) = rebuild_with(settings(), &records, LATER);
        remount_all(&again, LATER);
        assert_eq!(statuses(&again), expected);
        for n in 0..9 {
            let grant = put(&again, LATER, &format!("new-{n}"), 10).unwrap();
            assert_eq!(grant.placements[0].segment.spec().id, SegmentId::from_u128(2));
        }
        // A master that knows of no job can open both, and the next life knows.
        for name in ["segment-0", "segment-1"] {
            again.reopen_segment(LATER, name).unwrap();
        }
        let next = restart(&again, LATER);
        remount_all(&next, LATER);
        assert_eq!(statuses(&next), [SegmentStatus::Ok; 3]);
    }
}

#[test]
fn a_segment_that_was_to_go_has_its_whole_grace_after_a_restart() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(1000);
    let journal = Journal::default();
    let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    master.mount_segment(at(0), NODE, segment(0, 100)).unwrap();
    let (id, grace) = (segment(0, 100).id, Duration::from_secs(60));
    master.graceful_unmount_segment(secs(1), NODE, id, grace).unwrap();
    for records in [journal.records(), export(&master, secs(50))] {
        let (again, _) = rebuild_with(master.config().clone(), &records, secs(50));
        remount_all(&again, secs(51));
        assert_eq!(statuses(&again), [SegmentStatus::GracefullyUnmounting]);
        again.ping(secs(109), NODE);
        while again.tick(before(secs(110))) {}
        assert_eq!(statuses(&again).len(), 1);
        while again.tick(secs(110)) {}
        assert_eq!(statuses(&again), []);
    }
}

#[test]
fn a_record_that_tells_nothing_of_the_drain_leaves_the_last_word_to_the_one_before() {
    let told =
        |status| Record::Segment { spec: segment(0, 100), client: NODE, status, grace: None };
    let [ok, drained, away] =
        [SegmentStatus::Ok, SegmentStatus::Drained, SegmentStatus::Suspended].map(told);
    let leaving = told(SegmentStatus::GracefullyUnmounting);
    for (records, expected) in [
        (vec![&ok, &away], SegmentStatus::Ok),
        (vec![&ok, &drained, &away], SegmentStatus::Drained),
        (vec![&ok, &drained, &away, &ok], SegmentStatus::Ok),
        (vec![&away, &leaving], SegmentStatus::GracefullyUnmounting),
    ] {
        let records: Vec<_> = records.into_iter().cloned().collect();
        let (master, _) = rebuild_with(settings(), &records, LATER);
        let mut now = LATER;
        // Of one whose grace is not known its client says when it goes.
        reattach_all(&master, &mut now);
        assert_eq!(statuses(&master), [expected]);
    }
}

/// The statuses of all segments, in the order of their ids.
fn statuses(master: &Master) -> Vec<SegmentStatus> {
    let mut segments = master.report().segments;
    segments.sort_unstable_by_key(|segment| segment.spec.id);
    segments.into_iter().map(|segment| segment.status).collect()
}

#[test]
fn what_is_back_after_a_restart_stays() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    config.client_return_timeout = Duration::from_secs(60);
    let master = master_with(config, &[100, 100]);
    put(&master, at(0), "a", 10).unwrap();
    let again = restart(&master, secs(5));
    let mut now = secs(6);
    reattach_all(&again, &mut now);
    assert!(has(&again, "a"));
}

#[test]
fn clients_that_do_not_come_back_are_given_up() {
    for (return_timeout, expected) in [(120, 120), (0, 10)] {
        let mut config = settings();
        config.client_return_timeout = Duration::from_secs(return_timeout);
        config.client_ttl = Duration::from_secs(10);
        let former = master_with(config, &[1000]);
        put(&former, at(0), "a", 10).unwrap();
        let master = restart(&former, LATER);
        let due = LATER + Duration::from_secs(expected);
        master.tick(before(due));
        assert_eq!(master.report().segments.len(), 1);
        while master.tick(due) {}
        let report = master.report();
        assert_eq!((report.segments.len(), report.totals.objects), (0, 0));
        let spec = segment(0, 1000);
        assert_eq!(master.unmount_segment(due, NODE, spec.id), Err(UnmountError::NotFound));
    }
}

#[test]
fn every_object_counts_as_leased() {
    let former = master(&[1000]);
    put(&former, at(0), "a", 1000).unwrap();
    let master = restart(&former, LATER);
    remount_all(&master, LATER);
    let lease = master.config().lease_ttl;
    assert_eq!(
        master.remove(LATER, key("a"), false),
        Err(RemoveError::Leased { remaining: lease })
    );
    let just_before = before(LATER + lease);
    assert_eq!(
        start(&master, just_before, "b", 10).unwrap_err(),
        PutStartError::AllLeased { len: 10 }
    );
    put(&master, LATER + lease, "b", 10).unwrap();
}

#[test]
fn what_ended_in_a_former_life_may_be_ended_again() {
    let former = master(&[1000]);
    let plain = put(&former, at(0), "a", 100).unwrap().handle;
    put(&former, at(0), "b", 100).unwrap();
    let config = ReplicateConfig::default();
    let upsert = PutStart { key: key("b"), slice_lengths: &[100], config: &config };
    let upserted = former.upsert_start(at(1), WRITER, &upsert).unwrap().handle;
    end(&former, at(1), "b", upserted.generation).unwrap();
    let revoked = start(&former, at(1), "c", 100).unwrap().handle;
    let revoke = |master: &Master, now, handle| {
        master.put_revoke(now, WRITER, key("c"), handle, LateWrites::Impossible)
    };
    revoke(&former, at(2), revoked).unwrap();

    let records = export(&former, LATER);
    let (mut rebuild, events) = (Rebuild::new(settings(), 1).unwrap(), Journal::default());
    records.iter().for_each(|record| rebuild.apply(record));
    let rebuilt = rebuild.with_secret(SECRET).finish(LATER).unwrap();
    let master = rebuilt.master.with_sink(events.clone());
    let again =
        |client, name, handle| master.put_end(LATER, client, &PutEnd::new(key(name), handle));
    assert_eq!(again(WRITER, "a", plain), Ok(()));
    assert_eq!(again(WRITER, "b", upserted), Ok(()));
    // What was revoked is not there, as its client wanted.
    assert_eq!(revoke(&master, LATER, revoked), Err(PutFinishError::NotFound));
    assert_eq!(events.records(), [], "a repeated call changes nothing");
    // Another client's, and one that only guesses.
    let foreign = |handle| PutHandle { token: PutToken::from_u64(7), ..handle };
    let refused = Err(PutFinishError::IllegalClient);
    assert_eq!(again(STRANGER, "a", plain), refused);
    assert_eq!(again(WRITER, "a", foreign(plain)), refused);
    assert_eq!(revoke(&master, LATER, foreign(revoked)), Err(PutFinishError::NotFound));
}

#[test]
fn an_unfinished_put_can_be_ended() {
    let former = master(&[1000]);
    let grant = start(&former, at(0), "a", 100).unwrap();
    let second = start(&former, at(0), "b", 100).unwrap();
    let master = restart(&former, LATER);
    assert_eq!(end(&master, LATER, "a", second.handle.generation), Err(PutFinishError::NotOpen));
    end(&master, LATER, "a", grant.handle.generation).unwrap();
    master.put_revoke(LATER, WRITER, key("b"), second.handle, LateWrites::Impossible).unwrap();
    remount_all(&master, LATER);
    assert!(has(&master, "a") && !has(&master, "b"));
    assert_eq!(master.report().totals.used, 100);
}

#[test]
fn an_unfinished_put_has_its_whole_time_again() {
    let former = master(&[1000]);
    start(&former, at(0), "a", 1000).unwrap();
    let now = secs(500);
    let master = restart(&former, now);
    remount_all(&master, now);
    let timeout = master.config().put_start_release_timeout;
    master.tick(before(now + timeout));
    assert_eq!(master.report().totals.processing, 1);
    master.tick(now + timeout);
    assert_eq!((master.report().totals.processing, master.report().totals.used), (0, 0));
}

#[test]
fn kept_space_is_given_out_when_its_time_is_over() {
    let former = master(&[1000]);
    let zombie = start(&former, at(0), "a", 600).unwrap();
    let discarded = at(0) + former.config().put_start_discard_timeout;
    put(&former, discarded, "a", 300).unwrap();
    let now = secs(100);
    let master = restart(&former, now);
    remount_all(&master, now);
    // The put of ten minutes began 100 seconds ago.
    let due = at(0) + master.config().put_start_release_timeout;
    let fill = |now| start(&master, now, "b", 600);
    assert!(fill(before(due)).is_err());
    master.tick(due);
    let extent = fill(due).unwrap().placements[0].extent;
    assert_eq!(extent, zombie.placements[0].extent);
}

#[test]
fn nobody_can_finish_a_transfer_and_its_space_waits() {
    let former = master(&[1000, 1000]);
    put_as(&former, at(0), "a", 600, &ReplicateConfig::default().prefer("segment-0")).unwrap();
    former.copy_start(at(0), NODE, key("a"), "segment-0", &["segment-1"]).unwrap();
    let master = restart(&former, LATER);
    remount_all(&master, LATER);
    assert!(master.copy_end(LATER, NODE, key("a"), newest_transfer(&master)).is_err());
    let config = ReplicateConfig::default().exclude("segment-0");
    let due = LATER + master.config().put_start_release_timeout;
    let fill = |now| start_as(&master, now, "b", 600, &config);
    assert!(fill(before(due)).is_err());
    fill(due).unwrap();
}

#[test]
fn a_value_that_was_being_replaced_is_there_and_so_is_the_other() {
    for use_journal in [false, true] {
        let journal = Journal::default();
        let former =
            Master::new(settings(), 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
        former.mount_segment(at(0), NODE, segment(0, 1000)).unwrap();
        let old = put(&former, at(0), "a", 100).unwrap();
        let config = ReplicateConfig::default();
        let put = PutStart { key: key("a"), slice_lengths: &[200], config: &config };
        let new = former.upsert_start(at(0), WRITER, &put).unwrap();
        let records = if use_journal { journal.records() } else { export(&former, LATER) };
        let (master, report) = rebuild_with(settings(), &records, LATER);
        assert_eq!((report.objects, report.unfinished), (2, 1));
        remount_all(&master, LATER);
        let generation = || master.get_replica_list(LATER, key("a")).unwrap().generation;
        assert_eq!(generation(), old.handle.generation);
        end(&master, LATER, "a", new.handle.generation).unwrap();
        assert_eq!(generation(), new.handle.generation);
    }
}

#[test]
fn no_generation_is_given_twice() {
    let former = master(&[1000]);
    let grant = put(&former, at(0), "a", 10).unwrap();
    former.remove(at(0), key("a"), true).unwrap();
    let master = restart(&former, LATER);
    remount_all(&master, LATER);
    assert!(put(&master, LATER, "a", 10).unwrap().handle.generation > grant.handle.generation);
}

#[test]
fn the_order_of_eviction_is_kept() {
    let former = master(&[400]);
    for (n, name) in ["a", "b", "c", "d"].iter().enumerate() {
        put(&former, secs(n as u64), name, 100).unwrap();
    }
    former.get_replica_list(secs(10), key("a")).unwrap();
    let evictions = Recorder::default();
    let master = restart(&former, LATER).with_sink(evictions.clone());
    remount_all(&master, LATER);
    let now = LATER + master.config().lease_ttl;
    for name in ["e", "f", "g"] {
        put(&master, now, name, 100).unwrap();
    }
    assert_eq!(evictions.removals(Removal::Evicted), ["b", "c", "d"]);
}

#[test]
fn a_group_is_one_again() {
    let former = master(&[300]);
    let config = ReplicateConfig::default().group("g");
    for name in ["a", "b", "c"] {
        put_as(&former, at(0), name, 100, &config).unwrap();
    }
    let master = restart(&former, LATER);
    remount_all(&master, LATER);
    let now = LATER + master.config().lease_ttl;
    put(&master, now, "new", 100).unwrap();
    assert!(["a", "b", "c"].iter().all(|name| !has(&master, name)));
}

#[test]
fn pins_are_kept() {
    let former = master(&[300]);
    put_as(&former, at(0), "hard", 100, &ReplicateConfig::default().hard_pin()).unwrap();
    put_as(&former, at(0), "soft", 100, &ReplicateConfig::default().soft_pin()).unwrap();
    put(&former, at(0), "plain", 100).unwrap();
    let master = restart(&former, LATER);
    remount_all(&master, LATER);
    let now = LATER + master.config().lease_ttl;
    put(&master, now, "new", 100).unwrap();
    assert!(has(&master, "hard") && has(&master, "soft") && !has(&master, "plain"));
    put(&master, now, "newer", 200).unwrap();
    assert!(has(&master, "hard") && !has(&master, "soft"));
}

#[test]
fn files_outlast_a_restart() {
    let mut config = settings();
    config.shared_tier = Some(mc_meta::SharedTierConfig::with_capacity(100));
    let former = master_with(config.clone(), &[1000]);
    let written = put(&former, at(0), "written", 40).unwrap();
    former.file_put_end(at(0), WRITER, key("written"), written.handle).unwrap();
    let open = put(&former, at(0), "open", 50).unwrap();
    former.unmount_segment(at(0), NODE, SegmentId::from_u128(0)).unwrap();
    // Less room than there is in use gives nothing up.
    config.shared_tier = Some(mc_meta::SharedTierConfig::with_capacity(95));
    let (master, report) = rebuild_with(config.clone(), &export(&former, LATER), LATER);
    assert_eq!((report.objects, report.segments, report.lost), (2, 0, 0));
    let list = master.get_replica_list(LATER, key("written")).unwrap();
    assert_eq!((list.placements.len(), list.file.map(|disk| disk.len)), (0, Some(40)));
    let not_yet = master.get_replica_list(LATER, key("open"));
    assert!(matches!(not_yet, Err(GetError::NotReady)));
    master.file_put_end(LATER, WRITER, key("open"), open.handle).unwrap();
    master.get_replica_list(LATER, key("open")).unwrap();
    let due = LATER + config.put_start_release_timeout;
    while master.tick(due) {}
    assert_eq!(master.report().totals.objects, 2);
    // Without a tier there are no files.
    config.shared_tier = None;
    let (master, report) = rebuild_with(config, &export(&former, LATER), LATER);
    assert_eq!((master.report().totals.objects, report.lost, report.dropped.total()), (0, 2, 0));
}

#[test]
fn tenants_are_charged_for_what_is_there() {
    let mut config = settings();
    config.multi_tenant = true;
    config.default_tenant_quota = mc_meta::DefaultQuota::Denied;
    let journal = Journal::default();
    let former =
        Master::new(config.clone(), 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    former.mount_segment(at(0), NODE, segment(0, 1000)).unwrap();
    for (name, bytes) in [("a", 300), ("b", 200), ("gone", 100)] {
        former.set_tenant_quota(at(0), &tenant(name), bytes).unwrap();
    }
    for (name, text, len) in [("a", "x", 100), ("a", "y", 50), ("b", "x", 200)] {
        put(&former, at(0), &of(name, text), len).unwrap();
    }
    former.delete_tenant_quota(at(0), &tenant("gone")).unwrap();
    let before = former.tenant_quotas().unwrap();
    for records in [export(&former, LATER), journal.records()] {
        let (master, report) = rebuild_with(config.clone(), &records, LATER);
        assert_eq!(report.dropped.total(), 0);
        remount_all(&master, LATER);
        assert_eq!(master.tenant_quotas().unwrap(), before);
        assert!(put(&master, LATER, &of("b", "z"), 1).is_err());
        put(&master, LATER, &of("a", "z"), 150).unwrap();
        master.remove_all(LATER, true);
        // A former master may have granted leases.
        while master.tick(LATER + settings().lease_ttl) {}
        let after = master.tenant_quotas().unwrap();
        assert_eq!(after.mismatches, 0);
        assert!(after.tenants.iter().all(|row| (row.charged, row.objects) == (0, 0)));
    }
}

#[test]
fn what_is_free_can_be_filled_and_nothing_else() {
    let former = busy(settings(), &Journal::default());
    let master = restart(&former, LATER);
    remount_all(&master, LATER);
    let mut n = 0;
    let config = ReplicateConfig::default().hard_pin();
    for len in [1 << 20, 1 << 12, 1 << 4, 1] {
        while put_as(&master, LATER, &format!("filler-{n}"), len, &config).is_ok() {
            n += 1;
        }
    }
    let segments = master.report().segments;
    let is_open = |segment: &&SegmentInfo| segment.status == SegmentStatus::Ok;
    assert!(segments.iter().filter(is_open).all(|segment| segment.used == segment.spec.size));
    assert_eq!(segments.iter().filter(is_open).count(), 2, "one is being unmounted");
    check_books(&master, LATER);
}

#[test]
fn a_restart_may_follow_a_restart() {
    let master = busy(settings(), &Journal::default());
    let once = restart(&master, LATER);
    let twice = restart(&once, LATER);
    assert_eq!(state(&twice, LATER), state(&once, LATER));
    assert_eq!(state(&once, LATER), state(&master, LATER));
}

#[test]
fn what_a_rebuild_decides_is_told_to_the_next_life() {
    let journal = Journal::default();
    let master = Master::new(settings(), 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    for number in 0..2 {
        master.mount_segment(at(0), NODE, segment(number, 1000)).unwrap();
    }
    put(&master, at(0), "copied", 100).unwrap();
    let from = master.describe(at(0), key("copied")).unwrap().replicas[0].placement.clone();
    let from = from.segment.spec().name.clone();
    let to = if &*from == "segment-0" { "segment-1" } else { "segment-0" };
    master.copy_start(at(0), WRITER, key("copied"), &from, &[to]).unwrap();
    drop(master);

    let rebuilt = rebuild_in_parts(settings(), &journal.records(), at(1), 2);
    let told: Vec<_> = rebuilt.corrections.records().map(|record| record.to_record()).collect();
    let [Record::Generations { next }, Record::SpaceKept { space, .. }, Record::Object(object)] =
        &told[..]
    else {
        panic!("{told:?}");
    };
    assert!(*next > object.generation);
    assert_eq!((space.len(), space[0].extent.len()), (1, 100));
    assert_eq!((object.key.as_str(), object.replicas.len()), ("copied", 1));
    assert!(object.reserved.is_empty(), "the space is only kept");
    // With them the next life decides nothing again.
    journal.correct(&rebuilt.corrections);
    let again = rebuild_in_parts(settings(), &journal.records(), at(1), 1);
    let told: Vec<_> = again.corrections.records().collect();
    assert!(matches!(told[..], [mc_meta::RecordRef::Generations { .. }]), "{told:?}");
    assert_eq!(state(&again.master, at(1)), state(&rebuilt.master, at(1)));
}
