//! Ranges, upserts, values that borrow, the cache, choice of replicas, and calls that are
//! given up: a whole cluster in one process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_store::{
    ByteSize, Client, DataPath, ErrorCode, GetError, GetInto, HotCacheConfig, Memory, NodeConfig,
    Put, ReplicateConfig, Source,
};

use crate::common::content;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

const SEGMENT: ByteSize = ByteSize::mib(32);

fn config() -> ReplicateConfig {
    ReplicateConfig::default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_are_exact_for_any_slices() {
    let cluster = Cluster::start(&[SEGMENT]).await;
    let node = &cluster.nodes[0];
    // Once over shared memory, once through a socket, once in the own segment.
    let shared = cluster.app().await;
    let through_socket = NodeConfig::default();
    let remote = cluster.client().node(through_socket).connect().await.unwrap();

    let value = content("ranges", 10_000);
    let cuts = [0, 1, 1, 4000, 4096, 9999, 10_000];
    let slices = cuts.windows(2).map(|cut| Source::from(value.slice(cut[0]..cut[1]))).collect();
    shared.batch_put(vec![Put::of_slices("ranges", slices)], &config()).await.remove(0).unwrap();
    shared.put("one", value.clone()).await.unwrap();

    let marks = [0, 1, 2, 3999, 4000, 4001, 4096, 5000, 9998, 9999, 10_000];
    for reader in [&shared, &remote, node] {
        for key in ["ranges", "one"] {
            for start in marks {
                for end in marks.into_iter().filter(|&end| end >= start) {
                    let found = reader.get_range(key, start..end).await.unwrap();
                    let expected = value.slice(start as usize..end as usize);
                    assert_eq!(found, expected, "{key} {start}..{end}");
                }
            }
            assert_eq!(reader.get_range(key, 9990..u64::MAX).await.unwrap(), value.slice(9990..));
            let (start, end) = (10_001, 10_002);
            let error = reader.get_range(key, start..end).await.unwrap_err();
            assert!(matches!(error, GetError::OutOfRange { len: 10_000, .. }), "{error:?}");
            assert_eq!(error.code(), ErrorCode::InvalidParams);
            #[allow(clippy::reversed_empty_ranges, reason = "wrong on purpose")]
            let error = reader.get_range(key, 5..4).await.unwrap_err();
            assert!(matches!(error, GetError::OutOfRange { .. }), "{error:?}");
        }
    }

    let memory = Memory::allocate(4096).unwrap();
    assert_eq!(remote.get_range_into("ranges", 9000, &memory.whole()).await.unwrap(), 1000);
    assert_eq!(memory.slice(0, 1000).unwrap().to_vec(), value[9000..]);
    let [first, second] = [0, 2048].map(|at| memory.slice(at, 10).unwrap());
    let gets = vec![
        GetInto::new("ranges", first.clone()).range(3995..4005),
        GetInto::new("one", second.clone()).range(0..11),
        GetInto::new("none", second.clone()).range(0..1),
        GetInto {
            key: "one",
            into: vec![first.clone(), second.clone()],
            range: Some(100..120),
            generation: None,
        },
    ];
    let read = remote.batch_get_into(gets).await;
    assert_eq!(read[0].as_ref().unwrap(), &10);
    assert!(matches!(read[1], Err(GetError::BufferTooSmall { needed: 11, given: 10 })));
    assert!(matches!(read[2], Err(GetError::NotFound)));
    assert_eq!(read[3].as_ref().unwrap(), &20);
    assert_eq!(second.to_vec(), value[110..120]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upserts_replace_and_readers_see_whole_values() {
    let cluster = Cluster::start(&[SEGMENT; 2]).await;
    let writer = cluster.app().await;
    let both = config().replicas(2);
    writer.upsert_with("key", content("0", 100_000), &both).await.unwrap();

    let values: Vec<Bytes> = (0..20).map(|n| content(&n.to_string(), 100_000 + 1000 * n)).collect();
    let (reader, expected) = (cluster.app().await, values.clone());
    let reading = tokio::spawn(async move {
        let (mut last, mut reads) = (0, 0);
        while last + 1 < expected.len() {
            let found = reader.get("key").await.unwrap();
            let version = expected.iter().position(|value| *value == found);
            let version = version.expect("a value that was put, whole");
            assert!(version >= last, "never an older value than before");
            (last, reads) = (version, reads + 1);
        }
        reads
    });
    for value in &values {
        writer.upsert_with("key", value.clone(), &both).await.unwrap();
    }
    assert!(tokio::time::timeout(DEADLINE, reading).await.unwrap().unwrap() > 0);

    let upserts = |texts: [&'static str; 3]| {
        let put = |(key, text): (_, &'static str)| Put::new(key, Bytes::from(text));
        ["x", "y", "x"].into_iter().zip(texts).map(put).collect()
    };
    for texts in [["1", "2", "3"], ["4", "5", "6"]] {
        let outcomes = writer.batch_upsert(upserts(texts), &config()).await;
        assert!(outcomes.len() == 3 && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert_eq!(writer.get("x").await.unwrap(), texts[2]);
        assert_eq!(writer.get("y").await.unwrap(), texts[1]);
    }
    let memory = Memory::allocate(8).unwrap();
    memory.whole().copy_from(0, b"straight").unwrap();
    writer.upsert_from("x", &memory.whole(), &config()).await.unwrap();
    assert_eq!(writer.get("x").await.unwrap(), "straight");
    for node in cluster.nodes {
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_borrow_from_the_local_buffer_and_outlive_it() {
    let cluster = Cluster::start(&[SEGMENT]).await;
    let app = cluster.client().local_buffer(ByteSize::mib(1)).connect().await.unwrap();
    let value = content("value", 600_000);
    app.put("value", value.clone()).await.unwrap();
    // The buffer has room for one of them; the other has memory of its own.
    let mut kept = Vec::new();
    for _ in 0..20 {
        let [first, second] = [app.get("value").await.unwrap(), app.get("value").await.unwrap()];
        assert!(first == value && second == value);
        assert_ne!(first.as_ptr(), second.as_ptr());
        kept = vec![first, second];
    }
    app.shutdown().await;
    drop(app);
    assert!(kept.iter().all(|found| *found == value));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hot_cache_saves_transfers_and_is_never_stale() {
    let cluster = Cluster::start(&[SEGMENT]).await;
    let cache = HotCacheConfig::new(ByteSize::mib(1));
    let app = cluster.client().hot_cache(cache).connect().await.unwrap();
    let other = cluster.app().await;
    let [old, new] = ["old", "new"].map(|key| content(key, 50_000));
    other.put("key", old.clone()).await.unwrap();

    let moved = |app: &Client| app.metrics().paths.iter().map(|path| path.read).sum::<u64>();
    for _ in 0..10 {
        assert!(app.get("key").await.unwrap() == old);
    }
    assert_eq!(moved(&app), 100_000, "the third time it was there");
    assert_eq!(app.metrics().hot_cache, (8, 2));
    assert_eq!(app.get_range("key", 7..9).await.unwrap(), old.slice(7..9));
    let memory = Memory::allocate(60_000).unwrap();
    assert_eq!(app.get_into("key", &memory.whole()).await.unwrap(), 50_000);
    assert_eq!(memory.slice(0, 50_000).unwrap().to_vec(), old);
    let short = memory.slice(0, 10).unwrap();
    let error = app.get_into("key", &short).await.unwrap_err();
    assert!(matches!(error, GetError::BufferTooSmall { needed: 50_000, given: 10 }), "{error:?}");
    assert_eq!(moved(&app), 100_000);

    // Somebody else replaces it, then removes it.
    other.upsert("key", new.clone()).await.unwrap();
    for _ in 0..5 {
        assert!(app.get("key").await.unwrap() == new);
    }
    other.remove("key", true).await.unwrap();
    assert!(matches!(app.get("key").await, Err(GetError::NotFound)));
    other.put("key", old.clone()).await.unwrap();
    assert!(app.get("key").await.unwrap() == old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_replicas_the_one_that_shares_memory_is_read() {
    let cluster = Cluster::start(&[SEGMENT]).await;
    let alone = NodeConfig::default();
    let far = cluster.node().node(alone).segment_name("far").segment_size(SEGMENT);
    let _far = far.connect().await.unwrap();
    let app = cluster.app().await;
    let both = config().replicas(2);
    for n in 0..40 {
        app.put_with(&format!("{n}"), content("both", 10_000), &both).await.unwrap();
    }
    for n in 0..40 {
        app.get(&format!("{n}")).await.unwrap();
    }
    let metrics = app.metrics();
    let read = |path| metrics.paths.iter().find(|of| of.path == path).unwrap().read;
    assert_eq!(read(DataPath::SharedMemory), 400_000);
    assert_eq!(read(DataPath::Tcp), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_is_given_up_leaves_nothing_unfinished() {
    let cluster = Cluster::start(&[SEGMENT]).await;
    let app = cluster.app().await;
    let value = content("value", 200_000);
    for n in 0..200 {
        let key = format!("key/{n}");
        let put = app.put(&key, value.clone());
        // Later and later in the put.
        tokio::select! {
            biased;
            outcome = put => drop(outcome.unwrap()),
            () = turns(n / 4) => {}
        }
    }
    // Each is there or is not; none stays in between, where it would be for half a minute.
    let begun = Instant::now();
    for n in 0..200 {
        let key = format!("key/{n}");
        loop {
            match app.get(&key).await {
                Ok(found) => break assert!(found == value, "{key}"),
                Err(GetError::NotFound) => break,
                Err(error) => assert!(begun.elapsed() < DEADLINE, "{key}: {error:?}"),
            }
            tokio::task::yield_now().await;
        }
    }
}

async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}
