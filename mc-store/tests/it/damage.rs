//! Damaged replicas: a client that reads one reports it, its owner looks, and the key is free again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_meta::{PutEnd, ReplicaPlace, ReplicateConfig};
use mc_rpc::{Failure, PutStartItem};
use mc_store::{ByteSize, Client, GetError, PutOutcome, Source, TaskStatus};
use mc_testkit::eventually_async;
use mc_transport::tcp::{TcpConfig, TcpTransport};
use mc_transport::{Link as _, Operation, RemoteSpan, SliceSums, Transport as _};
use mc_types::{ClientId, Generation, KeyRef};

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

const BLOCK: usize = 65_536;

/// A segment with room for every object of a test.
const SEGMENT: ByteSize = ByteSize::mib(16);

fn content(len: usize) -> Bytes {
    mc_testkit::content("k", len).into()
}

/// Puts a value of which those replicas are other bytes than the checksums say, as a bad
/// memory module or a stray writer would leave them.
async fn put_damaged(client: &Client, key: &str, value: &Bytes, replicas: u32, damaged: &[usize]) {
    let (id, key, master) = (ClientId::from_u128(9), KeyRef::new(key).unwrap(), client.master());
    let lengths = [value.len() as u64];
    let put = PutStartItem::new(key, &lengths);
    let config = ReplicateConfig::default().replicas(replicas);
    let grant = master.batch_put_start(id, &config, &[put]).await.unwrap().remove(0).unwrap();
    let tcp = TcpTransport::start(TcpConfig::default()).await.unwrap();
    for (nth, replica) in grant.replicas.iter().enumerate() {
        let mut bytes = value.to_vec();
        if damaged.contains(&nth) {
            bytes[BLOCK + 100] ^= 1;
        }
        let link = tcp.connect(&replica.segment.endpoint).await.unwrap();
        let to = RemoteSpan::new(replica.segment.remote_key, replica.extent);
        let write = Operation::write(Bytes::from(bytes), to.with_ticket(replica.ticket));
        link.submit(vec![write]).await.remove(0).unwrap();
    }
    let sums = SliceSums::of(&[Source::from(value.clone())]);
    let (checksums, prefixes) = (&sums.checksums, &sums.prefixes);
    let end = PutEnd { checksums, prefixes, ..PutEnd::new(key, grant.handle) };
    master.batch_put_end(id, &[end]).await.unwrap().remove(0).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_damaged_object_is_free_again() {
    let cluster = Cluster::start(&[SEGMENT]).await;
    let app = cluster.app().await;
    let value = content(3 * BLOCK);
    put_damaged(&app, "k", &value, 1, &[0]).await;
    assert!(matches!(app.get("k").await, Err(GetError::ChecksumMismatch { .. })));
    let begun = Instant::now();
    eventually_async(DEADLINE, "the key to be free", async || {
        match app.put("k", value.clone()).await.unwrap() {
            PutOutcome::Stored => Some(()),
            other => {
                eprintln!("after {:.1?}: put says {other:?}", begun.elapsed());
                None
            }
        }
    })
    .await;
    eprintln!("free after {:.1?}", begun.elapsed());
    assert_eq!(app.get("k").await.unwrap(), value);
    let totals = cluster.master.report().totals;
    assert_eq!((totals.damage_confirmed, totals.damage_removed, totals.damage_denied), (1, 1, 0));
    let reports = app.metrics().reports;
    assert_eq!((reports.damaged, reports.sent, reports.lost), (1, 1, 0));
    let page = app.metrics().prometheus();
    assert!(page.contains("mooncake_client_damaged_reads_total 1"), "{page}");
    let history = app.master().explain(KeyRef::new("k").unwrap()).await.unwrap().history;
    assert!(format!("{history:?}").contains("Damaged"), "{history:?}");
}

/// As a program does that gets one object and ends.
#[tokio::test]
async fn a_reader_that_leaves_at_once_has_reported() {
    let cluster = Cluster::start(&[SEGMENT]).await;
    let app = cluster.app().await;
    let value = content(3 * BLOCK);
    put_damaged(&app, "k", &value, 1, &[0]).await;
    let reader = cluster.app().await;
    assert!(matches!(reader.get("k").await, Err(GetError::ChecksumMismatch { .. })));
    reader.shutdown().await;
    assert_eq!(cluster.master.report().totals.damage_reports, 1);
    eventually_async(DEADLINE, "the object to go", async || {
        (!app.exist("k").await.unwrap()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_over_damaged_bytes_fails_and_frees_the_key_as_well() {
    let cluster = Cluster::start(&[SEGMENT]).await;
    let app = cluster.app().await;
    let value = content(3 * BLOCK);
    put_damaged(&app, "k", &value, 1, &[0]).await;
    assert_eq!(app.get_range("k", 0..10).await.unwrap(), value.slice(..10));
    let second = BLOCK as u64;
    let failed = app.get_range("k", second + 5..second + 10).await;
    assert!(matches!(failed, Err(GetError::ChecksumMismatch { .. })));
    eventually_async(DEADLINE, "the object to go", async || {
        (!app.exist("k").await.unwrap()).then_some(())
    })
    .await;
    // What others read went with it.
    assert!(matches!(cluster.nodes[0].get_range("k", 0..10).await, Err(GetError::NotFound)));
    assert_eq!(app.put("k", value).await.unwrap(), PutOutcome::Stored);
    assert_eq!(cluster.master.report().totals.damage_removed, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_replicas_the_damaged_one_goes_and_the_other_serves() {
    let cluster = Cluster::start(&[SEGMENT; 2]).await;
    let app = cluster.app().await;
    let value = content(3 * BLOCK);
    // Whichever replica of a key is read first, of one of them it is the damaged one.
    let keys: Vec<String> = (0..8).map(|n| format!("k{n}")).collect();
    for (n, key) in keys.iter().enumerate() {
        put_damaged(&app, key, &value, 2, &[n / 2 % 2]).await;
    }
    for key in &keys {
        assert_eq!(app.get(key).await.unwrap(), value);
    }
    let found = app.metrics().reports.damaged;
    assert!(found > 0, "no read began with a damaged replica");
    eventually_async(DEADLINE, "the damaged replicas to go", async || {
        (cluster.master.report().totals.damage_removed == found).then_some(())
    })
    .await;
    let mut left = 0;
    for key in &keys {
        let replicas = app.replicas(key).await.unwrap().len() as u64;
        left += replicas;
        assert_eq!(app.get(key).await.unwrap(), value);
        assert!(replicas > 0);
    }
    assert_eq!(left, 16 - found);
}

/// A client that copies or moves a replica reads it, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_finds_its_source_damaged_reports_it() {
    let cluster = Cluster::start(&[SEGMENT; 2]).await;
    let app = cluster.app().await;
    let value = content(3 * BLOCK);
    for key in ["copied", "moved"] {
        put_damaged(&app, key, &value, 1, &[0]).await;
        let from = app.replicas(key).await.unwrap().remove(0).segment_name;
        let to = if &*from == "node-0" { "node-1" } else { "node-0" };
        let task = match key {
            "copied" => app.copy_to(key, &[to]).await,
            _ => app.move_to(key, &from, to).await,
        };
        let report = app.wait_for_task(task.unwrap(), DEADLINE).await.unwrap();
        assert_eq!(report.status, TaskStatus::Failed, "{report:?}");
        assert!(report.outcome.contains("not those that were put"), "{report:?}");
        eventually_async(DEADLINE, "the damaged replica to go", async || {
            (!app.exist(key).await.unwrap()).then_some(())
        })
        .await;
        assert_eq!(app.put(key, value.clone()).await.unwrap(), PutOutcome::Stored);
        assert_eq!(app.get(key).await.unwrap(), value);
    }
    let totals = cluster.master.report().totals;
    assert_eq!((totals.damage_confirmed, totals.damage_removed, totals.damage_denied), (2, 2, 0));
    let reported: u64 = cluster.nodes.iter().map(|node| node.metrics().reports.sent).sum();
    assert_eq!(reported, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lying_reader_deletes_nothing_and_is_soon_not_heard() {
    let cluster = Cluster::start(&[SEGMENT]).await;
    let app = cluster.app().await;
    let value = content(1000);
    let mut lies = Vec::new();
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    for key in &keys {
        app.put(key, value.clone()).await.unwrap();
        let list = app.master().get_replica_list(KeyRef::new(key).unwrap()).await.unwrap();
        let replica = &list.replicas[0];
        let place = ReplicaPlace::Memory { segment: replica.segment.id, extent: replica.extent };
        lies.push((KeyRef::new(key).unwrap(), list.generation, place));
    }
    let liar = ClientId::from_u128(77);
    let failures: Vec<Failure<'_>> = lies
        .iter()
        .map(|&(key, generation, place)| Failure::Damaged { object: key.into(), generation, place })
        .collect();
    let first = app.master().report_failures(liar, &failures).await.unwrap();
    assert_eq!((first.noted + first.limited, first.stale), (200, 0));
    assert!(first.noted <= 70, "{first:?}");
    eventually_async(DEADLINE, "the owner to look", async || {
        (cluster.master.report().totals.damage_denied == first.noted).then_some(())
    })
    .await;
    // Another name does not help: it comes from the same host.
    let again = app.master().report_failures(ClientId::from_u128(78), &failures).await.unwrap();
    assert_eq!((again.noted, again.limited), (0, 200));
    let old = Failure::Damaged {
        object: lies[0].0.into(),
        generation: Generation::new(lies[0].1.as_u64() ^ 1),
        place: lies[0].2,
    };
    assert_eq!(app.master().report_failures(liar, &[old]).await.unwrap().stale, 1);
    for key in &keys {
        assert_eq!(app.get(key).await.unwrap(), value);
    }
    assert_eq!(cluster.master.report().totals.damage_removed, 0);
}
