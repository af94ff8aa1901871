//! Cases about reads.

use std::sync::{Arc, Mutex};

use mc_transport::Memory;
use mc_types::ErrorCode;

use super::{Subject, content, put};
use crate::{GetInto, StoreError};

pub(super) async fn a_missing_object_is_not_found(store: Subject) {
    let memory = store.allocate(8).expect("there is memory");
    let not_found = |error: StoreError| {
        assert!(matches!(error, StoreError::NotFound), "{error}");
        assert_eq!(error.code(), ErrorCode::ObjectNotFound);
        assert!(!error.is_retryable());
    };
    not_found(store.get("k").await.expect_err("no object"));
    not_found(store.get_range("k", 0..1, None).await.expect_err("no object"));
    not_found(store.get_into("k", &memory.whole()).await.expect_err("no object"));
    not_found(store.size("k").await.expect_err("no object"));
    not_found(store.stat("k").await.expect_err("no object"));
    not_found(store.remove("k", true).await.expect_err("no object"));
}

pub(super) async fn ranges_are_exact(store: Subject) {
    let value = content("key", 100_000);
    put(&*store, "key", value.clone()).await;
    for (start, end) in
        [(0, 1), (0, 100_000), (4095, 70_001), (99_999, 200_000), (100_000, 100_001)]
    {
        let read = store.get_range("key", start..end, None).await.expect("it is a range");
        assert_eq!(read, value[start as usize..end.min(100_000) as usize], "{start}..{end}");
    }
    #[allow(clippy::reversed_empty_ranges, reason = "it is what must be refused")]
    for range in [100_001..100_002, 5..4] {
        let error = store.get_range("key", range, None).await.expect_err("it is no range");
        assert_eq!(error.code(), ErrorCode::InvalidParams, "{error}");
    }
    let memory = store.allocate(1000).expect("there is memory");
    let read = store.get_range_into("key", 99_500, &memory.whole()).await;
    assert_eq!(read.expect("it is a range"), 500);
    assert_eq!(memory.slice(0, 500).expect("it lies inside").to_vec(), value[99_500..]);
}

pub(super) async fn a_named_put_is_read_or_nothing(store: Subject) {
    put(&*store, "key", "keys and values").await;
    let first = store.stat("key").await.expect("it is stored").generation;
    let read = store.get_range("key", 9..15, Some(first)).await;
    assert_eq!(read.expect("it is that put"), "values");
    store.upsert("key", "others, as long".into()).await.expect("there is room");
    let error = store.get_range("key", 9..15, Some(first)).await.expect_err("it is another");
    assert!(matches!(error, StoreError::Replaced), "{error}");
    assert_eq!(error.code(), ErrorCode::LeaseExpired);
    let memory = store.allocate(15).expect("there is memory");
    let get = GetInto::new("key", memory.whole()).generation(first);
    let read = store.batch_get_into(vec![get]).await;
    assert!(matches!(read[..], [Err(StoreError::Replaced)]), "{read:?}");
}

pub(super) async fn bytes_are_read_into_memory(store: Subject) {
    let value = content("key", 5000);
    put(&*store, "key", value.clone()).await;
    let memory = store.allocate(6000).expect("there is memory");
    memory.whole().copy_from(0, &[7; 6000]).expect("it is as long");
    let target = memory.slice(500, 5400).expect("it lies inside");
    assert_eq!(store.get_into("key", &target).await.expect("it is stored"), 5000);
    let bytes = memory.whole().to_vec();
    assert_eq!(bytes[500..5500], value);
    assert!(bytes[..500].iter().chain(&bytes[5500..]).all(|&byte| byte == 7), "untouched");
}

pub(super) async fn a_target_that_is_too_small_is_refused(store: Subject) {
    put(&*store, "key", content("key", 5000)).await;
    let memory = store.allocate(4999).expect("there is memory");
    let error = store.get_into("key", &memory.whole()).await.expect_err("it does not fit");
    assert!(matches!(error, StoreError::BufferTooSmall { needed: 5000, given: 4999 }), "{error}");
    assert_eq!(error.code(), ErrorCode::InvalidParams);
}

pub(super) async fn a_value_is_not_read_that_is_longer_than_its_reader_takes(store: Subject) {
    let value = content("key", 5000);
    put(&*store, "key", value.clone()).await;
    let gets = [("key", 5000), ("nothing", 5000), ("key", 4999), ("key", u64::MAX)];
    let values = store.batch_get_at_most(&gets).await;
    assert_eq!(values[0].as_ref().expect("it fits"), &value);
    assert!(matches!(values[1], Err(StoreError::NotFound)), "{:?}", values[1]);
    let too_long = StoreError::BufferTooSmall { needed: 5000, given: 4999 };
    let refused = values[2].as_ref().expect_err("it does not fit").to_string();
    assert_eq!(refused, too_long.to_string());
    assert_eq!(values[3].as_ref().expect("it fits"), &value);
}

pub(super) async fn values_may_be_read_into_memory_that_is_made(store: Subject) {
    let value = content("key", 5000);
    put(&*store, "key", value.clone()).await;
    let asked = Mutex::new(Vec::new());
    let make = |at: usize, len: usize| {
        asked.lock().expect("no case has panicked").push((at, len));
        // As long as the first value, or too long, or none.
        [Some(len), Some(len + 1), None][at % 3]
            .map(|len| store.allocate(len).expect("there is memory"))
    };
    let values = store.batch_get_made(&["key", "key", "key", "nothing"], &make).await;
    for read in &values[..3] {
        assert_eq!(read.as_ref().expect("it is stored"), &value);
    }
    assert!(matches!(values[3], Err(StoreError::NotFound)), "{:?}", values[3]);
    assert_eq!(store.get_made("key", &make).await.expect("it is stored"), value);
    let asked = asked.into_inner().expect("no case has panicked");
    assert!(asked.iter().all(|(at, len)| *at < 3 && *len == 5000), "{asked:?}");
}

pub(super) async fn values_are_scattered(store: Subject) {
    let value = content("key", 5000);
    put(&*store, "key", value.clone()).await;
    let memory = store.allocate(10_000).expect("there is memory");
    let piece = |at, len| memory.slice(at, len).expect("it lies inside");
    let whole = GetInto::scattered("key", vec![piece(0, 1000), piece(5000, 4500)]);
    let part = GetInto::new("key", piece(2000, 100)).range(4900..6000);
    let read = store.batch_get_into(vec![whole, part]).await;
    assert!(matches!(read[..], [Ok(5000), Ok(100)]), "{read:?}");
    assert_eq!(piece(0, 1000).to_vec(), value[..1000]);
    assert_eq!(piece(5000, 4000).to_vec(), value[1000..]);
    assert_eq!(piece(2000, 100).to_vec(), value[4900..]);
}

pub(super) async fn a_batch_has_one_value_for_each_key(store: Subject) {
    put(&*store, "a", "1").await;
    put(&*store, "b", "2").await;
    let values = store.batch_get(&["b", "none", "a", "", "b"]).await;
    let [Ok(b), Err(StoreError::NotFound), Ok(a), Err(StoreError::Key(_)), Ok(again)] = &values[..]
    else {
        panic!("{values:?}")
    };
    assert_eq!((&b[..], &a[..], &again[..]), (&b"2"[..], &b"1"[..], &b"2"[..]));
    assert!(store.batch_get(&[]).await.is_empty());
}

pub(super) async fn registered_memory_is_read_into(store: Subject) {
    put(&*store, "key", "keys and values").await;
    // Where the system shares no memory, no store asks for it.
    let memory = Memory::options().shared().allocate(4096).or_else(|_| Memory::allocate(4096));
    let memory = memory.expect("there is memory");
    if !store.can_register(&memory) {
        return;
    }
    store.register(&memory).await.expect("it can be registered");
    store.register(&memory).await.expect("once more changes nothing");
    assert_eq!(store.get_into("key", &memory.whole()).await.expect("it is stored"), 15);
    assert_eq!(memory.slice(0, 15).expect("it lies inside").to_vec(), b"keys and values");
    store.unregister(&memory).await.expect("it was registered");
}

pub(super) async fn a_value_is_taken_by_one_reader(store: Subject) {
    const READERS: usize = 8;
    for round in 0..10 {
        let value = content("a", 100_000 + round);
        put(&*store, "a", value.clone()).await;
        let readers = (0..READERS).map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.get_and_remove("a").await })
        });
        let readers: Vec<_> = readers.collect();
        let mut taken = Vec::new();
        for reader in readers {
            match reader.await.expect("no panic") {
                Ok(value) => taken.push(value),
                Err(error) => assert!(matches!(error, StoreError::NotFound), "{error}"),
            }
        }
        assert!(taken == [value], "{} of {READERS} readers have it", taken.len());
        assert!(!store.exist("a").await.expect("an answer"));
    }
}

pub(super) async fn a_batch_takes_what_is_there(store: Subject) {
    put(&*store, "a", content("a", 5000)).await;
    put(&*store, "b", content("b", 1)).await;
    put(&*store, "c", content("c", 1)).await;
    let keys = ["a", "none", "b", "a", ""];
    let taken = store.batch_get_and_remove(&keys).await;
    let [Ok(a), Err(StoreError::NotFound), Ok(b), Err(StoreError::NotFound), Err(refused)] =
        &taken[..]
    else {
        panic!("{taken:?}")
    };
    assert!(*a == content("a", 5000) && *b == content("b", 1));
    assert_eq!(refused.code(), ErrorCode::InvalidKey);
    let there = store.batch_exist(&["a", "b", "c"]).await.expect("an answer");
    assert_eq!(there, [false, false, true]);
    // The key is free again.
    put(&*store, "a", "another").await;
    assert_eq!(store.get_and_remove("a").await.expect("it is stored"), "another");
    assert!(store.batch_get_and_remove(&[]).await.is_empty());
}
