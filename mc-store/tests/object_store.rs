//! Every object store passes the suite: in memory, and as a member of a real cluster.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use mc_store::{
    ByteSize, Client, ErrorCode, Master, MemoryStore, ObjectStore, StoreError, conformance,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_in_memory() {
    conformance::run_all(async || Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_a_cluster() {
    let master = Master::builder().seed(7).start().await.unwrap();
    let client = Client::builder()
        .master(master.local_addr().to_string())
        .listen("127.0.0.1:0".parse().unwrap())
        .segment_size(ByteSize::mib(64))
        .connect()
        .await
        .unwrap();
    let store = Arc::new(client);
    conformance::run_all(async || Arc::clone(&store)).await;

    let closed: Arc<dyn ObjectStore> = store.clone();
    store.shutdown().await;
    let error = closed.get("key").await.unwrap_err();
    assert!(matches!(error, StoreError::Closed), "{error}");
    assert_eq!(error.code(), ErrorCode::UnavailableInCurrentStatus);
    master.shutdown().await;
}
