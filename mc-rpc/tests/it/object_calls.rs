//! The calls about objects beyond puts, reads and removals, through a real connection.

use std::time::Duration;

use mc_meta::{
    EvictionBlocker, KeyEventKind, LateWrites, ListCursor, PutEnd, PutStart, Removal, ReplicaPlace,
    ReplicateConfig, Verdict,
};
use mc_rpc::{
    Failure, Heartbeat, MasterClient, PutRevokeItem, PutStartItem, Reported, ServerConfig, proto,
};
use mc_types::{Checksum, ClientId, ErrorCode, Generation};

use crate::common::{ME, connect, key, master, segment, serve};

const MIB: u64 = 1 << 20;

async fn put(client: &MasterClient, text: &str, replicas: u32) {
    let config = ReplicateConfig::default().replicas(replicas);
    let start = PutStart { key: key(text), slice_lengths: &[100], config: &config };
    let handle = client.put_start(ME, &start).await.unwrap().handle;
    let end = PutEnd::new(key(text), handle);
    client.put_end(ME, &end).await.unwrap();
}

#[tokio::test]
async fn a_value_is_replaced_while_it_is_read() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 64 * MIB)).await.unwrap();
    let config = proto::ReplicateConfig {
        with_hard_pin: true,
        group: Some("prompt".into()),
        parent: "p".into(),
        ..Default::default()
    };
    let start = |lengths: &[u64]| proto::UpsertStartRequest {
        key: "k".into(),
        value_length: lengths.iter().sum::<u64>() as i64,
        config: Some(config.clone()),
        slice_lengths: lengths.to_vec(),
        client_id: ME.to_bytes().into(),
        ..Default::default()
    };
    let end = |grant: &proto::UpsertStartResponse| proto::UpsertEndRequest {
        key: "k".into(),
        client_id: ME.to_bytes().into(),
        generation: Some(grant.generation),
        put_token: grant.put_token,
        ..Default::default()
    };

    let old = client.request(start(&[100])).await.unwrap();
    client.request(end(&old)).await.unwrap();
    let new = client.request(start(&[200, 50])).await.unwrap();
    let list = client.get_replica_list(key("k")).await.unwrap();
    assert_eq!((list.generation.as_u64(), list.slices.total_len()), (old.generation, 100));
    client.request(end(&new)).await.unwrap();
    let list = client.get_replica_list(key("k")).await.unwrap();
    assert_eq!((list.generation.as_u64(), list.slices.total_len()), (new.generation, 250));

    let given_up = client.request(start(&[1])).await.unwrap();
    let revoke = proto::UpsertRevokeRequest {
        key: "k".into(),
        client_id: ME.to_bytes().into(),
        generation: Some(given_up.generation),
        put_token: given_up.put_token,
        late_writes: false,
    };
    client.request(revoke).await.unwrap();
    let gone = client.request(end(&given_up)).await.unwrap_err();
    assert_eq!(gone.code(), ErrorCode::InvalidWrite);
    let list = client.get_replica_list(key("k")).await.unwrap();
    assert_eq!(list.generation.as_u64(), new.generation);

    let other = proto::ReplicateConfig { group: Some("another".into()), ..Default::default() };
    let put = proto::UpsertStartRequest { config: Some(other), ..start(&[1]) };
    let refused = client.request(put).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidParams);
    server.shutdown().await;
}

#[tokio::test]
async fn many_values_are_replaced_item_by_item() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    for number in 1..=2 {
        client.mount_segment(ME, &segment(number, 64 * MIB)).await.unwrap();
    }
    let names: Vec<String> = (0..50).map(|i| format!("k{i}")).collect();
    let config = ReplicateConfig::default().replicas(2);
    let mut last = Vec::new();
    for round in 0..2 {
        let puts: Vec<_> =
            names.iter().map(|name| PutStartItem::new(key(name), &[64, 36])).collect();
        let grants = client.batch_upsert_start(ME, &config, &puts).await.unwrap();
        let grants: Vec<_> = grants.into_iter().map(Result::unwrap).collect();
        assert!(grants.iter().all(|grant| grant.replicas.len() == 2));
        let named = |i: usize| (key(&names[i]), grants[i].handle);
        // The last ten of the second round are revoked.
        let ended = if round == 0 { 50 } else { 40 };
        let ends: Vec<_> =
            (0..ended).map(named).map(|(key, handle)| PutEnd::new(key, handle)).collect();
        let answers = client.batch_upsert_end(ME, &ends).await.unwrap();
        assert!(answers.iter().all(Result::is_ok));
        let revokes: Vec<_> = (ended..50)
            .map(named)
            .map(|(key, handle)| PutRevokeItem { key, handle, late: LateWrites::Impossible })
            .collect();
        let answers = client.batch_upsert_revoke(ME, &revokes).await.unwrap();
        assert!(answers.iter().all(Result::is_ok));
        let generations = grants.iter().map(|grant| grant.handle.generation);
        last = generations.chain(last).collect();
    }
    let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
    let lists = client.batch_get_replica_list(&keys).await.unwrap();
    for (i, list) in lists.iter().enumerate() {
        let wanted = if i < 40 { last[i] } else { last[50 + i] };
        assert_eq!(list.as_ref().unwrap().generation, wanted);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn objects_are_found_and_removed_by_a_pattern() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 64 * MIB)).await.unwrap();
    for i in 0..100 {
        put(&client, &format!("layer{i}/block"), 1).await;
        put(&client, &format!("other{i}"), 1).await;
    }
    let start = ListCursor::default();
    let all = client.get_replica_list_by_regex("^layer[0-9]+/", start, 0).await.unwrap();
    assert_eq!((all.objects.len(), all.next), (100, None));
    let (found, list) = &all.objects[0];
    assert_eq!(&client.get_replica_list(found.as_ref()).await.unwrap(), list);

    let (mut count, mut cursor) = (0, Some(start));
    while let Some(at) = cursor {
        let page = client.get_replica_list_by_regex("block$", at, 7).await.unwrap();
        (count, cursor) = (count + page.objects.len(), page.next);
    }
    assert_eq!(count, 100);

    assert_eq!(client.remove_by_regex("^layer", false).await.unwrap(), 0, "all are leased");
    assert_eq!(client.remove_by_regex("^layer", true).await.unwrap(), 100);
    assert_eq!(client.remove_by_regex("^other[1-4]", false).await.unwrap(), 44);
    for bad in ["(", "", "a{1000}{1000}"] {
        let refused = client.remove_by_regex(bad, true).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidParams, "{refused}");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn replicas_are_taken_back_where_they_are() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    for number in 1..=2 {
        client.mount_segment(ME, &segment(number, 64 * MIB)).await.unwrap();
    }
    for text in ["a", "b"] {
        put(&client, text, 2).await;
    }
    let keys = [key("a"), key("b"), key("c")];
    let cleared = client.batch_replica_clear(ME, &keys, Some("node-1")).await.unwrap();
    assert_eq!(cleared, [key("a").to_owned(), key("b").to_owned()]);
    let object = client.describe(key("a")).await.unwrap();
    assert_eq!((object.replicas.len(), &*object.replicas[0].segment_name), (1, "node-2"));
    let other = ClientId::from_u128(9);
    assert!(client.batch_replica_clear(other, &keys, None).await.unwrap().is_empty());
    assert_eq!(client.batch_replica_clear(ME, &keys, None).await.unwrap(), cleared);
    assert!(!client.exist(key("a")).await.unwrap());

    let hosts = client.batch_query_ip(&[other, ME]).await.unwrap();
    assert_eq!(hosts, [(ME, vec!["10.0.0.1".into(), "10.0.0.2".into()])]);
    server.shutdown().await;
}

#[tokio::test]
async fn a_long_read_renews_its_lease() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 64 * MIB)).await.unwrap();
    for text in ["a", "b"] {
        put(&client, text, 1).await;
    }
    let get = proto::GetReplicaListRequest { key: "a".into(), ranges: vec![] };
    let list = client.request(get).await.unwrap();
    let renew = |text: &str, generation| proto::RenewLeaseRequest {
        key: text.into(),
        generation: Some(generation),
    };
    let renewed = client.request(renew("a", list.generation)).await.unwrap();
    assert_eq!(
        (renewed.lease_ttl_ms, &renewed.replica_list),
        (list.lease_ttl_ms, &list.replica_list)
    );
    let other = list.generation.wrapping_add(100);
    let replaced = client.request(renew("a", other)).await.unwrap_err();
    assert_eq!(replaced.code(), ErrorCode::LeaseExpired);
    let reads = [("a", list.generation), ("a", other), ("c", other)].map(|(text, generation)| {
        proto::RenewLeaseItem { key: text.into(), generation: Some(generation) }
    });
    let all = client.request(proto::BatchRenewLeaseRequest { reads: reads.into() }).await.unwrap();
    assert_eq!(all.items[0].lease_ttl_ms, renewed.lease_ttl_ms);
    assert_eq!((all.segments.len(), all.items[0].replica_list.len()), (1, 1));
    let codes = all.items.iter().map(|renewed| renewed.status_code);
    let causes = [ErrorCode::LeaseExpired, ErrorCode::ObjectNotFound].map(ErrorCode::code);
    assert!(codes.eq([0, causes[0], causes[1]]));
    server.shutdown().await;
}

#[tokio::test]
async fn a_segment_leaves_gracefully_and_objects_are_explained() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    let spec = segment(1, 64 * MIB);
    client.mount_segment(ME, &spec).await.unwrap();
    put(&client, "a", 1).await;
    put(&client, "b", 1).await;
    client.remove(key("b"), false).await.unwrap();
    let removed = client.explain(key("b")).await.unwrap();
    assert!(removed.object.is_none());
    assert!(
        matches!(
            removed.history[..],
            [happened] if matches!(happened.kind, KeyEventKind::Removed { cause: Removal::Requested, .. })
        ),
        "{removed:?}"
    );

    client.graceful_unmount_segment(ME, spec.id, Duration::from_secs(3600)).await.unwrap();
    let stranger = ClientId::from_u128(9);
    let error =
        client.graceful_unmount_segment(stranger, spec.id, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::IllegalClient);
    let config = ReplicateConfig::default();
    let start = PutStart { key: key("c"), slice_lengths: &[1], config: &config };
    let error = client.put_start(ME, &start).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooFewSegments);

    let list = client.get_replica_list(key("a")).await.unwrap();
    let explained = client.explain(key("a")).await.unwrap();
    assert_eq!(explained.object.unwrap().generation, list.generation);
    let leased = |reason: &EvictionBlocker| matches!(reason, EvictionBlocker::Lease { remaining } if *remaining <= list.lease);
    assert!(explained.kept_by.iter().any(leased), "{:?}", explained.kept_by);
    assert!(explained.kept_by.contains(&EvictionBlocker::NoRoomToGain), "{:?}", explained.kept_by);
    server.shutdown().await;
}

#[tokio::test]
async fn damage_is_reported_looked_at_and_removed() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 64 * MIB)).await.unwrap();
    let config = ReplicateConfig::default();
    let start = PutStart { key: key("k"), slice_lengths: &[64, 1], config: &config };
    let grant = client.put_start(ME, &start).await.unwrap();
    let checksums = [5, 6].map(Checksum::from_crc32c);
    let end = PutEnd { checksums: &checksums, ..PutEnd::new(key("k"), grant.handle) };
    client.put_end(ME, &end).await.unwrap();

    let (segment, extent) = (grant.replicas[0].segment.id, grant.replicas[0].extent);
    let place = ReplicaPlace::Memory { segment, extent };
    let damaged = |generation| Failure::Damaged { object: key("k").into(), generation, place };
    let generation = grant.handle.generation;
    let other = Generation::new(generation.as_u64() + 1);
    let failures = [damaged(generation), damaged(other), damaged(other)];
    let reported = client.report_failures(ME, &failures).await.unwrap();
    assert_eq!(reported, Reported { noted: 1, stale: 2, limited: 0 });
    // A client that does not check replicas is not asked to.
    assert!(client.ping(ME).await.unwrap().checks.is_empty());
    let asked = client.heartbeat(&Heartbeat::new(ME).takes_checks()).await.unwrap().checks;
    let [check] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((check.segment, check.extent), (Some(segment), extent));
    let sums = check.slices.as_slice().iter().map(|slice| slice.checksum.unwrap());
    assert!(sums.eq(checksums));
    let outcomes = [(check.id, Verdict::Damaged)];
    client.heartbeat(&Heartbeat::new(ME).takes_checks().outcomes(&outcomes)).await.unwrap();
    assert!(!client.exist(key("k")).await.unwrap());
    let counted = client.cluster_report().await.unwrap().totals;
    assert_eq!((counted.damage_reports, counted.damage_dropped), (3, 2));
    assert_eq!(
        (counted.damage_confirmed, counted.damage_removed, counted.damage_denied),
        (1, 1, 0)
    );
    let unreachable = [Failure::Unreachable { segment }];
    assert_eq!(client.report_failures(ME, &unreachable).await.unwrap().noted, 1);
    assert_eq!(client.cluster_report().await.unwrap().totals.suspicion_reports, 1);
    server.shutdown().await;
}
