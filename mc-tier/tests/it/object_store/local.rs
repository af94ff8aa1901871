//! Places without a server.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mc_tier::{
    DirectoryTier, ObjectId, ObjectStoreSettings, ObjectStoreTier, SyncPolicy, Tier, TierError,
    Watermarks, conformance,
};
use mc_types::{ByteSize, Generation, ObjectKey};

use super::common::{MIB, id, object};

fn open(url: &str) -> Result<ObjectStoreTier, TierError> {
    ObjectStoreTier::open(url, &ObjectStoreSettings::default())
}

fn url(directory: &tempfile::TempDir) -> String {
    format!("file://{}", directory.path().display())
}

#[test]
fn memory_does_what_the_suite_wants() {
    let mut tier = open("memory:///").unwrap();
    conformance::run(&mut |is_new| {
        if is_new {
            tier = open("memory:///").unwrap();
        }
        Box::new(tier.clone())
    });
}

#[test]
fn a_directory_does_what_the_suite_wants() {
    let mut directory = tempfile::tempdir().unwrap();
    conformance::run(&mut |is_new| {
        if is_new {
            directory = tempfile::tempdir().unwrap();
        }
        Box::new(open(&url(&directory)).unwrap())
    });
}

#[test]
fn a_long_object_is_put_and_read_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    for url in ["memory:///", &url(&directory)] {
        let tier = open(url).unwrap();
        let (id, object) = (id("long"), object("long", 40 * MIB + 12_345));
        tier.put(&id, &object).unwrap();
        assert!(tier.get(&id).unwrap() == Some(object.clone()), "{url}");
        let part = tier.get_range(&id, 20..30).unwrap().unwrap();
        assert!(part == object.slices()[1].bytes().slice(10..20), "{url}");
        // Far behind what is read with the header.
        let (start, end) = (30 * MIB, 30 * MIB + 100);
        let part = tier.get_unverified(&id, start as u64..end as u64).unwrap().unwrap();
        assert!(part == object.slices()[1].bytes().slice(start - 10..end - 10), "{url}");
        assert_eq!(tier.usage().unwrap().objects, 1);
    }
}

/// The bytes and the names are those of a directory tier.
#[test]
fn a_directory_tier_reads_what_an_object_store_tier_has_put() {
    let root = tempfile::tempdir().unwrap();
    let directory = DirectoryTier::open(root.path(), "cluster", SyncPolicy::None).unwrap();
    let objects = open(&format!("file://{}", directory.directory().display())).unwrap();
    let (id, object) = (id("layer0/block 7"), object("both", 5000));
    objects.put(&id, &object).unwrap();
    assert_eq!(directory.get(&id).unwrap(), Some(object.clone()));
    assert_eq!(objects.get(&id).unwrap(), Some(object));
    assert!(directory.remove(&id).unwrap());
    assert_eq!(objects.get(&id).unwrap(), None);
}

#[test]
fn files_of_others_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(&url(&directory)).unwrap();
    tier.put(&id("key"), &object("key", 100)).unwrap();
    std::fs::write(directory.path().join("README"), "of an administrator").unwrap();
    std::fs::create_dir_all(directory.path().join("00/o,a")).unwrap();
    std::fs::write(directory.path().join("00/o,a/b"), "too").unwrap();
    assert_eq!(tier.usage().unwrap().objects, 1);
    let page = super::common::scan_all(&tier);
    assert_eq!((page.objects.len(), page.unreadable.len()), (1, 0));
}

#[test]
fn a_directory_that_is_missing_is_told() {
    let error = open("file:///no/such/directory").unwrap_err();
    assert!(matches!(error, TierError::File { .. }), "{error:?}");
    assert!(error.to_string().contains("/no/such/directory"), "{error}");
}

#[test]
fn parts_that_no_store_takes_are_rejected() {
    for len in [ByteSize::bytes(0), ByteSize::bytes((5 << 20) - 1), ByteSize::gib(2)] {
        let mut settings = ObjectStoreSettings::default();
        settings.part_len = len;
        let error = ObjectStoreTier::open("memory:///", &settings).unwrap_err();
        assert!(matches!(error, TierError::InvalidPartLen { .. }), "{error:?}");
    }
}

/// Other tiers only hold up an async thread, and so does this one: it does not panic.
#[tokio::test]
async fn an_async_thread_may_call_it_and_drop_it() {
    let tier = open("memory:///").unwrap();
    tier.put(&id("key"), &object("key", 100)).unwrap();
    assert_eq!(tier.get(&id("key")).unwrap(), Some(object("key", 100)));
    drop(tier);
}

/// Later generations need not be higher ones: a master that was started again draws its first anew.
#[test]
fn eviction_takes_what_was_stored_first_whatever_its_generation() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(&url(&directory)).unwrap();
    let mut files = BTreeSet::new();
    let put = |key: &str, generation, files: &mut BTreeSet<PathBuf>| {
        let key_ = ObjectKey::new(key).unwrap();
        let id = ObjectId::new("tenant", key_, Generation::new(generation)).unwrap();
        tier.put(&id, &object(key, 10_000)).unwrap();
        let file = all_files(directory.path()).find(|file| !files.contains(file)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - generation);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        files.insert(file.clone());
        (id, file)
    };
    let stored: Vec<_> = (1..=5).rev().map(|n| put(&format!("{n}"), n, &mut files)).collect();
    let mut evicted = Vec::new();
    let mut evict = |high, low| {
        evicted.clear();
        let (high, low) = (ByteSize::bytes(high), ByteSize::bytes(low));
        let removed = tier.evict(Watermarks { high, low }, &mut |id| evicted.push(id)).unwrap();
        (removed.objects, evicted.clone())
    };
    assert_eq!(evict(60_000, 0), (0, vec![]), "they are no more than the high watermark");
    let oldest = vec![stored[0].0.clone(), stored[1].0.clone()];
    assert_eq!(evict(40_000, 35_000), (2, oldest.clone()));
    assert!(oldest.iter().all(|id| tier.get(id).unwrap().is_none()));
    assert!(stored[2..].iter().all(|(id, _)| tier.get(id).unwrap().is_some()));
    // A damaged one has room, too, and no name.
    std::fs::write(&stored[2].1, vec![7; 10_000]).unwrap();
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    std::fs::File::options()
        .write(true)
        .open(&stored[2].1)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    assert_eq!(evict(0, 15_000), (2, vec![stored[3].0.clone()]));
    assert!(tier.get(&stored[4].0).unwrap().is_some());
}

fn all_files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let folders = std::fs::read_dir(directory).unwrap().map(|folder| folder.unwrap().path());
    folders.flat_map(|folder| {
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>()
    })
}
