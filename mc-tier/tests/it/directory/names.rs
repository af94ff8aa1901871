//! Directories that cannot be used, and those that several tiers use.

use std::path::Path;

use mc_tier::{DirectoryTier, SyncPolicy, Tier, TierError};

use super::common::{CLUSTER, id, object, open, scan_all};

fn refusal(root: &Path, cluster: &str) -> TierError {
    DirectoryTier::open(root, cluster, SyncPolicy::None).unwrap_err()
}

#[test]
fn a_cluster_has_a_directory_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let mine = open(root.path());
    assert_eq!(mine.directory(), root.path().join(CLUSTER));
    let other = DirectoryTier::open(root.path(), "other: 键", SyncPolicy::None).unwrap();
    let id = id("key");
    mine.put(&id, &object(&id, 10)).unwrap();
    assert_eq!(other.get(&id).unwrap(), None);
}

#[test]
fn a_cluster_id_does_not_lead_out_of_the_root() {
    let root = tempfile::tempdir().unwrap();
    for cluster in ["", ".", "..", "../x", "a/b", "/etc", "a\0b", &"x".repeat(256)] {
        let error = refusal(root.path(), cluster);
        assert!(matches!(error, TierError::InvalidClusterId { .. }), "{cluster:?}: {error:?}");
    }
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

/// A directory made below a missing mount would fill the host's local disk.
#[test]
fn a_root_that_is_missing_is_not_made() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("dfs");
    assert!(matches!(refusal(&missing, CLUSTER), TierError::NoRoot { .. }));
    assert!(!missing.exists());
    std::fs::write(&missing, "a file").unwrap();
    assert!(matches!(refusal(&missing, CLUSTER), TierError::NoRoot { .. }));
}

#[test]
fn several_tiers_share_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let (one, two) = (open(root.path()), open(root.path()));
    let ids: Vec<_> = (0..100).map(|number| id(&number.to_string())).collect();
    std::thread::scope(|scope| {
        for tier in [&one, &two] {
            let ids = &ids;
            scope.spawn(move || {
                for id in ids {
                    tier.put(id, &object(id, 100)).unwrap();
                }
            });
        }
    });
    for tier in [&one, &two] {
        assert_eq!(scan_all(tier).objects.len(), 100);
        assert!(ids.iter().all(|id| tier.get(id).unwrap() == Some(object(id, 100))));
    }
    assert!(one.remove(&ids[0]).unwrap());
    assert_eq!(two.get(&ids[0]).unwrap(), None);
}
