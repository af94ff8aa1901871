//! Objects that were read stay longer than those that were not.

use std::collections::BTreeSet;
use std::sync::Arc;

use mc_testkit::Random;
use mc_tier::{BackendFaults, FaultyBackend, LogTier, Tier, Watermarks};
use mc_types::ByteSize;

use super::common::{id, is_there, medium, object, open, put};

fn evict_half(tier: &LogTier) -> u64 {
    let low = ByteSize::bytes(tier.usage().unwrap().bytes / 2);
    tier.evict(Watermarks { high: low, low }, &mut drop).unwrap().objects
}

/// The parts of the read and of the other objects that an eviction of half of all leaves.
fn survivors(tier: &LogTier) -> (f64, f64) {
    (0..60).for_each(|number| put(tier, number));
    let read: BTreeSet<_> = (0..60).filter(|number| number % 4 == 1).collect();
    read.iter().for_each(|number| assert!(is_there(tier, *number)));
    assert!(evict_half(tier) > 20);
    let left = |number: &usize| tier.get(&id(*number)).unwrap().is_some();
    let of_read = read.iter().filter(|number| left(number)).count();
    let of_others = (0..60).filter(|number| !read.contains(number) && left(number)).count();
    (of_read as f64 / read.len() as f64, of_others as f64 / (60 - read.len()) as f64)
}

#[test]
fn of_objects_that_were_read_more_survive_an_eviction() {
    let memory = medium(16);
    let tier = open(memory.clone());
    let (read, others) = survivors(&tier);
    assert!(read > 0.7 && others < 0.5, "{read} of those read and {others} of the others");
    let usage = tier.usage().unwrap();
    drop(tier);
    let tier = open(memory);
    assert_eq!((tier.usage().unwrap(), tier.recovery().damaged), (usage, 0));
}

/// An eviction makes room whatever was read, and what has had its chance needs to be read again.
#[test]
fn no_more_than_a_quarter_stays_and_a_second_chance_is_no_third() {
    let tier = open(medium(16));
    (0..60).for_each(|number| put(&tier, number));
    (0..60).for_each(|number| assert!(is_there(&tier, number)));
    let before = tier.usage().unwrap();
    let gone = evict_half(&tier);
    assert!(tier.usage().unwrap().bytes <= before.bytes / 2 && gone >= 25, "{gone} went");
    // Those that had a chance lie behind the others.
    let stayed: Vec<_> =
        (0..15).filter(|number| tier.get(&id(*number)).unwrap().is_some()).collect();
    assert!((1..=8).contains(&stayed.len()), "{stayed:?} of the oldest");
}

/// Where nothing can be written, objects go as before.
#[test]
fn a_medium_that_fails_gives_no_second_chance_and_keeps_no_eviction() {
    let faulty = Arc::new(FaultyBackend::new(medium(16), 1));
    let tier = open(Arc::clone(&faulty));
    (0..60).for_each(|number| put(&tier, number));
    (0..60).for_each(|number| assert!(is_there(&tier, number)));
    let mut faults = BackendFaults::default();
    faults.read_fails = 1.0;
    faulty.set(faults);
    assert!(evict_half(&tier) >= 25);
    faulty.set(BackendFaults::default());
    assert!((0..60).filter(|number| is_there(&tier, *number)).count() <= 35);
}

/// Requests of which few objects have many, as those for the blocks of a KV cache: of 600 objects the one of
/// rank `n` is asked for with a chance of 1/n. Returns the part that the log had.
fn hit_rate(reads: bool) -> f64 {
    const OBJECTS: usize = 600;
    let tier = open(medium(32));
    let mut random = Random::new(43);
    let mut sums = Vec::with_capacity(OBJECTS);
    let total = (1..=OBJECTS).fold(0, |sum, rank| {
        sums.push(sum + 1_000_000 / rank);
        sum + 1_000_000 / rank
    });
    let (mut present, mut hits) = (BTreeSet::new(), 0);
    let requests = 20_000;
    for _ in 0..requests {
        let drawn = random.below(total);
        let number = sums.partition_point(|sum| *sum <= drawn);
        if present.contains(&number) {
            hits += 1;
            if reads {
                assert!(is_there(&tier, number));
            }
        } else {
            let gone = |id: mc_tier::ObjectId| {
                assert!(present.remove(&(id.generation().as_u64() as usize)));
            };
            let mut gone = gone;
            tier.put_making_room(&id(number), &object(number), &mut gone).unwrap();
            present.insert(number);
        }
    }
    assert_eq!(tier.usage().unwrap().objects, present.len() as u64);
    f64::from(hits) / f64::from(requests)
}

#[test]
fn popular_objects_are_hit_more_often_than_in_the_order_of_their_writes() {
    let (by_order, by_use) = (hit_rate(false), hit_rate(true));
    println!("{by_order:.4} of the requests are hits by order, {by_use:.4} by use");
    assert!(by_use > by_order + 0.01, "{by_order} by order, {by_use} by use");
}
