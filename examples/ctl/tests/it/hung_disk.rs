//! A leader or a node whose disk does not answer any more.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::time::{Duration, Instant};

use mc_store::{Client, GetError, NodeConfig, PutOutcome};
use mc_testkit::{EtcdCluster, Signal, content, eventually_blocking, preload};
use tokio::runtime::Runtime;

use crate::support::{Cluster, DEADLINE, Master, Node};

/// Puts go on within this time, on a machine that is not busy within four seconds.
const GOES_ON: Duration = Duration::from_secs(15);

/// A disk of which nothing was heard for so long gets nothing more to write.
const UNUSED: Duration = Duration::from_secs(4);

/// Calls that write to files below `MC_HANG_UNDER` do not return while the file `MC_HANG_WHILE` exists; if
/// that has a number, they fail with it as their error.
pub(crate) const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int hang(int fd) {
    const char *under = getenv("MC_HANG_UNDER"), *file = getenv("MC_HANG_WHILE");
    char link[64], path[PATH_MAX];
    if (!under || !file || access(file, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0 || strncmp(path, under, strlen(under)) != 0) return 0;
    FILE *open = fopen(file, "r");
    int error = 0;
    if (open && fscanf(open, "%d", &error) != 1) error = 0;
    if (open) fclose(open);
    while (!error && access(file, F_OK) == 0) usleep(10000);
    return error;
}

#define HANGING(result, name, fd, params, ...)                                                      \
    result name params {                                                                           \
        static result (*next) params;                                                              \
        if (!next) next = (result (*) params)dlsym(RTLD_NEXT, #name);                              \
        int error = hang(fd);                                                                      \
        if (error) return errno = error, -1;                                                       \
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

#[test]
fn puts_go_on_when_the_leaders_disk_hangs() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (library, hangs) = (directory.path().join("hang.so"), directory.path().join("hangs"));
    preload(&library, SHIM);
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

/// Three nodes with disks and full memory, of which the disk of one is broken while a file exists.
struct Disks {
    directory: tempfile::TempDir,
    _master: Master,
    nodes: Vec<Node>,
    runtime: Runtime,
    client: Client,
    puts: usize,
}

impl Disks {
    const VALUE: usize = 1 << 20;

    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("hang.so");
        preload(&library, SHIM);
        let master = Master::start(0, &["--enable_offload", "--offload_on_evict"]);
        let start = |name: &str| {
            let path = directory.path().join(name);
            fs::create_dir(&path).unwrap();
            let shim = [
                ("LD_PRELOAD", library.clone().into_os_string()),
                ("MC_HANG_UNDER", directory.path().join("broken").into_os_string()),
                ("MC_HANG_WHILE", directory.path().join("breaks").into_os_string()),
            ];
            let path = format!("--ssd_offload_path={}", path.display());
            let flags = ["--enable_offload", &path, "--ssd_offload_size=256MB"];
            Node::start_in(&master.address, name, 0, "32MB", &flags, &shim)
        };
        let nodes = ["broken", "one", "two"].map(start).into();
        let runtime = Runtime::new().unwrap();
        let client = Client::builder().master(&master.address).node(NodeConfig::default());
        let client = runtime.block_on(client.connect()).unwrap();
        Self { directory, _master: master, nodes, runtime, client, puts: 0 }
    }

    /// The disk hangs, or fails with this error.
    fn break_one(&self, error: &str) {
        fs::write(self.directory.path().join("breaks"), error).unwrap();
    }

    fn mend(&self) {
        fs::remove_file(self.directory.path().join("breaks")).unwrap();
    }

    /// Puts so many values, each of which is stored, and says how long that took.
    fn put(&mut self, what: &str, count: usize) {
        let mut times = Vec::new();
        for number in self.puts..self.puts + count {
            let key = number.to_string();
            let begun = Instant::now();
            let outcome = self.runtime.block_on(self.client.put(&key, content(&key, Self::VALUE)));
            assert_eq!(outcome.unwrap(), PutOutcome::Stored, "{number}, {what}");
            times.push(begun.elapsed());
        }
        self.puts += count;
        times.sort_unstable();
        let of = |percent: usize| times[(count * percent / 100).min(count - 1)];
        println!("{what}: p50 {:.1?}, p99 {:.1?}, the longest {:.1?}", of(50), of(99), of(100));
    }

    /// Most of the values put last are read, from memory or from the disks that are well. Those of the node
    /// without a disk go a little earlier than others: they need not be written before.
    fn read_newest(&self) {
        let mut read = 0;
        for number in self.puts - 20..self.puts {
            let key = number.to_string();
            match self.runtime.block_on(self.client.get(&key)) {
                Ok(found) => assert!(found == content(&key, Self::VALUE), "{key}"),
                Err(error) => {
                    assert!(matches!(error, GetError::NotFound), "{key}: {error}");
                    continue;
                }
            }
            read += 1;
        }
        println!("{read} of the newest 20 are there");
        assert!(read >= 10, "{read} of the newest 20");
    }

    /// Whether one of the values from this one on is on the disk of the first node.
    fn is_written_since(&self, first: usize) -> bool {
        let at = &self.nodes[0].address;
        (first..self.puts).any(|number| {
            let known = self.runtime.block_on(self.client.describe(&number.to_string()));
            known.is_ok_and(|it| it.local_disks.iter().any(|disk| disk.endpoint.address() == at))
        })
    }
}

#[test]
fn puts_go_on_when_the_disk_of_a_node_hangs() {
    let mut disks = Disks::start();
    disks.put("until memory is full", 120);
    disks.put("well", 200);
    disks.break_one("");
    let begun = Instant::now();
    disks.put("one hangs", 200);
    while begun.elapsed() < UNUSED {
        disks.put("one hangs on", 50);
    }
    disks.put("the master counts on it no more", 200);
    disks.read_newest();
    // Its node need not wait for it.
    let begun = Instant::now();
    assert_eq!(disks.nodes.remove(0).program.end_by(Signal::TERM).code, Some(0));
    println!("the node ended after {:.1?}", begun.elapsed());
    assert!(begun.elapsed() < GOES_ON);
    disks.mend();
}

#[test]
fn puts_go_on_when_the_disk_of_a_node_fails_and_it_is_used_again() {
    let mut disks = Disks::start();
    disks.put("until memory is full", 120);
    for (name, error) in [("EROFS", "30"), ("EIO", "5")] {
        disks.break_one(error);
        disks.put(name, 150);
        disks.read_newest();
        disks.mend();
        let (first, mended) = (disks.puts, Instant::now());
        eventually_blocking(Duration::from_secs(100), "the disk to be used again", || {
            disks.put("mended", 10);
            disks.is_written_since(first)
        });
        println!("used again after {:.1?}", mended.elapsed());
    }
}
