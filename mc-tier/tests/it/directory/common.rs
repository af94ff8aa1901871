//! Objects whose bytes follow from their ids.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use mc_testkit::content;
use mc_tier::{DirectoryTier, ObjectBytes, ObjectId, ScanPage, SliceBytes, SyncPolicy, Tier};
use mc_types::{Generation, ObjectKey};
use tempfile::TempDir;

pub(crate) const CLUSTER: &str = "mooncake_cluster";

pub(crate) fn id(key: &str) -> ObjectId {
    ObjectId::new("tenant", ObjectKey::new(key).unwrap(), Generation::new(1)).unwrap()
}

/// The only bytes that are ever put under this id: two slices.
pub(crate) fn object(id: &ObjectId, len: usize) -> ObjectBytes {
    let bytes = Bytes::from(content(id.key().as_str(), len + 10));
    ObjectBytes::new(vec![SliceBytes::new(bytes.slice(..10)), SliceBytes::new(bytes.slice(10..))])
        .unwrap()
}

pub(crate) fn open(root: &Path) -> DirectoryTier {
    DirectoryTier::open(root, CLUSTER, SyncPolicy::default()).unwrap()
}

/// A tier in a new directory, with an object.
pub(crate) fn with_object() -> (TempDir, DirectoryTier, ObjectId) {
    let root = tempfile::tempdir().unwrap();
    let tier = open(root.path());
    let id = id("key");
    tier.put(&id, &object(&id, 5000)).unwrap();
    (root, tier, id)
}

/// The files of all objects.
pub(crate) fn files(tier: &DirectoryTier) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(tier.directory()).unwrap();
    let folders =
        folders.map(|folder| folder.unwrap().path()).filter(|path| !path.ends_with("tmp"));
    folders.flat_map(|folder| list(&folder)).collect()
}

/// The files that are being written, or were.
pub(crate) fn unfinished(tier: &DirectoryTier) -> Vec<PathBuf> {
    list(&tier.directory().join("tmp"))
}

fn list(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

pub(crate) fn scan_all(tier: &DirectoryTier) -> ScanPage {
    let page = tier.scan(None, NonZeroUsize::new(1_000_000).unwrap()).unwrap();
    assert_eq!(page.next, None);
    page
}
