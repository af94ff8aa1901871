//! Cases about questions on keys, and removals.

use bytes::Bytes;
use mc_types::ErrorCode;

use super::{Subject, batch, content, put};
use crate::{Put, PutMode, StoreError};

pub(super) async fn existence_is_told(store: Subject) {
    for key in ["block-0", "block-1", "block-3"] {
        put(&*store, key, "value").await;
    }
    assert!(store.exist("block-0").await.expect("an answer"));
    assert!(!store.exist("block-2").await.expect("an answer"));
    let all = ["block-0", "block-1", "block-2", "block-3"];
    let there = store.batch_exist(&all).await.expect("an answer");
    assert_eq!(there, [true, true, false, true]);
    assert_eq!(store.longest_prefix(&all).await.expect("an answer"), 2);
    assert_eq!(store.longest_prefix(&all[2..]).await.expect("an answer"), 0);
    assert_eq!(store.longest_prefix(&all[..2]).await.expect("an answer"), 2);
    assert_eq!(store.longest_prefix(&[]).await.expect("an answer"), 0);
    assert!(store.batch_exist(&[]).await.expect("an answer").is_empty());
}

pub(super) async fn a_probe_keeps_nothing(store: Subject) {
    put(&*store, "a", "value").await;
    assert!(store.probe("a").await.expect("an answer"));
    let there = store.batch_probe(&["a", "b", "a"]).await.expect("an answer");
    assert_eq!(there, [true, false, true]);
    store.remove("a", false).await.expect("nothing holds it");
    assert!(!store.probe("a").await.expect("an answer"));
    assert!(store.batch_probe(&[]).await.expect("an answer").is_empty());
    let refused = store.batch_probe(&["a", ""]).await.expect_err("no key");
    assert_eq!(refused.code(), ErrorCode::InvalidKey);
}

pub(super) async fn a_put_is_removed_by_its_name_once(store: Subject) {
    put(&*store, "a", "old").await;
    let old = store.stat("a").await.expect("it is stored").generation;
    store.upsert("a", "new".into()).await.expect("there is room");
    let refused = store.remove_generation("a", old).await.expect_err("it is of another put");
    assert!(matches!(refused, StoreError::Replaced), "{refused}");
    assert_eq!(store.get("a").await.expect("it stays"), "new");
    let new = store.stat("a").await.expect("it is stored").generation;
    let named = [("a", new), ("a", new), ("none", new)];
    let removed = store.batch_remove_generations(&named).await.expect("an answer");
    let missing = |outcome: &Result<(), _>| matches!(outcome, Err(StoreError::NotFound));
    assert!(removed[0].is_ok() && removed[1..].iter().all(missing), "{removed:?}");
    assert!(!store.exist("a").await.expect("an answer"));
    let refused = store.batch_remove_generations(&[("", new)]).await.expect_err("no key");
    assert_eq!(refused.code(), ErrorCode::InvalidKey);
}

pub(super) async fn a_stat_tells_length_and_put(store: Subject) {
    put(&*store, "a", content("a", 5000)).await;
    let first = store.stat("a").await.expect("it is stored");
    assert_eq!(first.len, 5000);
    assert_eq!(store.stat("a").await.expect("it is stored"), first);
    let stats = store.batch_stat(&["none", "a"]).await.expect("an answer");
    let [Err(StoreError::NotFound), Ok(stat)] = &stats[..] else { panic!("{stats:?}") };
    assert_eq!(*stat, first);
    store.upsert("a", content("a", 5000)).await.expect("there is room");
    assert_ne!(store.stat("a").await.expect("it is stored").generation, first.generation);
}

pub(super) async fn what_is_removed_is_gone(store: Subject) {
    for key in ["a", "b", "c"] {
        put(&*store, key, "value").await;
    }
    store.remove("a", true).await.expect("it is there");
    let removed = store.batch_remove(&["a", "b"], true).await.expect("an answer");
    assert!(matches!(removed[..], [Err(StoreError::NotFound), Ok(())]), "{removed:?}");
    let there = store.batch_exist(&["a", "b", "c"]).await.expect("an answer");
    assert_eq!(there, [false, false, true]);
    assert!(matches!(store.get("a").await, Err(StoreError::NotFound)));
    // The key is free again.
    put(&*store, "a", "another").await;
    assert_eq!(store.get("a").await.expect("it is stored"), "another");
}

pub(super) async fn everything_is_removed(store: Subject) {
    let keys: Vec<String> = (0..100).map(|n| format!("key-{n}")).collect();
    let puts = keys.iter().map(|key| Put::new(key, Bytes::from("value"))).collect();
    for outcome in batch(&*store, puts, PutMode::Put).await {
        outcome.expect("there is room");
    }
    assert_eq!(store.remove_all(true).await.expect("an answer"), 100);
    assert_eq!(store.remove_all(true).await.expect("an answer"), 0);
    assert!(!store.exist("key-7").await.expect("an answer"));
}

pub(super) async fn patterns_find_and_remove(store: Subject) {
    for key in ["layer0/block1", "layer1/block1", "layer1/block2", "other"] {
        put(&*store, key, "value").await;
    }
    let mut found = store.find("^layer[0-9]+/block1$", 100).await.expect("it is a pattern");
    found.sort();
    let found: Vec<&str> = found.iter().map(|key| key.as_str()).collect();
    assert_eq!(found, ["layer0/block1", "layer1/block1"]);
    assert_eq!(store.find("block", 2).await.expect("it is a pattern").len(), 2);
    assert_eq!(store.find("^block", 2).await.expect("it is a pattern").len(), 0);
    assert_eq!(store.find("", 100).await.expect("it is a pattern").len(), 4);
    assert_eq!(store.find("", 0).await.expect("it is a pattern").len(), 0);
    assert_eq!(store.remove_by_regex("^layer1/", true).await.expect("it is a pattern"), 2);
    assert_eq!(store.find("", 100).await.expect("it is a pattern").len(), 2);
}

pub(super) async fn invalid_keys_and_patterns_are_refused(store: Subject) {
    put(&*store, "a", "value").await;
    for error in [
        store.get("").await.expect_err("no key"),
        store.exist("").await.expect_err("no key"),
        store.batch_exist(&["a", ""]).await.expect_err("no key"),
        store.longest_prefix(&["a", ""]).await.expect_err("no key"),
        store.stat("").await.expect_err("no key"),
        store.batch_stat(&["a", ""]).await.expect_err("no key"),
        store.remove("", true).await.expect_err("no key"),
        store.batch_remove(&["a", ""], true).await.expect_err("no key"),
    ] {
        assert!(matches!(error, StoreError::Key(_)), "{error}");
    }
    assert!(store.exist("a").await.expect("an answer"), "nothing was removed");
    for error in [
        store.find("(", 10).await.expect_err("no pattern"),
        store.remove_by_regex("[", true).await.expect_err("no pattern"),
        store.remove_by_regex("", true).await.expect_err("it would match everything"),
    ] {
        assert_eq!(error.code(), ErrorCode::InvalidParams, "{error}");
    }
}
