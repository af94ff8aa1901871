//! Tests that run again in a process of their own, which says "done" at its end.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mc_testkit::{Input, Program, role};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// Runs such a process to its end.
pub(crate) fn until_done(mut command: Command) {
    let mut program = Program::start(LONG, &mut command, Input::None);
    while program.hear() != "done" {}
}

/// Runs the test of such a process in a runtime.
pub(crate) fn in_a_runtime(test: impl AsyncFnOnce()) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test());
    role::say("done");
}

/// Runs the test `player` again in a process with mounts of its own, as root or as a user that plays root.
pub(crate) fn with_mounts(player: &str) {
    let root = tempfile::tempdir().expect("a directory");
    let unshare = |as_user: bool| {
        let mut command = Command::new("unshare");
        command.args(if as_user { &["--user", "--map-root-user"][..] } else { &[] });
        command.args(["--mount", "--"]);
        command
    };
    let works = |as_user: &bool| {
        let mut command = unshare(*as_user);
        let mount = command.args(["mount", "-t", "tmpfs", "tmpfs"]).arg(root.path());
        mount.output().is_ok_and(|mount| mount.status.success())
    };
    let Some(as_user) = [false, true].into_iter().find(works) else {
        eprintln!("NOT RUN: {player}, because nothing can be mounted here");
        return;
    };
    let root = root.path().to_str().expect("a path in UTF-8");
    until_done(role::launched_by(unshare(as_user), player, root));
}

/// Mounts a disk of so many bytes.
pub(crate) fn mount(root: &Path, bytes: usize) {
    let size = format!("size={bytes}");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(root);
    assert!(mount.status().expect("there is mount").success());
}

pub(crate) fn unmount(root: &Path) {
    assert!(Command::new("umount").arg(root).status().expect("there is umount").success());
}
