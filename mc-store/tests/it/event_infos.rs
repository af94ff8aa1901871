//! The event info of a put reaches the sinks of the master, whichever way the put takes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use bytes::Bytes;
use mc_cluster_testkit::{Cluster, StoredInfos};
use mc_store::{
    ByteSize, Client, ErrorCode, InfoTooLong, Master, Memory, ObjectStore as _, Put, PutError,
    PutMode, PutOutcome, ReplicateConfig, StoreEventInfo,
};
use mc_types::{MAX_BLOCK_HASH, MAX_MODEL_NAME, MAX_TOKEN_IDS};

async fn cluster(segment: ByteSize) -> (Cluster, StoredInfos) {
    let stored = StoredInfos::default();
    let master = Master::builder().sink(stored.clone());
    (Cluster::of(master, &[segment]).await, stored)
}

/// A description that no other `number` has.
fn info(number: u32) -> StoreEventInfo {
    StoreEventInfo {
        model_name: format!("modèle {number}"),
        block_size: number,
        block_hash: number.to_string(),
        parent_block_hash: "0xffff".into(),
        token_ids: vec![0, number, u32::MAX],
    }
}

/// The puts that a client can make, each of another key and with another description.
fn puts(memory: &Memory) -> Vec<Put<'static>> {
    let part = |at| memory.slice(at, 10).unwrap();
    vec![
        Put::new("bytes", Bytes::from("value")).with_event_info(info(1)),
        Put::new("memory", part(0)).with_event_info(Arc::new(info(2))),
        Put::of_slices("slices", vec![part(10).into(), Bytes::from("value").into()])
            .with_event_info(info(3)),
        Put::new("none", Bytes::from("value")),
        Put::new("empty", Bytes::from("value")).with_event_info(StoreEventInfo::default()),
    ]
}

fn told(puts: &[Put<'_>]) -> Vec<(String, Option<StoreEventInfo>)> {
    puts.iter().map(|put| (put.key.to_owned(), put.event_info.as_deref().cloned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_put_and_upsert_carries_it() {
    let (cluster, stored) = cluster(ByteSize::mib(16)).await;
    let (app, config) = (cluster.app().await, ReplicateConfig::default());
    let memory = Memory::allocate(100).unwrap();
    app.register(&memory).await.unwrap();
    let puts = puts(&memory);
    for mode in [PutMode::Put, PutMode::Upsert] {
        for put in puts.clone() {
            assert_eq!(app.store(put, &config, mode).await.unwrap(), PutOutcome::Stored);
        }
        assert_eq!(stored.take(), told(&puts));
    }
    for outcome in app.batch_upsert(puts.clone(), &config).await {
        outcome.unwrap();
    }
    assert_eq!(stored.take(), told(&puts));
    for outcome in app.batch_put(puts.clone(), &config).await {
        assert_eq!(outcome.unwrap(), PutOutcome::Existing);
    }
    assert_eq!(stored.take(), []);
    app.remove_all(true).await.unwrap();
    for outcome in app.batch_put(puts.clone(), &config).await {
        assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    }
    assert_eq!(stored.take(), told(&puts));

    let client = cluster.client();
    let blocks = move || {
        let client = client.connect_blocking().unwrap();
        let store = client.as_store();
        for outcome in client.batch_upsert(puts.clone(), &config) {
            outcome.unwrap();
        }
        assert_eq!(stored.take(), told(&puts));
        for put in puts.clone() {
            store.store(put, &config, PutMode::Upsert).unwrap();
        }
        assert_eq!(stored.take(), told(&puts));
    };
    tokio::task::spawn_blocking(blocks).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_too_long_is_refused_before_anything_is_asked() {
    let (cluster, stored) = cluster(ByteSize::mib(16)).await;
    let (app, config) = (cluster.app().await, ReplicateConfig::default());
    let text = |len| "x".repeat(len);
    let none = StoreEventInfo::default;
    let cases = [
        ("model_name", StoreEventInfo { model_name: text(MAX_MODEL_NAME + 1), ..none() }),
        ("block_hash", StoreEventInfo { block_hash: text(MAX_BLOCK_HASH + 1), ..none() }),
        (
            "parent_block_hash",
            StoreEventInfo { parent_block_hash: text(MAX_BLOCK_HASH + 1), ..none() },
        ),
        ("token_ids", StoreEventInfo { token_ids: vec![0; MAX_TOKEN_IDS + 1], ..none() }),
    ];
    let puts = |good: &'static str| {
        let bad = cases
            .iter()
            .map(|(_, info)| Put::new("bad", Bytes::from("value")).with_event_info(info.clone()));
        bad.chain([Put::new(good, Bytes::from("value"))]).collect::<Vec<_>>()
    };
    let mut outcomes = app.batch_put(puts("a"), &config).await;
    assert_eq!(outcomes.pop().unwrap().unwrap(), PutOutcome::Stored);
    for ((name, _), outcome) in cases.iter().zip(outcomes) {
        let error = outcome.unwrap_err();
        let PutError::EventInfo(InfoTooLong { field, length, max }) = error else {
            panic!("{error}")
        };
        assert_eq!((field, length), (*name, max + 1));
        assert_eq!((error.code(), error.is_retryable()), (ErrorCode::InvalidParams, false));
    }
    // Of a key that comes twice in a batch of upserts the last value counts.
    let outcomes = app.batch_upsert(puts("b"), &config).await;
    let refused = |outcome: &Result<(), PutError>| matches!(outcome, Err(PutError::EventInfo(error)) if error.field == "token_ids");
    assert!(outcomes[..cases.len()].iter().all(refused), "{outcomes:?}");
    assert!(outcomes[cases.len()].is_ok());
    assert_eq!(stored.take(), [("a".to_owned(), None), ("b".to_owned(), None)]);
    assert_eq!(app.cluster_report().await.unwrap().totals.put_starts, 2);
}

/// The infos of one batch are more than twice what a master takes in a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_divided_so_that_its_infos_fit() {
    let (cluster, stored) = cluster(ByteSize::mib(16)).await;
    let (app, config) = (cluster.app().await, ReplicateConfig::default());
    let keys: Vec<String> = (0..300).map(|n| format!("block {n}")).collect();
    let longest = StoreEventInfo { token_ids: vec![u32::MAX; MAX_TOKEN_IDS], ..info(1) };
    let longest = Arc::new(longest);
    let put = |key| Put::new(key, Bytes::from("value")).with_event_info(Arc::clone(&longest));
    let puts: Vec<Put<'_>> = keys.iter().map(|key| put(key)).collect();
    const { assert!(300 * 5 * MAX_TOKEN_IDS > 2 * mc_rpc::frame::DEFAULT_MAX_PAYLOAD as usize) };
    store_all(&app, &puts, &config).await;
    let heard = stored.take();
    assert_eq!(heard.len(), keys.len());
    for (key, (name, info)) in keys.iter().zip(heard) {
        assert!(*key == name && info.as_ref() == Some(&*longest), "{name}");
    }
}

async fn store_all(app: &Client, puts: &[Put<'_>], config: &ReplicateConfig) {
    for outcome in app.batch_put(puts.to_vec(), config).await {
        assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    }
}
