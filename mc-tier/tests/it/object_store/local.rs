//! Places without a server.

use mc_tier::{
    DirectoryTier, ObjectStoreSettings, ObjectStoreTier, SyncPolicy, Tier, TierError, conformance,
};
use mc_types::ByteSize;

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
