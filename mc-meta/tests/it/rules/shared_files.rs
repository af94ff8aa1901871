//! The shared tier of files.

use std::sync::{Arc, Mutex};

use mc_meta::{
    Effect, EffectSink, GetError, ListCursor, Master, PutFinishError, PutStartError, RemoveError,
    ReplicaKind, ReplicaStatus, ReplicateConfig, SharedFile, SharedTierConfig, TierEvictError,
};
use mc_types::{Generation, SegmentId, Sequence, Time};

use super::*;

/// Room on the tier.
const ROOM: u64 = 1000;

fn with_disk(capacity: Option<u64>) -> MasterConfig {
    let mut config = settings();
    config.shared_tier =
        Some(capacity.map_or_else(SharedTierConfig::default, SharedTierConfig::with_capacity));
    config
}

/// Keeps what changed, in words.
#[derive(Clone, Default)]
struct Story(Arc<Mutex<Vec<String>>>);

impl Story {
    fn take(&self) -> Vec<String> {
        core::mem::take(&mut self.0.lock().unwrap())
    }
}

impl EffectSink for Story {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        let (what, object) = match effect {
            Effect::Began { object } => ("began".to_owned(), object),
            Effect::Stored { object, .. } => ("stored".to_owned(), object),
            Effect::Changed { object, .. } | Effect::Transferring { object } => {
                ("changed".to_owned(), object)
            }
            Effect::Abandoned { object, .. } => ("abandoned".to_owned(), object),
            Effect::Removed { object, cause, .. } => (format!("removed {cause:?}"), object),
            _ => return,
        };
        let disk = object.file().map_or("-".into(), |status| format!("{status:?}"));
        let line = format!("{what} {} memory {:?} disk {disk}", object.key(), object.memory());
        self.0.lock().unwrap().push(line);
    }
}

fn told(config: MasterConfig, size: u64) -> (Master, Story) {
    let story = Story::default();
    let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(story.clone());
    master.mount_segment(at(0), NODE, segment(0, size)).unwrap();
    (master, story)
}

fn disk_end(
    master: &Master,
    now: Time,
    name: &str,
    generation: Generation,
) -> Result<(), PutFinishError> {
    master.file_put_end(now, WRITER, key(name), handle(generation))
}

/// Puts an object with its file.
fn put_both(master: &Master, now: Time, name: &str, len: u64) -> Generation {
    let grant = put(master, now, name, len).unwrap();
    assert!(grant.file);
    disk_end(master, now, name, grant.handle.generation).unwrap();
    grant.handle.generation
}

/// Whether it is read from memory, and whether from a file.
fn read(master: &Master, now: Time, name: &str) -> Result<(bool, bool), GetError> {
    let list = master.get_replica_list(now, key(name))?;
    Ok((!list.placements.is_empty(), list.file.is_some()))
}

fn files_used(master: &Master) -> u64 {
    master.report().totals.files_used
}

#[test]
fn without_a_tier_no_put_plans_a_file() {
    let master = master(&[100]);
    let grant = put(&master, at(0), "a", 10).unwrap();
    assert!(!grant.file);
    assert_eq!(
        disk_end(&master, at(0), "a", grant.handle.generation),
        Err(PutFinishError::NotOpen)
    );
    assert_eq!((files_used(&master), master.report().files_capacity), (0, Some(0)));
}

#[test]
fn each_put_plans_a_file_while_the_tier_has_room() {
    let master = master_with(with_disk(Some(100)), &[ROOM]);
    assert!(put(&master, at(0), "a", 60).unwrap().file);
    assert!(!put(&master, at(0), "too-long", 41).unwrap().file);
    assert!(put(&master, at(0), "b", 40).unwrap().file);
    let report = master.report();
    assert_eq!((report.totals.files_used, report.files_capacity), (100, Some(100)));
    assert_eq!((report.totals.files_no_room, report.totals.files_unfinished), (1, 2));
    master.remove(at(0), key("a"), false).unwrap();
    assert!(put(&master, at(0), "c", 60).unwrap().file);
}

#[test]
fn a_tier_without_a_limit_takes_everything() {
    let master = master_with(with_disk(None), &[ROOM]);
    assert!(put(&master, at(0), "a", ROOM).unwrap().file);
    assert_eq!(master.report().files_capacity, None);
}

#[test]
fn a_put_that_finds_no_memory_takes_no_room_on_the_tier() {
    let master = master_with(with_disk(None), &[10]);
    assert!(start(&master, at(0), "a", 11).is_err());
    assert_eq!(files_used(&master), 0);
}

#[test]
fn memory_and_file_end_in_any_order() {
    let (master, story) = told(with_disk(None), ROOM);
    let grant = start(&master, at(0), "a", 10).unwrap();
    assert_eq!(read(&master, at(0), "a"), Err(GetError::NotReady));
    end(&master, at(0), "a", grant.handle.generation).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((true, false)));
    disk_end(&master, at(0), "a", grant.handle.generation).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((true, true)));

    let grant = start(&master, at(0), "b", 10).unwrap();
    disk_end(&master, at(0), "b", grant.handle.generation).unwrap();
    assert_eq!(read(&master, at(0), "b"), Ok((false, true)));
    assert_eq!(start(&master, at(0), "b", 10).unwrap_err(), PutStartError::AlreadyExists);
    assert_eq!(master.remove(at(0), key("b"), true), Err(RemoveError::NotReady));
    end(&master, at(0), "b", grant.handle.generation).unwrap();
    assert_eq!(read(&master, at(0), "b"), Ok((true, true)));
    let list = master.get_replica_list(at(0), key("b")).unwrap();
    assert_eq!(list.file, Some(SharedFile { len: 10 }));

    let lines = [
        "began a memory Processing disk Processing",
        "stored a memory Complete disk Processing",
        "changed a memory Complete disk Complete",
        "began b memory Processing disk Processing",
        "stored b memory Processing disk Complete",
        "changed b memory Complete disk Complete",
    ];
    assert_eq!(story.take(), lines);
}

#[test]
fn only_its_writer_ends_a_file_and_only_that_of_its_put() {
    let master = master_with(with_disk(None), &[ROOM]);
    let grant = put(&master, at(0), "a", 10).unwrap();
    let (a, put) = (key("a"), grant.handle);
    assert_eq!(master.file_put_end(at(0), STRANGER, a, put), Err(PutFinishError::IllegalClient));
    let other = Generation::new(grant.handle.generation.as_u64() + 1);
    assert_eq!(disk_end(&master, at(0), "a", other), Err(PutFinishError::NotOpen));
    assert_eq!(disk_end(&master, at(0), "b", other), Err(PutFinishError::NotFound));
    let guessed = PutHandle { token: PutToken::from_u64(put.token.as_u64() ^ 1), ..put };
    for end in [Master::file_put_end, Master::file_put_revoke] {
        let refused = end(&master, at(0), WRITER, a, guessed);
        assert_eq!(refused, Err(PutFinishError::IllegalClient));
    }
    master.file_put_end(at(0), WRITER, a, put).unwrap();
    // Twice is harmless.
    assert_eq!(disk_end(&master, at(0), "a", grant.handle.generation), Ok(()));
    let revoked = master.file_put_revoke(at(0), WRITER, a, put);
    assert_eq!(revoked, Err(PutFinishError::NotOpen));
    assert_eq!(master.report().totals.files_written, 1);
}

#[test]
fn eviction_takes_the_memory_and_leaves_the_file() {
    let (master, story) = told(with_disk(None), 100);
    let generation = put_both(&master, at(0), "a", 100);
    story.take();
    put_both(&master, at(1), "b", 100);
    assert_eq!(read(&master, at(2), "a"), Ok((false, true)));
    let list = master.get_replica_list(at(2), key("a")).unwrap();
    assert_eq!((list.generation, list.slices.total_len()), (generation, 100));
    assert_eq!(story.take()[0], "changed a memory Removed disk Complete");
    let report = master.report();
    assert_eq!(
        (report.totals.used, report.totals.objects, report.totals.tier_only_objects),
        (100, 2, 1)
    );
    assert_eq!(
        (report.totals.evicted_objects, report.totals.evicted_bytes, report.totals.files_used),
        (1, 100, 200)
    );
    assert_eq!(start(&master, at(2), "a", 1).unwrap_err(), PutStartError::AlreadyExists);
    assert_eq!(master.list_keys("a", ListCursor::default(), 9).keys[0].replicas, 1);
}

#[test]
fn what_is_on_disk_only_costs_eviction_nothing() {
    let master = master_with(with_disk(None), &[100]);
    for n in 0..1000 {
        put_both(&master, at(n), &format!("{n}"), 10);
        master.exist(at(n), key(&n.to_string()));
        master.tick(secs(n * 10));
    }
    let report = master.report();
    assert_eq!(report.totals.tier_only_objects + report.totals.used / 10, 1000);
    assert!(report.totals.eviction_offers <= 2 * report.totals.evicted_objects, "{report:?}");
    // Nothing in memory is left to evict but these ten.
    put(&master, secs(100_000), "all", 100).unwrap();
    assert_eq!(master.report().totals.tier_only_objects, 1000);
}

#[test]
fn an_object_whose_file_is_pending_waits_for_it_when_its_memory_is_evicted() {
    let (master, story) = told(with_disk(None), 100);
    let grant = put(&master, at(0), "a", 100).unwrap();
    put(&master, at(1), "b", 100).unwrap();
    assert_eq!(read(&master, at(1), "a"), Err(GetError::NotReady));
    assert!(!master.exist(at(1), key("a")));
    let age = Duration::from_millis(2);
    assert_eq!(start(&master, at(2), "a", 1).unwrap_err(), PutStartError::InProgress { age });
    story.take();
    disk_end(&master, at(2), "a", grant.handle.generation).unwrap();
    assert_eq!(read(&master, at(2), "a"), Ok((false, true)));
    assert_eq!(story.take(), ["changed a memory Removed disk Complete"]);
}

#[test]
fn a_file_that_never_comes_is_given_up_after_the_release_time_out() {
    let (master, story) = told(with_disk(None), 100);
    put(&master, secs(1), "stays", 30).unwrap();
    let gone = put(&master, secs(1), "evicted", 60).unwrap();
    master.exist(secs(2), key("stays"));
    put_both(&master, secs(2), "new", 60);
    story.take();
    master.tick(at(600_999));
    assert_eq!((story.take().len(), files_used(&master)), (0, 150));
    master.tick(secs(601));
    let lines =
        ["changed stays memory Complete disk -", "removed DiskLost evicted memory Removed disk -"];
    assert_eq!(story.take(), lines);
    assert_eq!(read(&master, secs(601), "stays"), Ok((true, false)));
    assert_eq!(read(&master, secs(601), "evicted"), Err(GetError::NotFound));
    let late = disk_end(&master, secs(601), "evicted", gone.handle.generation);
    assert_eq!(late, Err(PutFinishError::NotFound));
    assert_eq!((files_used(&master), master.report().totals.files_unfinished), (60, 0));
}

#[test]
fn a_new_put_takes_the_place_of_one_that_waits_for_its_file_too_long() {
    let master = master_with(with_disk(None), &[100]);
    let old = put(&master, at(0), "a", 100).unwrap();
    put(&master, at(1), "b", 100).unwrap();
    let new = start(&master, secs(30), "a", 50).unwrap();
    assert_eq!(
        disk_end(&master, secs(30), "a", old.handle.generation),
        Err(PutFinishError::NotOpen)
    );
    end(&master, secs(30), "a", new.handle.generation).unwrap();
    disk_end(&master, secs(30), "a", new.handle.generation).unwrap();
    // That of the one, and that of the object which made room for it.
    assert_eq!(files_used(&master), 50 + 100);
}

#[test]
fn an_unfinished_put_with_its_file_written_is_over_at_the_time_out_and_stays() {
    let (master, story) = told(with_disk(None), 100);
    let grant = start(&master, secs(0), "a", 100).unwrap();
    start(&master, secs(0), "dead", 0).unwrap_err();
    disk_end(&master, secs(0), "a", grant.handle.generation).unwrap();
    // Reads from the file move no time-out.
    for now in 1..60 {
        assert_eq!(read(&master, secs(now * 10), "a"), Ok((false, true)));
    }
    story.take();
    master.tick(secs(600));
    assert_eq!(story.take(), ["changed a memory Removed disk Complete"]);
    let report = master.report();
    assert_eq!(
        (report.totals.used, report.totals.processing, report.totals.tier_only_objects),
        (0, 0, 1)
    );
    assert_eq!(read(&master, secs(600), "a"), Ok((false, true)));
    assert!(
        end(&master, secs(600), "a", grant.handle.generation).is_ok(),
        "it is readable as it said"
    );
}

#[test]
fn a_revoked_put_goes_with_its_pending_file() {
    let (master, story) = told(with_disk(None), 100);
    let grant = start(&master, at(0), "a", 100).unwrap();
    master.put_revoke(at(0), WRITER, key("a"), grant.handle, LateWrites::Impossible).unwrap();
    assert_eq!(
        (master.report().totals.used, files_used(&master), master.report().totals.objects),
        (0, 0, 0)
    );
    assert_eq!(
        disk_end(&master, at(0), "a", grant.handle.generation),
        Err(PutFinishError::NotFound)
    );
    let lines = [
        "began a memory Processing disk Processing",
        "abandoned a memory Processing disk Processing",
    ];
    assert_eq!(story.take(), lines);
}

#[test]
fn a_revoked_put_whose_file_is_written_stays_with_it() {
    let master = master_with(with_disk(None), &[100]);
    let grant = start(&master, at(0), "a", 100).unwrap();
    disk_end(&master, at(0), "a", grant.handle.generation).unwrap();
    master.put_revoke(at(0), WRITER, key("a"), grant.handle, LateWrites::Impossible).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((false, true)));
    assert_eq!((master.report().totals.used, master.report().totals.processing), (0, 0));
    let again = master.put_revoke(at(0), WRITER, key("a"), grant.handle, LateWrites::Impossible);
    assert_eq!(again, Err(PutFinishError::NotOpen));
}

#[test]
fn memory_alone_is_revoked_and_the_file_may_follow() {
    let master = master_with(with_disk(None), &[100]);
    let grant = start(&master, at(0), "a", 100).unwrap();
    let put = grant.handle;
    master.memory_put_revoke(at(0), WRITER, key("a"), put, LateWrites::Impossible).unwrap();
    assert_eq!((master.report().totals.used, files_used(&master)), (0, 100));
    assert_eq!(read(&master, at(0), "a"), Err(GetError::NotReady));
    assert_eq!(end(&master, at(0), "a", grant.handle.generation), Err(PutFinishError::NotOpen));
    let again = master.memory_put_revoke(at(0), WRITER, key("a"), put, LateWrites::Impossible);
    assert_eq!(again, Err(PutFinishError::NotOpen));
    disk_end(&master, at(1), "a", grant.handle.generation).unwrap();
    assert_eq!(read(&master, at(1), "a"), Ok((false, true)));
    assert_eq!(master.report().totals.tier_only_objects, 1);
}

#[test]
fn both_parts_revoked_leave_nothing() {
    let master = master_with(with_disk(None), &[100]);
    let put = start(&master, at(0), "a", 100).unwrap().handle;
    master.memory_put_revoke(at(0), WRITER, key("a"), put, LateWrites::Impossible).unwrap();
    master.file_put_revoke(at(0), WRITER, key("a"), put).unwrap();
    assert_eq!(read(&master, at(0), "a"), Err(GetError::NotFound));
    let report = master.report();
    assert_eq!(
        (report.totals.objects, report.totals.files_used, report.totals.files_unfinished),
        (0, 0, 0)
    );
}

#[test]
fn a_revoked_file_leaves_the_memory() {
    let (master, story) = told(with_disk(None), 100);
    let put = put(&master, at(0), "a", 100).unwrap().handle;
    story.take();
    master.file_put_revoke(at(0), WRITER, key("a"), put).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((true, false)));
    assert_eq!(story.take(), ["changed a memory Complete disk -"]);
    assert_eq!(files_used(&master), 0);
}

#[test]
fn removal_takes_every_kind_and_says_what_there_was() {
    let (master, story) = told(with_disk(None), 100);
    put_both(&master, at(0), "both", 10);
    let pending = put(&master, at(0), "pending", 10).unwrap();
    put_both(&master, at(0), "disk-only", 80);
    master.exist(at(0), key("both"));
    master.exist(at(0), key("pending"));
    put_both(&master, at(1), "new", 80);
    story.take();
    let names = ["both", "pending", "disk-only"];
    master.batch_remove(secs(10), &names.map(key), false).into_iter().for_each(Result::unwrap);
    let lines = [
        "removed Requested both memory Complete disk Complete",
        "removed Requested pending memory Complete disk Processing",
        "removed Requested disk-only memory Removed disk Complete",
    ];
    assert_eq!(story.take(), lines);
    assert_eq!((files_used(&master), master.report().totals.tier_only_objects), (80, 0));
    // Its writer is told to delete what it wrote.
    let late = disk_end(&master, secs(10), "pending", pending.handle.generation);
    assert_eq!(late, Err(PutFinishError::NotFound));
}

#[test]
fn a_lease_protects_what_is_on_disk_from_removal() {
    let master = master_with(with_disk(None), &[100]);
    let grant = start(&master, secs(0), "early", 10).unwrap();
    disk_end(&master, secs(0), "early", grant.handle.generation).unwrap();
    read(&master, secs(1), "early").unwrap();
    end(&master, secs(1), "early", grant.handle.generation).unwrap();
    assert!(matches!(master.remove(secs(5), key("early"), false), Err(RemoveError::Leased { .. })));
    put_both(&master, secs(10), "a", 100);
    put_both(&master, secs(10), "b", 100);
    read(&master, secs(11), "a").unwrap();
    assert!(matches!(master.remove(secs(15), key("a"), false), Err(RemoveError::Leased { .. })));
    assert_eq!(master.remove(secs(16), key("a"), false), Ok(()));
}

#[test]
fn a_file_outlives_the_segment_of_its_object() {
    let (master, story) = told(with_disk(None), 100);
    put_both(&master, at(0), "both", 10);
    put(&master, at(0), "memory-only", 10).unwrap();
    let revoked = start(&master, at(0), "unwritten", 10).unwrap().handle;
    let written = start(&master, at(0), "written", 10).unwrap().handle.generation;
    disk_end(&master, at(0), "written", written).unwrap();
    story.take();
    master.unmount_segment(at(0), NODE, SegmentId::from_u128(0)).unwrap();
    while master.tick(at(0)) {}
    assert_eq!(read(&master, at(0), "both"), Ok((false, true)));
    // These wait for their files until the time-out.
    assert_eq!(read(&master, at(0), "memory-only"), Err(GetError::NotReady));
    let revoked =
        master.put_revoke(at(0), WRITER, key("unwritten"), revoked, LateWrites::Impossible);
    assert_eq!(revoked, Ok(()));
    assert_eq!(
        (master.report().totals.tier_only_objects, master.report().totals.processing),
        (3, 0)
    );
    assert_eq!(master.remove(at(0), key("written"), true), Ok(()));
    master.tick(secs(600));
    assert_eq!((master.report().totals.tier_only_objects, master.report().totals.objects), (1, 1));
    assert_eq!(files_used(&master), 10);
}

#[test]
fn a_file_outlives_a_group_and_leaves_it() {
    let master = master_with(with_disk(None), &[100]);
    let group = ReplicateConfig::default().group("g");
    for name in ["a", "b"] {
        let grant = put_as(&master, at(0), name, 40, &group).unwrap();
        let revoke = name == "b";
        let (name, put) = (key(name), grant.handle);
        if revoke {
            master.file_put_revoke(at(0), WRITER, name, put).unwrap();
        } else {
            master.file_put_end(at(0), WRITER, name, put).unwrap();
        }
    }
    put(&master, at(1), "c", 30).unwrap();
    assert_eq!(read(&master, at(1), "a"), Ok((false, true)));
    assert_eq!(read(&master, at(1), "b"), Err(GetError::NotFound));
    assert_eq!(master.report().totals.evicted_objects, 2);
}

#[test]
fn a_deleted_file_is_noted_and_the_object_goes_with_its_last() {
    let (master, story) = told(with_disk(None), 100);
    let disk = ReplicaKind::SharedFile;
    let both = put_both(&master, at(0), "both", 10);
    put_both(&master, at(0), "disk-only", 90);
    master.exist(at(0), key("both"));
    put(&master, at(0), "new", 90).unwrap();
    story.take();
    let evict = |name, put, kind| master.evict_from_tier(secs(9), STRANGER, key(name), put, kind);
    assert_eq!(evict("none", None, disk), Err(TierEvictError::NotFound));
    assert_eq!(evict("new", None, disk), Err(TierEvictError::NotReady));
    assert_eq!(evict("both", None, ReplicaKind::Memory), Err(TierEvictError::NotATier));
    assert_eq!(evict("both", None, ReplicaKind::LocalDisk), Err(TierEvictError::NoReplica));
    let other = Some(Generation::new(both.as_u64() + 1));
    assert_eq!(evict("both", other, disk), Err(TierEvictError::NoReplica));
    assert_eq!(evict("both", Some(both), disk), Ok(()));
    assert_eq!(evict("both", Some(both), disk), Err(TierEvictError::NoReplica));
    assert_eq!(evict("disk-only", None, disk), Ok(()));
    assert_eq!(evict("disk-only", None, disk), Err(TierEvictError::NotFound));
    let lines =
        ["changed both memory Complete disk -", "removed DiskLost disk-only memory Removed disk -"];
    assert_eq!(story.take(), lines);
    assert_eq!((files_used(&master), master.report().totals.tier_evictions), (90, 2));
}

#[test]
fn describing_shows_the_state_of_the_file() {
    let master = master_with(with_disk(None), &[100]);
    let grant = start(&master, at(0), "a", 10).unwrap();
    let disk = || master.describe(at(0), key("a")).unwrap().file;
    assert_eq!(disk(), Some(ReplicaStatus::Processing));
    disk_end(&master, at(0), "a", grant.handle.generation).unwrap();
    assert_eq!(disk(), Some(ReplicaStatus::Complete));
}

#[test]
fn a_clock_that_leaps_leaves_the_books_right() {
    let master = master_with(with_disk(Some(150)), &[100]);
    for now in [at(5), at(5), at(u64::MAX), at(u64::MAX), at(0), at(7)] {
        for name in ["a", "b"] {
            if let Ok(grant) = start(&master, now, name, 60) {
                let _ = disk_end(&master, now, name, grant.handle.generation);
                let _ = end(&master, now, name, grant.handle.generation);
            }
        }
        let _ = start(&master, now, "open", 30);
        let _ = read(&master, now, "a");
        master.tick(now);
        assert!(files_used(&master) <= 150);
    }
    while master.tick(at(u64::MAX)) {}
    master.remove_all(at(u64::MAX), true);
    let report = master.report();
    assert_eq!(
        (report.totals.objects, report.totals.used, report.totals.files_used),
        (0, 0, 0),
        "{report:?}"
    );
    assert_eq!(report.totals.tier_only_objects, 0);
}

fn upsert(master: &Master, now: Time, name: &str, len: u64) -> PutGrant {
    let config = ReplicateConfig::default();
    let put = PutStart { key: key(name), slice_lengths: &[len], config: &config };
    master.upsert_start(now, WRITER, &put).unwrap()
}

#[test]
fn a_new_value_has_a_file_of_its_own_and_the_old_one_goes_with_the_old_value() {
    let (master, story) = told(with_disk(None), 100);
    put_both(&master, at(0), "a", 10);
    let grant = upsert(&master, at(1), "a", 20);
    assert!(grant.file);
    assert_eq!((read(&master, secs(1), "a"), files_used(&master)), (Ok((true, true)), 30));
    story.take();
    end(&master, secs(10), "a", grant.handle.generation).unwrap();
    assert_eq!((read(&master, secs(10), "a"), files_used(&master)), (Ok((true, false)), 20));
    disk_end(&master, secs(10), "a", grant.handle.generation).unwrap();
    let lines = [
        "removed Replaced a memory Complete disk Complete",
        "stored a memory Complete disk Processing",
        "changed a memory Complete disk Complete",
    ];
    assert_eq!(story.take(), lines);
}

#[test]
fn a_new_value_takes_the_place_of_the_old_when_its_file_is_written() {
    let master = master_with(with_disk(None), &[100]);
    let old = put_both(&master, at(0), "a", 10);
    let new = upsert(&master, at(1), "a", 20).handle.generation;
    assert_eq!(disk_end(&master, at(2), "a", old), Ok(()), "the old one has its file already");
    disk_end(&master, at(2), "a", new).unwrap();
    let list = master.get_replica_list(at(2), key("a")).unwrap();
    assert_eq!((list.generation, list.placements.len(), list.file.is_some()), (new, 0, true));
    // The next one leaves it readable, and its memory alone: that may still be written.
    let next = upsert(&master, at(3), "a", 30).handle.generation;
    assert_eq!(read(&master, at(3), "a"), Ok((false, true)));
    assert_eq!(master.report().totals.used, 20 + 30);
    end(&master, at(4), "a", next).unwrap();
    assert_eq!(master.get_replica_list(at(4), key("a")).unwrap().generation, next);
    master.tick(secs(601));
    assert_eq!((master.report().totals.used, files_used(&master)), (30, 0));
}

#[test]
fn a_value_that_waits_for_its_file_gives_way_to_its_replacement() {
    let master = master_with(with_disk(None), &[100]);
    put(&master, at(0), "a", 60).unwrap();
    let new = upsert(&master, at(1), "a", 40).handle.generation;
    put(&master, at(2), "b", 60).unwrap();
    assert_eq!(read(&master, at(2), "a"), Err(GetError::NotReady));
    // A put waits for the one, and then for the other.
    let error = start(&master, secs(30), "a", 10).unwrap_err();
    assert_eq!(error, PutStartError::InProgress { age: Duration::from_millis(29_999) });
    end(&master, secs(30), "a", new).unwrap();
    assert_eq!(read(&master, secs(30), "a"), Ok((true, false)));
    assert_eq!(master.report().totals.objects, 2);
}

#[test]
fn clearing_a_segment_leaves_the_file_and_clearing_all_does_not() {
    let master = master_with(with_disk(None), &[100]);
    put_both(&master, at(0), "a", 10);
    let clear = |segment| master.batch_replica_clear(at(0), WRITER, &[key("a")], segment);
    assert_eq!(clear(Some("segment-0")).len(), 1);
    assert_eq!((read(&master, at(0), "a"), master.report().totals.used), (Ok((false, true)), 0));
    assert_eq!(clear(Some("segment-0")).len(), 0);
    assert_eq!(clear(None).len(), 0, "under lease");
    let clear = master.batch_replica_clear(secs(9), WRITER, &[key("a")], None);
    assert_eq!((clear.len(), files_used(&master), master.report().totals.objects), (1, 0, 0));
}
