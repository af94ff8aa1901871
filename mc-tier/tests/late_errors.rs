//! File systems that take bytes and say later that they have no room for them, as NFS does over a quota.
//!
//! A library loaded before libc fails close, fsync or fdatasync of files below a path: a medium that no test could
//! mount. A program of its own, since it starts itself with that library.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::{Input, Program, preload, role};
use mc_tier::{DirectoryTier, ObjectBytes, ObjectId, SliceBytes, SyncPolicy, Tier, TierError};
use mc_types::{Generation, ObjectKey};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The calls named in `MC_FAILING` say `EDQUOT` of files below `MC_FAILS_UNDER` that were written to, after
/// doing what they are to do.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_refused(const char *call, int fd) {
    const char *under = getenv("MC_FAILS_UNDER"), *calls = getenv("MC_FAILING");
    char link[64], path[PATH_MAX];
    if (!under || !calls || !strstr(calls, call)) return 0;
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    return len > 0 && strncmp(path, under, strlen(under)) == 0;
}

#define REFUSING(name)                                                   \
    int name(int fd) {                                                   \
        static int (*next)(int);                                         \
        if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, #name);         \
        int refused = is_refused(#name, fd), done = next(fd);            \
        if (!refused) return done;                                       \
        errno = EDQUOT;                                                  \
        return -1;                                                       \
    }

REFUSING(close)
REFUSING(fsync)
REFUSING(fdatasync)
"#;

/// Puts an object, and says what came of it.
fn put(policy: SyncPolicy, root: &Path) {
    let tier = DirectoryTier::open(root, "cluster", policy).unwrap();
    let id = ObjectId::new("tenant", ObjectKey::new("key").unwrap(), Generation::new(1)).unwrap();
    let bytes = SliceBytes::new(Bytes::from(vec![7; 100_000]));
    let object = ObjectBytes::new(vec![bytes]).unwrap();
    let said = match tier.put(&id, &object) {
        Ok(()) => "stored",
        Err(TierError::Full { .. }) => "full",
        Err(error) => panic!("{error}"),
    };
    let is_there = tier.get(&id).unwrap().is_some();
    let left = fs::read_dir(tier.directory().join("tmp")).unwrap().count();
    role::say(format!("{said} {is_there} {left}"));
}

#[test]
fn a_file_is_stored_when_the_file_system_has_accepted_its_bytes() {
    if let Some(role) = role::role() {
        let (policy, root) = role.split_once(' ').unwrap();
        return put(policy.parse().unwrap(), Path::new(root));
    }
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("refuses.so");
    preload(&library, SHIM);
    // Of this host's file system nothing is synced by default, and the close is looked at.
    for (policy, failing, expected) in [
        ("auto", "", "stored true 0"),
        ("auto", "close", "full false 0"),
        ("none", "close", "full false 0"),
        ("none", "fdatasync fsync", "stored true 0"),
        ("data", "fdatasync fsync", "full false 0"),
        ("directory", "fdatasync fsync", "full false 0"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let player = "a_file_is_stored_when_the_file_system_has_accepted_its_bytes";
        let mut command = role::command(player, &format!("{policy} {}", root.path().display()));
        command.env("LD_PRELOAD", &library).env("MC_FAILING", failing);
        command.env("MC_FAILS_UNDER", root.path().join("cluster/tmp"));
        let mut child = Program::start(LONG, &mut command, Input::None);
        assert_eq!(child.hear(), expected, "file_sync {policy}, failing: {failing}");
    }
}
