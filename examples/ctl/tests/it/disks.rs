//! A node whose disk outlasts it, however it ends.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mc_store::{Client, ErrorCode, GetError};
use mc_testkit::{Random, Signal, content, eventually_blocking};
use tokio::runtime::Runtime;

use crate::connections::figure;
use crate::end_to_end::library_client;
use crate::support::{DEADLINE, Master, Node, ctl, page};

/// Longest object.
const MAX_LEN: usize = 300_000;

/// Objects of this many kills are kept, which is less than the disk has room for.
const KEPT_ROUNDS: usize = 5;

fn node(master: &Master, directory: &Path, round: usize) -> Node {
    let path = format!("--ssd_offload_path={}", directory.display());
    let flags = ["--enable_offload", &path, "--ssd_offload_size=256MB"];
    // What the last node's memory held is not there any more: the new one has another name.
    Node::start_with(&master.address, &format!("node-{round}"), 0, "64MB", &flags)
}

/// Puts objects and reads them until it is told to stop.
struct Traffic {
    stop: Arc<AtomicBool>,
    /// The lengths of the objects whose puts were acknowledged.
    put: Arc<Mutex<BTreeMap<String, usize>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Traffic {
    fn start(runtime: &Runtime, client: &Client, round: usize, mut random: Random) -> Self {
        let (stop, put) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let task = {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            let put: Arc<Mutex<BTreeMap<String, usize>>> = Arc::clone(&put);
            runtime.spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (key, len) = (format!("{round}/{number}"), 1 + random.below(MAX_LEN));
                    if client.put(&key, content(&key, len)).await.is_ok() {
                        put.lock().expect("a map").insert(key, len);
                    }
                    let key = format!("{round}/{}", random.below(number + 1));
                    if let Ok(found) = client.get(&key).await {
                        assert!(found == content(&key, found.len()), "{key}");
                    }
                }
            })
        };
        Self { stop, put, task }
    }

    /// Its objects that are on a disk according to the master.
    fn on_disk(&self, runtime: &Runtime, client: &Client) -> BTreeMap<String, usize> {
        let mut objects = self.put.lock().expect("a map").clone();
        objects.retain(|key, _| {
            let known = runtime.block_on(client.describe(key));
            known.is_ok_and(|object| !object.local_disks.is_empty())
        });
        objects
    }

    fn end(self, runtime: &Runtime) {
        self.stop.store(true, Ordering::Relaxed);
        runtime.block_on(self.task).expect("no wrong bytes");
    }
}

/// `MC_DISK_KILLS` is how often the node is killed.
#[test]
fn what_is_on_the_disk_of_a_node_that_is_killed_is_read_from_the_next_one() {
    let kills = std::env::var("MC_DISK_KILLS").map_or(5, |kills| kills.parse().expect("a number"));
    let mut random = Random::seeded("MC_DISK_SEED");
    let directory = tempfile::tempdir().unwrap();
    let master = Master::start(0, &["--enable_offload"]);
    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, &master.address);
    let mut rounds: BTreeMap<usize, BTreeMap<String, usize>> = BTreeMap::new();
    let mut removed: Vec<String> = Vec::new();
    let get = |key: &str| runtime.block_on(client.get(key));
    for round in 0..kills {
        let mut node = node(&master, directory.path(), round);
        for (key, len) in rounds.values().flatten() {
            let found = eventually_blocking(DEADLINE, "the object is back", || get(key).ok());
            assert!(found == content(key, *len), "{key}");
        }
        for key in removed.drain(..) {
            let gone: GetError = get(&key).expect_err("a removed object");
            assert_eq!(gone.code(), ErrorCode::ObjectNotFound, "{key}: {gone}");
        }
        let traffic = Traffic::start(&runtime, &client, round, Random::new(random.next_u64()));
        let enough = 1 + random.below(30);
        let on_disk = eventually_blocking(DEADLINE, "objects on the disk", || {
            let on_disk = traffic.on_disk(&runtime, &client);
            (on_disk.len() >= enough).then_some(on_disk)
        });
        node.program.kill();
        traffic.end(&runtime);
        rounds.insert(round, on_disk);
        // While no node has the disk.
        if let Some(old) = round.checked_sub(KEPT_ROUNDS).and_then(|old| rounds.remove(&old)) {
            for key in old.into_keys() {
                runtime.block_on(client.remove(&key, true)).unwrap();
                removed.push(key);
            }
        }
    }
    let node = node(&master, directory.path(), kills);
    eventually_blocking(DEADLINE, "stat shows the disk", || {
        let stat: serde_json::Value =
            serde_json::from_slice(&ctl(&master.address, &["stat", "--json"]).assert_ok().out)
                .ok()?;
        let disk = stat["disks"].as_array()?.first()?;
        let is_shown = disk["size"].as_u64()? > 200 << 20
            && disk["used"].as_u64()? > 0
            && disk["objects"].as_u64()? > 0
            && disk["endpoint"].as_str()?.ends_with(&node.address)
            && (&disk["size"], &disk["used"]) == (&stat["disk_capacity"], &stat["disk_used"]);
        is_shown.then_some(())
    });
    let shown = ctl(&master.address, &["stat"]).assert_ok();
    let text = shown.text();
    assert!(text.contains("\ndisks ") && text.contains("DISK AT"), "{text}");
    let last = rounds.values().flatten().next_back().expect("an object").0;
    eventually_blocking(DEADLINE, "the object is back", || get(last).ok());
    runtime.block_on(client.remove_all(true)).unwrap();
    eventually_blocking(DEADLINE, "an empty disk", || {
        page(&master.metrics, "/metrics/summary").contains("SSD Storage: 0 B /").then_some(())
    });
    runtime.block_on(client.shutdown());
    for program in [node.program, master.program] {
        assert_eq!(program.end_by(Signal::TERM).code, Some(0));
    }
}

/// With `second_use` an object is written to the disk at its first get, and one without a get
/// never.
#[test]
fn a_disk_has_what_was_used_again_when_the_master_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let master = Master::start(0, &["--enable_offload", "--offload_filter=second_use"]);
    let _node = node(&master, directory.path(), 0);
    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, &master.address);
    eventually_blocking(DEADLINE, "a disk", || {
        let disks = runtime.block_on(client.master().local_disks(None, 0)).ok()?.disks;
        disks.first().is_some_and(|disk| disk.usage.enabled).then_some(())
    });
    for key in ["used", "unused"] {
        runtime.block_on(client.put(key, content(key, 100_000))).unwrap();
    }
    let of = |name: &str| figure(&page(&master.metrics, "/metrics"), name);
    assert_eq!((of("master_offload_filtered_total"), of("master_offload_queued_total")), (2, 0));
    let used = runtime.block_on(client.get("used")).unwrap();
    assert!(used == content("used", 100_000));
    eventually_blocking(DEADLINE, "it is written", || {
        (of("master_offload_written_total") == 1).then_some(())
    });
    let is_in_tier = |key| !runtime.block_on(client.describe(key)).unwrap().local_disks.is_empty();
    assert!(is_in_tier("used") && !is_in_tier("unused"));
    runtime.block_on(client.shutdown());
}
