//! Objects below memory that are encrypted with the keys of their tenants.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use mc_cluster_testkit::Cluster;
use mc_meta::LocalDiskConfig;
use mc_store::{
    ByteSize, Client, ClientBuilder, GetError, KeySource, KeysError, LocalDiskOptions, Master,
    MasterConfig, StartError, StorageSettings,
};
use mc_testkit::eventually_async;
use mc_tier::{DirectoryTier, SyncPolicy, Tier as _};

use crate::common::content;

const DEADLINE: Duration = Duration::from_secs(20);

const ONE: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const TWO: &str = "10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A file of keys in `directory`.
fn keys(directory: &Path, list: &str) -> KeySource {
    let path = directory.join("keys");
    fs::write(&path, list).unwrap();
    KeySource::File(path)
}

/// Whether a file below `directory` has these bytes.
fn has(directory: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(directory).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return has(&path, bytes);
        }
        fs::read(path).is_ok_and(|file| file.windows(bytes.len()).any(|part| part == bytes))
    })
}

/// The number of objects in files below `root`.
fn in_files(root: &Path) -> u64 {
    let tier = DirectoryTier::open(root, "cluster", SyncPolicy::None).unwrap();
    tier.scan(None, NonZeroUsize::new(1000).unwrap()).unwrap().objects.len() as u64
}

/// A cluster with disks of nodes, or with files in `root`.
async fn cluster(root: Option<&Path>, memory: &[ByteSize]) -> Cluster {
    let mut master = Master::builder();
    if let Some(root) = root {
        let settings = StorageSettings::in_directory(root.to_str().unwrap());
        master = master.storage(settings.cluster_id("cluster"));
    }
    Cluster::of(master.config(config(root.is_none())), memory).await
}

fn config(has_disks: bool) -> MasterConfig {
    let mut config = MasterConfig::default();
    config.local_disk = has_disks.then(LocalDiskConfig::default);
    config.lease_ttl = Duration::from_millis(200);
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_read_by_those_who_have_the_key_and_deleted_by_all() {
    let (root, secrets) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Without keys.
    let mut cluster = cluster(Some(root.path()), &[ByteSize::mib(32)]).await;
    let key = keys(secrets.path(), &format!("default {ONE}\n"));
    let with_key = || cluster.client().tier_keys(key.clone());
    let writer = with_key().connect().await.unwrap();
    let reader = with_key().connect().await.unwrap();
    let other = cluster.app().await;
    let lengths = [1, 65_536, 65_537, 3_000_001];
    for len in lengths {
        writer.put(&format!("value-{len}"), content("value", len)).await.unwrap();
    }
    assert!(writer.flush_files(DEADLINE).await);
    assert_eq!(in_files(root.path()), 4);
    assert!(!has(root.path(), &content("value", 100)));
    // From memory nobody needs a key.
    assert_eq!(other.get("value-1").await.unwrap(), content("value", 1));
    cluster.nodes.remove(0).shutdown().await;
    for len in lengths {
        let key = format!("value-{len}");
        assert_eq!(reader.get(&key).await.unwrap(), content("value", len));
        let range = len as u64 / 3..len as u64;
        let wanted = content("value", len).slice(len / 3..);
        assert_eq!(reader.get_range(&key, range).await.unwrap(), wanted);
        let without = other.get(&key).await;
        assert!(matches!(without, Err(GetError::Tier(_))), "{without:?}");
    }
    // A node that has no key deletes what is removed.
    let _node = cluster.node().segment_size(ByteSize::mib(16)).connect().await.unwrap();
    other.remove_all(true).await.unwrap();
    eventually_async(DEADLINE, "no file is left", async || in_files(root.path()) == 0).await;
}

fn node(cluster: &Cluster, directory: &Path) -> ClientBuilder {
    let disk = LocalDiskOptions::new(directory).size(ByteSize::mib(64));
    cluster.node().segment_size(ByteSize::mib(16)).segment_name("node").local_disk(disk)
}

/// The peers of a disk need no keys; its next node needs those that objects were sealed with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_is_read_through_its_node_and_outlasts_it() {
    let [disk, secrets] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let first_cluster = cluster(None, &[]).await;
    let key = keys(secrets.path(), &format!("* {ONE}\n"));
    let first = node(&first_cluster, disk.path()).tier_keys(key.clone()).connect().await.unwrap();
    let app = first_cluster.app().await;
    let lengths = [1, 65_536, 200_000, 3_000_001];
    for len in lengths {
        app.put(&format!("value-{len}"), content("value", len)).await.unwrap();
    }
    let on_disk = async |cluster: &Cluster| {
        cluster.master.report().local_disks.iter().map(|disk| disk.objects).sum::<u64>()
    };
    eventually_async(DEADLINE, "all on disk", async || on_disk(&first_cluster).await == 4).await;
    let get_all = async |app: &Client| {
        for len in lengths {
            let key = format!("value-{len}");
            assert_eq!(app.get(&key).await.unwrap(), content("value", len));
            let wanted = content("value", len).slice(len / 3..);
            let range = len as u64 / 3..len as u64;
            assert_eq!(app.get_range(&key, range).await.unwrap(), wanted);
        }
    };
    let segment = first.segments().pop().unwrap();
    first.unmount_segment(segment.id, Duration::ZERO).await.unwrap();
    get_all(&app).await;
    for len in lengths {
        assert_eq!(first.get(&format!("value-{len}")).await.unwrap(), content("value", len));
    }
    first.shutdown().await;
    assert!(!has(disk.path(), &content("value", 100)));
    // A master that knows nothing learns of the objects, and the next node has another key, too.
    let master = Master::builder().config(config(true)).seed(8).start().await.unwrap();
    let cluster = Cluster { master, nodes: Vec::new() };
    let _ = keys(secrets.path(), &format!("* {TWO}\n* {ONE}\n"));
    let _next = node(&cluster, disk.path()).tier_keys(key).connect().await.unwrap();
    eventually_async(DEADLINE, "all are known", async || on_disk(&cluster).await == 4).await;
    get_all(&cluster.app().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_wrong_keys_does_not_start() {
    let secrets = tempfile::tempdir().unwrap();
    let cluster = cluster(None, &[]).await;
    let wrong = keys(secrets.path(), "default 12\n");
    let error = cluster.client().tier_keys(wrong).connect().await.unwrap_err();
    assert!(matches!(error, StartError::TierKeys(KeysError::Line { number: 1, .. })), "{error}");
    let none = KeySource::File(secrets.path().join("none"));
    let error = cluster.client().tier_keys(none).connect().await.unwrap_err();
    assert!(matches!(error, StartError::TierKeys(KeysError::Source { .. })), "{error}");
}
