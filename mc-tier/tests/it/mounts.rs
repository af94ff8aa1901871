//! Tests that run again in a process with mounts of its own, or of another user.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mc_testkit::{Input, Program, role};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// Runs the test `player` again in a process that `launcher` starts, if `works` says that it can.
pub(crate) fn play(mut works: Command, launcher: Command, player: &str, root: &Path) {
    if !works.output().is_ok_and(|output| output.status.success()) {
        eprintln!("NOT RUN: {player}, because this does not work here: {works:?}");
        return;
    }
    let mut command = role::launched_by(launcher, player, root.to_str().unwrap());
    let mut program = Program::start(LONG, &mut command, Input::None);
    while program.hear() != "done" {}
}

/// A process with mounts of its own, as root or as a user that plays root.
pub(crate) fn with_mounts(player: &str) {
    let root = tempfile::tempdir().unwrap();
    let unshare = |as_user: bool| {
        let mut command = Command::new("unshare");
        command.args(if as_user { &["--user", "--map-root-user"][..] } else { &[] });
        command.args(["--mount", "--"]);
        command
    };
    let mount = |as_user: bool| {
        let mut command = unshare(as_user);
        command.args(MOUNT).arg(root.path());
        command
    };
    let works = |as_user: &bool| mount(*as_user).output().is_ok_and(|mount| mount.status.success());
    let as_user = [false, true].into_iter().find(works).unwrap_or(false);
    play(mount(as_user), unshare(as_user), player, root.path());
}

const MOUNT: [&str; 6] = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs"];

/// Mounts a small disk.
pub(crate) fn mount(root: &Path) {
    assert!(Command::new(MOUNT[0]).args(&MOUNT[1..]).arg(root).status().unwrap().success());
}

/// Mounts a disk of so many bytes.
pub(crate) fn mount_of(root: &Path, bytes: u64) {
    let size = format!("size={bytes}");
    let args = [MOUNT[1], MOUNT[2], MOUNT[3], &size, MOUNT[5]];
    assert!(Command::new(MOUNT[0]).args(args).arg(root).status().unwrap().success());
}
