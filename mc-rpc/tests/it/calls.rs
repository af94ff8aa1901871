//! Every call, through a real connection, against a real master.

#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mc_meta::{
    ClientStatus, Effect, EffectSink, LateWrites, ListCursor, Master, MasterConfig, PutEnd,
    PutHandle, PutStart, RangeRead, ReplicaStatus, ReplicateConfig, SegmentSpec, Slice,
    VerifiedSpan,
};
use mc_rpc::{MasterClient, PutRevokeItem, PutStartItem, RangedList, RpcError, ServerConfig};
use mc_ticket::{PutToken, Rights, TicketKey};
use mc_types::{
    Checksum, ClientId, Endpoint, ErrorCode, KeyRef, SegmentId, Sequence, StoreEventInfo, Time,
};

use crate::common::{ME, connect, connect_with, key, master, segment, serve};

const MIB: u64 = 1 << 20;

fn refused(error: &RpcError) -> (ErrorCode, &str) {
    match error {
        RpcError::Refused(refusal) => (refusal.code, &refusal.message),
        other => panic!("not a refusal: {other}"),
    }
}

async fn put(client: &MasterClient, text: &str, lengths: &[u64]) {
    let config = ReplicateConfig::default();
    let start = PutStart { key: key(text), slice_lengths: lengths, config: &config };
    let grant = client.put_start(ME, &start).await.unwrap();
    let end = PutEnd::new(key(text), grant.handle);
    client.put_end(ME, &end).await.unwrap();
}

#[tokio::test]
async fn an_object_lives_its_life() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;

    assert_eq!(client.ping(ME).await.unwrap().status, ClientStatus::NeedRemount);
    for number in 1..=2 {
        client.mount_segment(ME, &segment(number, 64 * MIB)).await.unwrap();
    }
    assert_eq!(client.ping(ME).await.unwrap().status, ClientStatus::Ok);

    let block = key("model/block-1");
    assert!(!client.exist(block).await.unwrap());
    let config = ReplicateConfig::default().replicas(2).prefer("node-2");
    let start = PutStart { key: block, slice_lengths: &[4096, 100], config: &config };
    let grant = client.put_start(ME, &start).await.unwrap();
    assert_eq!(grant.replicas.len(), 2);
    let spec = segment(2, 0);
    let first = &grant.replicas[0];
    assert_eq!((&*first.segment.name, first.segment.id), (&*spec.name, spec.id));
    assert_eq!(first.segment.endpoint, spec.endpoint);
    assert_eq!(first.segment.remote_key, spec.remote_key);
    assert_eq!(first.extent.len(), 4196);

    let again = client.put_start(ME, &start).await.unwrap_err();
    assert_eq!(again.code(), ErrorCode::PutInProgress);
    assert!(again.is_retryable());
    let early = client.get_replica_list(block).await.unwrap_err();
    assert_eq!(early.code(), ErrorCode::ReplicaIsNotReady);

    let checksums = [Checksum::from_crc32c(0), Checksum::from_crc32c(u32::MAX)];
    let end = PutEnd { checksums: &checksums, ..PutEnd::new(block, grant.handle) };
    let stranger = client.put_end(ClientId::from_u128(1), &end).await.unwrap_err();
    assert_eq!(stranger.code(), ErrorCode::IllegalClient);
    client.put_end(ME, &end).await.unwrap();

    let list = client.get_replica_list(block).await.unwrap();
    assert_eq!((list.generation, &list.replicas), (grant.handle.generation, &grant.replicas));
    let slice = |len, checksum| Slice { len, checksum: Some(checksum) };
    assert_eq!(list.slices.as_slice(), [slice(4096, checksums[0]), slice(100, checksums[1])]);
    assert_eq!(list.lease, Duration::from_secs(5));
    assert!(client.exist(block).await.unwrap());

    let info = client.describe(block).await.unwrap();
    assert_eq!((info.owner, info.generation), (ME, grant.handle.generation));
    assert_eq!(info.replicas.len(), 2);
    assert!(info.replicas.iter().all(|replica| replica.status == ReplicaStatus::Complete));
    assert_eq!(&*info.replicas[0].segment_name, "node-2");

    let leased = client.remove(block, false).await.unwrap_err();
    assert_eq!(leased.code(), ErrorCode::ObjectHasLease);
    client.remove(block, true).await.unwrap();
    let gone = client.get_replica_list(block).await.unwrap_err();
    assert_eq!(refused(&gone), (ErrorCode::ObjectNotFound, "no such object"));
    server.shutdown().await;
}

#[tokio::test]
async fn segments_come_and_go() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    let spec = segment(1, 64 * MIB);
    client.mount_segment(ME, &spec).await.unwrap();
    let taken = client.mount_segment(ClientId::from_u128(2), &spec).await.unwrap_err();
    assert_eq!(taken.code(), ErrorCode::SegmentAlreadyExists);
    let none = client.unmount_segment(ME, SegmentId::from_u128(9)).await.unwrap_err();
    assert_eq!(none.code(), ErrorCode::SegmentNotFound);

    let report = client.cluster_report().await.unwrap();
    let mounted = &report.segments[0];
    assert_eq!((&*mounted.name, mounted.size, mounted.client), ("node-1", 64 * MIB, ME));
    assert_eq!((report.totals.capacity, report.totals.clients), (64 * MIB, 1));

    client.remount_segment(ME, &spec).await.unwrap();
    client.unmount_segment(ME, spec.id).await.unwrap();
    let gone = client.remount_segment(ME, &spec).await.unwrap_err();
    assert_eq!(gone.code(), ErrorCode::SegmentNotFound);
    assert!(client.cluster_report().await.unwrap().segments.is_empty());
    server.shutdown().await;
}

#[tokio::test]
async fn ranges_come_with_tickets_and_with_what_verifies_them() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    let key_of_node = TicketKey::from_bytes([7; 16]);
    let spec = SegmentSpec { ticket_key: Some(key_of_node), ..segment(1, 64 * MIB) };
    let mounted = client.mount_segment(ME, &spec).await.unwrap();
    let again = client.remount_segment(ME, &spec).await.unwrap();
    let pong = client.ping(ME).await.unwrap();
    assert_eq!((again.epoch, pong.clock.epoch), (mounted.epoch, mounted.epoch));
    assert!(mounted.now <= again.now && again.now <= pong.clock.now);

    let slice_lengths = &[200 << 10];
    let config = ReplicateConfig::default();
    let start = PutStart { key: key("k"), slice_lengths, config: &config };
    let grant = client.put_start(ME, &start).await.unwrap();
    assert_eq!(grant.time_left, master.config().put_start_release_timeout);
    let write = grant.replicas[0].ticket.unwrap();
    let opens = |ticket, rights| key_of_node.verify(mounted.epoch, spec.remote_key, ticket, rights);
    assert!(opens(&write, Rights::Write) && !opens(&write, Rights::Read));
    assert!(write.until >= pong.clock.now + grant.time_left);

    let [checksums, prefixes] = [&[1][..], &[10, 11, 12]]
        .map(|crcs| crcs.iter().map(|crc| Checksum::from_crc32c(*crc)).collect::<Vec<_>>());
    let end = PutEnd { checksums: &checksums, ..PutEnd::new(key("k"), grant.handle) };
    let end = PutEnd { prefixes: &prefixes, ..end };
    client.put_end(ME, &end).await.unwrap();
    let reads = [
        RangeRead { key: key("k"), ranges: &[100_000..100_001, 0..(200 << 10), 7..7] },
        RangeRead { key: key("absent"), ranges: &[0..1] },
        RangeRead { key: key("k"), ranges: &[] },
    ];
    let lists = client.batch_get_ranges(&reads).await.unwrap();
    let RangedList { list, spans } = lists[0].as_ref().unwrap();
    let span = |start, end, head: u32, tail: u32| {
        let (head, tail) = (Checksum::from_crc32c(head), Checksum::from_crc32c(tail));
        Some(VerifiedSpan { start, end, head, tail })
    };
    assert_eq!(*spans, [span(65_536, 131_072, 10, 11), span(0, 200 << 10, 0, 1), None]);
    assert_eq!(lists[1].as_ref().unwrap_err().code, ErrorCode::ObjectNotFound);
    assert!(lists[2].as_ref().unwrap().spans.is_empty());
    let read = list.replicas[0].ticket.unwrap();
    assert!(opens(&read, Rights::Read) && !opens(&read, Rights::Write));
    let many = vec![0..1; mc_rpc::MAX_RANGES + 1];
    let lists = client.batch_get_ranges(&[RangeRead { key: key("k"), ranges: &many }]).await;
    assert_eq!(lists.unwrap()[0].as_ref().unwrap_err().code, ErrorCode::InvalidParams);
    server.shutdown().await;
}

#[tokio::test]
async fn a_put_is_ended_by_who_began_it_and_by_nobody_else() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 64 * MIB)).await.unwrap();
    let config = ReplicateConfig::default();
    let start = PutStart { key: key("k"), slice_lengths: &[100], config: &config };
    let grant = client.put_start(ME, &start).await.unwrap();
    // All that other clients can learn of the put.
    let shown = client.describe(key("k")).await.unwrap();
    assert_eq!((shown.owner, shown.generation), (ME, grant.handle.generation));
    let token = PutToken::from_u64(grant.handle.token.as_u64() ^ 1);
    let guess = PutHandle { token, ..grant.handle };
    let end = PutEnd::new(key("k"), guess);
    let refused = client.put_end(ME, &end).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::IllegalClient);
    for late in [LateWrites::Impossible, LateWrites::Possible] {
        let refused = client.put_revoke(ME, key("k"), guess, late).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::IllegalClient);
    }
    let unread = client.get_replica_list(key("k")).await.unwrap_err();
    assert_eq!(unread.code(), ErrorCode::ReplicaIsNotReady);
    client.put_end(ME, &PutEnd { handle: grant.handle, ..end }).await.unwrap();
    assert!(client.exist(key("k")).await.unwrap());
    server.shutdown().await;
}

#[tokio::test]
async fn batches_answer_item_by_item() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    for number in 1..=3 {
        client.mount_segment(ME, &segment(number, 64 * MIB)).await.unwrap();
    }
    let names: Vec<String> = (0..100).map(|i| format!("batch/{i}")).collect();
    let keys: Vec<KeyRef<'_>> = names.iter().map(|name| key(name)).collect();
    put(&client, "batch/7", &[10]).await;

    let puts: Vec<_> = keys.iter().map(|&key| PutStartItem::new(key, &[1000, 24])).collect();
    let config = ReplicateConfig::default().replicas(2);
    let grants = client.batch_put_start(ME, &config, &puts).await.unwrap();
    assert_eq!(grants.len(), 100);
    for (i, grant) in grants.iter().enumerate() {
        match grant {
            Ok(grant) => assert_eq!(grant.replicas.len(), 2),
            Err(refusal) => {
                assert_eq!((i, refusal.code), (7, ErrorCode::ObjectAlreadyExists));
                assert!(!refusal.message.is_empty());
            }
        }
    }
    // Of the put that was refused there is none; another one's does not end it.
    let handle = |i: usize| grants[i].as_ref().or(grants[8].as_ref()).unwrap().handle;

    let late = LateWrites::Impossible;
    let revokes: Vec<_> =
        (0..2).map(|i| PutRevokeItem { key: keys[i], handle: handle(i), late }).collect();
    assert!(client.batch_put_revoke(ME, &revokes).await.unwrap().iter().all(Result::is_ok));
    let checksums = [Checksum::from_crc32c(1), Checksum::from_crc32c(2)];
    let ends: Vec<_> = (0..100)
        .map(|i| PutEnd { checksums: &checksums, ..PutEnd::new(keys[i], handle(i)) })
        .collect();
    let ended = client.batch_put_end(ME, &ends).await.unwrap();
    for (i, ended) in ended.iter().enumerate() {
        assert_eq!(ended.is_ok(), i != 0 && i != 1 && i != 7, "{i}: {ended:?}");
    }

    let exist = client.batch_exist(&keys).await.unwrap();
    let expected: Vec<_> = (0..100).map(|i| Ok(i > 1)).collect();
    assert_eq!(exist, expected);
    assert_eq!(client.longest_prefix(&keys).await.unwrap(), 0);
    assert_eq!(client.longest_prefix(&keys[2..]).await.unwrap(), 98);

    let lists = client.batch_get_replica_list(&keys).await.unwrap();
    for (i, (list, grant)) in lists.iter().zip(&grants).enumerate() {
        match (list, grant) {
            (Ok(list), Ok(grant)) => {
                assert_eq!(
                    (list.generation, &list.replicas),
                    (grant.handle.generation, &grant.replicas)
                );
            }
            (Ok(list), Err(_)) => assert_eq!((i, list.slices.total_len()), (7, 10)),
            (Err(refusal), _) => {
                assert!(i < 2);
                assert_eq!(refusal.code, ErrorCode::ObjectNotFound);
            }
        }
    }

    let removed = client.batch_remove(&keys[..4], true).await.unwrap();
    assert_eq!(removed.iter().filter(|removed| removed.is_ok()).count(), 2);
    assert_eq!(client.remove_all(true).await.unwrap(), 96);
    assert_eq!(client.batch_get_replica_list(&[]).await.unwrap(), []);
    server.shutdown().await;
}

#[derive(Clone, Default)]
struct StoredInfos(Arc<Mutex<Vec<Option<StoreEventInfo>>>>);

impl EffectSink for StoredInfos {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        if let Effect::Stored { event_info, .. } = effect {
            self.0.lock().unwrap().push(event_info.cloned());
        }
    }
}

#[tokio::test]
async fn every_end_of_a_put_carries_its_event_info() {
    let told = StoredInfos::default();
    let master = Master::new(MasterConfig::default(), 11).unwrap().with_sink(told.clone());
    let server = serve(&Arc::new(master), ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 64 * MIB)).await.unwrap();
    let infos: Vec<StoreEventInfo> = (0..4u32)
        .map(|n| StoreEventInfo {
            model_name: "modèle".into(),
            block_size: n,
            token_ids: vec![n; mc_types::MAX_TOKEN_IDS],
            ..StoreEventInfo::default()
        })
        .collect();
    let config = ReplicateConfig::default();
    let start = |key| PutStart { key, slice_lengths: &[100], config: &config };
    let end =
        |key, handle, n: usize| PutEnd { event_info: infos.get(n), ..PutEnd::new(key, handle) };
    let (a, b) = (key("a"), key("b"));
    let grant = client.put_start(ME, &start(a)).await.unwrap();
    client.put_end(ME, &end(a, grant.handle, 0)).await.unwrap();
    let grant = client.put_start(ME, &start(b)).await.unwrap();
    client.batch_put_end(ME, &[end(b, grant.handle, 1)]).await.unwrap()[0].as_ref().unwrap();
    let upsert = async |key| {
        let items = [PutStartItem::new(key, &[100])];
        let grants = client.batch_upsert_start(ME, &config, &items).await.unwrap();
        grants[0].as_ref().unwrap().handle
    };
    let handle = upsert(a).await;
    client.batch_upsert_end(ME, &[end(a, handle, 2)]).await.unwrap()[0].as_ref().unwrap();
    let (first, last) = (upsert(a).await, upsert(b).await);
    let ends = [end(a, first, 3), end(b, last, 4)];
    assert_eq!(client.batch_upsert_end(ME, &ends).await.unwrap(), [Ok(()), Ok(())]);
    let expected: Vec<_> = infos.into_iter().map(Some).chain([None]).collect();
    assert_eq!(*told.0.lock().unwrap(), expected);
    server.shutdown().await;
}

#[tokio::test]
async fn keys_are_listed_in_pages() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 64 * MIB)).await.unwrap();
    for i in 0..50 {
        put(&client, &format!("a/{i}"), &[i + 1]).await;
        put(&client, &format!("b/{i}"), &[1]).await;
    }
    let (mut seen, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(at) = cursor {
        let page = client.list_keys("a/", at, 7).await.unwrap();
        assert!(page.keys.len() <= 7);
        seen.extend(page.keys);
        cursor = page.next;
    }
    seen.sort_by_key(|info| info.len);
    assert_eq!(seen.len(), 50);
    for (i, info) in seen.iter().enumerate() {
        assert_eq!(info.key.as_str(), format!("a/{i}"));
        assert_eq!((info.len, info.replicas), (i as u64 + 1, 1));
    }
    let greedy = client.list_keys("", ListCursor::default(), 8193).await.unwrap_err();
    assert_eq!(refused(&greedy), (ErrorCode::InvalidParams, "limit is 8193; the most is 8192"));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_share_a_connection() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 64 * MIB)).await.unwrap();
    for i in 0..100 {
        put(&client, &format!("k{i}"), &[64 + i]).await;
    }
    let calls: Vec<_> = (0..10_000u64)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move {
                let name = format!("k{}", i % 200);
                if i % 200 < 100 {
                    let list = client.get_replica_list(key(&name)).await.unwrap();
                    assert_eq!(list.slices.total_len(), 64 + i % 200);
                } else {
                    assert!(!client.exist(key(&name)).await.unwrap());
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    server.shutdown().await;
}

#[tokio::test]
async fn batches_beyond_the_limits_are_refused_and_full_answers_say_so() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    let keys = vec![key("x"); mc_rpc::MAX_BATCH + 1];
    let error = client.batch_exist(&keys).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidParams);
    assert!(
        client.batch_exist(&keys[1..]).await.unwrap().iter().all(|exists| *exists == Ok(false))
    );

    client.mount_segment(ME, &segment(1, 64 * MIB)).await.unwrap();
    put(&client, "sliced", &[1; 1024]).await;
    let mut config = mc_rpc::ClientConfig::default();
    config.max_payload = 64 << 10;
    let small = connect_with(&server, config).await;
    let lists = small.batch_get_replica_list(&[key("sliced"); 100]).await.unwrap();
    let answered = lists.iter().filter(|list| list.is_ok()).count();
    assert!((8..99).contains(&answered), "{answered}");
    for list in lists.iter().skip(answered) {
        assert_eq!(list.as_ref().unwrap_err().code, ErrorCode::Overloaded);
    }
    // One byte for each key fits, 32 bytes do not.
    let long = vec![key("x"); 10_000];
    assert_eq!(small.batch_exist(&long).await.unwrap().len(), 10_000);
    let error = small.batch_remove(&long, false).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidParams);
    let error = small.batch_exist(&keys[1..]).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidParams);
    server.shutdown().await;
}

#[tokio::test]
async fn a_request_too_large_is_not_sent() {
    let master = master();
    let mut config = ServerConfig::default();
    config.max_payload = 64 << 10;
    let server = serve(&master, config).await;
    let client = connect(&server).await;
    let long = "k".repeat(1024);
    let error = client.batch_exist(&vec![key(&long); 100]).await.unwrap_err();
    assert!(matches!(error, RpcError::RequestTooLarge { max: 65_536, .. }), "{error}");
    assert!(!client.exist(key("still works")).await.unwrap());
    server.shutdown().await;
}

#[tokio::test]
async fn every_way_to_a_segment_reaches_its_readers_and_writers() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    let way = |scheme: &str| Endpoint::new(scheme, "10.0.0.1:7").unwrap();
    let ways = [way("tcp+tls"), way("rdma"), way("pigeon")];
    let mut spec = segment(1, 64 * MIB);
    spec.endpoint = way("quic").with_others(ways.clone());
    client.mount_segment(ME, &spec).await.unwrap();

    // A segment is described by itself in single answers, and by a table in those of batches.
    let config = ReplicateConfig::default();
    let start = PutStart { key: key("one"), slice_lengths: &[1], config: &config };
    let single = client.put_start(ME, &start).await.unwrap();
    let end = PutEnd::new(key("one"), single.handle);
    client.put_end(ME, &end).await.unwrap();
    let puts = [PutStartItem::new(key("two"), &[1])];
    let batch = client.batch_put_start(ME, &config, &puts).await.unwrap().remove(0).unwrap();
    let got = client.get_replica_list(key("one")).await.unwrap();
    let many = client.batch_get_replica_list(&[key("one")]).await.unwrap().remove(0).unwrap();
    for replicas in [&single.replicas, &batch.replicas, &got.replicas, &many.replicas] {
        let endpoint = &replicas[0].segment.endpoint;
        assert_eq!((endpoint, endpoint.others()), (&way("quic"), &ways[..]));
    }

    // It is the same segment when its node has found another way meanwhile.
    spec.endpoint = way("quic").with_others([]);
    client.remount_segment(ME, &spec).await.unwrap();
}
