//! Cases about puts.

use bytes::Bytes;
use mc_meta::MAX_REPLICAS;
use mc_types::{ErrorCode, MAX_KEY_LEN, MAX_TOKEN_IDS, StoreEventInfo};

use super::{Subject, batch, content, put};
use crate::{Put, PutMode, PutOutcome, ReplicateConfig, StoreError};

pub(super) async fn values_survive_round_trips_of_every_size(store: Subject) {
    for len in [1, 4095, 4096, 65_536, 65_537, 1_000_003] {
        let key = format!("value-{len}");
        put(&*store, &key, content(&key, len)).await;
        assert_eq!(store.get(&key).await.expect("it is stored"), content(&key, len));
        assert_eq!(store.size(&key).await.expect("it is stored"), len as u64);
    }
}

pub(super) async fn a_put_never_changes_a_value(store: Subject) {
    put(&*store, "key", "first").await;
    let again = store.put("key", "other".into()).await.expect("no failure");
    assert_eq!(again, PutOutcome::Existing);
    assert_eq!(store.get("key").await.expect("it is stored"), "first");
}

pub(super) async fn an_upsert_replaces_a_value(store: Subject) {
    for value in ["one", "two, which is longer", "3"] {
        store.upsert("key", value.into()).await.expect("there is room");
        assert_eq!(store.get("key").await.expect("it is stored"), value);
    }
    let config = ReplicateConfig::default();
    store.upsert_with("new", "value".into(), &config).await.expect("a new key is stored, too");
    assert_eq!(store.put("new", "other".into()).await.expect("no failure"), PutOutcome::Existing);
}

pub(super) async fn parts_follow_each_other(store: Subject) {
    let (first, last) = (content("first", 5000), content("last", 70_000));
    let parts = vec![first.clone(), Bytes::new(), last.clone()];
    store.put_parts("key", parts, &ReplicateConfig::default()).await.expect("there is room");
    assert_eq!(store.get("key").await.expect("it is stored"), [first, last].concat());
}

pub(super) async fn memory_is_put_from_where_it_is(store: Subject) {
    let memory = store.allocate(10_000).expect("there is memory");
    let value = content("key", 10_000);
    memory.whole().copy_from(0, &value).expect("it is as long");
    let part = memory.slice(100, 9000).expect("it lies inside");
    store.put_from("key", &part, &ReplicateConfig::default()).await.expect("there is room");
    memory.whole().copy_from(0, &[0; 10_000]).expect("it is as long");
    assert_eq!(store.get("key").await.expect("it is stored"), value[100..9100]);
    let both = vec![part.into(), Bytes::from_static(b"tail").into()];
    let outcomes = batch(&*store, vec![Put::of_slices("both", both)], PutMode::Put).await;
    assert!(matches!(outcomes[..], [Ok(PutOutcome::Stored)]), "{outcomes:?}");
    assert_eq!(store.get("both").await.expect("it is stored")[9000..], b"tail"[..]);
}

pub(super) async fn a_batch_has_one_outcome_for_each_put(store: Subject) {
    put(&*store, "there", "value").await;
    let puts = ["a", "", "there", "b"].map(|key| Put::new(key, content(key, 1000)));
    let outcomes = batch(&*store, puts.into(), PutMode::Put).await;
    assert!(
        matches!(
            outcomes[..],
            [
                Ok(PutOutcome::Stored),
                Err(StoreError::Key(_)),
                Ok(PutOutcome::Existing),
                Ok(PutOutcome::Stored)
            ]
        ),
        "{outcomes:?}"
    );
    assert_eq!(store.get("b").await.expect("it is stored"), content("b", 1000));
    assert!(batch(&*store, Vec::new(), PutMode::Put).await.is_empty());
}

pub(super) async fn of_a_key_that_comes_twice_one_value_is_stored(store: Subject) {
    let twice = || vec![Put::new("k", Bytes::from("first")), Put::new("k", Bytes::from("last"))];
    let outcomes = batch(&*store, twice(), PutMode::Put).await;
    let stored = outcomes.iter().filter(|outcome| matches!(outcome, Ok(PutOutcome::Stored)));
    assert_eq!(stored.count(), 1, "{outcomes:?}");
    let value = store.get("k").await.expect("it is stored");
    assert!(value == "first" || value == "last", "{value:?}");
    let outcomes = batch(&*store, twice(), PutMode::Upsert).await;
    assert!(matches!(outcomes[..], [Ok(_), Ok(_)]), "{outcomes:?}");
    assert_eq!(store.get("k").await.expect("it is stored"), "last");
}

pub(super) async fn what_is_no_object_is_refused(store: Subject) {
    let long = "k".repeat(MAX_KEY_LEN + 1);
    for key in ["", &*long] {
        let error = store.put(key, "value".into()).await.expect_err("the key is invalid");
        assert!(matches!(error, StoreError::Key(_)), "{error}");
        assert_eq!(error.code(), ErrorCode::InvalidKey);
        assert!(!error.is_retryable());
    }
    let error = store.put("empty", Bytes::new()).await.expect_err("an object has bytes");
    assert_eq!(error.code(), ErrorCode::InvalidParams, "{error}");
    let many = ReplicateConfig::default().replicas(MAX_REPLICAS as u32 + 1);
    let error = store.put_with("k", "value".into(), &many).await.expect_err("too many replicas");
    assert_eq!(error.code(), ErrorCode::InvalidParams, "{error}");
    let info = |tokens| StoreEventInfo { token_ids: vec![0; tokens], ..StoreEventInfo::default() };
    let put = |key, tokens| Put::new(key, Bytes::from("value")).with_event_info(info(tokens));
    let puts = vec![put("k", MAX_TOKEN_IDS + 1), put("l", MAX_TOKEN_IDS)];
    let mut outcomes = batch(&*store, puts, PutMode::Put).await;
    outcomes.remove(1).expect("its info is as long as it may be");
    let error = outcomes.remove(0).expect_err("too many tokens");
    let StoreError::EventInfo(too_long) = &error else { panic!("{error}") };
    assert_eq!((too_long.field, too_long.max), ("token_ids", MAX_TOKEN_IDS));
    assert_eq!(error.code(), ErrorCode::InvalidParams);
    assert_eq!(store.batch_exist(&["empty", "k"]).await.expect("an answer"), [false, false]);
}

pub(super) async fn of_many_puts_at_once_one_wins(store: Subject) {
    let mut puts = tokio::task::JoinSet::new();
    for n in 0..16 {
        let store = store.clone();
        puts.spawn(async move { (n, store.put("key", format!("value {n}").into()).await) });
    }
    let mut winners = Vec::new();
    while let Some(put) = puts.join_next().await {
        let (n, outcome) = put.expect("a put does not panic");
        if outcome.expect("no failure") == PutOutcome::Stored {
            winners.push(n);
        }
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(store.get("key").await.expect("it is stored"), format!("value {}", winners[0]));
}
