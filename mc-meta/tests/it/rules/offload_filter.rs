//! The objects that are written to the clients' local disks.

use mc_meta::{GetError, OffloadFilter};

use super::offload::{fetch, names, notify, with_disk, with_disks, write_all};
use super::*;

fn filtering(on_evict: bool, filter: OffloadFilter) -> MasterConfig {
    let mut config = with_disks(on_evict);
    let mut disks = config.local_disk.unwrap();
    disks.filter = filter;
    config.local_disk = Some(disks);
    config
}

fn filtered(master: &Master) -> u64 {
    master.report().totals.offload_filtered
}

fn read(master: &Master, now: Time, name: &str) {
    master.get_replica_list(now, key(name)).unwrap();
}

#[test]
fn an_object_is_written_after_its_first_use() {
    let master = with_disk(filtering(false, OffloadFilter::SecondUse), 1000);
    for name in ["read", "asked", "prefix", "again", "unused"] {
        put(&master, at(0), name, 30).unwrap();
    }
    assert_eq!((fetch(&master, at(0)).len(), filtered(&master)), (0, 5));
    read(&master, at(1), "read");
    assert!(master.exist(at(1), key("asked")));
    // These say that the key is known, not that the bytes are wanted.
    assert_eq!(master.longest_prefix(at(1), [key("prefix")]), 1);
    assert_eq!(put(&master, at(1), "again", 30).unwrap_err(), PutStartError::AlreadyExists);
    let jobs = fetch(&master, at(1));
    assert_eq!(names(&jobs), ["read", "asked"]);
    // Once is enough, before it is written and after.
    read(&master, at(2), "read");
    notify(&master, at(2), &jobs, true).into_iter().for_each(Result::unwrap);
    read(&master, at(2), "read");
    assert_eq!((fetch(&master, at(2)).len(), filtered(&master)), (0, 5));
    assert_eq!(
        (master.report().totals.offload_queued, master.report().totals.offload_written),
        (2, 2)
    );
}

#[test]
fn what_was_not_used_is_evicted_without_a_copy() {
    let master = with_disk(filtering(true, OffloadFilter::SecondUse), 100);
    for (second, name) in (0..).zip(["a", "b", "c"]) {
        put(&master, secs(second), name, 30).unwrap();
    }
    read(&master, secs(3), "b");
    // Its lease is over. What was not used goes at once, and no put waits for a disk.
    put(&master, secs(60), "d", 30).unwrap();
    put(&master, secs(61), "e", 30).unwrap();
    assert_eq!((fetch(&master, secs(61)).len(), filtered(&master)), (0, 2));
    let _ = start(&master, secs(62), "f", 30);
    let jobs = fetch(&master, secs(62));
    assert_eq!(names(&jobs), ["b"]);
    notify(&master, secs(62), &jobs, true).into_iter().for_each(Result::unwrap);
    for (name, found) in [("a", false), ("b", true), ("c", false)] {
        let list = master.get_replica_list(secs(63), key(name));
        assert_eq!(list.is_ok_and(|list| !list.local_disks.is_empty()), found, "{name}");
    }
}

#[test]
fn without_a_filter_all_are_written() {
    let master = with_disk(filtering(false, OffloadFilter::All), 1000);
    put(&master, at(0), "a", 30).unwrap();
    write_all(&master, at(0));
    assert_eq!((filtered(&master), master.report().totals.offload_written), (0, 1));
    let master = with_disk(filtering(true, OffloadFilter::All), 30);
    put(&master, at(0), "a", 30).unwrap();
    let _ = start(&master, secs(60), "b", 30);
    write_all(&master, secs(60));
    assert!(!master.get_replica_list(secs(60), key("a")).unwrap().local_disks.is_empty());
    assert_eq!(filtered(&master), 0);
    let unknown = master.get_replica_list(secs(60), key("b")).map(|_| ());
    assert_eq!(unknown, Err(GetError::NotFound));
}

#[test]
fn filters_have_names() {
    for filter in OffloadFilter::KINDS {
        assert_eq!(filter.as_str().parse(), Ok(filter));
    }
    let unknown = "some".parse::<OffloadFilter>().unwrap_err();
    assert!(unknown.to_string().contains("all or second_use"), "{unknown}");
}
