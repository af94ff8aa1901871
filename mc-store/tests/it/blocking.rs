//! The client for callers without a runtime.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use mc_cluster_testkit::{BlockingCluster, Cluster};
use mc_store::{
    ByteSize, CallError, Client, ClientRole, ErrorCode, GetError, GetInto, ListCursor, Memory, Put,
    PutError, PutOutcome, ReplicateConfig, SegmentError, SegmentOptions, blocking,
};

/// A client with a segment, and one without any.
fn pair(cluster: &Cluster) -> (blocking::Client, blocking::Client) {
    let node = cluster.node().segment_name("node").segment_size(ByteSize::mib(16));
    (node.connect_blocking().unwrap(), cluster.client().connect_blocking().unwrap())
}

#[test]
fn calls_return_when_they_are_over() {
    let cluster = BlockingCluster::start(&[]);
    let (node, app) = pair(&cluster);
    let config = ReplicateConfig::default();
    for client in [&node, &app] {
        assert_eq!(client.put("k", "value").unwrap(), PutOutcome::Stored);
        assert_eq!(client.put_with("k", "other", &config).unwrap(), PutOutcome::Existing);
        assert_eq!(client.get("k").unwrap(), "value");
        let memory = Memory::allocate(16).unwrap();
        assert_eq!(client.get_into("k", &memory.whole()).unwrap(), 5);
        client.put_from("from", &memory.whole(), &config).unwrap();
        let puts = vec![Put::new("b", bytes::Bytes::from("batch")), Put::new("k", memory.whole())];
        let outcomes = client.batch_put(puts, &config);
        assert_eq!(*outcomes[1].as_ref().unwrap(), PutOutcome::Existing);
        assert_eq!(client.batch_get(&["b", "k"])[0].as_ref().unwrap(), "batch");
        let into = GetInto::new("b", memory.whole());
        assert_eq!(*client.batch_get_into(vec![into])[0].as_ref().unwrap(), 5);
        let parts = ["par", "ts"].map(bytes::Bytes::from).to_vec();
        client.put_parts("parts", parts, &config).unwrap();
        assert_eq!(client.get_range("parts", 2..4).unwrap(), "rt");
        assert_eq!(client.get_range_into("parts", 3, &memory.whole()).unwrap(), 2);
        client.upsert("parts", "one").unwrap();
        client.upsert_with("parts", "two", &config).unwrap();
        client.upsert_from("parts", &memory.slice(0, 2).unwrap(), &config).unwrap();
        let upserts = vec![Put::new("parts", bytes::Bytes::from("last"))];
        client.batch_upsert(upserts, &config).pop().unwrap().unwrap();
        assert_eq!(client.get("parts").unwrap(), "last");
        client.remove("parts", true).unwrap();
        assert!(client.exist("k").unwrap());
        assert_eq!(client.batch_exist(&["k", "x"]).unwrap(), [true, false]);
        assert_eq!(client.longest_prefix(&["k", "b", "x"]).unwrap(), 2);
        assert_eq!(client.size("from").unwrap(), 16);
        assert_eq!(client.batch_size(&["k"]).unwrap(), [Ok(5)]);
        let found = client.stat("k").unwrap();
        assert_eq!(client.batch_stat(&["k"]).unwrap(), [Ok(found)]);
        assert_eq!(client.get_range_of("k", found.generation, 1..3).unwrap(), "al");
        assert_eq!(client.find("^.$", 10).unwrap().len(), 2);
        let page = client.find_page("^.$", ListCursor::default(), 10).unwrap();
        assert_eq!(page.objects.len(), 2);
        assert_eq!(client.replicas("k").unwrap(), client.describe("k").unwrap().replicas);
        assert_eq!(client.batch_describe(&["k"]).unwrap().len(), 1);
        let refused = client.copy_to("k", &["elsewhere"]).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::SegmentNotFound);
        assert_eq!(client.hosts(&[node.id()]).unwrap()[0].1, ["127.0.0.1".into()]);
        assert!(client.ping().unwrap() > Duration::ZERO);
        assert_eq!(client.cluster_report().unwrap().totals.objects, 3);
        client.remove("b", true).unwrap();
        assert!(client.batch_remove(&["b"], true).unwrap()[0].is_err());
        assert_eq!(client.remove_by_regex("^from$", true).unwrap(), 1);
        assert_eq!(client.remove_all(true).unwrap(), 1);
        assert!(client.metrics().operations.iter().any(|figures| figures.objects > 0));
    }
    assert_eq!((node.role(), app.role()), (ClientRole::Both, ClientRole::PureClient));
    assert_eq!(node.segment_name(), Some("node"));
    assert!(app.endpoint().is_none() && app.segments().is_empty());
}

/// Segments are served while nobody calls.
#[test]
fn a_client_that_listens_serves_between_calls() {
    let cluster = BlockingCluster::start(&[]);
    let app = cluster.client().connect_blocking().unwrap();
    let node = cluster.node().connect_blocking().unwrap();
    let id = node.mount_segment(SegmentOptions::new(ByteSize::mib(4))).unwrap();
    app.put("k", vec![7; 100_000]).unwrap();
    assert_eq!(app.get("k").unwrap(), vec![7; 100_000]);
    node.unmount_segment(id, Duration::ZERO).unwrap();
    assert!(app.get("k").is_err());
}

#[test]
fn many_threads_may_call() {
    let cluster = BlockingCluster::start(&[]);
    let (_node, app) = pair(&cluster);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let app = app.clone();
            scope.spawn(move || {
                for n in 0..50 {
                    let (key, value) = (format!("{thread}/{n}"), format!("value {thread} {n}"));
                    app.put(&key, value.clone()).unwrap();
                    assert_eq!(app.get(&key).unwrap(), value);
                }
            });
        }
    });
    assert_eq!(app.find("/", 1000).unwrap().len(), 400);
}

#[test]
fn a_closed_client_says_so() {
    let cluster = BlockingCluster::start(&[]);
    let (node, app) = pair(&cluster);
    for client in [node, app] {
        let clone = client.clone();
        client.shutdown();
        clone.shutdown();
        drop(client);
        let closed = ErrorCode::UnavailableInCurrentStatus;
        let put = clone.put("k", "v").unwrap_err();
        assert!(matches!(put, PutError::Closed) && put.code() == closed);
        let get = clone.get("k").unwrap_err();
        assert!(matches!(get, GetError::Closed) && get.code() == closed);
        let call = clone.exist("k").unwrap_err();
        assert!(matches!(call, CallError::Closed) && call.code() == closed);
        let mount = clone.mount_segment(SegmentOptions::new(ByteSize::mib(1))).unwrap_err();
        assert!(matches!(mount, SegmentError::Closed), "{mount}");
        assert_eq!(mount.code(), closed);
    }
}

#[test]
fn a_master_that_is_not_there_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let mut rpc = mc_rpc::ClientConfig::default();
    rpc.call_timeout = Duration::from_millis(50);
    let error = Client::builder().master(address).rpc(rpc).connect_blocking().unwrap_err();
    assert!(matches!(error, mc_store::StartError::Master(_)), "{error}");
}

/// In an async task a call would hold up what it waits for. A client may be dropped there.
#[test]
fn calls_in_async_tasks_are_refused() {
    let cluster = BlockingCluster::start(&[]);
    let (node, app) = pair(&cluster);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    for client in [node, app] {
        let task = runtime.spawn(async move {
            let _ = client.exist("k");
        });
        assert!(runtime.block_on(task).unwrap_err().is_panic());
    }
    let client = cluster.client().connect_blocking().unwrap();
    let off_the_tasks = runtime.spawn_blocking(move || {
        client.put("k", "v").unwrap_err();
        client.exist("k").unwrap()
    });
    assert!(!runtime.block_on(off_the_tasks).unwrap());
}

/// Names of the public functions of `Client` in a file of sources.
fn calls_in(path: &Path, found: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            calls_in(&entry.unwrap().path(), found);
        }
        return;
    }
    let text = std::fs::read_to_string(path).unwrap();
    let mut blocks = text.split("\nimpl Client {\n");
    blocks.next();
    for block in blocks {
        let body = block.split("\n}\n").next().unwrap();
        let lines = body.lines().filter_map(|line| {
            line.strip_prefix("    pub async fn ").or(line.strip_prefix("    pub fn "))
        });
        found.extend(lines.map(|line| {
            let end = line.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
            line[..end.unwrap()].to_owned()
        }));
    }
}

#[test]
fn every_call_of_the_async_client_is_here() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut calls = BTreeSet::new();
    calls_in(&sources.join("client"), &mut calls);
    assert!(calls.len() > 40, "{calls:?}");
    // What a blocking client begins with, and what has futures itself.
    for other in ["builder", "master"] {
        assert!(calls.remove(other));
    }
    let blocking = std::fs::read_to_string(sources.join("blocking.rs")).unwrap();
    let missing: Vec<&String> = calls
        .iter()
        .filter(|call| {
            !blocking.contains(&format!("        fn {call}(&self"))
                && !blocking.contains(&format!("        fn {call}(\n"))
        })
        .collect();
    assert!(missing.is_empty(), "no blocking form: {missing:?}");
}
