//! Room: compaction, and its bounds.

use std::collections::BTreeSet;

use mc_testkit::Random;
use mc_tier::{ObjectBytes, SliceBytes, Tier, TierError};

use super::common::{SEGMENT, fill, id, is_there, medium, open, put, scan_all};

/// The log agrees with a set of numbers, through compactions and after each opening.
#[test]
fn a_log_agrees_with_a_model() {
    let mut random = Random::seeded("MC_TIER_LOG_SEED");
    let medium = medium(12);
    let mut model = BTreeSet::new();
    for opening in 0..20 {
        let tier = open(medium.clone());
        assert_eq!(tier.recovery().damaged, 0);
        for _ in 0..300 {
            let number = random.below(60);
            if random.below(3) == 0 {
                assert_eq!(tier.remove(&id(number)).unwrap(), model.remove(&number));
            } else if model.contains(&number) || model.len() < 40 {
                put(&tier, number);
                model.insert(number);
            }
        }
        for number in 0..60 {
            assert_eq!(is_there(&tier, number), model.contains(&number), "{opening}: {number}");
        }
        let page = scan_all(&tier);
        assert_eq!((page.objects.len(), page.unreadable.len()), (model.len(), 0));
        let usage = tier.usage().unwrap();
        assert_eq!(usage.objects, model.len() as u64);
        drop(tier);
        assert_eq!(open(medium.clone()).usage().unwrap(), usage, "counted from the records");
    }
}

#[test]
fn a_full_log_takes_removals_and_then_puts() {
    let medium = medium(6);
    let tier = open(medium.clone());
    let stored = fill(&tier);
    let used = tier.usage().unwrap().bytes;
    assert!(used > 3 * SEGMENT.as_u64(), "{used} of 6 segments");
    assert!((0..stored).all(|number| is_there(&tier, number)));
    drop(tier);
    let tier = open(medium);
    for number in 0..stored {
        assert!(tier.remove(&id(number)).unwrap());
    }
    (0..stored).for_each(|number| put(&tier, number));
    assert!((0..stored).all(|number| is_there(&tier, number)));
}

/// The room for new objects depends on the live objects, not on those that were there before.
#[test]
fn dead_records_cost_nothing_in_the_long_run() {
    let tier = open(medium(6));
    for round in 0..50 {
        (0..15).for_each(|number| put(&tier, number));
        assert!((0..15).all(|number| is_there(&tier, number)), "round {round}");
    }
}

#[test]
fn readers_find_objects_while_they_are_moved() {
    let tier = open(medium(8));
    (0..15).for_each(|number| put(&tier, number));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..200 {
                (15..25).for_each(|number| put(&tier, number));
                (15..25).for_each(|number| assert!(tier.remove(&id(number)).unwrap()));
            }
        });
        while !writer.is_finished() {
            assert!((0..15).all(|number| is_there(&tier, number)));
            assert!(tier.get_range(&id(3), 5..500).unwrap().is_some());
        }
    });
}

#[test]
fn an_object_that_fits_into_no_segment_is_rejected() {
    let tier = open(medium(6));
    let bytes = vec![7; SEGMENT.as_u64() as usize].into();
    let object = ObjectBytes::new(vec![SliceBytes::new(bytes)]).unwrap();
    let error = tier.put(&id(1), &object).unwrap_err();
    assert!(matches!(error, TierError::ObjectTooLong { .. }) && !error.is_retryable(), "{error:?}");
}
