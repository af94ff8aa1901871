//! Records that cannot be true: left out and counted, never fatal.

use core::num::NonZeroU64;

use mc_meta::{Dropped, Location, Slice, Slices};
use mc_types::Extent;

use super::*;

const SIZE: u64 = 1000;

fn extent(offset: u64, len: u64) -> Extent {
    Extent::new(offset, len).unwrap()
}

fn location(segment: u128, offset: u64, len: u64) -> Location {
    Location { segment: SegmentId::from_u128(segment), extent: extent(offset, len) }
}

fn mounted(number: u128) -> Record {
    Record::Segment {
        spec: segment(number, SIZE),
        client: NODE,
        status: SegmentStatus::Ok,
        grace: None,
    }
}

/// A complete object of one replica.
fn object(name: &str, generation: u64, at: Location) -> ObjectRecord {
    let slices = Slices::One(Slice { len: at.extent.len(), checksum: None });
    let generation = Generation::new(generation);
    let mut object = ObjectRecord::new(key(name).to_owned(), generation, WRITER, slices);
    object.complete = true;
    object.replicas.push(at);
    object
}

fn rebuild(records: &[Record]) -> (Master, RebuildReport) {
    let (master, report) = rebuild_with(settings(), records, at(0));
    check_books(&master, at(0));
    remount_all(&master, at(0));
    (master, report)
}

/// The objects that are dropped of three, of which the second is damaged.
fn dropped(damage: impl FnOnce(&mut ObjectRecord)) -> Dropped {
    let mut bad = object("bad", 2, location(0, 100, 10));
    damage(&mut bad);
    let records = [
        mounted(0),
        Record::Object(object("good", 1, location(0, 0, 100))),
        Record::Object(bad),
        Record::Object(object("fine", 3, location(0, 200, 100))),
    ];
    let (master, report) = rebuild(&records);
    assert!(has(&master, "good") && has(&master, "fine") && !has(&master, "bad"));
    assert_eq!((report.objects, report.lost), (2, 0));
    put(&master, at(0), "bad", 10).unwrap();
    report.dropped
}

#[test]
fn malformed_objects_are_left_out() {
    let many = |lens: &[u64]| {
        Slices::Many(lens.iter().map(|&len| Slice { len, checksum: None }).collect())
    };
    let slices = [
        Slices::One(Slice { len: 0, checksum: None }),
        many(&[]),
        many(&[10, 0]),
        many(&[u64::MAX, 11]),
        many(&[5, 6]),
        many(&[1; 2000]),
    ];
    for slices in slices {
        assert_eq!(dropped(|object| object.slices = slices).malformed, 1);
    }
    assert_eq!(dropped(|object| object.group = Some("".into())).malformed, 1);
    assert_eq!(dropped(|object| object.group = Some("g".repeat(257).into())).malformed, 1);
    let crowd = (0..33).map(|n| location(n, 100, 10)).collect();
    assert_eq!(dropped(|object| object.replicas = crowd).malformed, 1);
    for generation in [u64::MAX, u64::MAX - 1, 3 << 62] {
        assert_eq!(dropped(|o| o.generation = Generation::new(generation)).malformed, 1);
    }
}

#[test]
fn what_was_on_its_clients_own_disk_only_is_no_damage() {
    let mut away = object("away", 1, location(0, 0, 10));
    away.reserved = core::mem::take(&mut away.replicas);
    let (master, report) = rebuild(&[mounted(0), Record::Object(away)]);
    assert_eq!((report.objects, report.lost, report.dropped.total()), (0, 1, 0));
    // A copy to that place may still be running.
    assert_eq!((report.kept_bytes, master.report().totals.used), (10, 10));
}

/// The same holds when the records were settled before they contradicted each other.
#[test]
fn space_reserved_for_an_object_that_is_lost_is_kept_in_the_next_life() {
    let gone = Record::SegmentGone { id: SegmentId::from_u128(0) };
    let copied = object("copied", 1, location(0, 0, 10));
    let mut copying = copied.clone();
    copying.reserved.push(location(1, 500, 10));
    let mut records = vec![
        mounted(0),
        mounted(1),
        Record::Object(copied),
        gone.clone(),
        // The records are settled here, in the middle.
        Record::Object(object("in no segment", 2, location(0, 100, 10))),
        Record::Object(copying),
        gone,
        Record::Generations { next: Generation::new(3) },
    ];
    let Rebuilt { report, corrections, .. } = rebuild_in_parts(settings(), &records, at(0), 2);
    assert_eq!((report.objects, report.kept_bytes), (0, 10));
    records.extend(corrections.records().map(|record| record.to_record()));
    records.push(Record::Object(object("copied", u64::from(u32::MAX), location(1, 0, 10))));
    let (_, report) = rebuild(&records);
    assert_eq!((report.objects, report.kept_bytes), (1, 10));
}

#[test]
fn objects_out_of_range_are_left_out() {
    for (offset, len) in [(991, 10), (u64::MAX - 10, 10), (0, SIZE + 1), (0, 1 << 62)] {
        let damage = |object: &mut ObjectRecord| {
            object.replicas[0] = location(0, offset, len);
            object.slices = Slices::One(Slice { len, checksum: None });
        };
        assert_eq!(dropped(damage).out_of_range, 1);
    }
    // One replica too far is enough: the record is not to be trusted.
    let records = [mounted(0), mounted(1)];
    let mut bad = object("bad", 1, location(0, 0, 10));
    bad.replicas.push(location(1, SIZE, 10));
    let (_, report) = rebuild(&[&records[..], &[Record::Object(bad)]].concat());
    assert_eq!((report.objects, report.dropped.out_of_range), (0, 1));
}

#[test]
fn objects_in_unknown_segments_are_left_out() {
    assert_eq!(dropped(|object| object.replicas[0] = location(9, 0, 10)).unknown_segment, 1);
    // It is there by its other replica.
    let mut half = object("half", 1, location(0, 0, 10));
    half.replicas.push(location(9, 0, 10));
    let (master, report) = rebuild(&[mounted(0), Record::Object(half)]);
    assert_eq!(report.dropped.total(), 0);
    assert!(has(&master, "half"));
}

#[test]
fn of_two_that_claim_the_same_bytes_the_later_put_has_them() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let objects = [
            object("first", 10, location(0, 0, 100)),
            object("second", 20, location(0, 99, 100)),
            object("third", 30, location(0, 198, 1)),
            object("apart", 5, location(0, 199, 100)),
        ];
        let mut records = vec![mounted(0)];
        records.extend(order.map(|n| Record::Object(objects[n].clone())));
        let (master, report) = rebuild(&records);
        assert_eq!(report.dropped.overlapping, 1);
        assert!(["first", "third", "apart"].iter().all(|name| has(&master, name)));
        assert_eq!(master.report().totals.used, 201);
    }
}

#[test]
fn who_loses_one_replica_loses_all() {
    let mut old = object("old", 1, location(0, 0, 100));
    old.replicas.push(location(1, 0, 100));
    let new = object("new", 2, location(1, 50, 100));
    let records = [mounted(0), mounted(1), Record::Object(old), Record::Object(new)];
    let (master, report) = rebuild(&records);
    assert_eq!(report.dropped.overlapping, 1);
    assert!(has(&master, "new") && !has(&master, "old"));
    assert_eq!(master.report().totals.used, 100);
}

#[test]
fn one_object_cannot_have_the_same_bytes_twice() {
    let twice = |object: &mut ObjectRecord| object.replicas.push(location(0, 105, 10));
    assert_eq!(dropped(twice).overlapping, 1);
}

#[test]
fn two_objects_of_one_generation_are_no_reason_to_panic() {
    let mut records = vec![mounted(0)];
    for n in 0..8 {
        let mut object = object(&format!("object-{n}"), 7, location(0, n * 10, 10));
        object.complete = n % 2 == 0;
        object.group = Some("g".into());
        records.push(Record::Object(object));
    }
    let (master, report) = rebuild(&records);
    assert_eq!((report.objects, report.unfinished, report.dropped.malformed), (5, 1, 3));
    assert_eq!(master.report().totals.used, 50);
    master.remove_all(at(0), true);
    while master.tick(secs(10_000)) {}
    assert_eq!(master.report().totals.used, 0);
}

#[test]
fn kept_space_gives_way_to_objects() {
    let kept = |offset, len| Record::SpaceKept {
        space: [location(0, offset, len)].into_iter().collect(),
        left: Duration::MAX,
    };
    let records = [
        mounted(0),
        kept(0, 100),
        kept(300, 10),
        kept(305, 10),
        kept(SIZE - 1, 2),
        kept(0, 0),
        Record::Object(object("a", 1, location(0, 50, 100))),
        Record::SpaceFreed { space: [location(7, 0, 1)].into_iter().collect() },
    ];
    let (master, report) = rebuild(&records);
    assert_eq!((report.kept_bytes, report.dropped.total()), (10, 0));
    assert!(has(&master, "a"));
    // However long a record says, it does not take longer than any put may.
    let timeout = master.config().put_start_release_timeout;
    master.tick(before(at(0) + timeout));
    assert_eq!(master.report().totals.used, 110);
    master.tick(at(0) + timeout);
    assert_eq!(master.report().totals.used, 100);
}

#[test]
fn malformed_segments_are_left_out() {
    let mut specs = [segment(0, 0), segment(1, SIZE), segment(2, SIZE)];
    specs[1].name = "".into();
    specs[2].name = "n".repeat(257).into();
    let records = specs.map(|spec| Record::Segment {
        spec,
        client: NODE,
        status: SegmentStatus::Unmounted,
        grace: None,
    });
    let (_, report) = rebuild(&records);
    assert_eq!((report.segments, report.dropped.malformed), (0, 3));
}

#[test]
fn of_two_segments_of_one_name_the_later_is_there() {
    let mut later = segment(1, SIZE);
    later.name = segment(0, SIZE).name;
    let later =
        Record::Segment { spec: later, client: NODE, status: SegmentStatus::Ok, grace: None };
    let a = Record::Object(object("a", 1, location(0, 0, 10)));
    let b = Record::Object(object("b", 2, location(1, 0, 10)));
    let (master, report) = rebuild(&[mounted(0), a, later, b]);
    assert_eq!((report.segments, report.dropped.namesakes, report.lost), (1, 1, 1));
    assert!(!has(&master, "a") && has(&master, "b"));
}

#[test]
fn a_segment_that_was_mounted_anew_is_empty() {
    let a = Record::Object(object("a", 1, location(0, 0, 10)));
    let b = Record::Object(object("b", 2, location(0, 5, 10)));
    let gone = Record::SegmentGone { id: SegmentId::from_u128(0) };
    let (master, report) = rebuild(&[mounted(0), a.clone(), gone, mounted(0), b.clone()]);
    assert_eq!((report.objects, report.lost, report.dropped.total()), (1, 1, 0));
    assert!(!has(&master, "a") && has(&master, "b"));
    // The record that it was gone is lost, but it is another one by its shape.
    let spec = segment(0, SIZE + 1);
    let other = Record::Segment { spec, client: NODE, status: SegmentStatus::Ok, grace: None };
    let (master, report) = rebuild(&[mounted(0), a, other, b]);
    assert_eq!((report.objects, report.lost, report.dropped.total()), (1, 1, 0));
    assert!(!has(&master, "a"));
}

#[test]
fn records_may_come_twice_and_late() {
    let first = Record::Object(object("a", 1, location(0, 0, 10)));
    let removed = Record::Removed { key: key("a").to_owned(), generation: Generation::new(1) };
    let second = Record::Object(object("a", 2, location(0, 5, 10)));
    let records = [&first, &mounted(0), &first, &removed, &second, &second, &first, &removed];
    let (master, report) = rebuild(&records.map(Record::clone));
    assert_eq!((report.objects, report.dropped.total()), (1, 0));
    assert_eq!(master.describe(at(0), key("a")).unwrap().generation, Generation::new(2));
}

#[test]
fn slabs_have_slots_of_one_size_and_only_those() {
    let mut config = settings();
    config.memory_allocator = mc_meta::MemoryAllocator::Slab;
    const MIB: u64 = 1 << 20;
    let spec = segment(0, u64::MAX);
    let segment = Record::Segment { spec, client: NODE, status: SegmentStatus::Ok, grace: None };
    let at_offset = |name: &str, generation, offset, len| {
        Record::Object(object(name, generation, location(0, offset, len)))
    };
    let records = [
        segment,
        at_offset("whole", 1, 0, 4 * MIB),
        at_offset("half", 2, 4 * MIB, 2 * MIB),
        at_offset("quarter", 3, 6 * MIB, MIB),
        at_offset("eighth", 1, 7 * MIB, MIB / 2),
        at_offset("crooked", 5, 8 * MIB + 1, 100),
        at_offset("across", 6, 15 * MIB, 2 * MIB),
        at_offset("far", 7, 1 << 60, 4 * MIB),
        at_offset("huge", 8, 0, 8 * MIB),
    ];
    let (master, report) = rebuild_with(config, &records, at(0));
    remount_all(&master, at(0));
    assert_eq!((report.dropped.out_of_range, report.dropped.overlapping), (4, 2));
    assert!(has(&master, "whole") && has(&master, "quarter"));
    assert_eq!(report.objects, 2);
}

#[test]
fn strange_numbers_do_no_harm() {
    let mut strange = object("a", (3 << 62) - 1, location(0, 0, 10));
    strange.idle = Duration::MAX;
    strange.parent = NonZeroU64::new(u64::MAX);
    strange.reserved = (0..64).map(|n| location(n, u64::MAX, 0)).collect();
    let next = Generation::new(u64::MAX);
    let records = [mounted(0), Record::Generations { next }, Record::Object(strange)];
    let (master, report) = rebuild_with(settings(), &records, Time::from_millis(u64::MAX));
    assert_eq!((report.objects, report.dropped.malformed), (1, 1));
    remount_all(&master, Time::from_millis(u64::MAX));
    let generation = put(&master, Time::from_millis(u64::MAX), "b", 10).unwrap().handle.generation;
    assert!(generation.as_u64() > 3 << 62);
}
