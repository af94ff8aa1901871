//! The marker of a file system, by which one that is not mounted is noticed.

use std::fs;
use std::sync::Barrier;
use std::thread;

use mc_tier::{DirectoryTier, SyncPolicy, TierError};
use mc_types::LocalDiskId;

fn open(
    root: &std::path::Path,
    known: Option<LocalDiskId>,
) -> Result<Option<LocalDiskId>, TierError> {
    open_or_older(root, known, false)
}

fn open_or_older(
    root: &std::path::Path,
    known: Option<LocalDiskId>,
    or_older: bool,
) -> Result<Option<LocalDiskId>, TierError> {
    DirectoryTier::open_marked(root, "cluster", SyncPolicy::None, known, or_older).map(|(_, id)| id)
}

#[test]
fn first_clients_agree_on_one_marker() {
    for _ in 0..20 {
        let root = tempfile::tempdir().unwrap();
        let begin = Barrier::new(8);
        let open = || {
            begin.wait();
            open(root.path(), None).unwrap().unwrap()
        };
        let ids: Vec<LocalDiskId> = thread::scope(|scope| {
            let clients: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        let names = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, [".mc-store-cluster", "cluster"]);
    }
}

#[test]
fn an_older_file_system_has_a_smaller_id() {
    let [one, two] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let older = open(one.path(), None).unwrap();
    // Clocks have milliseconds.
    thread::sleep(std::time::Duration::from_millis(2));
    let younger = open(two.path(), None).unwrap();
    assert!(older < younger);
    assert_eq!(open_or_older(one.path(), younger, true).unwrap(), older);
    assert!(open_or_older(one.path(), younger, false).is_err());
    assert!(open_or_older(two.path(), older, true).is_err());
}

#[test]
fn without_the_marker_that_is_known_nothing_is_made() {
    let [there, not_mounted, other] = [0; 3].map(|_| tempfile::tempdir().unwrap());
    let known = open(there.path(), None).unwrap();
    assert_eq!(open(there.path(), known).unwrap(), known);
    let error = open(not_mounted.path(), known).unwrap_err();
    assert!(matches!(&error, TierError::NotMounted { found, .. } if found.is_none()), "{error}");
    assert!(
        error.is_retryable() && error.to_string().contains("has no marker; mount it"),
        "{error}"
    );
    assert_eq!(fs::read_dir(not_mounted.path()).unwrap().count(), 0);
    let found = open(other.path(), None).unwrap();
    let error = open(other.path(), known).unwrap_err();
    assert!(
        matches!(&error, TierError::NotMounted { found: was, .. } if **was == found),
        "{error}"
    );
}

#[test]
fn a_marker_that_is_none_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let marker = root.path().join(".mc-store-cluster");
    for text in ["", "id ", "id 7\n", "\u{0}"] {
        fs::write(&marker, text).unwrap();
        let error = open(root.path(), None).unwrap_err();
        assert!(error.to_string().contains("remove it to have a new one"), "{error}");
    }
    fs::remove_file(&marker).unwrap();
    let id = open(root.path(), None).unwrap();
    // One that the master knows is read the same way.
    assert_eq!(open(root.path(), id).unwrap(), id);
}

#[test]
fn a_cluster_with_a_very_long_id_has_no_marker() {
    let root = tempfile::tempdir().unwrap();
    let cluster = "c".repeat(250);
    let opened =
        DirectoryTier::open_marked(root.path(), &cluster, SyncPolicy::None, None, true).unwrap();
    assert_eq!(opened.1, None);
    let absent = root.path().join("absent");
    let error = DirectoryTier::open_marked(absent, "c", SyncPolicy::None, None, true).unwrap_err();
    assert!(matches!(error, TierError::NoRoot { .. }), "{error}");
}
