//! Files on the shared tier that belong to no object any more, and objects that are found there.

use mc_meta::{FileJobs, FileSystemState, FoundError, FoundInTier, Master, SharedTierConfig};
use mc_types::{Generation, LocalDiskId};

use super::*;

const OTHER: ClientId = ClientId::from_u128(200);
const MINUTE: u64 = 60_000;

fn with_files(capacity: Option<u64>) -> MasterConfig {
    let mut config = settings();
    config.shared_tier =
        Some(capacity.map_or_else(SharedTierConfig::default, SharedTierConfig::with_capacity));
    config
}

/// Puts an object with its file.
fn put_with_file(master: &Master, name: &str, len: u64) -> Generation {
    let grant = put(master, at(0), name, len).unwrap();
    master.file_put_end(at(0), WRITER, key(name), grant.handle).unwrap();
    grant.handle.generation
}

fn ask(master: &Master, now: u64, client: ClientId) -> FileJobs {
    master.file_jobs(at(now), client, FileSystemState::default(), 1000)
}

fn compared(master: &Master, now: u64, client: ClientId) -> FileJobs {
    master.file_jobs(at(now), client, FileSystemState::default().compared(true), 1000)
}

fn names(jobs: &FileJobs) -> Vec<&str> {
    jobs.delete.iter().map(|job| job.key.as_str()).collect()
}

fn report(master: &Master, name: &str, put: Generation, len: u64) -> Result<(), FoundError> {
    let found = FoundInTier { key: key(name), generation: put, slices: one_slice(len), address: 0 };
    master.report_files(at(0), NODE, &[found]).remove(0)
}

fn is_in_file(master: &Master, name: &str) -> bool {
    master.get_replica_list(at(0), key(name)).is_ok_and(|list| list.file.is_some())
}

#[test]
fn files_of_removed_objects_are_handed_out_once() {
    let master = master_with(with_files(None), &[1000]);
    let generation = put_with_file(&master, "a", 10);
    put_with_file(&master, "b", 10);
    put(&master, at(0), "without", 10).unwrap();
    assert!(names(&ask(&master, 0, NODE)).is_empty());
    master.remove(at(0), key("a"), true).unwrap();
    master.remove(at(0), key("without"), true).unwrap();
    let jobs = ask(&master, 0, OTHER);
    assert_eq!(names(&jobs), ["a"]);
    assert_eq!((jobs.delete[0].generation, jobs.delete[0].len), (generation, 10));
    assert!(names(&ask(&master, 0, NODE)).is_empty());

    // Replaced by an upsert.
    let grant = master
        .upsert_start(
            at(0),
            WRITER,
            &PutStart { key: key("b"), slice_lengths: &[20], config: &ReplicateConfig::default() },
        )
        .unwrap();
    end(&master, at(0), "b", grant.handle.generation).unwrap();
    assert_eq!(names(&ask(&master, 0, NODE)), ["b"]);
}

#[test]
fn one_client_compares_the_files_and_another_one_when_it_falls_silent() {
    let master = master_with(with_files(None), &[1000]);
    assert!(ask(&master, 0, NODE).compare, "the master has just begun");
    assert!(ask(&master, 0, NODE).compare, "the answer may have been lost");
    assert!(!ask(&master, 0, OTHER).compare);
    assert!(!compared(&master, 0, OTHER).compare, "it was not told to");
    assert!(ask(&master, MINUTE + 1, OTHER).compare);
    assert!(!compared(&master, MINUTE + 2, OTHER).compare);
    assert!(!ask(&master, 60 * MINUTE, NODE).compare);
    assert!(ask(&master, 62 * MINUTE, NODE).compare, "once an hour");
}

#[test]
fn more_removals_than_are_remembered_are_found_by_a_comparison() {
    let master = master_with(with_files(None), &[1 << 20]);
    assert!(ask(&master, 0, NODE).compare && !compared(&master, 0, NODE).compare);
    for n in 0..(1 << 16) + 1 {
        put_with_file(&master, &format!("k{n}"), 1);
    }
    assert!(!ask(&master, 0, NODE).compare);
    master.remove_all(at(0), true);
    let mut told = 0;
    let jobs = loop {
        let jobs = master.file_jobs(at(0), NODE, FileSystemState::default(), usize::MAX);
        if jobs.delete.is_empty() {
            break jobs;
        }
        told += jobs.delete.len();
    };
    assert_eq!((told, jobs.compare), (1 << 16, true));
}

#[test]
fn the_oldest_files_go_above_the_watermark_or_on_a_full_file_system() {
    let master = master_with(with_files(Some(1000)), &[2000]);
    put_with_file(&master, "a", 950);
    assert!(!ask(&master, 0, NODE).evict);
    put_with_file(&master, "b", 40);
    assert!(ask(&master, 0, NODE).evict && !ask(&master, 0, OTHER).evict);
    let kind = mc_meta::ReplicaKind::SharedFile;
    assert_eq!(master.evict_from_tier(at(0), NODE, key("a"), None, kind), Ok(()));
    assert!(!ask(&master, 0, NODE).evict);
    assert!(names(&ask(&master, 0, NODE)).is_empty(), "its client has deleted it");
    let full = FileSystemState::default().full(true);
    assert!(master.file_jobs(at(2 * MINUTE), OTHER, full, 9).evict);
}

#[test]
fn where_deleting_files_makes_no_room_nobody_deletes_more_for_a_while() {
    let master = master_with(with_files(Some(1000)), &[2000]);
    let full = FileSystemState::default().full(true);
    let evicts = |now, state| master.file_jobs(at(now), NODE, state, 9).evict;
    assert!(evicts(0, full));
    assert!(!evicts(0, full.in_vain(true)));
    assert!(!master.file_jobs(at(MINUTE - 1), OTHER, full, 9).evict);
    assert!(evicts(MINUTE, full), "it is tried again");
    assert!(!evicts(MINUTE, full.in_vain(true)));
    assert!(!evicts(3 * MINUTE - 1, full.in_vain(true)), "after twice the time");
    assert!(evicts(3 * MINUTE, full));
    // What the files take is another matter.
    put_with_file(&master, "a", 960);
    assert!(evicts(4 * MINUTE, full.in_vain(true)));
    assert!(evicts(60 * MINUTE, FileSystemState::default()));
    assert!(evicts(61 * MINUTE, full.in_vain(true)), "the quota is exceeded");
}

#[test]
fn who_goes_on_with_a_comparison_or_an_eviction_keeps_it() {
    let master = master_with(with_files(Some(1000)), &[2000]);
    put_with_file(&master, "a", 960);
    let jobs = ask(&master, 0, NODE);
    assert!(jobs.compare && jobs.evict && jobs.renews);
    let busy = FileSystemState::default().deleted(false).busy(true);
    for minute in 0..10 {
        let jobs = master.file_jobs(at(minute * MINUTE), NODE, busy, 9);
        assert_eq!(
            (jobs.delete.len(), jobs.compare, jobs.evict, jobs.renews),
            (0, false, false, true)
        );
        let jobs = ask(&master, (minute + 1) * MINUTE - 1, OTHER);
        assert!(!jobs.compare && !jobs.evict, "{minute}");
    }
    master.file_jobs(at(10 * MINUTE), OTHER, busy, 9);
    let jobs = compared(&master, 10 * MINUTE, NODE);
    assert!(!jobs.compare && jobs.evict);
    assert!(!ask(&master, 70 * MINUTE - 1, OTHER).compare);
    assert!(ask(&master, 70 * MINUTE, OTHER).compare);
}

/// As with a client that does not report that it continues.
#[test]
fn a_comparison_that_took_longer_than_a_turn_counts_as_done() {
    let master = master_with(with_files(None), &[100]);
    assert!(ask(&master, 0, NODE).compare);
    assert!(ask(&master, MINUTE, OTHER).compare, "it was not heard of");
    assert!(!compared(&master, 2 * MINUTE, NODE).compare);
    assert!(!ask(&master, 62 * MINUTE - 1, NODE).compare);
    assert!(!compared(&master, 3 * MINUTE, OTHER).compare);
    assert!(!ask(&master, 63 * MINUTE - 1, NODE).compare);
    assert!(ask(&master, 63 * MINUTE, NODE).compare);
    // One that was never handed it says nothing.
    assert!(!compared(&master, 63 * MINUTE, OTHER).compare);
    assert!(ask(&master, 63 * MINUTE, NODE).compare);
}

#[test]
fn files_to_delete_are_kept_by_a_client_that_goes_on_with_them() {
    let master = master_with(with_files(None), &[100]);
    let state = FileSystemState::default().deleted(true);
    put_with_file(&master, "a", 10);
    master.remove(at(0), key("a"), true).unwrap();
    assert_eq!(names(&master.file_jobs(at(0), NODE, state, 9)), ["a"]);
    assert!(names(&master.file_jobs(at(MINUTE - 1), NODE, state.busy(true), 9)).is_empty());
    assert!(names(&master.file_jobs(at(MINUTE), OTHER, state, 9)).is_empty());
    assert_eq!(names(&master.file_jobs(at(2 * MINUTE), OTHER, state, 9)), ["a"]);
}

#[test]
fn clients_on_another_file_system_are_told_so_and_handed_nothing() {
    let master = master_with(with_files(None), &[100]);
    let on = |id| FileSystemState::default().on(Some(LocalDiskId::from_u128(id)));
    assert_eq!(master.storage_id(), None);
    put_with_file(&master, "a", 10);
    master.remove(at(0), key("a"), true).unwrap();
    // This one has marked its own just now.
    let jobs = master.file_jobs(at(0), OTHER, on(9).full(true), 0);
    assert_eq!((jobs.compare, jobs.storage), (true, Some(LocalDiskId::from_u128(9))));
    let jobs = master.file_jobs(at(1000), NODE, on(7), 9);
    assert_eq!(jobs.storage, Some(LocalDiskId::from_u128(7)), "the older one");
    assert_eq!(names(&jobs), ["a"]);
    let jobs = master.file_jobs(at(2000), OTHER, on(9).full(true).compared(true), 9);
    assert_eq!((jobs.compare, jobs.evict, jobs.storage), (false, false, master.storage_id()));
    // Many do not follow one, which may have an old marker of its own.
    let third = ClientId::from_u128(300);
    let jobs = master.file_jobs(at(3000), third, on(9), 9);
    assert_eq!(jobs.storage, Some(LocalDiskId::from_u128(9)));
    assert_eq!(master.file_jobs(at(3000), NODE, on(7), 9).storage, jobs.storage);
    // Of those that are gone nothing is heard.
    let jobs = master.file_jobs(at(2000 + MINUTE), NODE, on(7), 9);
    assert_eq!(jobs.storage, Some(LocalDiskId::from_u128(7)), "one of each");
    // Clients that know no ids are as they were.
    assert!(ask(&master, 3 * MINUTE, OTHER).compare);
}

#[test]
fn files_that_a_whole_comparison_has_not_found_are_gone() {
    let master = master_with(with_files(None), &[1000]);
    let end = |now, is_whole| {
        let state = FileSystemState::default().compared(true).whole(is_whole);
        assert!(!master.file_jobs(at(now), NODE, state, 9).compare);
        while master.tick(at(now)) {}
    };
    let both = put_with_file(&master, "both", 100);
    put_with_file(&master, "memory only", 10);
    // What was written in this life of the master is seen in its first comparison.
    assert!(ask(&master, 0, NODE).compare);
    assert_eq!(report(&master, "both", both, 100), Ok(()));
    end(0, true);
    assert!(is_in_file(&master, "memory only"));

    for (hour, found, is_whole) in [(61, true, false), (122, false, true), (183, true, true)] {
        let now = hour * MINUTE;
        assert!(is_in_file(&master, "both") && is_in_file(&master, "memory only"), "{hour}");
        assert!(ask(&master, now, NODE).compare);
        if found {
            assert_eq!(report(&master, "both", both, 100), Ok(()));
        }
        if hour == 183 {
            put_with_file(&master, "later", 10);
        }
        end(now, is_whole);
    }
    assert!(is_in_file(&master, "both"), "it was reported");
    assert!(is_in_file(&master, "later"), "it was written since the comparison began");
    assert!(!is_in_file(&master, "memory only"), "it was not reported");
    assert!(master.exist(at(0), key("memory only")));
    assert_eq!(master.report().totals.files_used, 110);

    // An object that has nothing else goes with its file.
    assert!(ask(&master, 244 * MINUTE, NODE).compare);
    assert_eq!(report(&master, "both", both, 100), Ok(()));
    assert_eq!(report(&master, "alone", Generation::new(1 << 62), 10), Ok(()));
    end(244 * MINUTE, true);
    assert!(!is_in_file(&master, "later") && master.exist(at(0), key("alone")));
    assert!(ask(&master, 305 * MINUTE, NODE).compare);
    assert_eq!(report(&master, "both", both, 100), Ok(()));
    end(305 * MINUTE, true);
    assert!(!master.exist(at(0), key("alone")));
}

#[test]
fn files_to_delete_are_handed_out_until_a_client_says_that_they_are_deleted() {
    let master = master_with(with_files(None), &[1000]);
    for name in ["a", "b", "c"] {
        put_with_file(&master, name, 10);
    }
    let ask = |now, client, deleted| {
        master.file_jobs(at(now), client, FileSystemState::default().deleted(deleted), 2)
    };
    assert!(names(&ask(0, NODE, true)).is_empty());
    for name in ["a", "b", "c"] {
        master.remove(at(0), key(name), true).unwrap();
    }
    assert_eq!(names(&ask(0, NODE, true)), ["a", "b"]);
    assert_eq!(names(&ask(0, OTHER, true)), ["c"]);
    assert_eq!(names(&ask(1000, NODE, false)), ["a", "b"], "the answer was lost");
    assert!(names(&ask(1000, OTHER, true)).is_empty());
    assert!(names(&ask(2000, NODE, true)).is_empty(), "they are deleted");

    // A client that ends before it tells.
    put_with_file(&master, "d", 10);
    master.remove(at(2000), key("d"), true).unwrap();
    assert_eq!(names(&ask(2000, OTHER, true)), ["d"]);
    assert!(names(&ask(2000 + MINUTE - 1, NODE, true)).is_empty());
    assert_eq!(names(&ask(2000 + MINUTE, NODE, true)), ["d"]);
}

#[test]
fn files_of_known_objects_stay_and_those_of_removed_ones_go() {
    let master = master_with(with_files(None), &[1000]);
    let kept = put_with_file(&master, "kept", 10);
    assert_eq!(report(&master, "kept", kept, 10), Ok(()));
    assert_eq!(report(&master, "kept", kept, 11), Err(FoundError::WrongLength));
    let removed = put_with_file(&master, "removed", 10);
    master.remove(at(0), key("removed"), true).unwrap();
    assert_eq!(report(&master, "removed", removed, 10), Err(FoundError::OtherObject));
    let next = Generation::new(removed.as_u64() + 1);
    assert_eq!(report(&master, "next", next, 10), Err(FoundError::OtherObject));

    // Its writer has lost the answer, or the master: the file is there all the same.
    let grant = put(&master, at(0), "late", 10).unwrap();
    assert_eq!(report(&master, "late", grant.handle.generation, 10), Ok(()));
    assert!(!is_in_file(&master, "late"), "its writer says when it is written");
    master.file_put_revoke(at(0), WRITER, key("late"), grant.handle).unwrap();
    assert_eq!(report(&master, "late", grant.handle.generation, 10), Ok(()));
    assert!(is_in_file(&master, "late"));

    // One that is to replace another is not written yet.
    let grant = master
        .upsert_start(
            at(0),
            WRITER,
            &PutStart {
                key: key("kept"),
                slice_lengths: &[20],
                config: &ReplicateConfig::default(),
            },
        )
        .unwrap();
    assert_eq!(report(&master, "kept", grant.handle.generation, 20), Ok(()));
    assert_eq!(report(&master, "kept", kept, 10), Ok(()));
}

#[test]
fn files_of_another_master_are_objects_here() {
    let master = master_with(with_files(Some(100)), &[1000]);
    let theirs = Generation::new(1 << 62);
    assert_eq!(report(&master, "a", theirs, 60), Ok(()));
    assert_eq!(report(&master, "a", theirs, 60), Ok(()));
    assert_eq!(
        report(&master, "a", Generation::new((1 << 62) + 1), 60),
        Err(FoundError::OtherObject)
    );
    assert_eq!(report(&master, "b", theirs, 60), Ok(()), "above the quota; it is evicted");
    assert!(is_in_file(&master, "a") && is_in_file(&master, "b"));
    assert_eq!(master.report().totals.files_used, 120);
    assert!(ask(&master, 0, NODE).evict);
    let without = self::master(&[1000]);
    assert_eq!(report(&without, "a", theirs, 60), Err(FoundError::NoSharedTier));
    assert_eq!(ask(&without, 0, NODE), FileJobs::default());
}
