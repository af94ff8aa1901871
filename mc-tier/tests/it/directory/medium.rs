//! Disks that are full, read-only, not ours, or gone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use mc_testkit::role;
use mc_tier::{DirectorySettings, DirectoryTier, SyncPolicy, Tier, TierError, Watermarks};
use mc_types::ByteSize;

use super::common::{files, id, object, open, scan_all, unfinished, with_object};
use crate::mounts::{mount, play, with_mounts};

fn put(tier: &DirectoryTier, key: &str, len: usize) -> Result<(), TierError> {
    tier.put(&id(key), &object(&id(key), len))
}

#[test]
fn nothing_is_written_where_the_directory_has_vanished() {
    let (root, tier, id) = with_object();
    fs::remove_dir_all(tier.directory()).unwrap();
    let one = std::num::NonZeroUsize::MIN;
    let watermarks = Watermarks::of_quota(ByteSize::bytes(1));
    for error in [
        put(&tier, "new", 10).unwrap_err(),
        tier.get(&id).unwrap_err(),
        tier.get_range(&id, 0..1).unwrap_err(),
        tier.remove(&id).unwrap_err(),
        tier.scan(None, one).unwrap_err(),
        tier.usage().unwrap_err(),
        tier.evict(watermarks, &mut |_| ()).unwrap_err(),
        tier.clean_up().unwrap_err(),
    ] {
        assert!(matches!(error, TierError::Vanished { .. }), "{error:?}");
        assert!(error.is_retryable());
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    open(root.path());
    put(&tier, "new", 10).unwrap();
}

#[test]
fn an_emptied_directory_is_used_on() {
    let (_root, tier, key) = with_object();
    for entry in fs::read_dir(tier.directory()).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    assert_eq!(tier.get(&key).unwrap(), None);
    assert!(!tier.remove(&key).unwrap());
    assert_eq!(scan_all(&tier).objects.len(), 0);
    assert_eq!(tier.clean_up().unwrap(), 0);
    put(&tier, "new", 10).unwrap();
    assert_eq!(tier.get(&id("new")).unwrap(), Some(object(&id("new"), 10)));
}

#[test]
fn a_full_disk_is_told_and_leaves_no_trace() {
    let Some(root) = role::role() else {
        return with_mounts("directory::medium::a_full_disk_is_told_and_leaves_no_trace");
    };
    let root = Path::new(&root);
    mount(root);
    let tier = open(root);
    let mut stored = 0;
    let error = loop {
        match put(&tier, &stored.to_string(), 300_000) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TierError::Full { .. }) && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("no space left"), "{error}");
    assert_eq!(unfinished(&tier).len(), 0);
    assert_eq!(files(&tier).len(), stored);
    for number in 0..stored {
        let id = id(&number.to_string());
        assert_eq!(tier.get(&id).unwrap(), Some(object(&id, 300_000)), "{number} of {stored}");
    }
    let mut evicted = 0;
    tier.evict(Watermarks::of_quota(ByteSize::mib(3)), &mut |_| evicted += 1).unwrap();
    assert!(evicted > 0);
    put(&tier, "new", 300_000).unwrap();
    assert_eq!(scan_all(&tier).objects.len(), stored - evicted + 1);
    role::say("done");
}

#[test]
fn a_read_only_disk_is_told_and_read() {
    let Some(root) = role::role() else {
        return with_mounts("directory::medium::a_read_only_disk_is_told_and_read");
    };
    let root = Path::new(&root);
    mount(root);
    put(&open(root), "key", 10).unwrap();
    let status = Command::new("mount").args(["-o", "remount,ro"]).arg(root).status();
    assert!(status.unwrap().success());
    let tier = open(root);
    assert_eq!(tier.get(&id("key")).unwrap(), Some(object(&id("key"), 10)));
    for error in [
        put(&tier, "new", 10).unwrap_err(),
        tier.remove(&id("key")).unwrap_err(),
        tier.clean_up().unwrap_err(),
        tier.evict(Watermarks::of_quota(ByteSize::bytes(1)), &mut |_| ()).unwrap_err(),
    ] {
        assert!(matches!(error, TierError::ReadOnly { .. }) && !error.is_retryable(), "{error:?}");
    }
    assert_eq!(scan_all(&tier).objects.len(), 1);
    role::say("done");
}

/// Played by a user who may read the directory.
#[test]
fn a_directory_of_another_user_is_told_and_read() {
    if let Some(root) = role::role() {
        let tier = open(Path::new(&root));
        let error = put(&tier, "new", 10).unwrap_err();
        assert!(!error.is_retryable());
        let TierError::DeniedIn { folder, owner, mode, user, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(
            (&**folder, *owner, *mode, *user),
            (&*tier.directory().join("tmp"), 0, 0o755, 65534)
        );
        let told = error.to_string();
        assert!(told.contains("belongs to user 0") && told.contains("mode 0755"), "{told}");
        assert!(matches!(tier.remove(&id("key")), Err(TierError::DeniedIn { mode: 0o755, .. })));
        let file = object(&id("key"), 5000);
        assert_eq!(tier.get(&id("key")).unwrap(), Some(file));
        return role::say("done");
    }
    let (root, tier, _) = with_object();
    let all_may_read = |path: &Path| {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    all_may_read(root.path());
    all_may_read(tier.directory());
    all_may_read(&tier.directory().join("tmp"));
    let file = files(&tier).remove(0);
    all_may_read(file.parent().unwrap());
    all_may_read(&file);
    let player = "directory::medium::a_directory_of_another_user_is_told_and_read";
    let (works, launcher) = as_nobody();
    play(works, launcher, player, root.path());
}

/// Returns the commands that test whether this program can run as another user, and that run it so.
fn as_nobody() -> (Command, Command) {
    let as_nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", "--"]);
        command
    };
    let mut works = as_nobody();
    works.args(["test", "-x"]).arg(std::env::current_exe().unwrap());
    (works, as_nobody())
}

/// Played by a user who has nothing in common with the one that made the directory.
#[test]
fn with_a_mode_clients_of_several_users_write_and_delete() {
    let open = |root: &Path| {
        let mut settings = DirectorySettings::from(SyncPolicy::None);
        settings.mode = Some("0777".parse().unwrap());
        DirectoryTier::open(root, "cluster", settings).unwrap()
    };
    if let Some(root) = role::role() {
        let tier = open(Path::new(&root));
        assert_eq!(tier.get(&id("key")).unwrap(), Some(object(&id("key"), 10)));
        assert!(tier.remove(&id("key")).unwrap());
        // In folders of the other user, and in new ones.
        for n in 0..1000 {
            put(&tier, &format!("new-{n}"), 10).unwrap();
        }
        return role::say("done");
    }
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let tier = open(root.path());
    let mut keys = vec!["key".to_owned()];
    keys.extend((0..100).map(|n| format!("old-{n}")));
    keys.iter().for_each(|key| put(&tier, key, 10).unwrap());
    let player = "directory::medium::with_a_mode_clients_of_several_users_write_and_delete";
    let (works, launcher) = as_nobody();
    play(works, launcher, player, root.path());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for file in files(&tier) {
        assert_eq!((mode(file.parent().unwrap()), mode(&file)), (0o777, 0o666), "{file:?}");
    }
    assert_eq!(mode(tier.directory()), 0o777);
}
