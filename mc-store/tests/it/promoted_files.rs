//! Objects in files of the shared tier that are read often come back into memory, also where no client has a
//! disk of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_meta::{PromotionConfig, SharedTierConfig};
use mc_store::{ByteSize, Client, Master, MasterConfig, StorageSettings};
use mc_testkit::eventually_async;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);
const LEN: usize = 1 << 18;

fn content(key: &str) -> Bytes {
    mc_testkit::content(key, LEN).into()
}

/// A cluster whose clients keep files, which come back into memory when they are read twice.
async fn start(root: &Path) -> Cluster {
    let settings = StorageSettings::in_directory(root.to_str().unwrap()).cluster_id("cluster");
    let mut config = MasterConfig::default();
    let mut promotion = PromotionConfig::default();
    promotion.queue_limit = 8;
    config.promotion = Some(promotion);
    config.shared_tier = Some(SharedTierConfig::default());
    Cluster::of(Master::builder().config(config).storage(settings), &[]).await
}

async fn node(cluster: &Cluster, name: &str) -> Client {
    cluster.node().segment_name(name).segment_size(ByteSize::mib(16)).connect().await.unwrap()
}

/// Puts objects, and takes the memory away that they are in.
async fn put_in_files_alone(cluster: &Cluster, keys: &[String]) {
    let node = node(cluster, "first").await;
    for key in keys {
        node.put(key, content(key)).await.unwrap();
    }
    assert!(node.flush_files(DEADLINE).await, "files are written in time");
    node.shutdown().await;
}

/// Reads the objects until all are in memory.
async fn read_until_all_are_in_memory(app: &Client, keys: &[String]) {
    let in_memory = async || {
        let mut all = true;
        for key in keys {
            assert_eq!(app.get(key).await.unwrap(), content(key), "{key}");
            all &= !app.describe(key).await.unwrap().replicas.is_empty();
        }
        all
    };
    eventually_async(DEADLINE, "all objects to be in memory again", in_memory).await;
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("k{n}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_read_often_comes_back_into_memory_of_a_client_without_a_disk() {
    let root = tempfile::tempdir().unwrap();
    let cluster = start(root.path()).await;
    let keys = keys(4);
    put_in_files_alone(&cluster, &keys).await;
    let _node = node(&cluster, "second").await;
    let app = cluster.app().await;
    read_until_all_are_in_memory(&app, &keys).await;
    assert_eq!(cluster.master.report().totals.promotion_promoted, 4);
    assert_eq!(cluster.master.report().totals.promotions_pending, 0);
}

/// More objects than the master has queued at a time, and a client that cannot read files beside one that can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_brings_nothing_back_keeps_no_other_from_it() {
    let root = tempfile::tempdir().unwrap();
    let cluster = start(root.path()).await;
    let keys = keys(24);
    put_in_files_alone(&cluster, &keys).await;
    let absent = root.path().join("absent");
    let blind = cluster.node().segment_name("blind").segment_size(ByteSize::mib(16));
    let _blind = blind.storage_root(absent).connect().await.unwrap();
    let _node = node(&cluster, "second").await;
    let app = cluster.app().await;
    read_until_all_are_in_memory(&app, &keys).await;
}
