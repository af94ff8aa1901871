//! The suite that every [`Tier`] must pass. For tests of an implementation:
//!
//! ```
//! use mc_tier::{MemoryTier, conformance};
//!
//! let mut tier = MemoryTier::new();
//! conformance::run(&mut |is_new| {
//!     if is_new {
//!         tier = MemoryTier::new();
//!     }
//!     Box::new(tier.clone())
//! });
//! ```
//!
//! Its functions panic at what is wrong.

use core::num::NonZeroUsize;
use std::collections::BTreeMap;

use bytes::Bytes;
use mc_types::{ByteSize, Generation, MAX_KEY_LEN, ObjectKey, SplitMix64};

use crate::error::TierError;
use crate::object::{MAX_SLICES, MAX_TENANT_LEN, ObjectBytes, ObjectId, SliceBytes, StoredObject};
use crate::tier::{ScanPage, Tier, TierUsage, Watermarks};

/// Runs all tests. `open` opens an empty tier when it is called with `true`, and otherwise the last
/// one again, whose former opening has been dropped.
///
/// # Panics
/// When the tier does not do what it has to.
pub fn run(open: &mut dyn FnMut(bool) -> Box<dyn Tier>) {
    for test in [
        returns_what_was_put,
        tells_objects_apart,
        returns_many_in_their_order,
        returns_exact_ranges,
        keeps_what_was_put_together,
        replaces_an_object_as_a_whole,
        removes_one_object,
        keeps_objects_when_it_is_opened_again,
        lists_each_object_once,
        lists_what_stays_while_others_come_and_go,
        counts_what_is_there,
        evicts_the_oldest,
        serves_several_threads,
    ] {
        drop(open(true));
        test(&mut || open(false));
    }
}

type Open<'a> = &'a mut dyn FnMut() -> Box<dyn Tier>;

fn id(tenant: &str, key: &str, generation: u64) -> ObjectId {
    let key = ObjectKey::new(key).expect("a key of the suite");
    ObjectId::new(tenant, key, Generation::new(generation)).expect("a tenant of the suite")
}

fn nth(number: u64) -> ObjectId {
    id("tenant", &format!("key-{number}"), number)
}

/// An object with slices of these lengths, whose bytes follow from the seed.
fn object(seed: u64, lengths: &[usize]) -> ObjectBytes {
    let mut random = SplitMix64::new(seed);
    let mut slice = |len| {
        let words = (0..usize::div_ceil(len, 8)).flat_map(|_| random.next_u64().to_le_bytes());
        SliceBytes::new(words.take(len).collect::<Bytes>())
    };
    let slices = lengths.iter().map(|len| slice(*len)).collect();
    ObjectBytes::new(slices).expect("an object of the suite")
}

fn put(tier: &dyn Tier, id: &ObjectId, object: &ObjectBytes) {
    tier.put(id, object).expect("it can be put");
}

fn get(tier: &dyn Tier, id: &ObjectId) -> Option<ObjectBytes> {
    tier.get(id).expect("it can be read")
}

fn remove(tier: &dyn Tier, id: &ObjectId) -> bool {
    tier.remove(id).expect("it can be removed")
}

/// Lists all objects, and calls `between` after each page but the last.
fn scan(tier: &dyn Tier, limit: usize, mut between: impl FnMut()) -> Vec<StoredObject> {
    let limit = NonZeroUsize::new(limit).expect("a page has an object");
    let (mut objects, mut after) = (Vec::new(), None);
    loop {
        let ScanPage { objects: listed, unreadable, next } =
            tier.scan(after.as_ref(), limit).expect("it can be listed");
        assert!(listed.len() <= limit.get(), "a page of {} in place of {limit}", listed.len());
        assert!(unreadable.is_empty(), "{unreadable:?}");
        objects.extend(listed);
        if next.is_none() {
            objects.sort_by(|one, two| one.id().cmp(two.id()));
            return objects;
        }
        assert_ne!(next, after, "a scan gets on");
        after = next;
        between();
    }
}

fn returns_what_was_put(open: Open<'_>) {
    let tier = open();
    let sizes: &[&[usize]] =
        &[&[1], &[4095], &[4096], &[1 << 20, 3, 1], &[7; MAX_SLICES], &[100_000, 1, 100_000]];
    let all = || sizes.iter().zip(0..).map(|(lengths, seed)| (nth(seed), object(seed, lengths)));
    for (id, object) in all() {
        assert_eq!(get(&*tier, &id), None, "before the put");
        put(&*tier, &id, &object);
    }
    for (id, object) in all() {
        assert!(get(&*tier, &id) == Some(object), "{id}");
    }
}

fn tells_objects_apart(open: Open<'_>) {
    let tier = open();
    let longest = "k".repeat(MAX_KEY_LEN);
    let mut ids = vec![
        id("", "a", 0),
        id("a", "a", 0),
        id("a", "a", 1),
        id("a", "a", u64::MAX),
        id("a,a", "a", 0),
        id("a", "a,a", 0),
        id(&"t".repeat(MAX_TENANT_LEN), &longest, 0),
        id("", &longest, 0),
        id("", &format!("{}l", &longest[1..]), 0),
    ];
    let others =
        [".", "..", "/", "../a", "/etc/passwd", "%", "%2F", "A", "a ", "é", "键", "\0", "\n"];
    ids.extend(others.map(|key| id("", key, 0)));
    ids.extend(others.map(|tenant| id(tenant, "a", 0)));
    // Every character of one byte, and names around the limits of file systems.
    ids.extend((0..128u8).map(|byte| id("", &format!("_{}_", char::from(byte)), 0)));
    ids.extend((200..260).map(|len| id("", &longest[..len], 0)));
    for (id, seed) in ids.iter().zip(0..) {
        put(&*tier, id, &object(seed, &[20]));
    }
    for (id, seed) in ids.iter().zip(0..) {
        assert_eq!(get(&*tier, id), Some(object(seed, &[20])), "{id}");
    }
    ids.sort();
    let listed = scan(&*tier, 50, || {});
    assert_eq!(listed.iter().map(|object| object.id().clone()).collect::<Vec<_>>(), ids);
}

fn returns_many_in_their_order(open: Open<'_>) {
    let tier = open();
    let stored = |number| object(number, &[10 + 1500 * number as usize, 3]);
    (0..100).for_each(|number| put(&*tier, &nth(number), &stored(number)));
    (0..100).step_by(7).for_each(|number| assert!(remove(&*tier, &nth(number))));
    // Some are there, some never were, and some are wanted twice.
    let numbers: Vec<u64> = (0..240).map(|number| number * 37 % 120).collect();
    let ids: Vec<_> = numbers.iter().map(|number| nth(*number)).collect();
    let found = tier.get_many(&ids);
    assert_eq!(found.len(), ids.len());
    for (number, found) in numbers.into_iter().zip(found) {
        let found = found.expect("it can be read");
        let expected = (number < 100 && number % 7 != 0).then(|| stored(number));
        assert!(found == expected, "{number}");
    }
    assert!(tier.get_many(&[]).is_empty());
}

fn returns_exact_ranges(open: Open<'_>) {
    let tier = open();
    let (id, object) = (nth(1), object(1, &[10, 1, 5000, 30]));
    put(&*tier, &id, &object);
    let whole: Vec<u8> = object.slices().iter().flat_map(|slice| slice.bytes().to_vec()).collect();
    let edges = [0, 1, 9, 10, 11, 12, 4096, 5010, 5011, 5012, 5041];
    for start in edges {
        for end in edges.into_iter().filter(|end| *end > start) {
            let part = tier.get_range(&id, start as u64..end as u64).expect("it can be read");
            assert!(part.as_deref() == Some(&whole[start..end]), "{start} to {end}");
            let part = tier.get_unverified(&id, start as u64..end as u64).expect("it can be read");
            assert!(part.as_deref() == Some(&whole[start..end]), "{start} to {end}");
        }
    }
    #[allow(clippy::reversed_empty_ranges, reason = "it is rejected")]
    for range in [0..0, 5..3, 0..5042, 5041..5042, u64::MAX - 1..u64::MAX] {
        let refused = tier.get_range(&id, range.clone());
        assert!(
            matches!(refused, Err(TierError::Range { len: 5041, .. })),
            "{range:?}: {refused:?}"
        );
    }
    assert_eq!(tier.get_range(&nth(2), 0..1).expect("it can be asked for"), None);
    assert_eq!(tier.get_unverified(&nth(2), 0..1).expect("it can be asked for"), None);
}

/// Objects of a run of generations, and how they are put together.
fn run_of(number: u64, places: core::ops::Range<u64>) -> Vec<(ObjectId, ObjectBytes)> {
    let generation = |place| Generation::in_run(number, place as u32).as_u64();
    let length = |place: u64| [1, 4096, 10_000, 70_000][place as usize % 4];
    let lengths = |place| if place % 3 == 0 { vec![7, length(place)] } else { vec![length(place)] };
    let object = |place| {
        let tenant = if place % 5 == 0 { "other" } else { "tenant" };
        let id = id(tenant, &format!("key-{number}-{place}"), generation(place));
        (id, object(generation(place), &lengths(place)))
    };
    places.map(object).collect()
}

fn keeps_what_was_put_together(open: Open<'_>) {
    let tier = open();
    // Some are alone in their runs, and one shares no file at all.
    let runs = [run_of(3, 1..40), run_of(0, 0..1), run_of(4, 7..8), run_of(9, 4000..4096)];
    let mut kept: BTreeMap<ObjectId, ObjectBytes> = runs.concat().into_iter().collect();
    let check = |tier: &dyn Tier, kept: &BTreeMap<ObjectId, ObjectBytes>| {
        for (id, object) in kept {
            assert!(get(tier, id).as_ref() == Some(object), "{id}");
            let whole: Vec<u8> =
                object.slices().iter().flat_map(|slice| slice.bytes().to_vec()).collect();
            let (third, len) = (whole.len() / 3, whole.len());
            let range = third as u64..len as u64;
            let found = tier.get_range(id, range.clone()).expect("it can be read");
            assert_eq!(found.as_deref(), Some(&whole[third..]), "{id}");
            let found = tier.get_unverified(id, range).expect("it can be read");
            assert_eq!(found.as_deref(), Some(&whole[third..]), "{id}");
            for outside in [0..len as u64 + 1, 0..0] {
                let error = tier.get_range(id, outside.clone()).expect_err("it is no range");
                assert!(matches!(error, TierError::Range { .. }), "{outside:?}: {error}");
            }
        }
        for limit in [1, 10, 39, 1000] {
            let listed = scan(tier, limit, || ());
            let ids: Vec<_> = listed.iter().map(StoredObject::id).collect();
            assert_eq!(ids, kept.keys().collect::<Vec<_>>(), "pages of {limit}");
        }
        let objects = tier.usage().expect("it can be counted").objects;
        assert_eq!(objects, kept.len() as u64);
    };
    assert!(tier.put_at_once() > 0);
    let together: Vec<_> = kept.clone().into_iter().rev().collect();
    tier.put_many(&together).expect("they can be put");
    check(&*tier, &kept);
    // Again: nothing is there twice.
    tier.put_many(&together).expect("they can be put");
    check(&*tier, &kept);
    drop(tier);
    let tier = open();
    check(&*tier, &kept);
    tier.put_many(&[]).expect("nothing can be put");

    let mut removed: Vec<ObjectId> = Vec::new();
    for (id, _) in run_of(3, 1..40).into_iter().step_by(2) {
        assert!(remove(&*tier, &id) && !remove(&*tier, &id));
        removed.push(id);
    }
    removed.extend(run_of(9, 4000..4050).into_iter().map(|(id, _)| id));
    tier.remove_many(&removed[20..]).expect("they can be removed");
    kept.retain(|id, _| !removed.contains(id));
    for id in &removed {
        assert_eq!(get(&*tier, id), None, "{id} was removed");
    }
    check(&*tier, &kept);
    tier.clean_up().expect("it can be cleaned");
    check(&*tier, &kept);
    // An object that is put again alone is the new one.
    let (other, object_of_other) = (run_of(9, 4060..4061).remove(0).0, object(1, &[33]));
    put(&*tier, &other, &object_of_other);
    kept.insert(other, object_of_other);
    check(&*tier, &kept);
    drop(tier);

    let tier = open();
    let all: Vec<ObjectId> = kept.keys().cloned().collect();
    tier.remove_many(&all[..all.len() / 2]).expect("they can be removed");
    let rest: Vec<ObjectId> = all[all.len() / 2..].to_vec();
    let mut evicted = Vec::new();
    let none = Watermarks { high: ByteSize::bytes(0), low: ByteSize::bytes(0) };
    tier.evict(none, &mut |id| evicted.push(id)).expect("all can be evicted");
    evicted.sort();
    evicted.retain(|id| rest.contains(id));
    assert_eq!(evicted, rest);
    assert_eq!(tier.usage().expect("it can be counted"), TierUsage::default());
    assert!(scan(&*tier, 10, || ()).is_empty());
}

fn replaces_an_object_as_a_whole(open: Open<'_>) {
    let tier = open();
    for (seed, lengths) in [(1, &[1000, 2][..]), (2, &[10]), (3, &[5000; 3])] {
        put(&*tier, &nth(1), &object(seed, lengths));
        assert_eq!(get(&*tier, &nth(1)), Some(object(seed, lengths)));
    }
    assert_eq!(scan(&*tier, 10, || {}).len(), 1);
    assert_eq!(tier.usage().expect("it can be counted").objects, 1);
}

fn removes_one_object(open: Open<'_>) {
    let tier = open();
    (0..3).for_each(|number| put(&*tier, &nth(number), &object(number, &[100])));
    assert!(remove(&*tier, &nth(1)));
    assert!(!remove(&*tier, &nth(1)), "it is gone");
    assert!(!remove(&*tier, &nth(9)), "it never was");
    let there = [0, 1, 2].map(|number| get(&*tier, &nth(number)).is_some());
    assert_eq!(there, [true, false, true]);
    put(&*tier, &nth(1), &object(7, &[100]));
    assert_eq!(get(&*tier, &nth(1)), Some(object(7, &[100])), "it was put again");
}

fn keeps_objects_when_it_is_opened_again(open: Open<'_>) {
    let tier = open();
    (0..20).for_each(|number| put(&*tier, &nth(number), &object(number, &[100, 1])));
    put(&*tier, &nth(1), &object(100, &[7]));
    assert!(remove(&*tier, &nth(2)));
    let before = scan(&*tier, 7, || {});
    drop(tier);
    let tier = open();
    assert_eq!(scan(&*tier, 7, || {}), before);
    assert_eq!(get(&*tier, &nth(0)), Some(object(0, &[100, 1])));
    assert_eq!(get(&*tier, &nth(1)), Some(object(100, &[7])), "the last put counts");
    assert_eq!(get(&*tier, &nth(2)), None, "what was removed stays removed");
}

fn lists_each_object_once(open: Open<'_>) {
    let tier = open();
    assert_eq!(scan(&*tier, 1, || {}), []);
    let mut expected = Vec::new();
    for number in 0..60 {
        let (id, object) = (nth(number), object(number, &[3, 1 + number as usize]));
        put(&*tier, &id, &object);
        expected.push(StoredObject::of(id, &object));
    }
    expected.sort_by(|one, two| one.id().cmp(two.id()));
    for limit in [1, 7, 59, 60, 1000] {
        let listed = scan(&*tier, limit, || {});
        assert_eq!(listed.len(), expected.len(), "pages of {limit}");
        for (listed, expected) in listed.iter().zip(&expected) {
            assert_eq!(listed.id(), expected.id());
            let lengths = |object: &StoredObject| -> Vec<u64> {
                object.slices().iter().map(|slice| slice.len).collect()
            };
            assert_eq!(lengths(listed), lengths(expected), "{}", listed.id());
            let are_known = listed.has_checksums();
            assert!(!are_known || listed.slices() == expected.slices(), "{}", listed.id());
        }
    }
}

fn lists_what_stays_while_others_come_and_go(open: Open<'_>) {
    let tier = open();
    (0..60).for_each(|number| put(&*tier, &nth(number), &object(number, &[10])));
    let mut pages = 0;
    let listed = scan(&*tier, 5, || {
        remove(&*tier, &nth(30 + pages));
        put(&*tier, &nth(100 + pages), &object(1, &[10]));
        pages = (pages + 1).min(29);
    });
    let mut times = BTreeMap::new();
    listed.iter().for_each(|object| *times.entry(object.id()).or_insert(0) += 1);
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    (0..30).for_each(|number| assert!(times.contains_key(&nth(number)), "{number}"));
}

fn counts_what_is_there(open: Open<'_>) {
    let tier = open();
    let usage = || tier.usage().expect("it can be counted");
    assert_eq!(usage().objects, 0);
    (0..5).for_each(|number| put(&*tier, &nth(number), &object(number, &[1000])));
    let TierUsage { objects, bytes } = usage();
    assert!(objects == 5 && bytes >= 5000, "{objects} objects of {bytes} bytes");
    (0..5).for_each(|number| assert!(remove(&*tier, &nth(number))));
    assert_eq!(usage().objects, 0);
}

/// The order is by age, which here is that of the generation and of the medium's clock alike.
fn evicts_the_oldest(open: Open<'_>) {
    let tier = open();
    (0..10).for_each(|number| put(&*tier, &nth(number), &object(number, &[1000])));
    let used = tier.usage().expect("it can be counted").bytes;
    let evict = |high: u64, low: u64| {
        let (high, low) = (ByteSize::bytes(high), ByteSize::bytes(low));
        let mut ids = Vec::new();
        let removed = tier.evict(Watermarks { high, low }, &mut |id| ids.push(id));
        assert_eq!(removed.expect("it can evict").objects, ids.len() as u64);
        ids
    };
    assert!(evict(used, 0).is_empty(), "not above the high watermark");
    let mut evicted = evict(used - 1, used / 2);
    evicted.sort();
    assert!((4..=6).contains(&evicted.len()), "{evicted:?}");
    let count = evicted.len() as u64;
    let mut oldest: Vec<_> = (0..count).map(nth).collect();
    oldest.sort();
    assert_eq!(evicted, oldest);
    assert!(get(&*tier, &nth(0)).is_none() && get(&*tier, &nth(9)).is_some());
    assert!(tier.usage().expect("it can be counted").bytes <= used / 2);
    assert_eq!(evict(0, 0).len() as u64, 10 - count);
}

/// Every thread finds an object as one of the threads has put it, or not at all.
fn serves_several_threads(open: Open<'_>) {
    const THREADS: u64 = 4;
    let tier = open();
    let versions: Vec<_> =
        (0..THREADS).map(|seed| object(seed, &[3000 + seed as usize, 5])).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (tier, versions) = (&*tier, &versions);
            scope.spawn(move || {
                let mut random = SplitMix64::new(thread);
                for _ in 0..150 {
                    let id = nth(random.below(3) as u64);
                    match random.below(4) {
                        0 => put(tier, &id, &versions[thread as usize]),
                        1 => drop(remove(tier, &id)),
                        _ => {
                            let found = get(tier, &id);
                            assert!(found.is_none_or(|found| versions.contains(&found)), "{id}");
                        }
                    }
                }
            });
        }
    });
}
