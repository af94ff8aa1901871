//! A master and storage nodes as real processes: objects go in, come out, and
//! survive what they should; nothing else is ever read.

use mc_testkit::{Signal, content, eventually_blocking};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{self, DEADLINE, Master, Node, ctl, ctl_with_input, free_port, start};
use mc_rpc::ClientConfig;
use mc_store::{
    Client, ClientBuilder, ErrorCode, GetError, NodeConfig, PutOutcome, ReplicateConfig,
};
use serde_json::Value;
use tokio::runtime::Runtime;

/// An answer about a dead node must come before it looks like a hang.
const PROMPT: Duration = Duration::from_secs(10);
/// The most time that a signal may take to end a program.
const END: Duration = Duration::from_secs(3);

/// A pure client of the cluster, as an inference process would embed it.
pub(crate) fn library_client(runtime: &Runtime, master: &str) -> Client {
    start_client(runtime, client_builder(master))
}

/// A client that reaches every node as one of another host would: over TCP.
fn distant_client(runtime: &Runtime, master: &str) -> Client {
    start_client(runtime, client_builder(master).node(NodeConfig::default()))
}

fn client_builder(master: &str) -> ClientBuilder {
    let mut rpc = ClientConfig::default();
    rpc.call_timeout = Duration::from_secs(3);
    Client::builder().master(master).rpc(rpc)
}

fn start_client(runtime: &Runtime, builder: ClientBuilder) -> Client {
    runtime.block_on(builder.connect()).expect("a running master")
}

/// Returns the output of `mc-ctl stat --json` about the cluster or one key.
fn stat(master: &str, key: Option<&str>) -> Value {
    let args: Vec<&str> = ["stat", "--json"].into_iter().chain(key).collect();
    serde_json::from_slice(&ctl(master, &args).assert_ok().out).expect("JSON")
}

/// The field `name` of each of `items`, sorted.
fn names(items: &Value, name: &str) -> Vec<String> {
    let items = items.as_array().into_iter().flatten();
    let mut names: Vec<String> =
        items.filter_map(|item| item[name].as_str()).map(str::to_owned).collect();
    names.sort();
    names
}

pub(crate) fn segment_names(master: &str) -> Vec<String> {
    names(&stat(master, None)["segments"], "name")
}

/// Names of the segments that hold a readable replica of `key`.
fn holders(master: &str, key: &str) -> Vec<String> {
    let mut object = stat(master, Some(key));
    // The master drops replicas of dead segments when it gets to them.
    let replicas = object["replicas"].as_array_mut().expect("a list");
    replicas.retain(|replica| replica["status"] == "complete");
    names(&object["replicas"], "segment")
}

/// Reads all keys over and over until it is dropped. Reads may fail; what they
/// return must be right.
struct Readers {
    stop: Arc<AtomicBool>,
    right: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Readers {
    fn start(runtime: &Runtime, client: &Client, objects: &Objects) -> Self {
        let (stop, right) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..2).map(|_| {
            let (client, objects) = (client.clone(), objects.clone());
            let (stop, right) = (Arc::clone(&stop), Arc::clone(&right));
            runtime.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    for (key, value) in &objects {
                        if let Ok(read) = client.get(key).await {
                            assert!(read == value, "wrong bytes for {key}");
                            right.fetch_add(1, Ordering::Relaxed);
                        }
                        tokio::task::yield_now().await;
                    }
                }
            })
        });
        Self { tasks: tasks.collect(), stop, right }
    }

    fn finish(self, runtime: &Runtime) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            runtime.block_on(task).expect("no wrong bytes");
        }
        assert!(self.right.load(Ordering::Relaxed) > 0, "nothing was ever read");
    }
}

/// One page of the metrics port.
fn page(master: &Master, path: &str) -> String {
    support::page(&master.metrics, path)
}

#[test]
fn the_programs_announce_themselves_and_the_master_shows_its_figures() {
    let master = Master::start(0, &["--max-threads=2"]);
    let at = &*master.address;
    let node = Node::start(at, "a\"b", 0, "16MB");
    ctl(at, &["put", "k", "12345"]).assert_ok();
    ctl(at, &["get", "k"]).assert_ok();
    ctl(at, &["get", "other"]).assert_refused(1, "no such object");
    assert_eq!(ctl(at, &["exist", "k", "other"]).code, Some(1));
    let figures = page(&master, "/metrics");
    for sample in [
        "master_key_count 1",
        "master_allocated_bytes 5",
        "master_total_capacity_bytes 16777216",
        "master_active_clients 1",
        "segment_allocated_bytes{segment=\"a\\\"b\"} 5",
        "segment_total_capacity_bytes{segment=\"a\\\"b\"} 16777216",
        "total_get_nums_ 2",
        "valid_get_nums_ 1",
        "master_exist_key_items_total 2",
        "master_exist_key_hits_total 1",
        "master_exist_key_misses_total 1",
    ] {
        assert!(figures.lines().any(|line| line == sample), "no {sample} in {figures}");
    }
    let summary = page(&master, "/metrics/summary");
    assert!(
        summary
            .starts_with("Mem Storage: 5 B / 16.00 MB (0.0%) | SSD Storage: 0 B / 0 B | Keys: 1 "),
        "{summary}"
    );
    let health: Value = serde_json::from_str(&page(&master, "/health")).unwrap();
    assert_eq!((&health["status"], &health["service_ready"]), (&"ok".into(), &true.into()));

    let node_at = node.address.clone();
    let dummies_at = node.dummies.clone();
    let ready = node.program.end_by(Signal::TERM);
    let expected = format!(
        "Mooncake client ready: segment a\\\"b, 16.00 MB at tcp://{node_at}, \
         thin clients at {dummies_at}, master {at}\n"
    );
    assert_eq!(ready.text(), expected);
    let (at, port) = (at.to_owned(), master.port());
    let banner = master.program.end_by(Signal::INT);
    let expected = format!(
        "Starting Mooncake Master Service\nPort: {port}\nMax threads: 2\n\
         Master service listening on {at}\n"
    );
    assert_eq!((banner.code, banner.text()), (Some(0), &*expected));
    assert!(!banner.err.contains("WARN"), "{}", banner.err);
}

#[test]
fn without_addresses_everybody_may_connect_and_the_log_says_so() {
    let flags = ["--rpc_port=0", "--metrics_port=0"];
    let master = start("mc-master", &flags);
    let port = master.wait_out(|line| line.strip_prefix("Port: ").map(str::to_owned));
    let at = format!("127.0.0.1:{port}");
    let node = start(
        "mc-node",
        &["--port=0", "--global_segment_size=1MB", &format!("--master_server_address={at}")],
    );
    // The address that reaches the master is the one to tell.
    node.wait_out(|line| line.contains(" at tcp://127.0.0.1:").then_some(()));
    ctl(&at, &["put", "k", "v"]).assert_ok();
    assert_eq!(ctl(&at, &["get", "k"]).assert_ok().out, b"v");
    assert_eq!(node.end_by(Signal::TERM).code, Some(0));
    let ended = master.end_by(Signal::TERM);
    assert_eq!(ended.code, Some(0));
    let warnings: Vec<&str> = ended.err.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("without credentials"), "{warnings:?}");
}

/// Keys with their values. A key says by which way it is put and where to.
type Objects = BTreeMap<String, Vec<u8>>;

/// Puts objects by the program and by the library, near a, near b and on both.
fn put_everywhere(at: &str, runtime: &Runtime, client: &Client) -> Objects {
    let mut objects = Objects::new();
    for (key, len) in [
        ("ctl/a", 300_001),
        ("ctl/b", 1),
        ("ctl/both", 5 << 20),
        ("lib/a", 70_000),
        ("lib/b", 4096),
        ("lib/both", 1_000_000),
    ] {
        let value = content(key, len);
        let (way, place) = key.split_once('/').expect("WAY/PLACE");
        let (replicas, near) = if place == "both" { (2, "a") } else { (1, place) };
        if way == "ctl" {
            let near = format!("--preferred_segment={near}");
            let replicas = format!("--replica-num={replicas}");
            let put = ctl_with_input(at, &["put", key, &near, &replicas], &value).assert_ok();
            assert!(put.text().starts_with(&format!("stored {key} (")), "{}", put.text());
        } else {
            let config = ReplicateConfig::default().replicas(replicas).prefer(near);
            let put = runtime.block_on(client.put_with(key, value.clone(), &config));
            assert_eq!(put.expect("room"), PutOutcome::Stored);
        }
        let expected: &[&str] = if place == "both" { &["a", "b"] } else { &[near] };
        assert_eq!(holders(at, key), expected, "{key}");
        objects.insert(key.to_owned(), value);
    }
    let put = ctl(at, &["put", "everywhere", "v", "--replica_num=9"]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    assert!(put.err.contains("warning: everywhere has fewer than 9 replicas"), "{}", put.err);
    ctl(at, &["remove", "everywhere"]).assert_ok();
    objects
}

fn assert_all_read_and_listed(at: &str, runtime: &Runtime, client: &Client, objects: &Objects) {
    for (key, value) in objects {
        assert!(ctl(at, &["get", key]).assert_ok().out == *value, "ctl got wrong bytes for {key}");
        let read = runtime.block_on(client.get(key)).expect("it is there");
        assert!(read == value, "the library got wrong bytes for {key}");
    }
    let keys: Vec<&str> = objects.keys().map(String::as_str).collect();
    assert_eq!(ctl(at, &[&["exist"], &*keys].concat()).code, Some(0));
    let listed = ctl(at, &["ls", "--json"]).assert_ok();
    let listed: Vec<Value> =
        listed.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let expected: Vec<Value> = objects
        .iter()
        .map(|(key, value)| {
            let replicas = if key.ends_with("both") { 2 } else { 1 };
            serde_json::json!({ "key": key, "bytes": value.len(), "replicas": replicas })
        })
        .collect();
    assert_eq!(listed, expected);
}

/// A moment after node a was killed: the master does not know yet.
fn assert_survivors_read(at: &str, runtime: &Runtime, client: &Client, objects: &Objects) {
    for (key, value) in objects {
        let asked = Instant::now();
        let by_ctl = ctl(at, &["get", key]);
        let by_library = runtime.block_on(client.get(key));
        assert!(asked.elapsed() < 2 * PROMPT, "{key} took {:?}", asked.elapsed());
        if key.ends_with("/a") {
            by_ctl.assert_refused(1, key);
            let error = by_library.expect_err("its only replica is dead");
            assert!(
                matches!(error, GetError::Peer(_) | GetError::NotFound | GetError::LeaseExpired),
                "{error:?}"
            );
        } else {
            assert!(by_ctl.assert_ok().out == *value, "wrong bytes for {key}");
            assert!(by_library.expect("a replica survives") == value, "wrong bytes for {key}");
        }
    }
}

#[test]
fn objects_survive_what_their_replicas_survive() {
    // The master does not wait for the dead node to come back.
    let master = Master::start(0, &["--client_ttl=2", "--client_return_timeout=0"]);
    let at = &*master.address;
    let mut a = Node::start(at, "a", 0, "64MB");
    let b = Node::start(at, "b", 0, "64MB");
    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, at);

    let mut objects = put_everywhere(at, &runtime, &client);
    let again = ctl(at, &["put", "ctl/b", "something else"]).assert_ok();
    assert!(again.text().contains("value unchanged"), "{}", again.text());
    assert_all_read_and_listed(at, &runtime, &client, &objects);
    let listed = ctl(at, &["ls", "ctl/", "--limit=2"]).assert_ok();
    assert!(listed.text().ends_with("3 keys, 5.28 MB, the first 2 shown\n"), "{}", listed.text());
    let report = stat(at, None);
    let shown = ctl(at, &["stat", "--totals"]).assert_ok();
    for total in mc_meta::Totals::METRICS {
        let row = shown.text().lines().find(|row| row.starts_with(&format!("{} ", total.name)));
        assert!(row.is_some_and(|row| row.ends_with(total.help)), "{}", total.name);
        assert!(total.name == "processing" || report[total.name].is_u64(), "{}", total.name);
    }
    ctl(at, &["stat", "--totals", "k"]).assert_refused(2, "--totals");
    assert_eq!((&report["objects"], &report["clients"]), (&6.into(), &2.into()));

    // One node dies while all is being read.
    let readers = Readers::start(&runtime, &client, &objects);
    let port_of_a = a.port();
    a.program.kill();
    assert_survivors_read(at, &runtime, &client, &objects);

    // The master notices, and says from then on that the objects are gone.
    eventually_blocking(DEADLINE, "only b is left", || (segment_names(at) == ["b"]).then_some(()));
    for key in ["ctl/a", "lib/a"] {
        assert_eq!(ctl(at, &["exist", key]).code, Some(1));
        ctl(at, &["get", key]).assert_refused(1, "no such object");
        let error = runtime.block_on(client.get(key)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::ObjectNotFound, "{error:?}");
    }
    assert_eq!(holders(at, "ctl/both"), ["b"]);
    assert_eq!(stat(at, None)["expired_clients"], 1);

    // The node comes back with the same name and address, empty, and serves.
    let a = Node::start(at, "a", port_of_a, "64MB");
    assert_eq!(segment_names(at), ["a", "b"]);
    for key in ["ctl/a", "lib/a"] {
        objects.remove(key);
        let key = format!("{key}/again");
        let value = content(&key, 10_000);
        ctl_with_input(at, &["put", &key, "--preferred_segment=a"], &value).assert_ok();
        assert_eq!(holders(at, &key), ["a"]);
        objects.insert(key, value);
    }
    readers.finish(&runtime);
    for (key, value) in &objects {
        assert!(ctl(at, &["get", key]).assert_ok().out == *value, "wrong bytes for {key}");
        assert!(runtime.block_on(client.get(key)).unwrap() == value, "wrong bytes for {key}");
    }
    runtime.block_on(client.shutdown());
    assert_all_leave(master, a, b);
}

/// The nodes leave one after the other, then the master ends; each promptly.
fn assert_all_leave(master: Master, a: Node, b: Node) {
    let at = &*master.address;
    for (node, left, signal) in [(a, &["b"][..], Signal::TERM), (b, &[], Signal::INT)] {
        let asked = Instant::now();
        assert_eq!(node.program.end_by(signal).code, Some(0));
        assert!(asked.elapsed() < END, "{:?}", asked.elapsed());
        assert_eq!(segment_names(at), left);
    }
    assert_eq!(stat(at, None)["expired_clients"], 1, "who leaves properly does not expire");
    let asked = Instant::now();
    let ended = master.program.end_by(Signal::TERM);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(asked.elapsed() < END, "{:?}", asked.elapsed());
    for said in ["segment mounted", "segment removed", "client timed out"] {
        assert!(ended.err.contains(said), "{said:?} is not in {}", ended.err);
    }
}

#[test]
fn a_master_that_comes_back_gets_its_nodes_back() {
    let mut master = Master::start(free_port(), &[]);
    let (at, port) = (master.address.clone(), master.port());
    let a = Node::start(&at, "a", 0, "64MB");
    let b = Node::start(&at, "b", 0, "64MB");
    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, &at);
    let value = content("before", 200_000);
    let both = ReplicateConfig::default().replicas(2);
    runtime.block_on(client.put_with("before", value.clone(), &both)).unwrap();
    assert!(runtime.block_on(client.get("before")).unwrap() == value);

    master.program.kill();
    let asked = Instant::now();
    let error = runtime.block_on(client.put("during", value.clone())).unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert!(matches!(error.code(), ErrorCode::RpcFail | ErrorCode::RpcTimeout), "{error:?}");
    runtime.block_on(client.get("before")).expect_err("nobody knows where it is");
    assert!(asked.elapsed() < PROMPT, "{:?}", asked.elapsed());
    ctl(&at, &["get", "before"]).assert_refused(1, &at);
    for node in [&a, &b] {
        node.program.wait_err(|line| line.contains("heartbeat failed").then_some(()));
    }

    let mut master = Master::start(port, &[]);
    eventually_blocking(DEADLINE, "both nodes are back", || {
        (segment_names(&at) == ["a", "b"]).then_some(())
    });
    // Metadata was in memory only. Gone is right, wrong would not be.
    let error = runtime.block_on(client.get("before")).unwrap_err();
    assert_eq!(error.code(), ErrorCode::ObjectNotFound, "{error:?}");
    for name in ["a", "b"] {
        let (key, value) = (format!("after/{name}"), content(name, 300_000));
        let near = ReplicateConfig::default().prefer(name);
        let put = client.put_with(&key, value.clone(), &near);
        assert_eq!(runtime.block_on(put).unwrap(), PutOutcome::Stored);
        assert_eq!(holders(&at, &key), [name]);
        assert!(runtime.block_on(client.get(&key)).unwrap() == value);
        assert!(ctl(&at, &["get", &key]).assert_ok().out == value);
    }
    runtime.block_on(client.shutdown());

    // A node ends well, too, when its master is gone.
    master.program.kill();
    for node in [a, b] {
        let asked = Instant::now();
        assert_eq!(node.program.end_by(Signal::TERM).code, Some(0));
        assert!(asked.elapsed() < END, "{:?}", asked.elapsed());
    }
}

/// Until the master notices, a dead node still looks like room.
#[test]
fn puts_go_where_nodes_live() {
    let master = Master::start(0, &["--client_ttl=1h"]);
    let at = &*master.address;
    let mut a = Node::start(at, "a", 0, "16MB");
    let mut b = Node::start(at, "b", 0, "16MB");
    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, at);
    a.program.kill();
    let on_a = ReplicateConfig::default().prefer("a");
    for n in 0..20 {
        let (key, value) = (format!("key/{n}"), content(&format!("key/{n}"), 4096));
        runtime.block_on(client.put_with(&key, value.clone(), &on_a)).unwrap();
        assert!(runtime.block_on(client.get(&key)).unwrap() == value, "wrong bytes for {key}");
    }
    b.program.kill();
    let asked = Instant::now();
    let error = runtime.block_on(client.put("nowhere", "value")).unwrap_err();
    assert!(matches!(error, mc_store::PutError::Peer(_)), "{error}");
    assert!(asked.elapsed() < PROMPT, "{:?}", asked.elapsed());
    runtime.block_on(client.shutdown());
}

/// Worse than dead: its connections stay open and nothing comes.
#[test]
fn a_frozen_node_delays_and_never_corrupts() {
    // Longer than the test: the master does not notice, readers have to.
    let master = Master::start(0, &["--client_ttl=1h"]);
    let at = &*master.address;
    let a = Node::start(at, "a", 0, "16MB");
    let _b = Node::start(at, "b", 0, "16MB");
    let runtime = Runtime::new().unwrap();
    let client = distant_client(&runtime, at);
    let near = library_client(&runtime, at);
    let keys: Vec<String> = (0..8).map(|n| format!("both/{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let both = ReplicateConfig::default().replicas(2);
    for key in &keys {
        runtime.block_on(client.put_with(key, content(key, 4096), &both)).unwrap();
    }
    ctl(at, &["put", "alone", "value", "--preferred_segment=a"]).assert_ok();
    assert_eq!(runtime.block_on(near.get("alone")).unwrap(), "value");

    a.program.freeze();
    // Who shares its memory needs nothing of it.
    assert_eq!(runtime.block_on(near.get("alone")).unwrap(), "value");
    let asked = Instant::now();
    for (key, read) in keys.iter().zip(runtime.block_on(client.batch_get(&keys))) {
        assert!(read.unwrap() == content(key, 4096), "wrong bytes for {key}");
    }
    runtime.block_on(client.get("alone")).expect_err("its only replica is frozen");
    assert!(asked.elapsed() < 3 * PROMPT, "{:?}", asked.elapsed());

    a.program.resume();
    eventually_blocking(DEADLINE, "a serves again", || {
        runtime.block_on(client.get("alone")).ok().filter(|read| read == "value")
    });
    runtime.block_on(client.shutdown());
    runtime.block_on(near.shutdown());
}

/// Frozen for so long that the master stops counting on it, then going on as if nothing
/// had been.
#[test]
fn a_node_that_was_away_serves_again_what_it_holds() {
    let master = Master::start(0, &["--client_ttl=1", "--client_return_timeout=1h"]);
    let at = &*master.address;
    let a = Node::start(at, "a", 0, "16MB");
    let b = Node::start(at, "b", 0, "16MB");
    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, at);
    let mut objects = Objects::new();
    for (key, place) in [("on/a/1", "a"), ("on/a/2", "a"), ("on/b", "b")] {
        let value = content(key, 100_000);
        let near = ReplicateConfig::default().prefer(place);
        let put = runtime.block_on(client.put_with(key, value.clone(), &near));
        assert_eq!(put.expect("room"), PutOutcome::Stored);
        objects.insert(key.to_owned(), value);
    }

    a.program.freeze();
    master.program.wait_err(|line| line.contains("segment suspended").then_some(()));
    let error = runtime.block_on(client.get("on/a/1")).expect_err("its holder is away");
    assert_eq!(error.code(), ErrorCode::ReplicaIsNotReady, "{error:?}");
    assert!(error.is_retryable());
    assert!(runtime.block_on(client.get("on/b")).unwrap() == objects["on/b"]);
    assert_eq!(stat(at, Some("on/a/1"))["replicas"][0]["status"], "node away");
    // What is put meanwhile goes where nodes live, even when it wants to be there.
    let near_a = ReplicateConfig::default().prefer("a");
    runtime.block_on(client.put_with("meanwhile", "value", &near_a)).unwrap();
    assert_eq!(holders(at, "meanwhile"), ["b"]);

    a.program.resume();
    for (key, value) in &objects {
        let read = eventually_blocking(DEADLINE, "a serves again", || {
            runtime.block_on(client.get(key)).ok()
        });
        assert!(read == *value, "wrong bytes for {key}");
        assert!(ctl(at, &["get", key]).assert_ok().out == *value, "wrong bytes for {key}");
    }
    master.program.wait_err(|line| line.contains("segment mounted again").then_some(()));
    runtime.block_on(client.put_with("afterwards", "value", &near_a)).unwrap();
    assert_eq!(holders(at, "afterwards"), ["a"]);
    runtime.block_on(client.shutdown());
    for node in [a, b] {
        assert_eq!(node.program.end_by(Signal::TERM).code, Some(0));
    }
    assert!(segment_names(at).is_empty());
}

/// The node comes back in time, so the end of that time changes nothing.
#[test]
fn what_a_node_brought_back_is_served_for_good() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let master = Master::start(0, &["--client_ttl=1", "--client_return_timeout=2"]);
    let at = &*master.address;
    let node = Node::start(at, "a", 0, "16MB");
    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, at);
    let value = content("value", 100_000);
    let put = runtime.block_on(client.put("key", value.clone()));
    assert_eq!(put.expect("room"), PutOutcome::Stored);

    node.program.freeze();
    master.program.wait_err(|line| line.contains("segment suspended").then_some(()));
    // What the master scheduled when it suspended the segment is due before this.
    let due = Instant::now() + PATIENCE + Duration::from_millis(500);
    node.program.resume();
    master.program.wait_err(|line| line.contains("segment mounted again").then_some(()));
    while Instant::now() < due {
        match runtime.block_on(client.get("key")) {
            Ok(read) => assert!(read == value, "wrong bytes"),
            // On a busy machine the node may be silent for too long once more.
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    let read = eventually_blocking(DEADLINE, "the node serves", || {
        runtime.block_on(client.get("key")).ok()
    });
    assert!(read == value, "wrong bytes");
    assert_eq!(segment_names(at), ["a"]);
    runtime.block_on(client.shutdown());
}

#[test]
fn removed_objects_are_gone_and_leased_ones_are_kept() {
    let master = Master::start(0, &["--default_kv_lease_ttl=1h"]);
    let at = &*master.address;
    let _node = Node::start(at, "a", 0, "16MB");
    for key in ["one", "two", "three", "four"] {
        ctl(at, &["put", key, key]).assert_ok();
    }
    let removed = ctl(at, &["remove", "one"]).assert_ok();
    assert_eq!(removed.text(), "removed one\n");
    ctl(at, &["get", "one"]).assert_refused(1, "no such object");
    ctl(at, &["remove", "one"]).assert_refused(1, "no such object");
    ctl(at, &["get", "two"]).assert_ok();
    ctl(at, &["remove", "two"]).assert_refused(1, "under lease");
    assert_eq!(
        ctl(at, &["remove-all"]).assert_ok().text(),
        "removed 2 objects\nleft 1: 1 under lease (--force removes them, too)\n"
    );
    let exist = ctl(at, &["exist", "two", "three"]);
    assert_eq!((exist.code, exist.text()), (Some(1), "yes  two\nno   three\n"));
    ctl(at, &["remove", "--force", "two"]).assert_ok();
    assert_eq!(stat(at, None)["objects"], 0);
    // The client that got it has said that it is done.
    eventually_blocking(DEADLINE, "its space is free", || {
        (stat(at, None)["used"] == 0).then_some(())
    });
}

#[test]
fn files_go_in_and_come_out() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let _node = Node::start(at, "a", 0, "16MB");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let value = content("file", 3_000_001);
    std::fs::write(path("in"), &value).unwrap();
    ctl(at, &["put", "k", "--with_soft_pin", "--file", &path("in")]).assert_ok();
    ctl(at, &["get", "k", "--output", &path("out")]).assert_ok();
    assert!(std::fs::read(path("out")).unwrap() == value);
    // A get that fails leaves the file as it was.
    ctl(at, &["get", "other", "--output", &path("out")]).assert_refused(1, "no such object");
    assert!(std::fs::read(path("out")).unwrap() == value);
    let shown = ctl(at, &["stat", "k"]).assert_ok();
    for fact in ["size     2.86 MB", "pinned   softly", "tcp://127.0.0.1:", "CHECKSUM"] {
        assert!(shown.text().contains(fact), "{fact:?} is not in {}", shown.text());
    }
}

/// Returns the state of a segment in the table of segments.
fn shown_state(shown: &str, name: &str) -> String {
    let row = shown.lines().find(|line| line.split_whitespace().next() == Some(name));
    let row = row.unwrap_or_else(|| panic!("no {name} in {shown}"));
    row.split_whitespace().nth(1).expect("a state").to_owned()
}

/// Segments that take no new objects are told apart, and are no capacity.
#[test]
fn the_state_of_each_segment_is_shown_and_only_usable_ones_are_capacity() {
    // Long enough for a node of a busy machine.
    let master = Master::start(0, &["--client_ttl=4", "--client_return_timeout=1h"]);
    let at = &*master.address;
    let _a = Node::start(at, "a", 0, "16MB");
    let _b = Node::start(at, "b", 0, "16MB");
    let c = Node::start(at, "c", 0, "32MB");
    let shown = ctl(at, &["stat"]).assert_ok();
    assert!(shown.text().contains("0 B of 64.00 MB used"), "{}", shown.text());
    assert!(!shown.text().contains("beside"), "{}", shown.text());
    assert_eq!(shown_state(shown.text(), "b"), "ok");

    let runtime = Runtime::new().unwrap();
    let client = library_client(&runtime, at);
    runtime.block_on(client.master().create_drain_job(&["b"], &[], 1)).expect("b is there");
    c.program.freeze();
    master.program.wait_err(|line| line.contains("segment suspended").then_some(()));
    let shown = eventually_blocking(DEADLINE, "b is drained", || {
        let shown = ctl(at, &["stat"]).assert_ok();
        (shown_state(shown.text(), "b") == "drained").then_some(shown)
    });
    let text = shown.text();
    assert_eq!((&*shown_state(text, "a"), &*shown_state(text, "c")), ("ok", "away"), "{text}");
    assert!(text.contains("memory   0 B of 16.00 MB used\n"), "{text}");
    let beside = "beside   0 B of 48.00 MB used, in 2 segments that take no new objects\n";
    assert!(text.contains(beside), "{text}");
    let json = stat(at, None);
    assert_eq!(
        (&json["capacity"], &json["unusable_capacity"]),
        (&(16 << 20).into(), &(48 << 20).into())
    );
    assert_eq!(names(&json["segments"], "state"), ["away", "drained", "ok"]);
    let figures = page(&master, "/metrics");
    for sample in [
        "master_total_capacity_bytes 16777216",
        "master_unusable_capacity_bytes 50331648",
        "segment_status{segment=\"b\",status=\"drained\"} 1",
        "segment_suspect{segment=\"a\"} 0",
    ] {
        assert!(figures.lines().any(|line| line == sample), "no {sample} in {figures}");
    }
    let summary = page(&master, "/metrics/summary");
    assert!(summary.contains("Segments: 3 (suspended: 1, drained: 1)"), "{summary}");
    c.program.resume();
    runtime.block_on(client.shutdown());
}

#[test]
fn a_node_waits_for_a_master_that_is_not_up_yet() {
    let mut gone = Master::start(free_port(), &[]);
    let (address, port) = (gone.address.clone(), gone.port());
    gone.program.kill();
    let flags = ["--host=127.0.0.1", "--port=0", "--global_segment_size=1MB"];
    let at = format!("--master={address}");
    let node = start("mc-node", &[&flags[..], &[&*at]].concat());
    node.wait_err(|line| line.contains("waiting for the master").then_some(()));
    let _master = Master::start(port, &[]);
    node.wait_out(|line| line.starts_with("Mooncake client ready").then_some(()));
    ctl(&address, &["put", "k", "v"]).assert_ok();

    let other = start("mc-node", &[&flags[..], &["--master=127.0.0.1:1"]].concat());
    other.wait_err(|line| line.contains("waiting for the master").then_some(()));
    assert_eq!(other.end_by(Signal::TERM).code, Some(0), "it ends while it waits");
}

#[test]
fn a_node_that_drains_loses_nothing() {
    let master = Master::start(0, &["--default_kv_lease_ttl=200"]);
    let at = &*master.address;
    let flags = ["--host=127.0.0.1", "--port=0", "--global_segment_size=16MB"];
    let named = format!("--master_server_address={at}");
    let leaver = ["--segment_name=leaver", "--drain_timeout=20s", &*named];
    let leaver = start("mc-node", &[&flags[..], &leaver].concat());
    leaver.wait_out(|line| line.starts_with("Mooncake client ready").then_some(()));
    for n in 0..20 {
        ctl(at, &["put", &format!("k{n}"), &format!("v{n}")]).assert_ok();
    }
    let _stays = Node::start(at, "stays", 0, "16MB");
    let ended = leaver.end_by(Signal::TERM);
    assert_eq!(ended.code, Some(0));
    assert!(ended.err.contains("moved what the memory held"), "{}", ended.err);
    for n in 0..20 {
        let value = ctl(at, &["get", &format!("k{n}")]).assert_ok().out;
        assert_eq!(value, format!("v{n}").into_bytes());
    }
}
