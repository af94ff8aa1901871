//! Where replicas go, and why a put finds no room.

use std::collections::BTreeSet;

use mc_meta::{PutGrant, PutStartError, ReplicateConfig};
use mc_types::SegmentId;

use super::*;

fn names(grant: &PutGrant) -> Vec<&str> {
    grant.placements.iter().map(|placement| &*placement.segment.spec().name).collect()
}

#[test]
fn replicas_lie_in_distinct_segments() {
    let master = master(&[1000; 5]);
    for n in 0..50 {
        let config = ReplicateConfig::default().replicas(3);
        let grant = put_as(&master, at(0), &format!("key-{n}"), 10, &config).unwrap();
        assert_eq!(names(&grant).into_iter().collect::<BTreeSet<_>>().len(), 3);
    }
}

#[test]
fn there_are_as_many_replicas_as_fit_and_at_least_one() {
    let master = master(&[100, 50, 10]);
    let config = ReplicateConfig::default().replicas(5);
    assert_eq!(start_as(&master, at(0), "a", 40, &config).unwrap().placements.len(), 2);
    assert_eq!(start_as(&master, at(0), "b", 40, &config).unwrap().placements.len(), 1);
    assert_eq!(
        start_as(&master, at(0), "c", 40, &config).unwrap_err(),
        PutStartError::Full { len: 40 }
    );
}

#[test]
fn a_preferred_segment_is_used_while_it_has_room() {
    let master = master(&[100; 8]);
    let config = ReplicateConfig::default().prefer("segment-5");
    for n in 0..4 {
        let grant = put_as(&master, at(0), &format!("near-{n}"), 25, &config).unwrap();
        assert_eq!(names(&grant), ["segment-5"]);
    }
    // Full, and then any other will do. Nothing is evicted for a preference.
    let grant = put_as(&master, at(0), "far", 25, &config).unwrap();
    assert_ne!(names(&grant), ["segment-5"]);
    assert_eq!(master.report().totals.evicted_objects, 0);
}

#[test]
fn a_preference_for_what_is_not_there_is_no_error() {
    let master = master(&[100; 2]);
    let config = ReplicateConfig::default().prefer("nowhere").prefer("segment-1");
    let grant = put_as(&master, at(0), "a", 25, &config).unwrap();
    assert_eq!(names(&grant), ["segment-1"]);
}

#[test]
fn the_order_of_preference_counts() {
    let master = master(&[100; 8]);
    let config = ReplicateConfig::default().replicas(3).prefer("segment-6").prefer("segment-2");
    let grant = put_as(&master, at(0), "a", 25, &config).unwrap();
    assert_eq!(names(&grant)[..2], ["segment-6", "segment-2"]);
}

#[test]
fn the_one_segment_with_room_among_many_is_found() {
    let master = master(&[10; 200]);
    for n in 0..200 {
        put(&master, at(0), &format!("key-{n}"), 10).unwrap();
    }
    master.remove(at(0), key("key-123"), false).unwrap();
    put(&master, at(0), "new", 10).unwrap();
    let report = master.report();
    assert_eq!((report.totals.evicted_objects, report.totals.used), (0, 2000));
}

#[test]
fn room_for_every_replica_is_found_among_many_segments() {
    let mut sizes = [10; 100];
    (sizes[7], sizes[50], sizes[99]) = (20, 20, 20);
    let master = master(&sizes);
    let config = ReplicateConfig::default().replicas(5);
    let grant = put_as(&master, at(0), "a", 20, &config).unwrap();
    let placed: BTreeSet<&str> = names(&grant).into_iter().collect();
    assert_eq!(placed, BTreeSet::from(["segment-7", "segment-50", "segment-99"]));
}

#[test]
fn an_excluded_segment_gets_nothing() {
    let master = master(&[100, 1000, 60]);
    let config = ReplicateConfig::default().replicas(3).prefer("segment-1").exclude("segment-1");
    let config = config.exclude("segment-1").exclude("never mounted");
    let grant = put_as(&master, at(0), "a", 10, &config).unwrap();
    let placed: BTreeSet<&str> = names(&grant).into_iter().collect();
    assert_eq!(placed, BTreeSet::from(["segment-0", "segment-2"]));

    // What cannot fit where it may go evicts nothing.
    let too_large = PutStartError::TooLarge { len: 101, largest_object: 100 };
    assert_eq!(start_as(&master, at(0), "b", 101, &config).unwrap_err(), too_large);
    assert_eq!(master.report().totals.evicted_objects, 0);

    let all = config.exclude("segment-0").exclude("segment-2");
    let error = start_as(&master, at(0), "c", 1, &all).unwrap_err();
    assert_eq!(error, PutStartError::TooFewSegments { mounted: 3 });
    assert!(error.to_string().contains("excluded"), "{error}");
}

#[test]
fn each_want_of_room_is_an_error_of_its_own() {
    let none = master(&[]);
    assert_eq!(
        start(&none, at(0), "a", 1).unwrap_err(),
        PutStartError::TooFewSegments { mounted: 0 }
    );

    let master = master(&[100, 60]);
    let too_large = PutStartError::TooLarge { len: 101, largest_object: 100 };
    assert_eq!(start(&master, at(0), "a", 101).unwrap_err(), too_large);

    // Unfinished puts cannot be evicted: 0-40, 40-80, 80-100 and all of the other.
    let on = |n: u32| ReplicateConfig::default().prefer(format!("segment-{n}"));
    start_as(&master, at(0), "other", 60, &on(1)).unwrap();
    let first = start_as(&master, at(0), "first", 40, &on(0)).unwrap();
    start_as(&master, at(0), "second", 40, &on(0)).unwrap();
    assert_eq!(start(&master, at(0), "a", 21).unwrap_err(), PutStartError::Full { len: 21 });
    master.put_revoke(at(0), WRITER, key("first"), first.handle, LateWrites::Impossible).unwrap();
    let fragmented = PutStartError::Fragmented { len: 50, free: 60 };
    assert_eq!(start(&master, at(0), "a", 50).unwrap_err(), fragmented);

    put_as(&master, at(0), "first", 40, &on(0)).unwrap();
    assert!(master.exist(at(0), key("first")));
    let error = start(&master, at(0), "a", 50).unwrap_err();
    assert_eq!(error, PutStartError::AllLeased { len: 50 });
    assert!(error.is_retryable());
    assert_eq!(master.report().totals.put_start_no_room, 4);

    // One that waits is refused once, however often it asks.
    let config = ReplicateConfig::default();
    let waiting = PutStart { key: key("a"), slice_lengths: &[50], config: &config };
    for _ in 0..16 {
        master.put_start_again(at(0), WRITER, &waiting).unwrap_err();
        master.upsert_start_again(at(0), WRITER, &waiting).unwrap_err();
    }
    let report = master.report();
    assert_eq!((report.totals.put_start_no_room, report.totals.put_start_retries), (4, 32));
}

#[test]
fn the_space_of_a_leased_object_that_was_removed_by_force_is_waited_for() {
    let master = master(&[100]);
    put(&master, at(0), "a", 50).unwrap();
    master.get_replica_list(at(0), key("a")).unwrap();
    start(&master, at(0), "open", 50).unwrap();
    assert_eq!(start(&master, at(0), "b", 60).unwrap_err(), PutStartError::AllLeased { len: 60 });
    master.remove(at(1), key("a"), true).unwrap();
    assert_eq!(start(&master, at(1), "b", 50).unwrap_err(), PutStartError::AllLeased { len: 50 });
    let still = start(&master, at(4999), "b", 50).unwrap_err();
    assert_eq!(still, PutStartError::AllLeased { len: 50 });
    // Without a tick.
    start(&master, secs(5), "b", 50).unwrap();
    assert_eq!(start(&master, secs(5), "c", 60).unwrap_err(), PutStartError::Full { len: 60 });
}

#[test]
fn nothing_is_placed_in_a_segment_that_was_unmounted() {
    let master = master(&[100, 100]);
    master.unmount_segment(at(0), NODE, SegmentId::from_u128(0)).unwrap();
    let config = ReplicateConfig::default().replicas(2).prefer("segment-0");
    let grant = put_as(&master, at(0), "a", 10, &config).unwrap();
    assert_eq!(names(&grant), ["segment-1"]);
}
