//! Media that fail while the log is used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mc_testkit::Random;
use mc_tier::{
    BackendFaults, FaultyBackend, LogTier, MemoryBackend, StorageBackend as _, Tier, TierError,
};

use super::common::{BLOCK, SEGMENT, id, is_there, medium, object, open, scan_all, settings};

const NUMBERS: usize = 60;

/// Puts and removes at random. Returns what must be there, and what must not; a change that failed
/// leaves its object open.
fn change(tier: &LogTier, random: &mut Random, known: &mut BTreeMap<usize, Option<bool>>) {
    for _ in 0..200 {
        let number = random.below(NUMBERS);
        let is_put = random.below(2) == 0;
        let result = if is_put {
            tier.put(&id(number), &object(number))
        } else {
            tier.remove(&id(number)).map(|_| ())
        };
        if let Err(error) = &result {
            assert!(matches!(error, TierError::File { .. } | TierError::Full { .. }), "{error:?}");
        }
        known.insert(number, result.is_ok().then_some(is_put));
    }
}

fn check(tier: &LogTier, known: &BTreeMap<usize, Option<bool>>) {
    for (number, expected) in known {
        let is_there = is_there(tier, *number);
        assert!(expected.is_none_or(|expected| expected == is_there), "{number}: {expected:?}");
    }
    assert_eq!(scan_all(tier).unreadable.len(), 0);
}

/// A log on a medium that fails at random as `set` says, opened again and again.
fn survives(set: impl Fn(&mut BackendFaults), sync_each_change: bool) {
    let mut random = Random::seeded("MC_TIER_LOG_SEED");
    let medium: MemoryBackend = medium(16);
    let mut known = BTreeMap::new();
    let mut settings = settings();
    settings.sync_each_change = sync_each_change;
    for _ in 0..20 {
        let faulty = Arc::new(FaultyBackend::new(medium.clone(), random.next_u64()));
        let tier = LogTier::open(Arc::clone(&faulty), settings).unwrap();
        assert_eq!(tier.recovery().damaged, 0);
        check(&tier, &known);
        let mut faults = BackendFaults::default();
        set(&mut faults);
        faulty.set(faults);
        change(&tier, &mut random, &mut known);
        faulty.set(BackendFaults::default());
        check(&tier, &known);
        // Half of the logs are opened again with changes that failed last.
        if random.below(2) == 0 {
            change(&tier, &mut random, &mut known);
            check(&tier, &known);
        }
    }
}

#[test]
fn writes_that_fail_cost_no_other_object() {
    survives(|faults| faults.write_fails = 0.05, false);
    survives(|faults| faults.write_fails = 0.5, false);
}

#[test]
fn a_disk_that_is_full_costs_no_object() {
    survives(|faults| faults.full = 0.2, false);
}

#[test]
fn syncs_that_fail_cost_no_other_object() {
    survives(|faults| faults.sync_fails = 0.2, true);
}

#[test]
fn reads_that_fail_cost_no_object() {
    survives(|faults| faults.read_fails = 0.1, false);
}

/// Each of many objects that are read at once has its own error.
#[test]
fn each_fault_of_a_read_has_its_error() {
    let mut random = Random::seeded("MC_TIER_LOG_SEED");
    let faulty = Arc::new(FaultyBackend::new(medium(16), random.next_u64()));
    let tier = open(Arc::clone(&faulty));
    let numbers = 0..40;
    let ids: Vec<_> = numbers.clone().map(id).collect();
    numbers.clone().for_each(|number| tier.put(&ids[number], &object(number)).unwrap());
    let mut faults = BackendFaults::default();
    (faults.read_fails, faults.read_ends) = (0.4, 0.4);
    faulty.set(faults);
    let (mut broken, mut ended, mut whole) = (0, 0, 0);
    for (number, found) in numbers.cycle().zip((0..10).flat_map(|_| tier.get_many(&ids))) {
        match found {
            Ok(found) => {
                assert_eq!(found, Some(object(number)));
                whole += 1;
            }
            Err(TierError::Truncated { .. }) => ended += 1,
            Err(error) => {
                assert!(matches!(error, TierError::File { .. }) && error.is_retryable());
                broken += 1;
            }
        }
    }
    assert!(broken > 20 && ended > 20 && whole > 20, "{broken} {ended} {whole}");
}

#[test]
fn flipped_bits_are_never_returned() {
    let mut random = Random::seeded("MC_TIER_LOG_SEED");
    let faulty = Arc::new(FaultyBackend::new(medium(16), random.next_u64()));
    let tier = open(Arc::clone(&faulty));
    let mut faults = BackendFaults::default();
    faults.flipped_bit = 0.3;
    faulty.set(faults);
    for _ in 0..20 {
        change(&tier, &mut random, &mut BTreeMap::new());
        for number in 0..NUMBERS {
            match tier.get(&id(number)) {
                Ok(found) => assert!(found.is_none_or(|found| found == object(number))),
                Err(error) => {
                    let is_told =
                        matches!(error, TierError::Damaged { .. } | TierError::Newer { .. });
                    assert!(is_told, "{error:?}");
                }
            }
        }
    }
}

/// The bad sectors of one segment cost its objects, and no others.
#[test]
fn a_segment_that_cannot_be_read_does_not_keep_the_log_from_being_opened() {
    let segment = SEGMENT.as_u64();
    let is_used = |medium: &MemoryBackend, number: &u64| {
        let mut magic = [0; 8];
        medium.read(BLOCK + number * segment, &mut magic).unwrap();
        magic == *b"MCTSEGMT"
    };
    for is_table in [true, false] {
        let medium = medium(16);
        let tier = open(medium.clone());
        (0..40).for_each(|number| tier.put(&id(number), &object(number)).unwrap());
        drop(tier);
        // The table of one that has a footer, or bytes of the last one, which has none.
        let last = (0..16).rev().find(|number| is_used(&medium, number)).unwrap();
        let at = if is_table { BLOCK + segment } else { BLOCK + last * segment + 4 * BLOCK };
        let faulty = Arc::new(FaultyBackend::new(medium.clone(), 1));
        let mut faults = BackendFaults::default();
        faults.bad = (at, at + 512);
        faulty.set(faults);
        let tier = LogTier::open(Arc::clone(&faulty), settings()).unwrap();
        let there = (0..40).filter(|number| is_there(&tier, *number)).count();
        assert!((25..40).contains(&there), "{there} of 40");
        // It is used on, around the segment.
        for number in 100..400 {
            tier.put_making_room(&id(number), &object(number), &mut drop).unwrap();
            assert!(is_there(&tier, number));
        }
    }
    let faulty = Arc::new(FaultyBackend::new(medium(16), 1));
    let mut faults = BackendFaults::default();
    faults.bad = (BLOCK, u64::MAX);
    faulty.set(faults);
    LogTier::open(faulty, settings()).unwrap_err();
}

#[test]
fn segments_that_cannot_be_written_for_a_while_are_used_again() {
    let faulty = Arc::new(FaultyBackend::new(medium(16), 1));
    let mut settings = settings();
    settings.space_pause = Duration::ZERO;
    let tier = LogTier::open(Arc::clone(&faulty), settings).unwrap();
    let put = |number| tier.put_making_room(&id(number), &object(number), &mut drop);
    let mut faults = BackendFaults::default();
    faults.bad = (BLOCK + 4 * SEGMENT.as_u64(), u64::MAX);
    faulty.set(faults);
    let stored = (0..100).filter(|number| put(*number).is_ok()).count();
    assert!((10..100).contains(&stored), "{stored} of 100 in four segments");
    faulty.set(BackendFaults::default());
    (100..400).for_each(|number| put(number).unwrap());
    let used = tier.usage().unwrap().bytes;
    // Less than the space: records have headers, and end in whole blocks.
    assert!(used >= 10 * SEGMENT.as_u64(), "{used} bytes in 16 segments of {SEGMENT}");
}
