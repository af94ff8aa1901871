//! A whole cluster in one process: real sockets, real threads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_store::{
    ByteSize, Client, ErrorCode, GetError, GetInto, Master, MasterConfig, Memory, Put, PutError,
    PutOutcome, ReplicateConfig, Source,
};
use mc_testkit::eventually_async;
use mc_transport::tcp::{TcpConfig, TcpTransport};
use mc_transport::{Link as _, Transport as _};
use mc_types::{ClientId, KeyRef};

use crate::common::content;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// For tests that fill a segment to the brim and want to find everything in it: a
/// tick of the master would evict what lies above the usual watermark.
fn without_watermark() -> MasterConfig {
    let mut config = MasterConfig::default();
    config.eviction_high_watermark_ratio = 1.0;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_is_got_from_anywhere() {
    let cluster = Cluster::start(&[ByteSize::mib(32); 2]).await;
    let (writer, reader) = (cluster.app().await, cluster.app().await);
    for len in [1, 4095, 4096, 65_537, 3_000_001] {
        let key = format!("value-{len}");
        let value = content(&key, len);
        assert_eq!(writer.put(&key, value.clone()).await.unwrap(), PutOutcome::Stored);
        assert_eq!(reader.get(&key).await.unwrap(), value);
        assert_eq!(cluster.nodes[0].get(&key).await.unwrap(), value);
    }
    assert_eq!(reader.get("absent").await.unwrap_err().code(), ErrorCode::ObjectNotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_longer_than_one_transfer_is_divided() {
    let cluster = Cluster::start_with(without_watermark(), &[ByteSize::mib(260)]).await;
    let app = cluster.app().await;
    let len = (256 << 20) + 4097;
    let source = Memory::allocate(len).unwrap();
    for (at, text) in [(0, "begin"), ((256 << 20) - 3, "middle"), (len - 3, "end")] {
        source.whole().copy_from(at, text.as_bytes()).unwrap();
    }
    app.put_from("long", &source.whole(), &ReplicateConfig::default()).await.unwrap();
    let target = Memory::allocate(len).unwrap();
    let (head, tail) = (target.slice(0, 1000).unwrap(), target.slice(1000, len - 1000).unwrap());
    let get = GetInto::scattered("long", vec![head, tail]);
    assert_eq!(*app.batch_get_into(vec![get]).await[0].as_ref().unwrap(), len as u64);
    assert_eq!(target.whole().checksum(), source.whole().checksum());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_never_changes() {
    let cluster = Cluster::start(&[ByteSize::mib(4)]).await;
    let app = cluster.app().await;
    app.put("k", "first").await.unwrap();
    assert_eq!(app.put("k", "second").await.unwrap(), PutOutcome::Existing);
    assert_eq!(app.get("k").await.unwrap(), "first");
    assert!(app.remove("k", false).await.unwrap_err().code() == ErrorCode::ObjectHasLease);
    app.remove("k", true).await.unwrap();
    assert!(!app.exist("k").await.unwrap());
    assert_eq!(app.put("k", "second").await.unwrap(), PutOutcome::Stored);
    assert_eq!(app.get("k").await.unwrap(), "second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_on_a_disk_that_nobody_serves_cannot_be_read() {
    let mut config = MasterConfig::default();
    config.local_disk = Some(mc_meta::LocalDiskConfig::default());
    let mut cluster = Cluster::start_with(config, &[ByteSize::mib(4)]).await;
    let app = cluster.app().await;
    app.put("k", "value").await.unwrap();
    let (state, now) = (cluster.master.state(), mc_types::Time::ORIGIN);
    let (owner, key) = (ClientId::from_u128(9), KeyRef::new("k").unwrap());
    let disk = mc_meta::LocalDiskSpec {
        id: mc_types::LocalDiskId::from_u128(9),
        endpoint: "tcp://127.0.0.1:9".parse().unwrap(),
        remote_key: mc_types::RemoteKey::from_bytes([9; 16]),
        ticket_key: None,
    };
    state.mount_local_disk(now, owner, disk, true).unwrap();
    let generation = app.describe("k").await.unwrap().generation;
    let slices = mc_meta::Slices::One(mc_meta::Slice { len: 5, checksum: None });
    let found = mc_meta::FoundInTier { key, generation, slices, address: 0 };
    state.report_local_disk(now, owner, &[found]).remove(0).unwrap();
    cluster.nodes.remove(0).shutdown().await;
    assert!(app.exist("k").await.unwrap());
    let unreachable = app.get("k").await.unwrap_err();
    assert!(matches!(unreachable, GetError::Peer(_)), "{unreachable:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_answer_each_key_on_its_own() {
    let cluster = Cluster::start(&[ByteSize::mib(32); 3]).await;
    let app = cluster.app().await;
    let keys: Vec<String> = (0..2500).map(|n| format!("block-{n}")).collect();
    let mut puts: Vec<Put<'_>> = keys.iter().map(|key| Put::new(key, content(key, 4096))).collect();
    puts.push(Put::new("", Bytes::from_static(b"x")));
    puts.push(Put::new(&keys[3], Bytes::from_static(b"again")));
    let outcomes = app.batch_put(puts, &ReplicateConfig::default()).await;
    assert!(outcomes[..2500].iter().all(|o| matches!(o, Ok(PutOutcome::Stored))));
    assert!(matches!(outcomes[2500], Err(PutError::Key(_))));
    assert!(matches!(outcomes[2501], Ok(PutOutcome::Existing)));

    let mut names: Vec<&str> = keys.iter().map(String::as_str).collect();
    names.push("absent");
    assert_eq!(app.longest_prefix(&names).await.unwrap(), 2500);
    let exist = app.batch_exist(&names).await.unwrap();
    assert_eq!(exist.iter().filter(|yes| **yes).count(), 2500);
    let values = app.batch_get(&names).await;
    for (key, value) in keys.iter().zip(&values) {
        assert_eq!(*value.as_ref().unwrap(), content(key, 4096));
    }
    assert!(matches!(values[2500], Err(GetError::NotFound)));
    assert!(app.batch_put(Vec::new(), &ReplicateConfig::default()).await.is_empty());
    assert!(app.batch_get(&[]).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_are_gathered_scattered_and_verified_one_by_one() {
    let cluster = Cluster::start(&[ByteSize::mib(8)]).await;
    let app = cluster.app().await;
    let value = content("sliced", 10_000);
    let own = Memory::allocate(6_000).unwrap();
    own.whole().copy_from(0, &value[4_000..]).unwrap();
    let slices = vec![
        Source::Bytes(value.slice(..4_000)),
        own.slice(0, 1).unwrap().into(),
        own.slice(1, 5_999).unwrap().into(),
    ];
    let put = Put::of_slices("sliced", slices);
    let outcome = app.batch_put(vec![put], &ReplicateConfig::default()).await.pop().unwrap();
    assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    let described = app.describe("sliced").await.unwrap();
    let slices = described.slices.as_slice();
    assert_eq!(slices.iter().map(|s| s.len).collect::<Vec<_>>(), [4_000, 1, 5_999]);
    assert_eq!(slices[0].checksum, Some(mc_transport::checksum(&value[..4_000])));

    // Into pieces that match no slice, with room to spare.
    let target = Memory::allocate(12_000).unwrap();
    let pieces = vec![
        target.slice(0, 5).unwrap(),
        target.slice(5, 7_000).unwrap(),
        target.slice(7_005, 4_995).unwrap(),
    ];
    let got = app.batch_get_into(vec![GetInto::scattered("sliced", pieces)]).await;
    assert_eq!(*got[0].as_ref().unwrap(), 10_000);
    assert_eq!(target.whole().to_vec()[..10_000], value[..]);

    let small = Memory::allocate(9_999).unwrap();
    let refused = app.get_into("sliced", &small.whole()).await.unwrap_err();
    assert!(matches!(refused, GetError::BufferTooSmall { needed: 10_000, given: 9_999 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_bytes_are_never_returned() {
    let cluster = Cluster::start(&[]).await;
    // The test writes where it was granted nothing, which tickets would not let it do.
    let node = cluster.client().tickets(false).segment_size(ByteSize::mib(1));
    let _node = node.connect().await.unwrap();
    let app = cluster.app().await;
    let source = Memory::allocate(512 * 1024).unwrap();
    source.whole().copy_from(0, &content("torn", 512 * 1024)).unwrap();
    let whole = source.whole();
    app.put_from("torn", &whole, &ReplicateConfig::default()).await.unwrap();
    // Damage a byte where it lies, as a bad memory module or a stray writer would.
    let list = app.master().get_replica_list(KeyRef::new("torn").unwrap()).await.unwrap();
    let tcp = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let link = tcp.connect(&list.replicas[0].segment.endpoint).await.unwrap();
    let at = list.replicas[0].extent.part(300_000, 1).unwrap();
    let span = mc_transport::RemoteSpan::new(list.replicas[0].segment.remote_key, at);
    let wrong = Bytes::from(vec![!content("torn", 300_001)[300_000]]);
    for result in link.submit(vec![mc_transport::Operation::write(wrong, span)]).await {
        result.unwrap();
    }
    let error = app.get("torn").await.unwrap_err();
    assert!(matches!(error, GetError::ChecksumMismatch { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_survives_its_twin() {
    let mut cluster = Cluster::start(&[ByteSize::mib(8); 2]).await;
    let app = cluster.app().await;
    let twice = ReplicateConfig::default().replicas(2);
    let value = content("twice", 100_000);
    app.put_with("twice", value.clone(), &twice).await.unwrap();
    assert_eq!(app.describe("twice").await.unwrap().replicas.len(), 2);
    let once = ReplicateConfig::default().prefer("node-0");
    app.put_with("once", value.clone(), &once).await.unwrap();

    cluster.nodes.remove(0).shutdown().await;
    assert_eq!(app.get("twice").await.unwrap(), value);
    assert!(matches!(app.get("once").await.unwrap_err(), GetError::NotFound));
    // More replicas than segments: as many as fit.
    app.put_with("best-effort", value.clone(), &twice).await.unwrap();
    assert_eq!(app.describe("best-effort").await.unwrap().replicas.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pressure_evicts_the_cold_and_keeps_the_used() {
    let mut config = MasterConfig::default();
    config.lease_ttl = Duration::from_millis(20);
    config.shards = 1;
    let cluster = Cluster::start_with(config, &[ByteSize::mib(4)]).await;
    let app = cluster.app().await;
    let value = Bytes::from(vec![5; 64 * 1024]);
    for n in 0..200 {
        assert_eq!(app.put(&format!("b{n}"), value.clone()).await.unwrap(), PutOutcome::Stored);
        assert!(n < 1 || app.exist("b0").await.unwrap(), "used after every put, gone at {n}");
    }
    let report = app.cluster_report().await.unwrap();
    assert!(report.totals.evicted_objects >= 136, "{report:?}");
    assert!(report.totals.used <= report.totals.capacity);
    let too_large = app.put("huge", vec![0; 5 << 20]).await.unwrap_err();
    assert_eq!(too_large.code(), ErrorCode::ObjectTooLarge, "{too_large}");
}

/// A prompt that is put in two calls, and one of which each block is put alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_prompt_the_end_is_evicted_first() {
    let cluster = Cluster::start_with(without_watermark(), &[ByteSize::mib(1)]).await;
    let app = cluster.app().await;
    let value = Bytes::from(vec![5; 64 * 1024]);
    let names = |prompt| (0..8).map(|n| format!("{prompt}/{n}")).collect::<Vec<String>>();
    let (parts, alone) = (names("parts"), names("alone"));
    let after = |key: &str| ReplicateConfig::default().parent(KeyRef::new(key).unwrap().to_owned());
    for (at, name) in alone.iter().enumerate() {
        if at % 4 == 0 {
            let puts = parts[at..at + 4].iter().map(|name| Put::new(name, value.clone())).collect();
            let config = if at == 0 { ReplicateConfig::default() } else { after(&parts[at - 1]) };
            for outcome in app.batch_put(puts, &config).await {
                assert_eq!(outcome.unwrap(), PutOutcome::Stored);
            }
        }
        let config = if at == 0 { ReplicateConfig::default() } else { after(&alone[at - 1]) };
        app.put_with(name, value.clone(), &config).await.unwrap();
    }
    for n in 0..11 {
        app.put(&format!("new/{n}"), value.clone()).await.unwrap();
    }
    for (names, left) in [(parts, 0), (alone, 5)] {
        let keys: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(app.longest_prefix(&keys).await.unwrap(), left, "{keys:?}");
        assert_eq!(app.batch_exist(&keys[left..]).await.unwrap(), vec![false; 8 - left]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_waits_for_leases_and_then_says_what_it_waited_for() {
    let mut config = without_watermark();
    config.lease_ttl = Duration::from_secs(2);
    let cluster = Cluster::start_with(config, &[ByteSize::mib(1)]).await;
    let app = cluster.client().put_wait(Duration::from_millis(50)).tells_reads(false);
    let app = app.connect().await.unwrap();
    app.put("all-of-it", vec![1; 1 << 20]).await.unwrap();
    assert_eq!(app.get("all-of-it").await.unwrap().len(), 1 << 20);
    let refused = app.put("more", vec![2; 1024]).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::AllLeased, "{refused}");
    assert!(refused.is_retryable());
    // By force it is gone at once, and its space is not: somebody may be reading there.
    app.remove("all-of-it", true).await.unwrap();
    assert!(!app.exist("all-of-it").await.unwrap());
    let refused = app.put("more", vec![2; 1024]).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::AllLeased, "{refused}");
    let patient = cluster.client().put_wait(DEADLINE).connect().await.unwrap();
    assert_eq!(patient.put("more", vec![2; 1024]).await.unwrap(), PutOutcome::Stored);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_segments_a_put_says_so() {
    let cluster = Cluster::start(&[]).await;
    let app = cluster.app().await;
    let refused = app.put("k", "v").await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TooFewSegments, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_longer_than_its_lease_renews_it() {
    let mut config = MasterConfig::default();
    config.lease_ttl = Duration::from_millis(2);
    let cluster = Cluster::start_with(config, &[ByteSize::mib(64)]).await;
    let app = cluster.client().local_copy(false).connect().await.unwrap();
    let value = content("long", 32 << 20);
    app.put("long", value.clone()).await.unwrap();
    // Reading 32 MiB takes several times two milliseconds.
    assert_eq!(app.get("long").await.unwrap(), value);
}

/// Later than any test ends: for the master, nobody has said a word for long.
const FAR: mc_types::Time = mc_types::Time::from_millis(u64::MAX / 2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_comes_back_with_what_it_holds() {
    let cluster = Cluster::start(&[ByteSize::mib(4)]).await;
    let app = cluster.app().await;
    app.put("k", "v").await.unwrap();
    let before = app.cluster_report().await.unwrap().segments;
    // As when the node was cut off for longer than the master waits.
    cluster.master.state().tick(FAR);
    let read = eventually_async(DEADLINE, "the segment to be attached again", async || {
        app.get("k").await.ok()
    })
    .await;
    assert_eq!(read, "v");
    let report = app.cluster_report().await.unwrap();
    assert_eq!(report.totals.expired_clients, 1);
    assert_eq!((&*report.segments[0].name, report.segments[0].id), ("node-0", before[0].id));
    assert_eq!(app.put("new", "w").await.unwrap(), PutOutcome::Stored);
    assert_eq!(app.get("new").await.unwrap(), "w");
    // The node itself reads its own memory, through the key that it always had.
    assert_eq!(cluster.nodes[0].get("k").await.unwrap(), "v");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_node_mounts_anew_under_a_new_key() {
    let mut config = MasterConfig::default();
    config.client_return_timeout = Duration::ZERO;
    let cluster = Cluster::start_with(config, &[ByteSize::mib(4)]).await;
    let app = cluster.app().await;
    app.put("k", "v").await.unwrap();
    let old = app.master().get_replica_list(KeyRef::new("k").unwrap()).await.unwrap();
    // This master waits for nobody: it has really forgotten the node.
    cluster.master.state().tick(FAR);
    eventually_async(DEADLINE, "the segment to be mounted anew", async || {
        let report = app.cluster_report().await.unwrap();
        let ids: Vec<_> = report.segments.iter().map(|segment| segment.id).collect();
        (ids.len() == 1 && ids[0] != old.replicas[0].segment.id).then_some(())
    })
    .await;
    assert!(matches!(app.get("k").await.unwrap_err(), GetError::NotFound));
    assert_eq!(app.put("k", "w").await.unwrap(), PutOutcome::Stored);
    assert_eq!(app.get("k").await.unwrap(), "w");
    // A peer that was told of the segment before cannot reach it now.
    let tcp = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let place = &old.replicas[0];
    let link = tcp.connect(&place.segment.endpoint).await.unwrap();
    let span = mc_transport::RemoteSpan::new(place.segment.remote_key, place.extent);
    let stale = mc_transport::Operation::write(Bytes::from_static(b"x"), span);
    assert!(link.submit(vec![stale]).await.pop().unwrap().is_err());
    assert_eq!(app.get("k").await.unwrap(), "w");
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let no_master = Client::builder().connect().await.unwrap_err();
    assert!(matches!(no_master, mc_store::StartError::NoMaster));
    let nobody = Client::builder().master("127.0.0.1:1").connect().await.unwrap_err();
    assert!(nobody.to_string().contains("127.0.0.1:1"), "{nobody}");
    let master = Master::builder().start().await.unwrap();
    let address = master.local_addr();
    let absurd = Client::builder()
        .master(address.to_string())
        .segment_size(ByteSize::bytes(u64::MAX))
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(absurd, mc_store::StartError::Memory { .. }), "{absurd}");
    let taken = Master::builder().listen(address).start().await.unwrap_err();
    assert!(taken.to_string().contains(&address.to_string()), "{taken}");
    let bad = MasterConfig::default();
    let bad = {
        let mut bad = bad;
        bad.eviction_ratio = 7.0;
        bad
    };
    assert!(Master::builder().config(bad).start().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_answer_is_asked_for_again() {
    let mut config = without_watermark();
    config.lease_ttl = Duration::from_millis(20);
    let cluster = Cluster::start_with(config, &[ByteSize::mib(1)]).await;
    let app = cluster.app().await;
    // The only extent of the segment changes hands again and again under readers
    // that disregard nothing and a remover that disregards leases.
    let values = ["a", "b"].map(|name| (name, content(name, 1 << 20)));
    let reader = {
        let (app, values) = (app.clone(), values.clone());
        tokio::spawn(async move {
            let mut read = 0;
            while read < 50 {
                for (key, value) in &values {
                    match app.get(key).await {
                        Ok(bytes) => {
                            assert_eq!(bytes, *value, "foreign bytes under {key}");
                            read += 1;
                        }
                        Err(GetError::NotFound | GetError::NotReady | GetError::LeaseExpired) => {
                            tokio::task::yield_now().await;
                        }
                        Err(error) => panic!("{key}: {error}"),
                    }
                }
            }
        })
    };
    let begun = Instant::now();
    while !reader.is_finished() && begun.elapsed() < DEADLINE {
        for (key, value) in &values {
            app.put(key, value.clone()).await.unwrap();
            assert_eq!(app.get(key).await.unwrap(), *value);
            app.remove(key, true).await.unwrap();
        }
    }
    reader.await.unwrap();
}

/// The system cannot share a file as it shares memory; its segment is served all the same.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_segment_may_be_a_file() {
    let cluster = Cluster::start(&[]).await;
    let path = std::env::temp_dir().join(format!("mc-store-segment-{}", std::process::id()));
    let memory = Memory::options().file(&path);
    let builder = cluster.client().segment_size(ByteSize::mib(1)).segment_memory(memory);
    let node = builder.connect().await.unwrap();
    let app = cluster.app().await;
    let value = content("in a file", 100_000);
    app.put("in a file", value.clone()).await.unwrap();
    assert!(app.get("in a file").await.unwrap() == value);
    let file = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.len(), 1 << 20);
    assert!(file.windows(value.len()).any(|bytes| bytes == value), "the file holds the value");
    app.shutdown().await;
    node.shutdown().await;
}
