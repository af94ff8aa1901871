//! Nodes that died: clients tell the master that nobody answers there, and puts go elsewhere
//! long before their time is over.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_store::{ByteSize, Client, PutOutcome, ReplicateConfig};
use mc_types::{ClientId, SegmentId};

use crate::common::segment;

/// Nodes that are killed.
const DEAD: u128 = 45;

/// How long puts look for all of them: less than the time to live of 10 s, after which the
/// master gives them up in any case.
const LOOKED_FOR: Duration = Duration::from_secs(7);

const VALUE: usize = 64 << 10;

/// Mounts a segment for a node that is killed at once: nobody listens there, and no heartbeat
/// follows.
async fn mount_dead(app: &Client, number: u128) {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    mount(app, number, &format!("tcp://{nobody}")).await;
}

/// The same for a node whose memory is said to be at that endpoint.
async fn mount(app: &Client, number: u128, endpoint: &str) {
    let spec = segment(number, 4 << 20, endpoint);
    app.master().mount_segment(ClientId::from_u128(500 + number), &spec).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_go_on_when_most_of_the_free_room_is_dead() {
    let cluster = Cluster::start(&[ByteSize::mib(4); 3]).await;
    let app = cluster.app().await;
    let value = Bytes::from(vec![7; VALUE]);
    let mut puts = 0;
    let mut put = async || {
        puts += 1;
        app.put(&format!("k{puts}"), value.clone()).await
    };
    for _ in 0..250 {
        assert_eq!(put().await.unwrap(), PutOutcome::Stored);
    }
    // More than a client can name in a put.
    for number in 0..DEAD {
        mount_dead(&app, number).await;
    }
    let begun = Instant::now();
    let (mut before, mut failed) = (0_u32, 0_u32);
    while u128::from(cluster.master.report().totals.suspicion_suspects) < DEAD
        && begun.elapsed() < LOOKED_FOR
    {
        before += 1;
        failed += u32::from(put().await.inspect_err(|error| eprintln!("{error:?}")).is_err());
    }
    let found = begun.elapsed();
    let (mut after, mut failed_after) = (0_u32, 0_u32);
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        after += 1;
        failed_after += u32::from(put().await.is_err());
    }
    eprintln!(
        "{failed} of {before} puts failed in the first {found:.1?}, {failed_after} of {after} after that"
    );
    assert!(
        found < LOOKED_FOR,
        "{} are suspect",
        cluster.master.report().totals.suspicion_suspects
    );
    assert_eq!(failed_after, 0);
    let metrics = app.metrics().reports;
    assert!(metrics.unreachable > 0 && metrics.sent > 0, "{metrics:?}");
}

/// As where nodes are gone and others have their addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_put_fails_where_another_clusters_node_answers_at_an_address() {
    let cluster = Cluster::start(&[ByteSize::mib(4); 3]).await;
    let other = Cluster::start(&[ByteSize::mib(4)]).await;
    let app = cluster.app().await;
    let value = Bytes::from(vec![7; VALUE]);
    for number in 0..DEAD {
        let endpoint = other.nodes[0].endpoint().unwrap().to_string();
        mount(&app, number, &endpoint).await;
    }
    for n in 0..500 {
        assert_eq!(app.put(&format!("k{n}"), value.clone()).await.unwrap(), PutOutcome::Stored);
    }
    assert_eq!(app.metrics().reports.unreachable, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_answers_is_doubted_by_no_reports() {
    let cluster = Cluster::start(&[ByteSize::mib(4); 3]).await;
    let app = cluster.app().await;
    let segments: Vec<SegmentId> = cluster.nodes.iter().map(|node| node.segments()[0].id).collect();
    let begun = Instant::now();
    let mut told = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        for &segment in &segments {
            let failure = mc_rpc::Failure::Unreachable { segment };
            app.master().report_failures(ClientId::from_u128(77), &[failure]).await.unwrap();
            told += 1;
        }
        assert_eq!(cluster.master.report().totals.suspicion_suspected, 0);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let totals = cluster.master.report().totals;
    assert_eq!(totals.suspicion_reports, told);
    let three = ReplicateConfig::default().replicas(3);
    app.put_with("k", "value", &three).await.unwrap();
    assert_eq!(app.replicas("k").await.unwrap().len(), 3);
}

/// The heartbeats of the dead go on, as where only this client cannot reach them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_put_fails_among_any_number_of_nodes_that_one_client_cannot_reach() {
    let cluster = Cluster::start(&[ByteSize::mib(4); 3]).await;
    let app = cluster.app().await;
    let value = Bytes::from(vec![7; VALUE]);
    for n in 0..250 {
        assert_eq!(app.put(&format!("k{n}"), value.clone()).await.unwrap(), PutOutcome::Stored);
    }
    for number in 0..DEAD {
        mount_dead(&app, number).await;
    }
    // Longer than suspicion lasts, after which peers are asked again.
    let (begun, mut pinged) = (Instant::now(), Instant::now());
    let (mut puts, mut failed) = (0_u32, 0_u32);
    while begun.elapsed() < LOOKED_FOR {
        if pinged.elapsed() > Duration::from_millis(300) {
            for number in 0..DEAD {
                let beat = mc_rpc::Heartbeat::new(ClientId::from_u128(500 + number));
                app.master().heartbeat(&beat).await.unwrap();
            }
            pinged = Instant::now();
        }
        puts += 1;
        let put = app.put(&format!("p{puts}"), value.clone()).await;
        failed += u32::from(put.inspect_err(|error| eprintln!("{error:?}")).is_err());
    }
    eprintln!("{failed} of {puts} puts failed");
    assert_eq!(failed, 0, "of {puts}");
    assert_eq!(cluster.master.report().totals.suspicion_suspected, 0);
    assert!(app.metrics().reports.unreachable >= DEAD as u64, "{:?}", app.metrics().reports);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_nobody_reaches_gets_no_second_put() {
    let cluster = Cluster::start(&[ByteSize::mib(4)]).await;
    let hidden = cluster.client().listen("127.0.0.1:0".parse().unwrap());
    // Nobody listens where peers are told to find it.
    let hidden = hidden.advertise("127.0.0.3".parse().unwrap()).segment_name("hidden");
    let hidden = hidden.segment_size(ByteSize::mib(64));
    let hidden = hidden.heartbeat_interval(Duration::from_millis(50)).connect().await.unwrap();
    // Each client finds out once; it may be before the node has.
    let put = async |n: u32| {
        let app = cluster.app().await;
        let key = format!("k{n}");
        assert_eq!(app.put(&key, "value").await.unwrap(), PutOutcome::Stored);
        let replicas = app.replicas(&key).await.unwrap();
        assert_ne!(&*replicas[0].segment_name, "hidden");
        app.shutdown().await;
    };
    let suspects = || cluster.master.report().totals.suspicion_suspects;
    let (begun, mut puts) = (Instant::now(), 0);
    while suspects() == 0 {
        put(puts).await;
        puts += 1;
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody tells the master");
    }
    eprintln!("suspect after {:.1?} and {puts} puts", begun.elapsed());
    // Its heartbeats do not end that, and clients that know nothing of it are not sent there.
    for _ in 0..10 {
        let fresh = cluster.app().await;
        for n in 0..10 {
            assert_eq!(fresh.put(&format!("n{n}"), "value").await.unwrap(), PutOutcome::Stored);
            fresh.remove(&format!("n{n}"), true).await.unwrap();
        }
        assert_eq!(fresh.metrics().reports.unreachable, 0);
        assert_eq!(suspects(), 1);
        fresh.shutdown().await;
    }
    hidden.shutdown().await;
}
