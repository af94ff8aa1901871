//! Mistakes of callers and peers: every answer is a value or a typed error.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_rpc::frame::{ClientPreface, PREFACE_LEN, ServerPreface, VERSION};
use mc_rpc::{HandshakeError, MAX_BATCH, RpcError};
use mc_store::{
    ByteSize, CallError, Client, ErrorCode, GetError, GetInto, KeyError, MAX_KEY_LEN, Memory, Put,
    PutError, PutOutcome, ReplicateConfig, StartError,
};

/// A cluster with one node.
async fn cluster() -> Cluster {
    Cluster::start(&[ByteSize::mib(8)]).await
}

fn put<'a>(key: &'a str, value: &'static str) -> Put<'a> {
    Put::new(key, Bytes::from(value))
}

#[tokio::test]
async fn a_key_may_be_named_twice_in_a_batch() {
    let cluster = cluster().await;
    let client = &cluster.nodes[0];
    let puts = vec![put("k", "first"), put("l", "other"), put("k", "second"), put("k", "third")];
    let outcomes = client.batch_put(puts, &ReplicateConfig::default()).await;
    let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    assert_eq!(outcomes[..2], [PutOutcome::Stored; 2]);
    for late in &outcomes[2..] {
        assert_ne!(*late, PutOutcome::Stored, "the first one wins");
    }
    let values = client.batch_get(&["k", "l", "k", "absent", "k"]).await;
    for (at, expected) in [(0, "first"), (1, "other"), (2, "first"), (4, "first")] {
        assert_eq!(*values[at].as_ref().unwrap(), expected);
    }
    assert!(matches!(values[3], Err(GetError::NotFound)));

    let memory = Memory::allocate(10).unwrap();
    let into = |at| GetInto::new("k", memory.slice(at, 5).unwrap());
    let read = client.batch_get_into(vec![into(0), into(5)]).await;
    assert!(read.iter().all(|len| *len.as_ref().unwrap() == 5));
    assert_eq!(memory.whole().to_vec(), b"firstfirst");

    assert_eq!(client.batch_exist(&["k", "k"]).await.unwrap(), [true, true]);
    assert_eq!(client.batch_size(&["k", "k"]).await.unwrap(), [Ok(5), Ok(5)]);
    assert_eq!(client.longest_prefix(&["k", "k", "absent"]).await.unwrap(), 2);
    let objects = client.batch_describe(&["k", "k"]).await.unwrap();
    assert_eq!(objects[0].as_ref().unwrap().replicas, objects[1].as_ref().unwrap().replicas);
    let removed = client.batch_remove(&["k", "k"], true).await.unwrap();
    assert_eq!(removed[0], Ok(()));
    assert_eq!(removed[1].as_ref().unwrap_err().code, ErrorCode::ObjectNotFound);
}

#[tokio::test]
async fn an_empty_batch_asks_nobody() {
    let cluster = cluster().await;
    let client = &cluster.nodes[0];
    let calls = || {
        let metrics = client.master().metrics();
        metrics.methods.iter().map(|method| method.calls).sum::<u64>()
    };
    client.ping().await.unwrap();
    let before = calls();
    assert!(client.batch_put(Vec::new(), &ReplicateConfig::default()).await.is_empty());
    assert!(client.batch_get(&[]).await.is_empty());
    assert!(client.batch_get_into(Vec::new()).await.is_empty());
    assert!(client.batch_exist(&[]).await.unwrap().is_empty());
    assert!(client.batch_size(&[]).await.unwrap().is_empty());
    assert!(client.batch_describe(&[]).await.unwrap().is_empty());
    assert!(client.batch_remove(&[], false).await.unwrap().is_empty());
    assert!(client.clear_replicas(&[], None).await.unwrap().is_empty());
    assert!(client.hosts(&[]).await.unwrap().is_empty());
    assert!(client.find(".", 0).await.unwrap().is_empty());
    assert_eq!(client.longest_prefix(&[]).await.unwrap(), 0);
    assert_eq!(calls(), before);
}

/// Each of the 256 values that a byte can have, but those that UTF-8 never has.
fn keys_of_every_byte() -> Vec<String> {
    let mut keys: Vec<String> = (0..0x80u8).map(|byte| char::from(byte).to_string()).collect();
    // The first bytes of longer characters, and every byte that can follow one.
    keys.extend((0xc2..=0xdfu8).map(|lead| String::from_utf8(vec![lead, 0x80]).unwrap()));
    keys.extend((0x80..=0xbfu8).map(|tail| String::from_utf8(vec![0xc3, tail]).unwrap()));
    for lead in 0xe0..=0xefu8 {
        let second = if lead == 0xe0 { 0xa0 } else { 0x80 };
        keys.push(String::from_utf8(vec![lead, second, 0x80]).unwrap());
    }
    for lead in 0xf0..=0xf4u8 {
        let second = if lead == 0xf0 { 0x90 } else { 0x80 };
        keys.push(String::from_utf8(vec![lead, second, 0x80, 0x80]).unwrap());
    }
    keys
}

#[tokio::test]
async fn keys_may_consist_of_any_bytes_that_are_text() {
    let cluster = cluster().await;
    let client = &cluster.nodes[0];
    let mut keys = keys_of_every_byte();
    let seen: std::collections::BTreeSet<u8> = keys.iter().flat_map(|key| key.bytes()).collect();
    let never = [0xc0, 0xc1].into_iter().chain(0xf5..=0xff).collect::<Vec<u8>>();
    assert_eq!(seen.len() + never.len(), 256);
    keys.extend([
        "a\0b".to_owned(),
        "\0".repeat(3),
        " ".to_owned(),
        "a\r\nb".to_owned(),
        "../../etc".to_owned(),
        "k".repeat(MAX_KEY_LEN),
        "é".repeat(MAX_KEY_LEN / 2),
    ]);
    for (n, key) in keys.iter().enumerate() {
        let value = format!("value of {n}");
        let put = client.put(key, value).await;
        // Some of the keys are there already: as the tail or the lead of another.
        assert!(matches!(put, Ok(PutOutcome::Stored | PutOutcome::Existing)), "{key:?}: {put:?}");
    }
    let named: Vec<&str> = keys.iter().map(String::as_str).collect();
    let values = client.batch_get(&named).await;
    for (key, value) in named.iter().zip(values) {
        let first = named.iter().position(|other| other == key).unwrap();
        assert_eq!(value.unwrap(), format!("value of {first}"), "{key:?}");
    }
    assert!(client.batch_exist(&named).await.unwrap().iter().all(|there| *there));
    let found = client.find("", usize::MAX).await.unwrap();
    let unique: std::collections::BTreeSet<&str> = named.iter().copied().collect();
    let found: std::collections::BTreeSet<&str> = found.iter().map(|key| key.as_str()).collect();
    assert_eq!(found, unique);
}

#[tokio::test]
async fn what_is_no_key_is_refused_before_anybody_is_asked() {
    let cluster = cluster().await;
    let client = &cluster.nodes[0];
    let long = "k".repeat(MAX_KEY_LEN + 1);
    let too_long = KeyError::TooLong { len: MAX_KEY_LEN + 1 };
    for (key, expected) in [("", KeyError::Empty), (&long, too_long)] {
        let code = ErrorCode::InvalidKey;
        let call = |error: CallError| {
            assert!(matches!(&error, CallError::Key(why) if *why == expected), "{error}");
            assert!(!error.is_retryable());
            error.code()
        };
        let stored = client.put(key, "v").await.unwrap_err();
        assert!(matches!(&stored, PutError::Key(why) if *why == expected), "{stored}");
        assert_eq!(stored.code(), code);
        assert_eq!(client.get(key).await.unwrap_err().code(), code);
        assert_eq!(call(client.exist(key).await.unwrap_err()), code);
        assert_eq!(call(client.batch_exist(&["k", key]).await.unwrap_err()), code);
        assert_eq!(call(client.size(key).await.unwrap_err()), code);
        assert_eq!(call(client.batch_size(&["k", key]).await.unwrap_err()), code);
        assert_eq!(call(client.longest_prefix(&["k", key]).await.unwrap_err()), code);
        assert_eq!(call(client.remove(key, true).await.unwrap_err()), code);
        assert_eq!(call(client.batch_remove(&["k", key], true).await.unwrap_err()), code);
        assert_eq!(call(client.describe(key).await.unwrap_err()), code);
        assert_eq!(call(client.batch_describe(&["k", key]).await.unwrap_err()), code);
        assert_eq!(call(client.clear_replicas(&[key], None).await.unwrap_err()), code);
        assert_eq!(call(client.copy_to(key, &["node"]).await.unwrap_err()), code);
        assert_eq!(call(client.move_to(key, "a", "b").await.unwrap_err()), code);
        // In a batch it hinders no other.
        let puts = vec![put(key, "v"), put("good", "v")];
        let outcomes = client.batch_put(puts, &ReplicateConfig::default()).await;
        assert!(matches!(outcomes[0], Err(PutError::Key(_))) && outcomes[1].is_ok());
        let values = client.batch_get(&[key, "good"]).await;
        assert!(matches!(values[0], Err(GetError::Key(_))) && values[1].is_ok());
    }
}

#[tokio::test]
async fn a_batch_may_be_longer_than_one_call() {
    let cluster = cluster().await;
    let client = &cluster.nodes[0];
    let names: Vec<String> = (0..MAX_BATCH + 10).map(|n| format!("key-{n}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    client.put(keys[0], "v").await.unwrap();
    client.put(keys[MAX_BATCH + 3], "v").await.unwrap();
    let there = client.batch_exist(&keys).await.unwrap();
    let found: Vec<usize> = (0..keys.len()).filter(|&at| there[at]).collect();
    assert_eq!((there.len(), found), (keys.len(), vec![0, MAX_BATCH + 3]));
    assert_eq!(client.longest_prefix(&keys).await.unwrap(), 1);
    let same = vec![keys[0]; MAX_BATCH + 5];
    assert_eq!(client.longest_prefix(&same).await.unwrap(), MAX_BATCH + 5);
    let removed = client.batch_remove(&keys, true).await.unwrap();
    assert_eq!(removed.iter().filter(|outcome| outcome.is_ok()).count(), 2);
}

#[tokio::test]
async fn patterns_that_are_none_are_refused() {
    let cluster = cluster().await;
    let client = &cluster.nodes[0];
    for pattern in ["(", "a{1000}{1000}", "(?=x)", &"x".repeat(5000)] {
        let error = client.find(pattern, 10).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidParams, "{pattern:.20}: {error}");
        let error = client.remove_by_regex(pattern, true).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidParams, "{pattern:.20}: {error}");
    }
    let error = client.remove_by_regex("", true).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidParams, "the empty pattern would match all");
}

#[tokio::test]
async fn a_target_that_is_too_small_says_how_small() {
    let cluster = cluster().await;
    let client = &cluster.nodes[0];
    client.put("k", vec![7; 1000]).await.unwrap();
    let memory = Memory::allocate(999).unwrap();
    let error = client.get_into("k", &memory.whole()).await.unwrap_err();
    assert!(matches!(error, GetError::BufferTooSmall { needed: 1000, given: 999 }), "{error}");
    assert_eq!(error.code(), ErrorCode::InvalidParams);
    assert!(error.to_string().contains("1000") && error.to_string().contains("999"), "{error}");
    let empty = GetInto::scattered("k", Vec::new());
    let outcomes = client.batch_get_into(vec![empty]).await;
    assert!(matches!(outcomes[0], Err(GetError::BufferTooSmall { needed: 1000, given: 0 })));
}

#[tokio::test]
async fn a_master_of_another_version_is_told_from_others() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (theirs, ours) = (VERSION + 1, VERSION);
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut preface = [0; PREFACE_LEN];
        stream.read_exact(&mut preface).unwrap();
        assert_eq!(ClientPreface::parse(&preface).unwrap().version, ours);
        let answer = ServerPreface {
            version: theirs,
            message_len: 0,
            status: 0,
            max_payload: 1 << 20,
            max_in_flight: 16,
        };
        stream.write_all(&answer.encode()).unwrap();
    });
    let error = Client::builder().master(&address).connect().await.unwrap_err();
    other.join().unwrap();
    let StartError::Master(RpcError::NotAMaster { reason, .. }) = &error else {
        panic!("{error:?}");
    };
    assert!(matches!(reason, HandshakeError::Version { theirs: t, ours: o }
        if (*t, *o) == (theirs, ours)));
    assert_eq!(reason.code(), ErrorCode::InvalidVersion);
    assert!(error.to_string().contains("upgrade"), "{error}");
}

#[tokio::test]
async fn who_is_no_master_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let web = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").unwrap();
    });
    let error = Client::builder().master(&address).connect().await.unwrap_err();
    web.join().unwrap();
    assert!(matches!(
        error,
        StartError::Master(RpcError::NotAMaster {
            reason: HandshakeError::OtherProtocol { .. },
            ..
        })
    ));
    let nowhere = Client::builder().master("no port").connect().await.unwrap_err();
    assert!(matches!(nowhere, StartError::Master(RpcError::Address { .. })));
    assert!(matches!(Client::builder().connect().await, Err(StartError::NoMaster)));
}
