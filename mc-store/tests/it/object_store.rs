//! Every object store passes the suite: in memory, and as a member of a real cluster.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use mc_cluster_testkit::Cluster;
use mc_store::{ByteSize, ErrorCode, MemoryStore, ObjectStore, StoreError, conformance};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_in_memory() {
    conformance::run_all(async || Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_a_cluster() {
    let cluster = Cluster::start(&[ByteSize::mib(64)]).await;
    let store = Arc::new(cluster.nodes[0].clone());
    conformance::run_all(async || Arc::clone(&store)).await;

    let closed: Arc<dyn ObjectStore> = store.clone();
    store.shutdown().await;
    let error = closed.get("key").await.unwrap_err();
    assert!(matches!(error, StoreError::Closed), "{error}");
    assert_eq!(error.code(), ErrorCode::UnavailableInCurrentStatus);
    cluster.master.shutdown().await;
}
