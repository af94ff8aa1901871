//! Clients whose directories take writes and do not end them.
//!
//! A library loaded before libc holds up calls that write to files below a path: a medium that no test could mount.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use mc_cluster_testkit::Cluster;
use mc_meta::LocalDiskConfig;
use mc_store::{ByteSize, Generation, LocalDiskOptions, MasterConfig};
use mc_testkit::{eventually_async, preload, role};

use crate::apart::{in_a_runtime, until_done};

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// Calls that write to files below `MC_HANG_UNDER` do not return while the file `MC_HANG_WHILE` exists, and
/// make the file `MC_HANG_SAYS` when they begin to wait. Those that remove files wait for
/// `MC_HANG_REMOVALS_WHILE` to go.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void wait_for(const char *path, const char *variable) {
    const char *under = getenv("MC_HANG_UNDER"), *file = getenv(variable);
    if (!under || !file || access(file, F_OK) != 0 || strncmp(path, under, strlen(under)) != 0) return;
    int says = open(getenv("MC_HANG_SAYS"), O_CREAT | O_RDONLY, 0600);
    if (says >= 0) close(says);
    while (access(file, F_OK) == 0) usleep(10000);
}

static void wait_for_file(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len <= 0) return;
    path[len] = 0;
    wait_for(path, "MC_HANG_WHILE");
}

#define HANGING(result, name, wait, params, ...)                                    \
    result name params {                                                            \
        static result (*next) params;                                               \
        if (!next) next = (result (*) params)dlsym(RTLD_NEXT, #name);               \
        wait;                                                                       \
        return next(__VA_ARGS__);                                                   \
    }

HANGING(int, unlink, wait_for(path, "MC_HANG_REMOVALS_WHILE"), (const char *path), path)
HANGING(ssize_t, write, wait_for_file(fd), (int fd, const void *from, size_t len), fd, from, len)
HANGING(ssize_t, writev, wait_for_file(fd), (int fd, const struct iovec *from, int count), fd, from, count)
HANGING(ssize_t, pwrite, wait_for_file(fd), (int fd, const void *from, size_t len, off_t at), fd, from, len, at)
HANGING(ssize_t, pwrite64, wait_for_file(fd), (int fd, const void *from, size_t len, off64_t at), fd, from, len, at)
"#;

/// Runs the test `player` again in a process in which writes below `root/medium` hang while the file
/// `root/hangs` exists; it says "done" at its end.
fn with_a_medium_that_hangs(player: &str) {
    let root = tempfile::tempdir().unwrap();
    let library = root.path().join("hang.so");
    preload(&library, SHIM);
    let medium = root.path().join("medium");
    fs::create_dir(&medium).unwrap();
    let mut command = role::command(player, root.path().to_str().unwrap());
    command.env("LD_PRELOAD", &library).env("MC_HANG_UNDER", &medium);
    command.env("MC_HANG_WHILE", root.path().join("hangs"));
    command.env("MC_HANG_REMOVALS_WHILE", root.path().join("removals-hang"));
    command.env("MC_HANG_SAYS", root.path().join("waits"));
    until_done(command);
}

async fn something_waits(root: &Path) {
    let waits = root.join("waits");
    eventually_async(DEADLINE, "a write to hang", async || waits.exists()).await;
}

#[test]
fn a_client_that_leaves_ends_its_writes_and_the_next_one_has_its_disk() {
    with_a_medium_that_hangs("hung_writes::where_a_client_leaves_while_it_writes");
}

#[test]
fn where_a_client_leaves_while_it_writes() {
    let Some(root) = role::role() else { return };
    let root = Path::new(&root);
    let medium = root.join("medium");
    in_a_runtime(async || {
        let mut config = MasterConfig::default();
        config.local_disk = Some(LocalDiskConfig::default());
        let cluster = Cluster::start_with(config, &[]).await;
        let node = |name| {
            let disk = LocalDiskOptions::new(&medium).size(ByteSize::mib(64));
            cluster.node().segment_name(name).segment_size(ByteSize::mib(16)).local_disk(disk)
        };
        // Objects that are put before are not written to it.
        let has_disk = async || cluster.master.report().local_disks.len() == 1;
        let first = node("first").connect().await.unwrap();
        eventually_async(DEADLINE, "the disk to be used", has_disk).await;
        fs::write(root.join("hangs"), "").unwrap();
        first.put("k", mc_testkit::content("k", 100_000)).await.unwrap();
        something_waits(root).await;
        let leaving = first.clone();
        let mut leaving = tokio::spawn(async move { leaving.shutdown().await });
        let early = tokio::time::timeout(Duration::from_secs(1), &mut leaving).await;
        assert!(early.is_err(), "the write is waited for");
        fs::remove_file(root.join("hangs")).unwrap();
        tokio::time::timeout(DEADLINE, leaving).await.unwrap().unwrap();
        let second = node("second").connect().await.unwrap();
        eventually_async(DEADLINE, "the disk to be used again", has_disk).await;
        let names = fs::read_dir(&medium).unwrap().map(|entry| entry.unwrap().path());
        let logs: Vec<_> = names.collect();
        assert_eq!(logs.len(), 1, "{logs:?}");
        let names = fs::read_dir(&logs[0]).unwrap().map(|entry| entry.unwrap().file_name());
        let others = names.filter(|name| name.to_str().unwrap().starts_with("rank-"));
        assert_eq!(others.count(), 0, "the second has the first one's directory");
        // A write that never ends is not waited for without end.
        fs::write(root.join("hangs"), "").unwrap();
        fs::remove_file(root.join("waits")).unwrap();
        second.put("l", mc_testkit::content("l", 100_000)).await.unwrap();
        something_waits(root).await;
        tokio::time::timeout(DEADLINE, second.shutdown()).await.unwrap();
        fs::remove_file(root.join("hangs")).unwrap();
    });
}

#[test]
fn an_upsert_and_a_removal_wait_for_no_file_that_is_still_to_be_written() {
    with_a_medium_that_hangs("hung_writes::where_files_wait_that_the_master_does_not_know_of");
}

#[test]
fn where_files_wait_that_the_master_does_not_know_of() {
    let Some(root) = role::role() else { return };
    let root = Path::new(&root);
    let medium = root.join("medium");
    let (hangs, removals_hang) = (root.join("hangs"), root.join("removals-hang"));
    in_a_runtime(async || {
        let mut cluster = Cluster::start(&[ByteSize::mib(32)]).await;
        let app = cluster.client().storage_root(&medium).connect().await.unwrap();
        let file = |key: &str| app.file_path(key, Generation::new(0)).unwrap();
        for key in ["replaced", "removed", "again"] {
            app.put(key, "old").await.unwrap();
        }
        assert!(app.flush_files(DEADLINE).await);
        fs::write(&hangs, "").unwrap();
        app.put("first", "value").await.unwrap();
        something_waits(root).await;
        for n in 0..100 {
            app.put(&format!("k{n}"), "value").await.unwrap();
        }
        // Far behind in the queue, and void by the removal.
        app.put("void", "value").await.unwrap();
        let prompt = async {
            app.upsert("replaced", "new").await.unwrap();
            assert!(!file("replaced").exists());
            app.remove("removed", true).await.unwrap();
            app.remove("void", true).await.unwrap();
            assert!(!file("removed").exists());
        };
        tokio::time::timeout(Duration::from_secs(5), prompt).await.expect("no write is waited for");
        // A directory that hangs altogether holds an upsert up for a while.
        fs::write(&removals_hang, "").unwrap();
        let bounded = app.upsert("again", "new");
        tokio::time::timeout(Duration::from_secs(10), bounded).await.expect("it ends").unwrap();
        // The write that is under way is of an object that is removed meanwhile.
        let removed = app.remove("first", true);
        tokio::time::timeout(Duration::from_secs(10), removed).await.expect("it ends").unwrap();
        fs::remove_file(&removals_hang).unwrap();
        fs::remove_file(&hangs).unwrap();
        assert!(app.flush_files(DEADLINE).await);
        let settled = async || {
            let gone = ["removed", "void", "first"].iter().all(|key| !file(key).exists());
            gone && ["replaced", "again", "k0", "k99"].iter().all(|key| file(key).exists())
        };
        eventually_async(DEADLINE, "the right files", settled).await;
        cluster.nodes.remove(0).shutdown().await;
        for key in ["replaced", "again"] {
            assert_eq!(app.get(key).await.unwrap(), "new", "{key}");
        }
        assert!(app.get("void").await.is_err() && app.get("first").await.is_err());
        assert_eq!(app.get("k50").await.unwrap(), "value");
        app.shutdown().await;
    });
}
