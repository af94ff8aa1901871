//! Segments that are divided into slabs.

use mc_meta::{MasterConfig, MemoryAllocator, PutStartError};

use super::{at, has, master_with, put, settings, start};

const MIB: u64 = 1 << 20;

fn slabs() -> MasterConfig {
    let mut config = settings();
    config.memory_allocator = MemoryAllocator::Slab;
    config
}

#[test]
fn what_no_slab_can_hold_evicts_nothing() {
    let master = master_with(slabs(), &[64 * MIB]);
    put(&master, at(0), "kept", MIB).unwrap();
    let error = start(&master, at(0), "huge", 4 * MIB + 1).unwrap_err();
    let expected = PutStartError::TooLarge { len: 4 * MIB + 1, largest_object: 4 * MIB };
    assert_eq!(error, expected);
    assert!(has(&master, "kept"));
    put(&master, at(0), "whole slab", 4 * MIB).unwrap();
}

#[test]
fn slabs_of_one_size_serve_another_when_they_are_empty() {
    let master = master_with(slabs(), &[16 * MIB]);
    for n in 0..32 {
        put(&master, at(0), &format!("small-{n}"), MIB / 2).unwrap();
    }
    let full = master.report();
    assert!(full.totals.used > 15 * MIB, "{}", full.totals.used);
    assert_eq!(master.remove_all(at(0), true), full.totals.objects);
    assert_eq!(master.report().totals.used, 0);
    for n in 0..4 {
        put(&master, at(0), &format!("large-{n}"), 4 * MIB).unwrap();
    }
    assert_eq!(master.report().totals.evicted_objects, full.totals.evicted_objects);
}

#[test]
fn under_pressure_objects_of_another_size_make_room() {
    let master = master_with(slabs(), &[16 * MIB]);
    for n in 0..40 {
        put(&master, at(n), &format!("small-{n}"), MIB / 2).unwrap();
    }
    put(&master, at(100), "large", 3 * MIB).unwrap();
    assert!(has(&master, "large"));
    assert!(master.report().totals.used <= 16 * MIB);
}
