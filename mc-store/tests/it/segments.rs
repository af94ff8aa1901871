//! Segments that come and go while their client runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::{BlockingCluster, Cluster};
use mc_store::{
    ByteSize, Client, DataPath, ErrorCode, GetError, MasterConfig, MediaType, ReplicateConfig,
    SegmentError, SegmentId, SegmentOptions,
};
use mc_testkit::eventually_async;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// Later than any test ends: for the master, nobody has said a word for long.
const FAR: mc_types::Time = mc_types::Time::from_millis(u64::MAX / 2);

fn named(name: &str) -> SegmentOptions {
    SegmentOptions::new(ByteSize::mib(4)).name(name)
}

fn at(segment: &str) -> ReplicateConfig {
    ReplicateConfig::default().prefer(segment)
}

async fn mounted(app: &Client) -> Vec<(Box<str>, SegmentId)> {
    let report = app.cluster_report().await.unwrap();
    let mut found: Vec<_> = report.segments.into_iter().map(|it| (it.name, it.id)).collect();
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_come_and_go_and_the_others_stay() {
    let cluster = Cluster::start(&[]).await;
    let node = cluster.node().connect().await.unwrap();
    assert!(node.segments().is_empty() && node.segment_name().is_none());
    assert!(node.endpoint().is_some());
    let app = cluster.app().await;

    let a = node.mount_segment(named("a")).await.unwrap();
    let b = node.mount_segment(named("b")).await.unwrap();
    assert_eq!(mounted(&app).await, [("a".into(), a), ("b".into(), b)]);
    app.put_with("in a", "value a", &at("a")).await.unwrap();
    app.put_with("in b", "value b", &at("b")).await.unwrap();
    // Each is this client's own memory, which it reads without a socket.
    assert_eq!(node.get("in a").await.unwrap(), "value a");
    assert_eq!(node.get("in b").await.unwrap(), "value b");
    let paths = node.metrics().paths;
    let own = paths.iter().find(|of| of.path == DataPath::OwnMemory).unwrap();
    assert_eq!((own.read, paths.iter().map(|of| of.read).sum::<u64>()), (14, 14));

    node.unmount_segment(a, Duration::ZERO).await.unwrap();
    assert!(matches!(app.get("in a").await.unwrap_err(), GetError::NotFound));
    assert_eq!(app.get("in b").await.unwrap(), "value b");
    let again = node.unmount_segment(a, Duration::ZERO).await.unwrap_err();
    assert!(matches!(again, SegmentError::NotFound { .. }), "{again}");
    let left = node.segments();
    assert_eq!((left.len(), &*left[0].name, left[0].id), (1, "b", b));
    assert_eq!(left[0].size, ByteSize::mib(4));

    // The name is free again, and the client still tells that it lives.
    let a = node.mount_segment(named("a")).await.unwrap();
    app.put_with("in a", "other", &at("a")).await.unwrap();
    assert_eq!(app.get("in a").await.unwrap(), "other");
    node.shutdown().await;
    assert!(mounted(&app).await.is_empty(), "{a}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_mounted_says_why_and_leaves_nothing() {
    let cluster = Cluster::start(&[]).await;
    let pure = cluster.app().await;
    let refused = pure.mount_segment(named("a")).await.unwrap_err();
    assert!(matches!(refused, SegmentError::NotListening), "{refused}");
    assert!(refused.to_string().contains("ClientBuilder::listen"), "{refused}");

    let (node, other) = (cluster.node(), cluster.node());
    let node = node.segment_size(ByteSize::mib(1)).connect().await.unwrap();
    let other = other.connect().await.unwrap();
    let address = node.segment_name().unwrap().to_owned();
    let second = SegmentOptions::new(ByteSize::mib(1));
    node.mount_segment(second.clone()).await.unwrap();
    let names: Vec<_> = node.segments().into_iter().map(|it| it.name).collect();
    assert_eq!(names, [address.clone().into(), format!("{address}/2").into_boxed_str()]);

    let empty = SegmentOptions::new(ByteSize::bytes(0));
    assert!(matches!(node.mount_segment(empty).await, Err(SegmentError::Empty)));
    let taken = node.mount_segment(named(&address)).await.unwrap_err();
    assert!(matches!(taken, SegmentError::NameTaken { .. }), "{taken}");
    let elsewhere = other.mount_segment(named(&address)).await.unwrap_err();
    assert_eq!(elsewhere.code(), ErrorCode::SegmentAlreadyExists, "{elsewhere}");
    let absurd = SegmentOptions::new(ByteSize::bytes(u64::MAX));
    let absurd = node.mount_segment(absurd).await.unwrap_err();
    assert!(matches!(absurd, SegmentError::Memory { .. }), "{absurd}");
    assert!(other.segments().is_empty());
    assert_eq!(mounted(&pure).await.len(), 2);
    let late = node.clone();
    node.shutdown().await;
    let late = late.mount_segment(second).await.unwrap_err();
    assert!(matches!(late, SegmentError::Closed), "{late}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_with_a_grace_is_read_until_it_is_over() {
    let cluster = Cluster::start(&[]).await;
    let node = cluster.node().connect().await.unwrap();
    let app = cluster.app().await;
    let a = node.mount_segment(named("a")).await.unwrap();
    let b = node.mount_segment(named("b")).await.unwrap();
    app.put_with("k", "value", &at("a")).await.unwrap();
    node.unmount_segment(a, Duration::from_secs(600)).await.unwrap();
    assert_eq!(app.get("k").await.unwrap(), "value");
    app.put_with("new", "value", &at("a")).await.unwrap();
    assert_eq!(&*app.describe("new").await.unwrap().replicas[0].segment_name, "b");
    let leaving = node.segments().into_iter().find(|it| it.id == a).unwrap();
    assert!(leaving.leaves_in.unwrap() > Duration::from_secs(500));

    // A short grace ends by itself, with the region.
    node.unmount_segment(b, Duration::from_millis(100)).await.unwrap();
    eventually_async(DEADLINE, "the segment to leave", async || {
        (node.segments().len() == 1).then_some(())
    })
    .await;
    eventually_async(DEADLINE, "the master to let go", async || {
        (mounted(&app).await.len() == 1).then_some(())
    })
    .await;
    assert!(matches!(app.get("new").await.unwrap_err(), GetError::NotFound));
    // No grace at all ends a long one.
    node.unmount_segment(a, Duration::ZERO).await.unwrap();
    assert!(node.segments().is_empty());
    assert!(mounted(&app).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_segment_comes_back_on_its_own() {
    let cluster = Cluster::start(&[]).await;
    let node = cluster.node().connect().await.unwrap();
    let app = cluster.app().await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        ids.push(node.mount_segment(named(name)).await.unwrap());
        app.put_with(name, name.to_owned(), &at(name)).await.unwrap();
    }
    // The node was cut off, and the master gave one of its segments up meanwhile.
    cluster.master.state().tick(FAR);
    cluster.master.state().unmount_segment(FAR, node.id(), ids[1]).unwrap();
    // The new one may be there before the others are taken back.
    let now = eventually_async(DEADLINE, "all segments", async || {
        let segments = app.cluster_report().await.unwrap().segments;
        let usable = segments.len() == 3 && segments.iter().all(|it| it.is_usable());
        if usable { Some(mounted(&app).await) } else { None }
    })
    .await;
    assert_eq!((now[0].1, now[2].1), (ids[0], ids[2]));
    assert_ne!(now[1].1, ids[1]);
    assert_eq!(app.get("a").await.unwrap(), "a");
    assert_eq!(app.get("c").await.unwrap(), "c");
    assert!(matches!(app.get("b").await.unwrap_err(), GetError::NotFound));
    // The id that the application was given still names it.
    assert_eq!(node.segments()[1].id, now[1].1);
    node.unmount_segment(ids[1], Duration::ZERO).await.unwrap();
    assert_eq!(mounted(&app).await.len(), 2);
}

#[test]
fn an_application_that_blocks_its_runtime_does_not_lose_its_segment() {
    let mut config = MasterConfig::default();
    config.client_ttl = Duration::from_millis(600);
    let silence = config.client_ttl * 3;
    // On threads that nothing here can block.
    let cluster = BlockingCluster::start_with(config, &[]);
    let mine = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (node, id) = mine.block_on(async {
        let node = cluster.node().connect().await.unwrap();
        let id = node.mount_segment(named("a")).await.unwrap();
        node.put("k", Bytes::from(vec![7; 100_000])).await.unwrap();
        (node, id)
    });
    // The only thread of the runtime computes, for three times as long as the master
    // waits for a sign of life.
    mine.block_on(async {
        let start = Instant::now();
        while start.elapsed() < silence {
            std::hint::black_box(mc_transport::checksum(&[7; 4096]));
        }
        let report = node.cluster_report().await.unwrap();
        assert_eq!((report.totals.expired_clients, report.segments[0].id), (0, id));
        assert_eq!(node.get("k").await.unwrap().len(), 100_000);
        node.shutdown().await;
    });
}

/// A file for the segment of a node, on a medium of this name.
fn on_a_file(dir: &tempfile::TempDir, medium: MediaType) -> SegmentOptions {
    let memory = mc_transport::Memory::options().file(dir.path().join(medium.as_str()));
    named(medium.as_str()).memory(memory).medium(medium)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_lie_in_the_medium_that_their_put_asks_for() {
    let cluster = Cluster::start(&[]).await;
    let (dir, node) = (tempfile::tempdir().unwrap(), cluster.node().connect().await.unwrap());
    node.mount_segment(named("dram")).await.unwrap();
    node.mount_segment(on_a_file(&dir, MediaType::Ssd)).await.unwrap();
    let app = cluster.app().await;
    let home = async |key: &str| {
        let object = app.describe(key).await.unwrap();
        object.replicas.iter().map(|it| it.segment_name.to_string()).collect::<Vec<_>>()
    };

    let on_ssd = ReplicateConfig::default().medium(MediaType::Ssd);
    app.put_with("cold", vec![7; 4096], &on_ssd).await.unwrap();
    app.put("warm", vec![8; 4096]).await.unwrap();
    assert_eq!(home("cold").await, ["ssd"]);
    assert_eq!(home("warm").await, ["dram"]);
    assert_eq!(app.get("cold").await.unwrap(), vec![7; 4096]);
    let report = app.cluster_report().await.unwrap();
    let media: BTreeSet<_> = report.segments.iter().map(|it| (&*it.name, it.medium)).collect();
    assert_eq!(media, BTreeSet::from([("dram", MediaType::Dram), ("ssd", MediaType::Ssd)]));

    let in_vram = ReplicateConfig::default().medium(MediaType::Vram);
    let refused = app.put_with("hot", vec![9; 4096], &in_vram).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TooFewSegments);
    assert!(refused.to_string().contains("medium vram"), "{refused}");

    app.shutdown().await;
    node.shutdown().await;
    cluster.master.shutdown().await;
}

#[tokio::test]
async fn an_ssd_needs_a_file() {
    let cluster = Cluster::start(&[]).await;
    let node = cluster.node().connect().await.unwrap();
    let refused = node.mount_segment(named("odd").medium(MediaType::Ssd)).await.unwrap_err();
    assert!(matches!(refused, SegmentError::Medium { medium: MediaType::Ssd }));
    assert_eq!(refused.code(), ErrorCode::InvalidParams);
    assert!(node.segments().is_empty());
    node.shutdown().await;
    cluster.master.shutdown().await;
}
