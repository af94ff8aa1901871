//! Directories and media that cannot be used.

use std::path::Path;

use mc_testkit::role;
use mc_tier::{FileBackend, LogTier, MemoryBackend, Tier, TierError};
use mc_types::ByteSize;

use super::common::{fill, id, is_there, medium, object, open, put, settings};
use crate::mounts::{mount, with_mounts};

const LEN: ByteSize = ByteSize::mib(1);

#[test]
fn two_nodes_do_not_use_one_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made/by/the/node");
    let backend = FileBackend::open(&path, LEN).unwrap();
    let error = FileBackend::open(&path, LEN).unwrap_err();
    assert!(matches!(error, TierError::InUse { .. }) && !error.is_retryable(), "{error:?}");
    drop(backend);
    FileBackend::open(&path, LEN).unwrap();
}

#[test]
fn a_log_grows_with_its_medium() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(FileBackend::open(directory.path(), LEN).unwrap());
    put(&tier, 1);
    drop(tier);
    let mut other = settings();
    other.segment_len = ByteSize::kib(128);
    let grown = FileBackend::open(directory.path(), ByteSize::mib(4)).unwrap();
    let tier = LogTier::open(grown, other).unwrap();
    assert!(is_there(&tier, 1), "it keeps its length of segments");
    let small = (2..).take_while(|number| tier.put(&id(*number), &object(*number)).is_ok());
    assert!(small.count() > 200, "the room is used");
    drop(tier);
    let shorter = FileBackend::open(directory.path(), LEN).unwrap();
    assert!(is_there(&open(shorter), 1), "it does not shrink");
}

#[test]
fn a_medium_that_is_too_short_is_told() {
    for len in [0, 1, 512, 200_000] {
        let error =
            LogTier::open(MemoryBackend::new(ByteSize::bytes(len)), settings()).unwrap_err();
        assert!(matches!(error, TierError::TooShort { .. }), "{len}: {error:?}");
    }
    let mut long = settings();
    long.segment_len = ByteSize::bytes(u64::MAX);
    let error = LogTier::open(medium(4), long).unwrap_err();
    assert!(matches!(error, TierError::TooShort { .. }), "{error:?}");
}

#[test]
fn a_directory_that_vanishes_is_used_on_by_its_node() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let tier = open(FileBackend::open(&path, LEN).unwrap());
    put(&tier, 1);
    std::fs::remove_dir_all(&path).unwrap();
    put(&tier, 2);
    assert!(is_there(&tier, 1) && is_there(&tier, 2));
}

/// The file is longer than its disk.
#[test]
fn a_disk_that_is_full_before_the_log_costs_no_object() {
    let Some(root) = role::role() else {
        return with_mounts("log::medium::a_disk_that_is_full_before_the_log_costs_no_object");
    };
    let root = Path::new(&root);
    mount(root);
    let open = || open(FileBackend::open(root.join("log"), ByteSize::mib(100)).unwrap());
    let tier = open();
    let stored = fill(&tier);
    assert!((0..stored).all(|number| is_there(&tier, number)), "{stored}");
    drop(tier);
    let tier = open();
    assert!((0..stored).all(|number| is_there(&tier, number)), "{stored}");
    assert_eq!(tier.recovery().damaged, 0);
    assert!(tier.remove(&id(0)).unwrap());
    assert!(!is_there(&tier, 0));
    role::say("done");
}
