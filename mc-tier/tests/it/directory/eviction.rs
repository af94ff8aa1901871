//! Eviction above a watermark.

use std::collections::BTreeSet;
use std::fs::File;
use std::time::{Duration, SystemTime};

use mc_tier::{DirectoryTier, ObjectId, Tier, TierError, TierUsage, Watermarks};
use mc_types::ByteSize;

use super::common::{files, id, object, open, scan_all};

/// Evicts, and returns the keys of what is gone, in the order of their eviction.
fn evict(tier: &DirectoryTier, high: u64, low: u64) -> (Vec<String>, TierUsage) {
    let mut keys = Vec::new();
    let watermarks = Watermarks { high: ByteSize::bytes(high), low: ByteSize::bytes(low) };
    let mut evicted = |id: ObjectId| keys.push(id.key().to_string());
    let removed = tier.evict(watermarks, &mut evicted).unwrap();
    (keys, removed)
}

/// A tier with objects of the same length, each a minute younger than the one before, and the bytes of
/// one.
fn with_ages(count: u64) -> (tempfile::TempDir, DirectoryTier, u64) {
    let root = tempfile::tempdir().unwrap();
    let tier = open(root.path());
    let mut known = BTreeSet::new();
    for number in 0..count {
        let id = id(&format!("{number:03}"));
        tier.put(&id, &object(&id, 1000)).unwrap();
        let new = files(&tier).into_iter().find(|path| known.insert(path.clone())).unwrap();
        let age = Duration::from_secs(60 * (count - number));
        let file = File::options().write(true).open(new).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }
    let bytes = tier.usage().unwrap().bytes / count;
    (root, tier, bytes)
}

#[test]
fn the_oldest_objects_are_evicted_first() {
    let (_root, tier, each) = with_ages(20);
    assert_eq!(evict(&tier, 20 * each, each).0.len(), 0, "not above the high watermark");
    let (keys, removed) = evict(&tier, 20 * each - 1, 15 * each);
    assert_eq!(keys, ["000", "001", "002", "003", "004"]);
    assert_eq!(removed, TierUsage { objects: 5, bytes: 5 * each });
    let (keys, _) = evict(&tier, 14 * each, 14 * each - 1);
    assert_eq!(keys, ["005", "006"], "as many as it takes");
    assert_eq!(tier.get(&id("006")).unwrap(), None);
    assert_eq!(tier.get(&id("007")).unwrap(), Some(object(&id("007"), 1000)));
    let (keys, _) = evict(&tier, 0, 0);
    assert_eq!(keys.len(), 13);
    assert_eq!(tier.usage().unwrap(), TierUsage::default());
}

#[test]
fn a_clock_that_jumped_costs_the_order_alone() {
    let (_root, tier, each) = with_ages(4);
    let file = File::options().write(true).open(&files(&tier)[0]).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(1 << 30)).unwrap();
    assert_eq!(evict(&tier, 3 * each, 2 * each).0.len(), 2);
    assert_eq!(scan_all(&tier).objects.len(), 2);
    assert_eq!(evict(&tier, 0, 0).0.len(), 2);
}

#[test]
fn damaged_objects_are_evicted_in_their_turn() {
    let (_root, tier, each) = with_ages(3);
    for path in files(&tier) {
        let modified = path.metadata().unwrap().modified().unwrap();
        std::fs::write(&path, vec![0; each as usize]).unwrap();
        File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    }
    let (keys, removed) = evict(&tier, 2 * each, each);
    assert_eq!((keys.len(), removed.objects), (0, 2));
    assert!(matches!(scan_all(&tier).unreadable[..], [TierError::Damaged { .. }]));
}

#[test]
fn tiers_that_evict_at_once_report_each_object_once() {
    let (root, tier, each) = with_ages(40);
    let other = open(root.path());
    let keys: Vec<_> = std::thread::scope(|scope| {
        let threads =
            [&tier, &other].map(|tier| scope.spawn(move || evict(tier, 39 * each, 20 * each).0));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let once = keys.iter().collect::<BTreeSet<_>>().len();
    assert_eq!(once, keys.len(), "{keys:?}");
    assert_eq!(tier.usage().unwrap().objects, 40 - once as u64);
    assert!(once >= 20, "{once}");
}

/// A directory in the place of a file stands for one that is immutable or another user's.
#[test]
fn a_file_that_cannot_be_removed_keeps_no_other() {
    let (_root, tier, each) = with_ages(6);
    let oldest = |at: usize| {
        let mut files = files(&tier);
        files.sort_by_key(|path| path.metadata().unwrap().modified().unwrap());
        files.swap_remove(at)
    };
    let stuck = oldest(0);
    let modified = stuck.metadata().unwrap().modified().unwrap();
    std::fs::remove_file(&stuck).unwrap();
    std::fs::create_dir(&stuck).unwrap();
    std::fs::write(stuck.join("in the way"), "").unwrap();
    File::open(&stuck).unwrap().set_modified(modified).unwrap();
    let used = tier.usage().unwrap().bytes;
    let (keys, removed) = evict(&tier, 3 * each, used - 2 * each);
    assert_eq!(keys, ["001", "002"], "younger ones go in its place");
    assert_eq!(removed.objects, 2);

    for path in files(&tier).into_iter().filter(|path| *path != stuck) {
        std::fs::remove_file(path).unwrap();
    }
    let watermarks = Watermarks { high: ByteSize::bytes(0), low: ByteSize::bytes(0) };
    tier.evict(watermarks, &mut |_| {}).expect_err("nothing can be removed");
}

#[test]
fn watermarks_of_a_quota_are_those_of_memory() {
    let Watermarks { high, low } = Watermarks::of_quota(ByteSize::bytes(1000));
    assert_eq!((high, low), (ByteSize::bytes(950), ByteSize::bytes(900)));
    let Watermarks { high, low } = Watermarks::of_quota(ByteSize::bytes(u64::MAX));
    assert!(low < high);
}
