//! Calls of a thin client have the same results as those of a client.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mc_cluster_testkit::{ANY_PORT, StoredInfos, client, node};
use mc_standalone::{DummyClient, DummyError, Server};
use mc_store::{
    ByteSize, ErrorCode, GetInto, HotCacheConfig, Master, Memory, ObjectStore as _, Put, PutMode,
    PutOutcome, ReplicaTransfer, ReplicateConfig, ReplicatedStore as _, Source, StoreError,
    StoreEventInfo,
};
use mc_testkit::content;
use mc_types::MAX_TOKEN_IDS;

use crate::support::{Host, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_is_got_by_everybody() {
    let host = Host::start().await;
    let (writer, reader) = (host.app().await, host.app().await);
    for len in [1, 4095, 4096, 65_537, 3_000_001] {
        let key = format!("value-{len}");
        let value = content(&key, len);
        assert_eq!(writer.put(&key, value.clone().into()).await.unwrap(), PutOutcome::Stored);
        assert_eq!(writer.put(&key, "other".into()).await.unwrap(), PutOutcome::Existing);
        assert_eq!(reader.get(&key).await.unwrap(), value);
        assert_eq!(host.real.get(&key).await.unwrap(), value);
    }
    let error = reader.get("absent").await.unwrap_err();
    assert!(matches!(error, StoreError::NotFound), "{error}");
    drop((writer, reader));
    host.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_move_between_shared_memory_and_the_pool() {
    let host = Host::start().await;
    let app = host.app().await;
    let own = Memory::options().shared().allocate(100_000).unwrap();
    let error = app.get_into("k", &own.whole()).await.unwrap_err();
    assert!(matches!(DummyError::behind(&error), Some(DummyError::NotRegistered)), "{error}");
    app.register(&own).await.unwrap();
    app.register(&own).await.unwrap();
    assert_eq!(host.server.report().memories, 2, "the local buffer and this one, once");

    let value = content("k", 10_000);
    own.whole().copy_from(500, &value).unwrap();
    let config = ReplicateConfig::default();
    app.put_from("k", &own.slice(500, 10_000).unwrap(), &config).await.unwrap();
    let block = app.allocate(10_000).unwrap();
    let (head, tail) = (block.slice(0, 1).unwrap(), block.slice(1, 9_999).unwrap());
    let gets = vec![
        GetInto::scattered("k", vec![head, tail]),
        GetInto::new("k", own.slice(50_000, 20_000).unwrap()),
        GetInto::new("k", own.slice(0, 9_999).unwrap()),
        GetInto::new("absent", own.slice(0, 9_999).unwrap()),
        GetInto::new("", own.slice(0, 9_999).unwrap()),
    ];
    let lengths = app.batch_get_into(gets).await;
    assert_eq!((lengths[0].clone().unwrap(), lengths[1].clone().unwrap()), (10_000, 10_000));
    assert_eq!(block.whole().to_vec(), value);
    assert_eq!(own.slice(50_000, 10_000).unwrap().to_vec(), value);
    assert!(
        matches!(lengths[2], Err(StoreError::BufferTooSmall { needed: 10_000, given: 9_999 })),
        "{:?}",
        lengths[2]
    );
    assert!(matches!(lengths[3], Err(StoreError::NotFound)), "{:?}", lengths[3]);
    assert!(matches!(lengths[4], Err(StoreError::Key(_))), "{:?}", lengths[4]);

    app.unregister(&own).await.unwrap();
    assert!(matches!(app.unregister(&own).await, Err(DummyError::NotRegistered)));
    let error = app.put_from("l", &own.whole(), &config).await.unwrap_err();
    assert!(matches!(DummyError::behind(&error), Some(DummyError::NotRegistered)), "{error}");
    let report = host.server.report();
    assert_eq!((report.memories, report.shared), (1, ByteSize::mib(16)));
    let private = Memory::allocate(100).unwrap();
    assert!(matches!(app.register(&private).await, Err(DummyError::Memory(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_may_be_larger_than_the_local_buffer_and_than_a_call() {
    let host = Host::start().await;
    let app = host.dummy().local_buffer(ByteSize::kib(256)).connect().await.unwrap();
    let keys: Vec<String> = (0..2500).map(|n| format!("key-{n}")).collect();
    let value = |key: &String| content(key, key.len() * 500);
    let puts = keys.iter().map(|key| Put::new(key, Source::Bytes(value(key).into()))).collect();
    for outcome in app.batch_store(puts, &ReplicateConfig::default(), PutMode::Put).await {
        assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    }
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    for (key, got) in keys.iter().zip(app.batch_get(&names).await) {
        assert_eq!(got.unwrap(), value(key), "{key}");
    }
    assert!(app.batch_exist(&names).await.unwrap().into_iter().all(|there| there));
    let mut longer = names.clone();
    longer.insert(2100, "absent");
    assert_eq!(app.longest_prefix(&longer).await.unwrap(), 2100);
    assert_eq!(app.longest_prefix(&names).await.unwrap(), 2500);

    let removed = app.batch_remove(&longer, true).await.unwrap();
    for (n, outcome) in removed.iter().enumerate() {
        assert_eq!(outcome.is_ok(), n != 2100, "{n} {outcome:?}");
    }
    assert!(!app.exist("key-0").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_arrive_as_they_are() {
    let host = Host::start().await;
    let app = host.dummy().local_buffer(ByteSize::mib(1)).connect().await.unwrap();
    let error = app.put("", "value".into()).await.unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), (ErrorCode::InvalidKey, false));
    let error = app.put("k", vec![0; (1 << 20) + 1].into()).await.unwrap_err();
    let cause = DummyError::behind(&error);
    assert!(matches!(cause, Some(DummyError::TooLarge { needed: 1_048_577, .. })), "{error}");
    // Larger than the segment.
    let large = Memory::options().shared().allocate(100 << 20).unwrap();
    app.register(&large).await.unwrap();
    let config = ReplicateConfig::default();
    let error = app.put_from("k", &large.whole(), &config).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ObjectTooLarge, "{error}");

    app.put("k", "value".into()).await.unwrap();
    assert!(app.exist("k").await.unwrap());
    let error = app.remove("k", false).await.unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), (ErrorCode::ObjectHasLease, true), "{error}");
    app.remove("k", true).await.unwrap();
    assert!(matches!(app.remove("k", true).await, Err(StoreError::NotFound)));
    app.put("l", "value".into()).await.unwrap();
    assert_eq!(app.remove_all(true).await.unwrap(), 1);

    let pieces = vec![large.slice(0, 1).unwrap(); 1025];
    let mut outcomes = app.batch_get_into(vec![GetInto::scattered("k", pieces)]).await;
    let error = outcomes.remove(0).unwrap_err();
    let cause = DummyError::behind(&error);
    assert!(matches!(cause, Some(DummyError::TooManyPieces { given: 1025, .. })), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_replaced_and_read_in_part() {
    let host = Host::start().await;
    let app = host.app().await;
    let config = ReplicateConfig::default();
    app.upsert("k", content("one", 100_000).into()).await.unwrap();
    let value = content("two", 200_000);
    let block = app.allocate(value.len()).unwrap();
    block.whole().copy_from(0, &value).unwrap();
    app.store(Put::new("k", block.whole()), &config, PutMode::Upsert).await.unwrap();
    assert_eq!(host.real.get("k").await.unwrap(), value);
    assert_eq!(app.size("k").await.unwrap(), 200_000);
    assert_eq!(app.get_range("k", 5..100_005, None).await.unwrap(), value[5..100_005]);
    assert_eq!(app.get_range("k", 199_990..u64::MAX, None).await.unwrap(), value[199_990..]);
    let error = app.get_range("k", 200_001..200_002, None).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidParams, "{error}");
    let target = app.allocate(1000).unwrap();
    assert_eq!(app.get_range_into("k", 777, &target.whole()).await.unwrap(), 1000);
    assert_eq!(target.whole().to_vec(), value[777..1777]);

    let parts = vec!["keys ".into(), "".into(), "and values".into()];
    app.put_parts("parts", parts, &config).await.unwrap();
    assert_eq!(app.get("parts").await.unwrap(), "keys and values");
    let put = |key, text: &'static str| Put::new(key, Source::Bytes(text.into()));
    let upserts = vec![put("parts", "1"), put("l", "2"), put("parts", "3")];
    for outcome in app.batch_store(upserts, &config, PutMode::Upsert).await {
        outcome.unwrap();
    }
    assert_eq!(
        (app.get("parts").await.unwrap(), app.get("l").await.unwrap()),
        ("3".into(), "2".into())
    );
}

/// The infos of a batch do so, too, when they do not fit in one frame.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_infos_travel_with_puts_and_upserts() {
    let stored = StoredInfos::default();
    let master = Master::builder().sink(stored.clone());
    let host = Host::of(master, ByteSize::mib(16), |server| server).await;
    let (app, config) = (host.app().await, ReplicateConfig::default());
    let block = app.allocate(100).unwrap();
    let info = |number: u32, tokens| StoreEventInfo {
        model_name: format!("modèle {number}"),
        block_size: number,
        block_hash: number.to_string(),
        parent_block_hash: "0xffff".into(),
        token_ids: vec![u32::MAX; tokens],
    };
    let longest = (0..20).map(|number| (format!("long {number}"), info(number, MAX_TOKEN_IDS)));
    let longest: Vec<_> = longest.collect();
    let mut puts = vec![
        Put::new("bytes", Bytes::from("value")).with_event_info(info(1, 3)),
        Put::new("memory", block.whole()).with_event_info(info(2, 0)),
        Put::of_slices("slices", vec![block.whole().into(), Bytes::from("value").into()])
            .with_event_info(StoreEventInfo::default()),
        Put::new("none", Bytes::from("value")),
    ];
    puts.extend(
        longest
            .iter()
            .map(|(key, info)| Put::new(key, Bytes::from("value")).with_event_info(info.clone())),
    );
    let told = puts.iter().map(|put| (put.key.to_owned(), put.event_info.as_deref().cloned()));
    let told: Vec<_> = told.collect();
    for mode in [PutMode::Put, PutMode::Upsert] {
        for outcome in app.batch_store(puts.clone(), &config, mode).await {
            assert_eq!(outcome.unwrap(), PutOutcome::Stored);
        }
        assert_eq!(stored.take(), told);
    }
    app.store(puts.remove(0), &config, PutMode::Upsert).await.unwrap();
    assert_eq!(stored.take(), told[..1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_found_described_and_moved() {
    let host = Host::start().await;
    let other = node(&host.master.local_addr()).segment_name("other");
    let other = other.segment_size(ByteSize::mib(8)).connect().await.unwrap();
    let app = host.app().await;
    let own = host.real.segment_name().unwrap();
    let config = ReplicateConfig::default().prefer(own).soft_pin();
    for n in 0..1500 {
        host.real.put(&format!("found/{n}"), "value").await.unwrap();
    }
    app.put_with("k", "value".into(), &config).await.unwrap();
    assert_eq!(app.find("^found/", 1100).await.unwrap().len(), 1100);
    assert_eq!(app.find("^found/", 5000).await.unwrap().len(), 1500);
    assert_eq!(app.find("^found/7$", 5000).await.unwrap()[0].as_str(), "found/7");
    assert!(app.find("(", 1).await.is_err());
    assert_eq!(app.remove_by_regex("^found/", true).await.unwrap(), 1500);

    let (described, ours) =
        (app.describe("k").await.unwrap(), host.real.describe("k").await.unwrap());
    assert_eq!(described.replicas, ours.replicas);
    assert_eq!((described.slices, described.owner), (ours.slices, host.real.id()));
    assert!(described.soft_pinned && described.generation == ours.generation);
    assert!(matches!(app.describe("absent").await, Err(StoreError::NotFound)));

    let task = app.transfer("k", ReplicaTransfer::Copy { targets: &["other"] }).await.unwrap();
    let report = app.wait_for_task(task, crate::support::DEADLINE).await.unwrap();
    assert_eq!(
        report,
        host.real
            .task(task)
            .await
            .map(|now| mc_store::TaskReport {
                unchanged: report.unchanged,
                task: mc_rpc::Task { age: report.task.age, ..now.task.clone() },
                ..now
            })
            .unwrap()
    );
    assert_eq!(report.status, mc_store::TaskStatus::Success, "{report:?}");
    assert_eq!(app.describe("k").await.unwrap().replicas.len(), 2);
    let nowhere = ReplicaTransfer::Move { source: "nowhere", target: "other" };
    let error = app.transfer("k", nowhere).await.unwrap_err();
    assert!(!error.to_string().is_empty(), "{error}");
    other.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_share_one_connection() {
    let host = Host::with(ByteSize::mib(64), |server| server.max_calls(8)).await;
    let app = host.app().await;
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let app = app.clone();
            tokio::spawn(async move {
                for round in 0..20 {
                    let key = format!("{n}/{round}");
                    let value = content(&key, 1000 + 100 * n);
                    app.put(&key, value.clone().into()).await.unwrap();
                    assert_eq!(app.get(&key).await.unwrap(), value);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(host.server.report().clients, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_a_call_that_is_given_up_is_not_used_for_another() {
    let host = Host::start().await;
    let app = host.dummy().local_buffer(ByteSize::mib(1)).connect().await.unwrap();
    app.put("k", vec![7; 1 << 20].into()).await.unwrap();
    let block = app.allocate(1 << 20).unwrap();
    let target = block.whole();
    let mut read = Box::pin(app.get_into("k", &target));
    // Polled once: the request is on its way.
    let polled = polled_once(read.as_mut()).await;
    drop(read);
    drop((block, target));
    if polled.is_none() {
        // Sooner or later the answer comes, and the space is free.
        until("room", async || app.allocate(1 << 20).ok()).await;
    }
    assert_eq!(app.get("k").await.unwrap(), vec![7; 1 << 20]);
}

async fn polled_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    use std::pin::Pin;
    use std::task::Poll;
    std::future::poll_fn(|cx| match Pin::new(&mut future).poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_not_there_is_named() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    let error = DummyClient::connect(&address).await.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, DummyError::RealClientGone { .. }) && text.contains(&address),
        "{text}"
    );
    assert!(error.is_retryable());

    // A master speaks otherwise: it waits for the peer to begin.
    let host = Host::start().await;
    let at_master = host.master.local_addr().to_string();
    let impatient = host.dummy().server(&at_master).connect_timeout(Duration::from_millis(200));
    let error = impatient.connect().await.unwrap_err();
    assert!(error.to_string().contains(&at_master), "{error}");

    let taken = host.server.local_addr();
    let error = Server::builder(host.real.clone()).listen(taken).start().await.unwrap_err();
    assert!(error.to_string().contains("choose another port"), "{error}");
    let full = Host::with(ByteSize::mib(1), |server| server.max_clients(1)).await;
    let first = full.app().await;
    let error = full.dummy().connect().await.unwrap_err();
    assert!(matches!(error, DummyError::NotAdmitted { retryable: true, .. }), "{error}");
    drop(first);
    full.until_idle().await;
    until("a free place", async || full.dummy().connect().await.ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_lets_calls_end_and_frees_everything() {
    let host = Host::start().await;
    let app = host.app().await;
    app.put("k", "value".into()).await.unwrap();
    let address = host.server.local_addr();
    host.server.shutdown().await;
    until("the end to be noticed", async || (!app.is_connected()).then_some(())).await;
    let error = app.get("k").await.unwrap_err();
    let cause = DummyError::behind(&error);
    assert!(matches!(cause, Some(DummyError::RealClientGone { .. })), "{error}");

    // Another server of the same client, as after a restart.
    let server = until("the port", async || {
        Server::builder(host.real.clone()).listen(address).start().await.ok()
    })
    .await;
    app.wait_until_connected(crate::support::DEADLINE).await.unwrap();
    assert_eq!(app.get("k").await.unwrap(), "value");
    assert_eq!(server.report().memories, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_is_named_is_read_or_nothing() {
    let host = Host::start().await;
    let app = host.app().await;
    app.upsert("k", vec![1; 10_000].into()).await.unwrap();
    let old = app.stat("k").await.unwrap();
    assert_eq!(old, host.real.stat("k").await.unwrap());
    let stats = app.batch_stat(&["k", "absent"]).await.unwrap();
    assert!(
        matches!(&stats[..], [Ok(found), Err(StoreError::NotFound)] if *found == old),
        "{stats:?}"
    );
    let target = app.allocate(100).unwrap();
    let get = |generation| GetInto::new("k", target.whole()).range(0..100).generation(generation);
    let read = app.batch_get_into(vec![get(old.generation)]).await;
    assert!(matches!(read[..], [Ok(100)]), "{read:?}");
    let end = app.get_range("k", 9_990..u64::MAX, Some(old.generation)).await;
    assert_eq!(end.unwrap(), [1; 10][..]);

    host.real.upsert("k", vec![2; 10_000]).await.unwrap();
    let error = app.batch_get_into(vec![get(old.generation)]).await.remove(0).unwrap_err();
    assert!(matches!(error, StoreError::Replaced), "{error:?}");
    assert_eq!((error.code(), error.is_retryable()), (ErrorCode::LeaseExpired, false));
    let gone = app.get_range("k", 0..5, Some(old.generation)).await;
    assert!(matches!(gone, Err(StoreError::Replaced)), "{gone:?}");
    let new = app.stat("k").await.unwrap();
    let read = app.batch_get_into(vec![get(new.generation)]).await;
    assert!(matches!(read[..], [Ok(100)]), "{read:?}");
    assert_eq!(target.whole().to_vec(), [2; 100]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_one_call_are_of_one_put() {
    let host = Host::start().await;
    let app = host.app().await;
    let len = 10_000;
    host.real.upsert("k", vec![0; len]).await.unwrap();
    host.real.upsert("l", vec![0; len]).await.unwrap();
    let (real, over) = (host.real.clone(), Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&over);
    let writing = tokio::spawn(async move {
        let mut puts = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            puts += 1;
            real.upsert("k", vec![puts as u8; len]).await.unwrap();
            real.upsert("l", vec![puts as u8; len]).await.unwrap();
            // Old values keep their space for as long as they are leased.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        puts
    });
    let target = app.allocate(8_000).unwrap();
    let mut found = BTreeSet::new();
    // More requests than one call may name, more pieces, and two keys that share calls.
    for round in 0..150 {
        let (count, pieces) = [(5, 1), (1500, 1), (900, 5), (1024, 4)][round % 4];
        let get = |n: usize| {
            let at = n * pieces;
            let into = (at..at + pieces).map(|at| target.slice(at, 1).unwrap()).collect();
            let from = (at % len) as u64;
            GetInto::scattered("k", into).range(from..from + pieces as u64)
        };
        let mut gets: Vec<_> = (0..count).map(get).collect();
        let other = target.slice(7_999, 1).unwrap();
        gets.insert(count / 2, GetInto::new("l", other).range(0..1));
        let mut read = app.batch_get_into(gets).await;
        read.remove(count / 2).unwrap();
        if let Some(error) = read.iter().find_map(|read| read.as_ref().err()) {
            assert!(matches!(error, StoreError::Replaced), "{error:?}");
        }
        let bytes = target.slice(0, count * pieces).unwrap().to_vec();
        let parts = bytes.chunks(pieces).zip(&read).filter(|(_, read)| read.is_ok());
        let values: BTreeSet<u8> = parts.flat_map(|(part, _)| part).copied().collect();
        assert!(values.len() <= 1, "{count} parts of one call are of the puts {values:?}");
        found.extend(values);

        let values: Vec<_> = app.batch_get(&["k", "l", "k"]).await;
        let [first, _, last] = &values[..] else { panic!("{values:?}") };
        assert_eq!(first.as_ref().unwrap(), last.as_ref().unwrap());
    }
    over.store(true, Ordering::Relaxed);
    let puts = writing.await.unwrap();
    assert!(puts > 10 && found.len() > 5, "{puts} puts, of which {found:?} were seen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_application_overwrites_is_not_cached_for_the_others() {
    let host = Host::start().await;
    let mut cache = HotCacheConfig::new(ByteSize::mib(1));
    cache.admission = 1;
    let real = client(&host.master.local_addr()).hot_cache(cache).connect().await.unwrap();
    let server = Server::builder(real).listen(ANY_PORT);
    let server = server.start().await.unwrap();
    let address = server.local_addr().to_string();
    let dummy = async || DummyClient::builder().server(address.clone()).connect().await.unwrap();
    let (careless, other) = (dummy().await, dummy().await);
    let [a, b] = ["a", "b"].map(|key| content(key, 50_000));
    careless.put("a", a.clone().into()).await.unwrap();
    careless.put("b", b.clone().into()).await.unwrap();
    let block = careless.allocate(50_000).unwrap();
    let into = |key| GetInto::new(key, block.whole());
    for read in careless.batch_get_into(vec![into("a"), into("b")]).await {
        read.unwrap();
    }
    assert!(other.get("a").await.unwrap() == a, "it has the bytes of another key");
    assert!(other.get("b").await.unwrap() == b, "it has the bytes of another key");
}
