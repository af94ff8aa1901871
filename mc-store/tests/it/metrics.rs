//! Counters of a client, in a real cluster.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_store::{
    ByteSize, ClientOperation, DataPath, ErrorCode, Memory, NodeConfig, Put, ReplicateConfig,
    StartError,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_objects_bytes_and_failures_are_counted() {
    let cluster = Cluster::start(&[ByteSize::mib(8)]).await;
    let node = &cluster.nodes[0];
    let app = cluster.client().metrics_label("cluster_id", "test").connect().await.unwrap();
    let silent = cluster.client().metrics(false).connect().await.unwrap();

    app.put("a", vec![1; 1000]).await.unwrap();
    app.put("a", vec![1; 1000]).await.unwrap(); // existing: nothing is stored
    let (b, bad) = (Bytes::from(vec![2; 300]), Bytes::from_static(b"bad"));
    let puts = vec![Put::new("b", b), Put::new("", bad)];
    app.batch_put(puts, &ReplicateConfig::default()).await;
    app.get("a").await.unwrap();
    app.get("absent").await.unwrap_err();
    let target = Memory::allocate(300).unwrap();
    app.get_into("b", &target.whole()).await.unwrap();
    assert_eq!(app.batch_exist(&["a", "b", "absent"]).await.unwrap(), [true, true, false]);
    silent.get("a").await.unwrap();
    node.get("a").await.unwrap();

    let counted = app.metrics();
    let of = |operation| {
        let of = counted.operation(operation).unwrap();
        (of.calls(), of.objects, of.bytes, of.failures.clone())
    };
    assert_eq!(of(ClientOperation::Put), (2, 2, 1000, vec![]));
    let bad_key = vec![(ErrorCode::InvalidKey, 1)];
    assert_eq!(of(ClientOperation::BatchPut), (1, 2, 300, bad_key));
    let absent = vec![(ErrorCode::ObjectNotFound, 1)];
    assert_eq!(of(ClientOperation::Get), (2, 2, 1000, absent));
    assert_eq!(of(ClientOperation::GetInto), (1, 1, 300, vec![]));
    assert_eq!(of(ClientOperation::BatchExist), (1, 3, 0, vec![]));
    assert!(counted.operation(ClientOperation::BatchGet).is_none());
    // Over whichever of these ways processes of this host reach each other.
    let paths = [DataPath::SharedMemory, DataPath::Tcp];
    let moved = counted.paths.iter().filter(|of| paths.contains(&of.path));
    let moved = moved.fold((0, 0), |(read, written), of| (read + of.read, written + of.written));
    assert_eq!(moved, (1300, 1300));
    let page = counted.prometheus();
    let line = "mooncake_transfer_read_bytes{cluster_id=\"test\"} 1300";
    assert!(page.lines().any(|found| found == line), "{page}");
    assert!(page.contains("mooncake_client_rpc_count{cluster_id=\"test\",rpc_name="), "{page}");

    let own = node.metrics();
    let path = own.paths.iter().find(|of| of.path == DataPath::OwnMemory).unwrap();
    assert_eq!((path.read, path.written), (1000, 0));
    assert!(silent.metrics().operations.is_empty());
    let bad = cluster.client().metrics_label("0", "x").connect().await.unwrap_err();
    assert!(matches!(bad, StartError::BadLabel { .. }), "{bad}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_answered_with_no_is_a_miss() {
    let cluster = Cluster::start(&[ByteSize::mib(8)]).await;
    let node = &cluster.nodes[0];
    node.put("a", "bytes").await.unwrap();
    assert!(node.exist("a").await.unwrap() && !node.exist("b").await.unwrap());
    node.batch_exist(&["a", "b", "c"]).await.unwrap();
    assert_eq!(node.longest_prefix(&["a", "b", "c"]).await.unwrap(), 1);
    node.get("a").await.unwrap();
    node.get("b").await.unwrap_err();

    let report = node.cluster_report().await.unwrap();
    assert_eq!((report.totals.exist_hits, report.totals.exist_misses), (3, 4));
    assert_eq!((report.totals.get_hits, report.totals.get_misses), (1, 1));
    let counted = node.metrics();
    let lookups = |operation| counted.operation(operation).unwrap().lookups();
    assert_eq!(lookups(ClientOperation::Exist), Some((1, 1)));
    assert_eq!(lookups(ClientOperation::BatchExist), Some((1, 2)));
    assert_eq!(lookups(ClientOperation::LongestPrefix), Some((1, 2)));
    assert_eq!(lookups(ClientOperation::Get), Some((1, 1)));
    assert_eq!(lookups(ClientOperation::Put), None);
    let page = counted.prometheus();
    let line = r#"mooncake_client_lookups_total{op_name="exist",outcome="miss"} 1"#;
    assert!(page.lines().any(|found| found == line), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_waits_for_room_is_refused_once() {
    let cluster = Cluster::start(&[ByteSize::mib(4)]).await;
    let node = &cluster.nodes[0];
    let kept = ReplicateConfig::default().hard_pin();
    node.put_with("kept", vec![1; 3 << 20], &kept).await.unwrap();
    // It waits for a second, which it asks in again and again.
    let refused = node.put("waits", vec![2; 3 << 20]).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Full, "{refused}");
    let report = node.cluster_report().await.unwrap();
    assert_eq!(
        report.totals.put_start_no_room, 1,
        "of {} retries",
        report.totals.put_start_retries
    );
    assert!(report.totals.put_start_retries >= 2, "{}", report.totals.put_start_retries);
    node.upsert("waits", vec![2; 3 << 20]).await.unwrap_err();
    assert_eq!(node.cluster_report().await.unwrap().totals.put_start_no_room, 2);
}

#[tokio::test]
async fn fewer_replicas_than_asked_for_are_counted() {
    let cluster = Cluster::start(&[ByteSize::mib(4)]).await;
    let node = &cluster.nodes[0];
    node.put("one", "v").await.unwrap();
    assert_eq!(node.metrics().reports.few_replicas, 0);
    let three = ReplicateConfig::default().replicas(3);
    node.put_with("three", "v", &three).await.unwrap();
    assert_eq!(node.metrics().reports.few_replicas, 1);
    let page = node.metrics().prometheus();
    assert!(page.contains("\nmooncake_client_few_replicas_total 1\n"), "{page}");
}

#[tokio::test]
async fn puts_that_miss_the_segment_they_prefer_are_counted() {
    let cluster = Cluster::start(&[ByteSize::mib(4)]).await;
    let node = &cluster.nodes[0];
    let there = ReplicateConfig::default().prefer("mistyped").prefer("node-0");
    node.put_with("there", "v", &there).await.unwrap();
    assert_eq!(node.metrics().reports.not_preferred, 0);
    node.put_with("elsewhere", "v", &ReplicateConfig::default().prefer("mistyped")).await.unwrap();
    assert_eq!(node.metrics().reports.not_preferred, 1);
    let page = node.metrics().prometheus();
    assert!(page.contains("\nmooncake_client_not_preferred_total 1\n"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_counts_what_it_serves() {
    let cluster = Cluster::start(&[ByteSize::mib(8)]).await;
    let node = &cluster.nodes[0];
    // Over TCP, as from another host: this one reads shared memory by itself.
    let app = cluster.client().node(NodeConfig::default()).connect().await.unwrap();
    app.put("a", vec![1; 100_000]).await.unwrap();
    app.get("a").await.unwrap();
    app.get("a").await.unwrap();
    let metrics = node.metrics();
    let served = metrics.served;
    assert_eq!((served.writes, served.written_bytes), (1, 100_000));
    // The node's heartbeat reads 64 bytes of its own over the same way now and then.
    let checks = served.reads - 2;
    assert_eq!(served.read_bytes, 200_000 + 64 * checks);
    let page = metrics.prometheus();
    for line in [
        format!(r#"mooncake_client_served_bytes_total{{direction="read"}} {}"#, served.read_bytes),
        r#"mooncake_client_served_bytes_total{direction="write"} 100000"#.to_owned(),
        format!(r#"mooncake_client_served_operations_total{{direction="read"}} {}"#, served.reads),
    ] {
        assert!(page.lines().any(|found| found == line), "no {line} in {page}");
    }
    assert!(metrics.summary().contains("served 195."), "{}", metrics.summary());
    assert_eq!(app.metrics().served.reads, 0);
}
