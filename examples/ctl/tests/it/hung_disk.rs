//! A leader or a node whose disk does not answer any more.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mc_store::{Client, NodeConfig, PutOutcome};
use mc_testkit::{EtcdCluster, content, eventually_blocking};
use tokio::runtime::Runtime;

use crate::support::{Cluster, DEADLINE, Master, Node};

/// Puts go on within this time, on a machine that is not busy within four seconds.
const GOES_ON: Duration = Duration::from_secs(15);

/// Calls that write to files below `MC_HANG_UNDER` do not return while the file `MC_HANG_WHILE` exists.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void hang(int fd) {
    const char *under = getenv("MC_HANG_UNDER"), *file = getenv("MC_HANG_WHILE");
    char link[64], path[PATH_MAX];
    if (!under || !file || access(file, F_OK) != 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0 || strncmp(path, under, strlen(under)) != 0) return;
    while (access(file, F_OK) == 0) usleep(10000);
}

#define HANGING(result, name, fd, params, ...)                                                      \
    result name params {                                                                           \
        static result (*next) params;                                                              \
        if (!next) next = (result (*) params)dlsym(RTLD_NEXT, #name);                              \
        hang(fd);                                                                                  \
        return next(__VA_ARGS__);                                                                  \
    }

HANGING(int, fsync, fd, (int fd), fd)
HANGING(int, fdatasync, fd, (int fd), fd)
HANGING(int, sync_file_range, fd, (int fd, off64_t at, off64_t len, unsigned how), fd, at, len, how)
HANGING(ssize_t, write, fd, (int fd, const void *from, size_t len), fd, from, len)
HANGING(ssize_t, pwrite, fd, (int fd, const void *from, size_t len, off_t at), fd, from, len, at)
HANGING(ssize_t, pwrite64, fd, (int fd, const void *from, size_t len, off64_t at), fd, from, len, at)
HANGING(ssize_t, writev, fd, (int fd, const struct iovec *from, int count), fd, from, count)
"#;

/// Compiles the shim, with the compiler that links Rust programs.
fn compile(library: &Path) {
    let source = library.with_extension("c");
    fs::write(&source, SHIM).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-o"]).arg(library).arg(&source).arg("-ldl");
    assert!(compiler.status().expect("a C compiler").success());
}

#[test]
fn puts_go_on_when_the_leaders_disk_hangs() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (library, hangs) = (directory.path().join("hang.so"), directory.path().join("hangs"));
    compile(&library);
    let mut cluster = Cluster::new(2);
    cluster.environment = vec![
        ("LD_PRELOAD", library.into_os_string()),
        ("MC_HANG_UNDER", cluster.path(0).into_os_string()),
        ("MC_HANG_WHILE", hangs.clone().into_os_string()),
    ];
    let _leader = cluster.start(0);
    cluster.wait_until_leads(0);
    cluster.environment.clear();
    let _standby = cluster.start(1);
    cluster.wait_until_in_sync(1, 0);
    let _node = Node::start(&cluster.all(), "node", 0, "16MB");
    let runtime = Runtime::new().unwrap();
    let client = Client::builder().master(cluster.all()).node(NodeConfig::default());
    let client = runtime.block_on(client.connect()).unwrap();
    let value = content("value", 10_000);
    let put = |key: &str| runtime.block_on(client.put(key, value.clone()));
    assert_eq!(put("before").unwrap(), PutOutcome::Stored);

    fs::write(&hangs, "").unwrap();
    let since = Instant::now();
    let stored = || put("after").is_ok_and(|outcome| outcome == PutOutcome::Stored);
    eventually_blocking(DEADLINE, "a put is acknowledged", stored);
    let took = since.elapsed();
    println!("a put was acknowledged {:.1} s after the disk had hung", took.as_secs_f64());
    assert!(took < GOES_ON, "{took:?}");
    cluster.wait_until_leads(1);
    for key in ["before", "after"] {
        let found =
            eventually_blocking(DEADLINE, "it is there", || runtime.block_on(client.get(key)));
        assert!(found == value, "{key}");
    }
    runtime.block_on(client.shutdown());
    fs::remove_file(&hangs).unwrap();
}

/// Two nodes with disks and full memory, of which one disk hangs: what it was to write goes without it.
#[test]
fn puts_go_on_when_the_disk_of_a_node_hangs() {
    const VALUE: usize = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let (library, hangs) = (directory.path().join("hang.so"), directory.path().join("hangs"));
    compile(&library);
    let master = Master::start(0, &["--enable_offload", "--offload_on_evict"]);
    let node = |name: &str, environment: &[_]| {
        let path = directory.path().join(name);
        fs::create_dir(&path).unwrap();
        let path = format!("--ssd_offload_path={}", path.display());
        let flags = ["--enable_offload", &path, "--ssd_offload_size=256MB"];
        Node::start_in(&master.address, name, 0, "32MB", &flags, environment)
    };
    let _hung = node(
        "hung",
        &[
            ("LD_PRELOAD", library.into_os_string()),
            ("MC_HANG_UNDER", directory.path().join("hung").into_os_string()),
            ("MC_HANG_WHILE", hangs.clone().into_os_string()),
        ],
    );
    let _well = node("well", &[]);
    let runtime = Runtime::new().unwrap();
    let client = Client::builder().master(&master.address).node(NodeConfig::default());
    let client = runtime.block_on(client.connect()).unwrap();
    let put = |number: usize| {
        let key = number.to_string();
        let begun = Instant::now();
        let outcome = runtime.block_on(client.put(&key, content(&key, VALUE)));
        (outcome, begun.elapsed())
    };
    for number in 0..100 {
        put(number).0.unwrap();
    }
    fs::write(&hangs, "").unwrap();
    let mut longest = Duration::ZERO;
    for number in 100..300 {
        let (outcome, took) = put(number);
        assert_eq!(outcome.unwrap(), PutOutcome::Stored, "{number}");
        longest = longest.max(took);
    }
    println!("the longest put took {longest:?}");
    // Those that were put last are read, from memory or from the disk that is well.
    for number in 280..300 {
        let key = number.to_string();
        let found = runtime.block_on(client.get(&key)).unwrap();
        assert!(found == content(&key, VALUE), "{key}");
    }
    fs::remove_file(&hangs).unwrap();
    runtime.block_on(client.shutdown());
}
