//! Segments of other media than DRAM, and puts that ask for one.

use mc_meta::{DrainError, PutGrant, PutStartError, ReplicateConfig, SegmentSpec};
use mc_types::{ErrorCode, MediaType};

use super::recovery::restart;
use super::*;

fn of(medium: MediaType, number: u128, size: u64) -> SegmentSpec {
    SegmentSpec { medium, ..segment(number, size) }
}

/// A master with segments of these media and sizes.
fn mixed(segments: &[(MediaType, u64)]) -> Master {
    let master = master(&[]);
    for (number, &(medium, size)) in (0u128..).zip(segments) {
        master.mount_segment(at(0), NODE, of(medium, number, size)).unwrap();
    }
    master
}

fn asking(medium: MediaType) -> ReplicateConfig {
    ReplicateConfig::default().medium(medium)
}

fn names(grant: &PutGrant) -> Vec<&str> {
    grant.placements.iter().map(|placement| &*placement.segment.spec().name).collect()
}

const DRAM: MediaType = MediaType::Dram;
const SSD: MediaType = MediaType::Ssd;
const VRAM: MediaType = MediaType::Vram;

#[test]
fn a_put_goes_to_the_medium_that_it_asks_for() {
    let master = mixed(&[(DRAM, 1000), (SSD, 1000), (VRAM, 1000), (SSD, 1000)]);
    for (medium, homes) in
        [(DRAM, &["segment-0"][..]), (SSD, &["segment-1", "segment-3"]), (VRAM, &["segment-2"])]
    {
        for n in 0..20 {
            let name = format!("{medium}-{n}");
            let grant = put_as(&master, at(0), &name, 10, &asking(medium)).unwrap();
            assert!(homes.contains(&names(&grant)[0]), "{name}");
        }
        // There are no more replicas than segments of the medium.
        let config = asking(medium).replicas(4);
        let grant = put_as(&master, at(0), &format!("{medium}-all"), 10, &config).unwrap();
        assert_eq!(grant.placements.len(), homes.len());
    }
}

#[test]
fn a_put_that_asks_for_no_medium_goes_to_dram() {
    let master = mixed(&[(SSD, 1000), (DRAM, 1000), (VRAM, 1000)]);
    let config = ReplicateConfig::default().replicas(3);
    for n in 0..20 {
        let grant = put_as(&master, at(0), &format!("key-{n}"), 10, &config).unwrap();
        assert_eq!(names(&grant), ["segment-1"]);
    }
    // It does not overflow into other media: room is made by eviction.
    for n in 20..200 {
        let grant = put_as(&master, at(n), &format!("key-{n}"), 10, &config).unwrap();
        assert_eq!(names(&grant), ["segment-1"]);
    }
    let report = master.report();
    let others = report.segments.iter().filter(|segment| segment.spec.medium != DRAM);
    assert_eq!(others.map(|segment| segment.used).sum::<u64>(), 0);
    assert_eq!((report.totals.used, report.totals.evicted_objects), (1000, 100));
}

#[test]
fn without_dram_a_put_goes_to_what_there_is() {
    let master = mixed(&[(VRAM, 1000), (SSD, 1000)]);
    let grant = put(&master, at(0), "a", 10).unwrap();
    assert_eq!(names(&grant), ["segment-1"]);
    let id = grant.placements[0].segment.spec().id;
    master.unmount_segment(at(1), NODE, id).unwrap();
    assert_eq!(names(&put(&master, at(2), "b", 10).unwrap()), ["segment-0"]);
}

#[test]
fn a_preferred_segment_names_its_medium() {
    let master = mixed(&[(DRAM, 1000), (SSD, 1000), (SSD, 1000)]);
    let near = ReplicateConfig::default().prefer("nowhere").prefer("segment-2");
    assert_eq!(names(&put_as(&master, at(0), "a", 10, &near).unwrap()), ["segment-2"]);
    // Unless it is excluded, or another medium is asked for.
    let excluded = near.clone().exclude("segment-2");
    assert_eq!(names(&put_as(&master, at(0), "b", 10, &excluded).unwrap()), ["segment-0"]);
    let dram = near.medium(DRAM);
    assert_eq!(names(&put_as(&master, at(0), "c", 10, &dram).unwrap()), ["segment-0"]);
}

#[test]
fn a_medium_of_which_nothing_is_mounted_is_named_in_the_refusal() {
    let master = mixed(&[(DRAM, 1000), (SSD, 100)]);
    let error = start_as(&master, at(0), "a", 10, &asking(VRAM)).unwrap_err();
    assert_eq!(error, PutStartError::NoMedium { medium: VRAM, mounted: 0 });
    assert_eq!(error.code(), ErrorCode::TooFewSegments);
    assert!(!error.is_retryable());
    assert!(error.to_string().contains("medium vram"), "{error}");

    let error = start_as(&master, at(0), "a", 10, &asking(SSD).exclude("segment-1")).unwrap_err();
    assert_eq!(error, PutStartError::NoMedium { medium: SSD, mounted: 1 });
    assert!(error.to_string().contains("excluded"), "{error}");

    // An object is too large for its medium, whatever the others can hold.
    let error = start_as(&master, at(0), "a", 101, &asking(SSD)).unwrap_err();
    assert_eq!(error, PutStartError::TooLarge { len: 101, largest_object: 100 });
}

#[test]
fn room_is_made_in_the_medium_of_the_put_only() {
    let master = mixed(&[(DRAM, 100), (SSD, 100)]);
    for n in 0..10 {
        put(&master, at(n), &format!("dram-{n}"), 10).unwrap();
        put_as(&master, at(n), &format!("ssd-{n}"), 10, &asking(SSD)).unwrap();
    }
    for n in 10..15 {
        put_as(&master, at(100 + n), &format!("ssd-{n}"), 10, &asking(SSD)).unwrap();
    }
    let report = master.report();
    assert_eq!((report.totals.used, report.totals.evicted_objects), (200, 5));
    for n in 0..10 {
        assert!(master.exist(at(200), key(&format!("dram-{n}"))), "dram-{n}");
    }
}

#[test]
fn a_medium_without_any_room_does_not_speak_for_the_others() {
    let master = mixed(&[(DRAM, 100), (SSD, 100)]);
    let pinned = asking(SSD).hard_pin();
    put_as(&master, at(0), "pinned", 100, &pinned).unwrap();
    put(&master, at(0), "other", 100).unwrap();
    // Both searches are within the time in which one in vain is remembered.
    assert!(start_as(&master, at(1), "a", 50, &asking(SSD)).is_err());
    put(&master, at(2), "b", 50).unwrap();
}

#[test]
fn an_upsert_goes_where_a_put_would() {
    let master = mixed(&[(DRAM, 1000), (SSD, 1000)]);
    put(&master, at(0), "a", 10).unwrap();
    let upsert = |config: &ReplicateConfig| {
        let put = PutStart { key: key("a"), slice_lengths: &[10], config };
        let grant = master.upsert_start(secs(60), WRITER, &put).unwrap();
        let end = PutEnd::new(key("a"), grant.handle);
        master.put_end(secs(60), WRITER, &end).unwrap();
        names(&grant)[0].to_owned()
    };
    assert_eq!(upsert(&asking(SSD)), "segment-1");
    assert_eq!(upsert(&ReplicateConfig::default()), "segment-0");
}

#[test]
fn an_upsert_is_not_written_over_a_value_in_another_medium() {
    let master = mixed(&[(DRAM, 100), (SSD, 100)]);
    put_as(&master, at(0), "a", 60, &asking(SSD)).unwrap();
    put(&master, at(0), "b", 60).unwrap();
    // There is no room in DRAM, so that something has to go from there.
    let config = ReplicateConfig::default();
    let put = PutStart { key: key("a"), slice_lengths: &[60], config: &config };
    let grant = master.upsert_start(secs(60), WRITER, &put).unwrap();
    assert_eq!((names(&grant), master.exist(secs(60), key("b"))), (vec!["segment-0"], false));
}

#[test]
fn a_drain_stays_in_its_medium_unless_targets_are_named() {
    let master = mixed(&[(SSD, 1000), (DRAM, 1000)]);
    let drain = |targets: &[&str]| master.create_drain_job(at(0), &["segment-0"], targets, 1);
    assert_eq!(drain(&[]).unwrap_err(), DrainError::NoTarget);
    drain(&["segment-1"]).unwrap();
}

#[test]
fn a_restart_keeps_the_media() {
    let before = mixed(&[(DRAM, 1000), (SSD, 1000)]);
    put_as(&before, at(0), "a", 10, &asking(SSD)).unwrap();
    let master = restart(&before, at(1));
    let again = |medium| master.reattach_segment(at(2), NODE, &of(medium, 1, 1000));
    assert!(again(DRAM).is_err(), "a segment comes back as it was");
    again(SSD).unwrap();
    let grant = put_as(&master, at(3), "b", 10, &asking(SSD)).unwrap();
    assert_eq!(names(&grant), ["segment-1"]);
}
