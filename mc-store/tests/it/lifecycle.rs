//! How clients begin and end: roles, being closed, tasks that end or do not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use mc_cluster_testkit::Cluster;
use mc_meta::{PutEnd, PutStart, SegmentSpec};
use mc_rpc::MasterClient;
use mc_store::{
    ByteSize, CallError, Client, ClientId, ClientRole, ErrorCode, GetError, GetInto, Master,
    Memory, Put, PutError, PutOutcome, ReplicateConfig, SegmentOptions, StartError, TaskId,
    TaskStatus,
};
use mc_types::{Checksum, KeyRef};

use crate::common::segment;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// Every request about objects that `client` can make, and the code that each fails with.
async fn refused_requests(client: &Client) -> Vec<(&'static str, ErrorCode)> {
    let memory = Memory::allocate(4096).unwrap();
    let config = ReplicateConfig::default();
    let call = |error: CallError| error.code();
    let put = |error: PutError| error.code();
    let get = |error: GetError| error.code();
    let gets = vec![GetInto::new("k", memory.whole()); 2];
    vec![
        ("put", put(client.put("k", "v").await.unwrap_err())),
        ("put_with", put(client.put_with("k", "v", &config).await.unwrap_err())),
        ("put_from", put(client.put_from("k", &memory.whole(), &config).await.unwrap_err())),
        (
            "batch_put",
            put(client
                .batch_put(vec![Put::new("k", bytes::Bytes::from("v"))], &config)
                .await
                .remove(0)
                .unwrap_err()),
        ),
        ("put_parts", put(client.put_parts("k", Vec::new(), &config).await.unwrap_err())),
        ("upsert", put(client.upsert("k", "v").await.unwrap_err())),
        ("upsert_with", put(client.upsert_with("k", "v", &config).await.unwrap_err())),
        ("upsert_from", put(client.upsert_from("k", &memory.whole(), &config).await.unwrap_err())),
        (
            "batch_upsert",
            put(client
                .batch_upsert(vec![Put::new("k", bytes::Bytes::from("v"))], &config)
                .await
                .remove(0)
                .unwrap_err()),
        ),
        ("get_range", get(client.get_range("k", 0..1).await.unwrap_err())),
        ("get_range_into", get(client.get_range_into("k", 0, &memory.whole()).await.unwrap_err())),
        ("get", get(client.get("k").await.unwrap_err())),
        ("get_into", get(client.get_into("k", &memory.whole()).await.unwrap_err())),
        ("batch_get", get(client.batch_get(&["k", "l"]).await.remove(1).unwrap_err())),
        ("batch_get_into", get(client.batch_get_into(gets).await.remove(1).unwrap_err())),
        ("exist", call(client.exist("k").await.unwrap_err())),
        ("batch_exist", call(client.batch_exist(&[]).await.unwrap_err())),
        ("longest_prefix", call(client.longest_prefix(&["k"]).await.unwrap_err())),
        ("size", call(client.size("k").await.unwrap_err())),
        ("batch_size", call(client.batch_size(&["k"]).await.unwrap_err())),
        ("find", call(client.find("k", 1).await.unwrap_err())),
        (
            "find_page",
            call(client.find_page("k", mc_store::ListCursor::default(), 1).await.unwrap_err()),
        ),
        ("remove", call(client.remove("k", true).await.unwrap_err())),
        ("batch_remove", call(client.batch_remove(&["k"], true).await.unwrap_err())),
        ("remove_by_regex", call(client.remove_by_regex("k", true).await.unwrap_err())),
        ("remove_all", call(client.remove_all(true).await.unwrap_err())),
        ("describe", call(client.describe("k").await.unwrap_err())),
        ("replicas", call(client.replicas("k").await.unwrap_err())),
        ("batch_describe", call(client.batch_describe(&["k"]).await.unwrap_err())),
        ("clear_replicas", call(client.clear_replicas(&["k"], None).await.unwrap_err())),
        ("copy_to", call(client.copy_to("k", &["s"]).await.unwrap_err())),
        ("move_to", call(client.move_to("k", "s", "t").await.unwrap_err())),
        ("task", call(client.task(TaskId::from_u128(1)).await.unwrap_err())),
        (
            "wait_for_task",
            call(client.wait_for_task(TaskId::from_u128(1), DEADLINE).await.unwrap_err()),
        ),
    ]
}

#[tokio::test]
async fn roles_follow_from_the_two_sizes() {
    let cluster = Cluster::start(&[]).await;
    let some = ByteSize::mib(1);
    let none = ByteSize::bytes(0);
    for (segment, buffer, role) in [
        (none, None, ClientRole::PureClient),
        (none, Some(some), ClientRole::PureClient),
        (some, None, ClientRole::Both),
        (some, Some(some), ClientRole::Both),
        (some, Some(none), ClientRole::PureServer),
    ] {
        let mut builder = cluster.node().segment_size(segment);
        if let Some(size) = buffer {
            builder = builder.local_buffer(size);
        }
        let client = builder.connect().await.unwrap();
        assert_eq!(client.role(), role);
        assert_eq!(client.segments().is_empty(), role == ClientRole::PureClient);
        if role == ClientRole::PureClient {
            client.mount_segment(SegmentOptions::new(some)).await.unwrap();
            assert_eq!(client.role(), ClientRole::Both);
        }
        client.shutdown().await;
    }
    let later = cluster.node().local_buffer(none).connect().await.unwrap();
    assert_eq!(later.role(), ClientRole::PureServer);
    later.mount_segment(SegmentOptions::new(some)).await.unwrap();
    later.shutdown().await;
    let useless = cluster.client().local_buffer(none);
    let useless = useless.connect().await;
    assert!(matches!(useless, Err(StartError::NoRole)));
}

#[tokio::test]
async fn a_pure_server_serves_and_makes_no_requests() {
    let cluster = Cluster::start(&[]).await;
    let server = cluster.node().segment_size(ByteSize::mib(1)).local_buffer(ByteSize::bytes(0));
    let server = server.connect().await.unwrap();
    for (call, code) in refused_requests(&server).await {
        assert_eq!(code, ErrorCode::InvalidParams, "{call}");
    }
    let error = server.get("k").await.unwrap_err();
    assert!(error.to_string().contains("local_buffer_size"), "{error}");
    assert!(!error.is_retryable());
    server.ping().await.unwrap();
    assert_eq!(server.cluster_report().await.unwrap().segments.len(), 1);

    let app = cluster.app().await;
    app.put("k", "value").await.unwrap();
    assert_eq!(app.get("k").await.unwrap(), "value");
    assert_eq!(&*app.replicas("k").await.unwrap()[0].segment_name, server.segment_name().unwrap());
}

#[tokio::test]
async fn a_closed_client_says_so() {
    let cluster = Cluster::start(&[ByteSize::mib(1)]).await;
    let (master, client) = (&cluster.master, &cluster.nodes[0]);
    client.put("k", "value").await.unwrap();
    let clone = client.clone();
    tokio::join!(client.shutdown(), clone.shutdown(), client.shutdown());
    clone.shutdown().await;
    assert!(master.report().segments.is_empty(), "it has left");
    for (call, code) in refused_requests(&clone).await {
        assert_eq!(code, ErrorCode::UnavailableInCurrentStatus, "{call}");
    }
    assert!(matches!(client.put("k", "v").await, Err(PutError::Closed)));
    assert!(matches!(client.get("k").await, Err(GetError::Closed)));
    assert!(matches!(client.ping().await, Err(CallError::Closed)));
    assert!(matches!(client.cluster_report().await, Err(CallError::Closed)));
    assert!(matches!(client.hosts(&[client.id()]).await, Err(CallError::Closed)));
}

/// A shutdown that is given up leaves the client closed, and the next one ends it.
#[tokio::test]
async fn a_shutdown_may_be_abandoned() {
    let cluster = Cluster::start(&[ByteSize::mib(1)]).await;
    let (master, client) = (&cluster.master, &cluster.nodes[0]);
    let abandoned = tokio::time::timeout(Duration::ZERO, client.shutdown()).await;
    assert!(matches!(client.exist("k").await, Err(CallError::Closed)));
    client.shutdown().await;
    // Without an answer to its unmounting the master finds out by the heartbeat.
    assert!(abandoned.is_err() || master.report().segments.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_go_where_they_are_sent() {
    let cluster = Cluster::start(&[ByteSize::mib(1); 3]).await;
    let app = cluster.app().await;
    let at_0 = ReplicateConfig::default().prefer("node-0");
    app.put_with("k", "value", &at_0).await.unwrap();
    let places = async || {
        let replicas = app.replicas("k").await.unwrap();
        let mut names: Vec<_> = replicas.into_iter().map(|it| it.segment_name).collect();
        names.sort();
        names.join(", ")
    };
    assert_eq!(places().await, "node-0");
    let copy = app.copy_to("k", &["node-1"]).await.unwrap();
    let report = app.wait_for_task(copy, DEADLINE).await.unwrap();
    assert_eq!(report.status, TaskStatus::Success, "{}", report.outcome);
    assert_eq!(places().await, "node-0, node-1");
    let moved = app.move_to("k", "node-0", "node-2").await.unwrap();
    let report = app.wait_for_task(moved, DEADLINE).await.unwrap();
    assert_eq!(report.status, TaskStatus::Success, "{}", report.outcome);
    assert_eq!(places().await, "node-1, node-2");
    cluster.nodes[1].shutdown().await;
    assert_eq!(app.get("k").await.unwrap(), "value");
}

/// A segment without bytes, and an object in it, of a client that is only played.
async fn played_node(master: &MasterClient, id: u128, name: &str) -> ClientId {
    let client = ClientId::from_u128(id);
    let spec = SegmentSpec { name: name.into(), ..segment(id, 1 << 20, "tcp://127.0.0.1:9") };
    master.mount_segment(client, &spec).await.unwrap();
    client
}

#[tokio::test]
async fn a_task_is_waited_for_until_it_ends_or_patience_does() {
    let cluster = Cluster::start(&[]).await;
    let app = cluster.app().await;
    let node = played_node(app.master(), 1, "here").await;
    let key = KeyRef::new("k").unwrap();
    let config = ReplicateConfig::default();
    let start = PutStart { key, slice_lengths: &[5], config: &config };
    let grant = app.master().put_start(node, &start).await.unwrap();
    let checksums = &[Checksum::from_crc32c(7)];
    let end = PutEnd { checksums, ..PutEnd::new(key, grant.handle) };
    app.master().put_end(node, &end).await.unwrap();
    played_node(app.master(), 2, "there").await;

    let task = app.copy_to("k", &["there"]).await.unwrap();
    let report = app.wait_for_task(task, Duration::from_millis(20)).await.unwrap();
    assert_eq!((report.status, report.client), (TaskStatus::Pending, node));

    let waits = {
        let app = app.clone();
        tokio::spawn(async move { app.wait_for_task(task, DEADLINE).await })
    };
    let fetched = app.master().fetch_tasks(node, 0).await.unwrap();
    assert_eq!(fetched.tasks[0].id, task);
    let failed = TaskStatus::Failed;
    app.master().mark_task_to_complete(node, task, failed, "only played").await.unwrap();
    let report = waits.await.unwrap().unwrap();
    assert_eq!((report.status, &*report.outcome), (TaskStatus::Failed, "only played"));
    let again = app.task(task).await.unwrap();
    assert_eq!((again.status, again.outcome), (report.status, report.outcome));

    let moved = app.move_to("k", "here", "there").await.unwrap();
    assert_eq!(app.task(moved).await.unwrap().task.key.as_str(), "k");
}

/// Nodes are back a moment after their master; a put does not fail for having come first.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_right_after_the_masters_restart_waits_for_the_nodes() {
    let cluster = Cluster::start(&[]).await;
    let address = cluster.master.local_addr();
    let node = cluster.node().heartbeat_interval(Duration::from_millis(300));
    let node = node.segment_size(ByteSize::mib(1)).connect().await.unwrap();
    let writer = cluster.client().put_wait(DEADLINE).connect().await.unwrap();
    assert_eq!(writer.put("before", "v").await.unwrap(), PutOutcome::Stored);
    cluster.master.shutdown().await;
    let master = Master::builder().listen(address).start().await.unwrap();
    assert_eq!(writer.put("after", "v").await.unwrap(), PutOutcome::Stored);
    assert_eq!(writer.get("after").await.unwrap(), "v");
    // Nobody is to come where everything is excluded.
    let segments = node.segments();
    let config = segments
        .iter()
        .fold(ReplicateConfig::default(), |config, segment| config.exclude(segment.name.clone()));
    let refused = writer.put_with("nowhere", "v", &config).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TooFewSegments);
    node.shutdown().await;
    master.shutdown().await;
}
