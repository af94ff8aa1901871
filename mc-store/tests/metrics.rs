//! What a client counts, in a real cluster.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use mc_store::{
    ByteSize, Client, ClientOperation, DataPath, ErrorCode, Master, Memory, Put, ReplicateConfig,
    StartError,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_objects_bytes_and_failures_are_counted() {
    let master = Master::builder().start().await.unwrap();
    let client = || Client::builder().master(master.local_addr().to_string());
    let node = client()
        .listen("127.0.0.1:0".parse().unwrap())
        .segment_size(ByteSize::mib(8))
        .connect()
        .await
        .unwrap();
    let app = client().metrics_label("cluster_id", "test").connect().await.unwrap();
    let silent = client().metrics(false).connect().await.unwrap();

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
    let bad = client().metrics_label("0", "x").connect().await.unwrap_err();
    assert!(matches!(bad, StartError::BadLabel { .. }), "{bad}");
}
