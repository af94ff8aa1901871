//! Copies, moves and drains, done by the nodes that hold the objects.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_meta::JobStatus;
use mc_store::{
    ByteSize, Client, ClientBuilder, ErrorCode, MasterConfig, Put, PutOutcome, ReplicateConfig,
    Source, TaskId, TaskStatus,
};
use mc_testkit::eventually_async;
use mc_types::Time;

use crate::common::{content, holders};

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// Longer than the master keeps space of anybody, or anybody's task.
const FAR: Time = Time::from_millis(u64::MAX / 2);

const SEGMENT: ByteSize = ByteSize::mib(48);

async fn start(nodes: usize) -> (Cluster, Client) {
    let mut config = MasterConfig::default();
    config.lease_ttl = Duration::from_millis(100);
    config.eviction_high_watermark_ratio = 1.0;
    config.tasks.max_retry_attempts = 2;
    let cluster = Cluster::start_with(config, &vec![SEGMENT; nodes]).await;
    let app = cluster.app().await;
    (cluster, app)
}

fn node(cluster: &Cluster, number: usize) -> ClientBuilder {
    cluster.node().segment_name(format!("node-{number}")).segment_size(SEGMENT)
}

async fn ended(app: &Client, task: TaskId) -> (TaskStatus, String) {
    let report = app.wait_for_task(task, DEADLINE).await.unwrap();
    assert!(report.status.is_final(), "the task has not ended: {report:?}");
    (report.status, report.outcome.into())
}

fn at(node: &str) -> ReplicateConfig {
    ReplicateConfig::default().prefer(node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_survives_what_it_was_copied_from() {
    let (mut cluster, app) = start(3).await;
    let whole = content("long", 5_000_003);
    let pieces = [&whole[..1], &whole[1..70_000], &whole[70_000..]];
    let slices = pieces.map(|piece| Source::Bytes(Bytes::copy_from_slice(piece))).to_vec();
    let puts = vec![Put::of_slices("long", slices), Put::new("short", Bytes::from_static(b"x"))];
    for outcome in app.batch_put(puts, &at("node-0")).await {
        assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    }
    for key in ["long", "short"] {
        let task = app.copy_to(key, &["node-1", "node-2"]).await.unwrap();
        assert_eq!(ended(&app, task).await.0, TaskStatus::Success);
        assert_eq!(holders(&app, key).await, ["node-0", "node-1", "node-2"]);
        // Again, there is nothing to do.
        let task = app.copy_to(key, &["node-1"]).await.unwrap();
        let (status, outcome) = ended(&app, task).await;
        assert!(status == TaskStatus::Success && outcome.contains("already"), "{outcome}");
    }
    let done: u64 = cluster.nodes.iter().map(|node| node.metrics().tasks_done).sum();
    assert_eq!(done, 4);
    cluster.nodes.remove(0).shutdown().await;
    cluster.nodes.remove(0).shutdown().await;
    assert_eq!(app.get("long").await.unwrap(), whole);
    assert_eq!(app.get("short").await.unwrap(), "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_leaves_nothing_behind() {
    let (_cluster, app) = start(3).await;
    let value = content("k", 3_000_000);
    app.put_with("k", value.clone(), &at("node-0")).await.unwrap();
    let used = app.cluster_report().await.unwrap().totals.used;
    let task = app.move_to("k", "node-0", "node-2").await.unwrap();
    assert_eq!(ended(&app, task).await.0, TaskStatus::Success);
    assert_eq!(holders(&app, "k").await, ["node-2"]);
    assert_eq!(app.get("k").await.unwrap(), value);
    eventually_async(DEADLINE, "the source's space to come back", async || {
        (app.cluster_report().await.unwrap().totals.used == used).then_some(())
    })
    .await;
    // Onwards, by the node that holds it now, to where it was before.
    let task = app.move_to("k", "node-2", "node-0").await.unwrap();
    assert_eq!(ended(&app, task).await.0, TaskStatus::Success);
    assert_eq!(holders(&app, "k").await, ["node-0"]);
    assert_eq!(app.get("k").await.unwrap(), value);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_within_one_client_takes_no_socket() {
    let (cluster, app) = start(1).await;
    let node = &cluster.nodes[0];
    let second = mc_store::SegmentOptions::new(ByteSize::mib(8)).name("second");
    node.mount_segment(second).await.unwrap();
    let value = content("k", 1_000_000);
    app.put_with("k", value.clone(), &at("node-0")).await.unwrap();
    let task = app.move_to("k", "node-0", "second").await.unwrap();
    assert_eq!(ended(&app, task).await.0, TaskStatus::Success);
    assert_eq!(holders(&app, "k").await, ["second"]);
    assert_eq!(app.get("k").await.unwrap(), value);
    let paths = node.metrics().paths;
    let written = paths.iter().filter(|of| of.written > 0);
    let written: Vec<_> = written.map(|of| (of.path.as_str(), of.written)).collect();
    assert_eq!(written, [("own_memory", 1_000_000)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_copied_fails_and_says_why() {
    let (mut cluster, app) = start(0).await;
    for number in 0..2 {
        // The test writes where it was granted nothing, which tickets would not let it do.
        let node = node(&cluster, number).tickets(false);
        cluster.nodes.push(node.connect().await.unwrap());
    }
    app.put_with("k", content("k", 1 << 20), &at("node-0")).await.unwrap();
    // The target has no room, and nothing makes any.
    app.put_with("full", vec![1; 48 << 20], &at("node-1")).await.unwrap();
    let task = app.copy_to("k", &["node-1"]).await.unwrap();
    let (status, outcome) = ended(&app, task).await;
    assert_eq!(status, TaskStatus::Failed);
    assert!(outcome.contains("could not begin"), "{outcome}");
    assert_eq!(holders(&app, "k").await, ["node-0"]);

    // A byte that changed where it lies is not spread.
    app.remove("full", true).await.unwrap();
    let list = app.master().get_replica_list(mc_types::KeyRef::new("k").unwrap()).await.unwrap();
    let place = &list.replicas[0];
    let tcp = mc_transport::TcpTransport::start(mc_transport::TcpConfig::default()).await.unwrap();
    let link = mc_transport::Transport::connect(&tcp, &place.segment.endpoint).await.unwrap();
    let wrong = Bytes::from(vec![!content("k", 1 << 20)[77_777]]);
    let extent = place.extent.part(77_777, 1).unwrap();
    let to = mc_transport::RemoteSpan::new(place.segment.remote_key, extent);
    let write = vec![mc_transport::Operation::write(wrong, to)];
    mc_transport::Link::submit(&*link, write).await.remove(0).unwrap();
    let task = app.copy_to("k", &["node-1"]).await.unwrap();
    let (status, outcome) = ended(&app, task).await;
    assert_eq!(status, TaskStatus::Failed);
    assert!(outcome.contains("not those that were put"), "{outcome}");
    // The node that found it out has told the master.
    eventually_async(DEADLINE, "the damaged replica to go", async || {
        let report = app.cluster_report().await.unwrap();
        ((report.totals.transfers, report.totals.used) == (0, 0)).then_some(())
    })
    .await;
    assert_eq!(cluster.nodes[0].metrics().tasks_failed, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_client_leaves_without_loss() {
    let (mut cluster, app) = start(3).await;
    let keys: Vec<String> = (0..60).map(|n| format!("block-{n}")).collect();
    let lens = |n: usize| [1, 4096, 100_000, 1_000_001][n % 4];
    let puts = keys.iter().enumerate().map(|(n, key)| Put::new(key, content(key, lens(n))));
    for outcome in app.batch_put(puts.collect(), &at("node-0")).await {
        assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    }
    // Pinned and read a moment ago: neither keeps an object from being moved.
    app.put_with("pinned", content("pinned", 50_000), &at("node-0").hard_pin()).await.unwrap();
    app.get("block-3").await.unwrap();
    let leaver = cluster.nodes.remove(0);
    let report = leaver.drain(&["node-2"], DEADLINE).await.unwrap();
    assert!(report.complete && report.failed == 0, "{report:?}");
    assert_eq!(report.moved, 61);
    // Nothing new goes there.
    app.put_with("late", "value", &at("node-0")).await.unwrap();
    assert_ne!(holders(&app, "late").await, ["node-0"]);
    leaver.shutdown().await;
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(holders(&app, key).await, ["node-2"]);
        assert!(app.get(key).await.unwrap() == content(key, lens(n)), "{key} changed");
    }
    assert_eq!(app.get("pinned").await.unwrap(), content("pinned", 50_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_takes_too_long_is_called_off() {
    let (cluster, app) = start(2).await;
    app.put_with("k", content("k", 40 << 20), &at("node-0")).await.unwrap();
    // There is no room for it elsewhere.
    app.put_with("full", vec![1; 40 << 20], &at("node-1")).await.unwrap();
    let limit = Duration::from_millis(300);
    let report = cluster.nodes[0].drain(&[], limit).await.unwrap();
    assert!(!report.complete && report.moved == 0, "{report:?}");
    assert!(app.get("k").await.unwrap() == content("k", 40 << 20));
    app.put_with("new", "value", &at("node-0")).await.unwrap();
    assert_eq!(holders(&app, "new").await, ["node-0"]);
    let jobs = app.master().list_drain_jobs().await.unwrap().jobs;
    assert_eq!(jobs[0].status, JobStatus::Canceled);
    let (alone, _app) = start(1).await;
    let refused = alone.nodes[0].drain(&[], limit).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TooFewSegments, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canceled_moves_are_not_begun() {
    let (_cluster, app) = start(2).await;
    let keys: Vec<String> = (0..40).map(|n| format!("block-{n}")).collect();
    let puts = keys.iter().map(|key| Put::new(key, content(key, 200_000)));
    for outcome in app.batch_put(puts.collect(), &at("node-0")).await {
        outcome.unwrap();
    }
    let job = app.master().create_drain_job(&["node-0"], &[], 1).await.unwrap();
    eventually_async(DEADLINE, "some objects to be moved", async || {
        (app.master().query_drain_job(job).await.unwrap().moved >= 2).then_some(())
    })
    .await;
    app.master().cancel_drain_job(job).await.unwrap();
    let ended = eventually_async(DEADLINE, "the job to end", async || {
        let job = app.master().query_drain_job(job).await.unwrap();
        job.status.is_final().then_some(job)
    })
    .await;
    assert_eq!(ended.status, JobStatus::Canceled);
    let mut moved = 0;
    for key in &keys {
        moved += u64::from(holders(&app, key).await == ["node-1"]);
        assert!(app.get(key).await.unwrap() == content(key, 200_000), "{key} changed");
    }
    assert!((2..40).contains(&moved), "{moved} moved");
    let report = app.cluster_report().await.unwrap();
    assert_eq!(
        (report.totals.tasks_pending, report.totals.tasks_processing, report.totals.transfers),
        (0, 0, 0)
    );
}

/// A node in a runtime of its own, which can be killed: no word to anybody.
#[test]
fn a_node_that_dies_in_the_middle_leaks_nothing() {
    let others =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut cluster, app) = others.block_on(start(0));
    let mine =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let dying = mine.block_on(node(&cluster, 0).connect()).unwrap();
    let keys: Vec<String> = (0..8).map(|n| format!("block-{n}")).collect();
    let tasks: Vec<TaskId> = others.block_on(async {
        for number in 1..3 {
            cluster.nodes.push(node(&cluster, number).connect().await.unwrap());
        }
        let twice = at("node-0").replicas(2).exclude("node-1");
        let mut tasks = Vec::new();
        for key in &keys {
            let value = content(key, 3 << 20);
            assert_eq!(app.put_with(key, value, &twice).await.unwrap(), PutOutcome::Stored);
            tasks.push(app.move_to(key, "node-0", "node-1").await.unwrap());
        }
        // It has begun, and it is not done.
        eventually_async(DEADLINE, "the node to work", async || {
            let report = app.cluster_report().await.unwrap();
            (report.totals.tasks_processing > 0 || report.totals.tasks_finished > 0).then_some(())
        })
        .await;
        tasks
    });
    drop(dying);
    mine.shutdown_background();
    others.block_on(async {
        // The master finds out by the silence, and gives its space back in time.
        cluster.master.state().tick(FAR);
        for task in tasks {
            ended(&app, task).await;
        }
        eventually_async(
            DEADLINE,
            "the others to be back, and what was reserved too",
            async || {
                cluster.master.state().tick(FAR);
                let report = app.cluster_report().await.unwrap();
                let names: Vec<_> = report.segments.iter().map(|it| &*it.name).collect();
                let there = ["node-1", "node-2"].iter().all(|name| names.contains(name));
                (there && report.totals.transfers == 0 && report.totals.tasks_processing == 0)
                    .then_some(())
            },
        )
        .await;
        for key in &keys {
            let read =
                eventually_async(DEADLINE, "the object", async || app.get(key).await.ok()).await;
            assert!(read == content(key, 3 << 20), "{key} changed");
        }
    });
}
