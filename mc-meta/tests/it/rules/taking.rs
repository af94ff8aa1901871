//! Values that are given to one reader, and questions that keep nothing.

use mc_meta::RemoveError;

use super::*;

#[test]
fn a_removal_that_names_a_put_removes_that_one_once() {
    let removals = Recorder::default();
    let master = master(&[100]).with_sink(removals.clone());
    put(&master, at(0), "a", 10).unwrap();
    let generation = master.get_replica_list(at(1), key("a")).unwrap().generation;
    let remove = |name, generation| master.remove_generation(at(2), key(name), generation);
    assert_eq!(remove("none", generation), Err(RemoveError::NotFound));
    // The lease of the reader does not keep it.
    assert_eq!(remove("a", generation), Ok(()));
    assert_eq!(remove("a", generation), Err(RemoveError::NotFound), "it is given out once");
    assert_eq!(removals.removals(Removal::Requested), ["a"]);

    put(&master, at(3), "a", 10).unwrap();
    assert_eq!(remove("a", generation), Err(RemoveError::Replaced));
    assert!(master.exist(at(3), key("a")), "the value of another put stays");
    assert!(!RemoveError::Replaced.is_retryable());

    let open = start(&master, at(3), "open", 10).unwrap();
    assert_eq!(remove("open", open.handle.generation), Err(RemoveError::NotReady));
    let now = master.get_replica_list(at(3), key("a")).unwrap().generation;
    assert_eq!(remove("a", now), Ok(()));
    assert_eq!(master.report().totals.removed_objects, 2);
}

#[test]
fn an_object_that_is_copied_is_not_taken_and_stays() {
    let master = master(&[100, 100]);
    put_as(&master, at(0), "a", 10, &ReplicateConfig::default().prefer("segment-0")).unwrap();
    let generation = newest(&master);
    let copy = master.copy_start(at(0), NODE, key("a"), "segment-0", &["segment-1"]).unwrap();
    let taken = |now| master.remove_generation(now, key("a"), generation);
    assert_eq!(taken(at(1)), Err(RemoveError::InTransfer));
    master.copy_end(at(2), NODE, key("a"), copy.handle).unwrap();
    assert_eq!(taken(at(3)), Ok(()));
}

#[test]
fn a_probe_keeps_nothing() {
    let evictions = Recorder::default();
    let master = master(&[40]).with_sink(evictions.clone());
    for (number, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        put(&master, at(number as u64), name, 10).unwrap();
    }
    assert!(master.probe(at(10), key("a")) && !master.probe(at(10), key("none")));
    assert_eq!(master.batch_probe(at(10), &["a", "none", "b"].map(key)), [true, false, true]);
    assert_eq!((master.report().totals.exist_hits, master.report().totals.exist_misses), (3, 2));
    // No lease, and no use: the one that was put first is the first to go.
    put(&master, at(11), "e", 10).unwrap();
    assert_eq!(evictions.removals(Removal::Evicted), ["a"]);
    master.remove(at(11), key("b"), false).unwrap();
    // An existence check keeps it.
    assert!(master.exist(at(12), key("c")));
    assert!(matches!(master.remove(at(12), key("c"), false), Err(RemoveError::Leased { .. })));
}

#[test]
fn a_probe_of_a_member_extends_no_lease_of_its_group() {
    let master = master(&[100]);
    let of_group = ReplicateConfig::default().group("g");
    put_as(&master, at(0), "a", 10, &of_group).unwrap();
    put_as(&master, at(0), "b", 10, &of_group).unwrap();
    assert!(master.probe(at(1), key("a")));
    assert_eq!(master.explain(at(1), key("b")).kept_by, []);
    assert!(master.exist(at(1), key("a")));
    assert_ne!(master.explain(at(1), key("b")).kept_by, []);
}
