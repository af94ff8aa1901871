//! Tickets, tokens, and the clock that ends them.

use std::sync::Arc;

use mc_meta::{LateWrites, Master, MasterConfig, SegmentSpec};
use mc_ticket::{ClockEpoch, Rights, Ticket, TicketKey};
use mc_types::{ErrorCode, Extent, RemoteKey, Time};
use prost::Message;

use super::{Clock, ME, MasterService, Still, call, end_of, key, me, segment, service, written};
use crate::reply;
use crate::reply::Signer;
use crate::request::PutFinishRequest;
use crate::{Method, answer, proto};

fn ticket_key(number: u8) -> TicketKey {
    TicketKey::from_bytes([0x40 + number; 16])
}

fn sealed(number: u8) -> SegmentSpec {
    SegmentSpec { ticket_key: Some(ticket_key(number)), ..segment(number) }
}

/// A master with three segments of a mebibyte that tickets open.
fn sealed_service() -> MasterService<Still> {
    let master = Arc::new(Master::new(MasterConfig::default(), 5).unwrap());
    for number in 1..=3 {
        master.mount_segment(Still.now(), ME, sealed(number)).unwrap();
    }
    MasterService::new(master, Still)
}

/// Returns whether the handle's ticket opens its range for these rights until `until`, and for
/// nothing else.
fn opens(
    service: &MasterService<Still>,
    handle: &proto::BufHandle,
    (number, remote_key): (u8, &[u8]),
    rights: Rights,
    until_ms: u64,
) -> bool {
    let (until, tag) = handle.ticket.split_first_chunk::<8>().expect("a ticket has 24 bytes");
    let extent = Extent::new(handle.buffer, handle.size).unwrap();
    let until = Time::from_millis(u64::from_le_bytes(*until));
    let ticket = Ticket { extent, until, tag: tag.try_into().expect("a tag has 16 bytes") };
    let region = RemoteKey::from_bytes(remote_key.try_into().expect("a key has 16 bytes"));
    let other = if rights == Rights::Read { Rights::Write } else { Rights::Read };
    let (key, epoch) = (ticket_key(number), service.clock_epoch());
    until == Time::from_millis(until_ms)
        && key.verify(epoch, region, &ticket, rights)
        && !key.verify(epoch, region, &ticket, other)
}

/// [`opens`] for a handle that describes its segment itself.
fn inline_opens(
    service: &MasterService<Still>,
    replica: &proto::ReplicaInfo,
    rights: Rights,
    until_ms: u64,
) -> bool {
    let handle = &replica.handles[0];
    let segment = (handle.segment_id[15], &handle.remote_key[..]);
    opens(service, handle, segment, rights, until_ms)
}

/// [`opens`] for a handle whose segment is in a table.
fn listed_opens(
    service: &MasterService<Still>,
    replica: &proto::ReplicaInfo,
    table: &[proto::SegmentDescriptor],
    rights: Rights,
    until_ms: u64,
) -> bool {
    let handle = &replica.handles[0];
    let segment = &table[handle.segment_index as usize - 1];
    let segment = (segment.segment_id[15], &segment.remote_key[..]);
    opens(service, handle, segment, rights, until_ms)
}

fn put_start(text: &str, replica_num: u32) -> proto::PutStartRequest {
    proto::PutStartRequest {
        key: text.into(),
        value_length: 300,
        config: Some(proto::ReplicateConfig { replica_num, ..Default::default() }),
        client_id: me(),
        ..Default::default()
    }
}

fn put(service: &MasterService<Still>, text: &str) -> proto::PutStartResponse {
    let grant: proto::PutStartResponse =
        call(service, Method::PutStart, &put_start(text, 2)).unwrap();
    let _: proto::PutEndResponse = call(service, Method::PutEnd, &end_of(text, &grant)).unwrap();
    grant
}

/// The master's clock, and how long it lets a client write.
const NOW: u64 = 1000;

fn writing_ends(service: &MasterService<Still>) -> u64 {
    NOW + service.master().config().put_start_release_timeout.as_millis() as u64
}

#[test]
fn golden_ticket() {
    let key = TicketKey::from_bytes(core::array::from_fn(|n| n as u8));
    let region = RemoteKey::from_bytes(*b"0123456789abcdef");
    let spec =
        SegmentSpec { ticket_key: Some(key), remote_key: region, name: "n".into(), ..segment(2) };
    let master = Master::new(MasterConfig::default(), 5).unwrap();
    master.mount_segment(Still.now(), ME, spec).unwrap();
    let config = mc_meta::ReplicateConfig::default();
    let start = mc_meta::PutStart { key: super::key("k"), slice_lengths: &[512], config: &config };
    let mut grant = master.put_start(Still.now(), ME, &start).unwrap();
    grant.handle = super::named(3, 0x0102_0304_0506_0708);
    grant.time_left = core::time::Duration::from_secs(2);
    let signer = Signer { epoch: ClockEpoch::new(7), now: Time::from_millis(1000) };
    let bytes = written(|out| reply::write_grant(out, &grant, signer));
    let ticket = key.sign(
        ClockEpoch::new(7),
        region,
        grant.placements[0].extent,
        Rights::Write,
        Time::from_millis(3000),
    );
    let mut golden = b"\x12\x5a\x0a\x56\
        \x0a\x01n\
        \x2a\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\
        \x32\x10tcp://10.0.0.1:1\
        \x3a\x100123456789abcdef\
        \x10\x80\x04"
        .to_vec();
    golden.extend_from_slice(b"\x4a\x18\xb8\x0b\0\0\0\0\0\0");
    golden.extend_from_slice(&ticket.tag);
    golden.extend_from_slice(b"\x10\x02");
    golden.extend_from_slice(b"\x18\x03\x28\xd0\x0f\x31\x08\x07\x06\x05\x04\x03\x02\x01");
    assert_eq!(grant.placements[0].extent.offset(), 0, "the bytes below say nothing of an offset");
    assert_eq!(&bytes[..], golden);
}

#[test]
fn whoever_is_granted_a_range_gets_a_ticket_for_it() {
    let service = sealed_service();
    let grant = put(&service, "k");
    assert_eq!(grant.grant_ttl_ms, writing_ends(&service) - NOW);
    assert_eq!(grant.replica_list.len(), 2);
    for replica in &grant.replica_list {
        assert!(inline_opens(&service, replica, Rights::Write, writing_ends(&service)));
    }

    let reading_ends = NOW + 5000;
    let get = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![] };
    let list: proto::GetReplicaListResponse = call(&service, Method::GetReplicaList, &get).unwrap();
    let ranged = proto::GetReplicaListRequest { ranges: vec![0, 1], ..get };
    let ranges: proto::GetReplicaListResponse =
        call(&service, Method::GetReplicaList, &ranged).unwrap();
    let matching =
        proto::GetReplicaListByRegexRequest { key_regex: "^k$".into(), ..Default::default() };
    let page: proto::GetReplicaListByRegexResponse =
        call(&service, Method::GetReplicaListByRegex, &matching).unwrap();
    let renew = proto::RenewLeaseRequest { key: "k".into(), generation: Some(grant.generation) };
    let renewed: proto::RenewLeaseResponse = call(&service, Method::RenewLease, &renew).unwrap();
    for replicas in [
        &list.replica_list,
        &ranges.replica_list,
        &page.object_map["k"].replica_list,
        &renewed.replica_list,
    ] {
        assert_eq!(replicas.len(), 2);
        for replica in replicas {
            assert!(inline_opens(&service, replica, Rights::Read, reading_ends));
        }
    }

    let start = proto::CopyStartRequest {
        key: "k".into(),
        client_id: me(),
        source: grant.replica_list[0].handles[0].segment_name.clone(),
        targets: vec!["node-1".into(), "node-2".into(), "node-3".into()],
        tenant_id: String::new(),
    };
    let copy: proto::CopyStartResponse = call(&service, Method::CopyStart, &start).unwrap();
    let (source, ends) = (copy.source.as_ref().unwrap(), writing_ends(&service));
    assert!(inline_opens(&service, source, Rights::Read, ends));
    assert_eq!(copy.targets.len(), 1);
    assert!(inline_opens(&service, &copy.targets[0], Rights::Write, ends));

    let describe = proto::DescribeObjectRequest { key: "k".into() };
    let object: proto::DescribeObjectResponse =
        call(&service, Method::DescribeObject, &describe).unwrap();
    assert!(object.replica_list.iter().all(|replica| replica.handles[0].ticket.is_empty()));
}

#[test]
fn batch_answers_have_a_ticket_for_each_range() {
    let service = sealed_service();
    let start = proto::BatchPutStartRequest {
        client_id: me(),
        config: Some(proto::ReplicateConfig { replica_num: 3, ..Default::default() }),
        puts: ["a", "b"]
            .map(|text| proto::PutStartItem {
                key: text.into(),
                value_length: 64,
                slice_lengths: vec![],
                ..Default::default()
            })
            .into(),
    };
    let grants: proto::BatchPutStartResponse =
        call(&service, Method::BatchPutStart, &start).unwrap();
    for item in &grants.items {
        assert_eq!(item.replica_list.len(), 3);
        for replica in &item.replica_list {
            let ends = writing_ends(&service);
            assert!(listed_opens(&service, replica, &grants.segments, Rights::Write, ends));
        }
    }
    let end = |(text, grant): (&str, &proto::PutStartResponse)| proto::PutEndItem {
        key: text.into(),
        generation: Some(grant.generation),
        put_token: grant.put_token,
        ..Default::default()
    };
    let puts = ["a", "b"].into_iter().zip(&grants.items).map(end).collect();
    let ends = proto::BatchPutEndRequest { client_id: me(), puts };
    let ended: proto::BatchPutEndResponse = call(&service, Method::BatchPutEnd, &ends).unwrap();
    assert!(ended.items.iter().all(|item| item.status_code == 0));

    let keys = vec!["a".into(), "b".into()];
    let get = proto::BatchGetReplicaListRequest { keys, reads: vec![] };
    let lists: proto::BatchGetReplicaListResponse =
        call(&service, Method::BatchGetReplicaList, &get).unwrap();
    let reads = ["a", "b"]
        .map(|text| proto::GetReplicaListRequest { key: text.into(), ranges: vec![0, 64] });
    let get = proto::BatchGetReplicaListRequest { keys: vec![], reads: reads.into() };
    let ranges: proto::BatchGetReplicaListResponse =
        call(&service, Method::BatchGetReplicaList, &get).unwrap();
    for lists in [&lists, &ranges] {
        let replicas = lists.items.iter().flat_map(|item| &item.replica_list);
        assert_eq!(replicas.clone().count(), 6);
        for replica in replicas {
            assert!(listed_opens(&service, replica, &lists.segments, Rights::Read, NOW + 5000));
        }
    }
    let reads = ["a", "b"].into_iter().zip(&grants.items);
    let reads = reads.map(|(text, grant)| proto::RenewLeaseItem {
        key: text.into(),
        generation: Some(grant.generation),
    });
    let renew = proto::BatchRenewLeaseRequest { reads: reads.collect() };
    let renewed: proto::BatchRenewLeaseResponse =
        call(&service, Method::BatchRenewLease, &renew).unwrap();
    for item in &renewed.items {
        assert_eq!(item.replica_list.len(), 3);
        for replica in &item.replica_list {
            assert!(listed_opens(&service, replica, &renewed.segments, Rights::Read, NOW + 5000));
        }
    }
}

#[test]
fn segments_without_a_key_get_no_tickets() {
    let service = service();
    let grant = put(&service, "k");
    assert!(grant.replica_list.iter().all(|replica| replica.handles[0].ticket.is_empty()));
    let read = answer::read_grant(&grant.encode_to_vec(), 300).unwrap().unwrap();
    assert!(read.replicas.iter().all(|replica| replica.ticket.is_none()));
}

#[test]
fn a_place_is_the_same_whatever_its_ticket() {
    let service = sealed_service();
    let grant = put(&service, "k");
    let get = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![] };
    let list: proto::GetReplicaListResponse = call(&service, Method::GetReplicaList, &get).unwrap();
    let granted = answer::read_grant(&grant.encode_to_vec(), 300).unwrap().unwrap();
    let listed = answer::read_replica_list(&list.encode_to_vec()).unwrap().unwrap();
    assert_eq!(granted.replicas, listed.replicas);
    assert_ne!(granted.replicas[0].ticket, listed.replicas[0].ticket);
    let moved = granted.replicas[0].extent.offset() + 1;
    let other = Extent::new(moved, 300).unwrap();
    assert_ne!(
        crate::ReplicaLocation { extent: other, ..listed.replicas[0].clone() },
        listed.replicas[0]
    );
}

#[test]
fn tickets_that_make_no_sense_are_malformed() {
    let service = sealed_service();
    let mut grant: proto::PutStartResponse =
        call(&service, Method::PutStart, &put_start("k", 1)).unwrap();
    let mut read = |ticket: Vec<u8>| {
        grant.replica_list[0].handles[0].ticket = ticket;
        let read = answer::read_grant(&grant.encode_to_vec(), 300);
        read.map(|read| read.unwrap().replicas[0].ticket.is_some())
    };
    assert_eq!(read(vec![0xff; 24]).ok(), Some(true));
    assert_eq!(read(vec![]).ok(), Some(false));
    for len in [1, 8, 16, 23, 25, 48] {
        let error = read(vec![0; len]).unwrap_err().to_string();
        assert!(error.contains("ticket"), "{error}");
    }
}

#[test]
fn the_key_for_tickets_goes_to_the_master_and_nowhere_else() {
    let (spec, service) = (sealed(2), sealed_service());
    let start = put_start("k", 1);
    let grant: proto::PutStartResponse = call(&service, Method::PutStart, &start).unwrap();
    let _: proto::PutEndResponse = call(&service, Method::PutEnd, &end_of("k", &grant)).unwrap();
    let secrets = [0x41, 0x42, 0x43].map(|byte| vec![byte; 16]);
    let token = grant.put_token.to_le_bytes().to_vec();
    for (method, payload) in [
        (Method::DescribeObject, b"\x0a\x01k".to_vec()),
        (Method::ExplainObject, b"\x0a\x01k".to_vec()),
        (Method::ListKeys, vec![]),
        (Method::ClusterReport, vec![]),
        (Method::GetReplicaList, b"\x0a\x01k".to_vec()),
        (Method::BatchGetReplicaList, b"\x0a\x01k".to_vec()),
        (Method::BatchQueryIp, [&b"\x0a\x10"[..], &me()].concat()),
    ] {
        let caller = &crate::Caller::ANYBODY;
        let mut out = bytes::BytesMut::new();
        let call = crate::service::Call::new(method, &payload, 1 << 20, caller);
        crate::service::Service::call(&service, call, &mut out).unwrap();
        for secret in secrets.iter().chain([&token]) {
            assert!(!out.windows(secret.len()).any(|part| part == secret), "{method}");
        }
    }
    let read = answer::read_grant(&grant.encode_to_vec(), 300).unwrap().unwrap();
    let shown = format!("{spec:?} {read:?}");
    assert!(!shown.contains(&grant.put_token.to_string()), "{shown}");
    assert!(!shown.contains("66, 66") && !shown.contains("4242"), "{shown}");
}

#[test]
fn the_masters_clock_is_told() {
    let service = sealed_service();
    let clock = answer_clock(&service);
    let ping: proto::PingResponse =
        call(&service, Method::Ping, &proto::PingRequest { client_id: me(), ..Default::default() })
            .unwrap();
    assert_eq!((ping.clock_epoch, ping.master_time_ms), clock);
    let read = answer::read_pong(&ping.encode_to_vec()).unwrap().unwrap();
    assert_eq!((read.clock.epoch, read.clock.now), (service.clock_epoch(), Still.now()));
    // Each service has a run of its own.
    assert_ne!(sealed_service().clock_epoch(), service.clock_epoch());
}

fn answer_clock(service: &MasterService<Still>) -> (u64, u64) {
    (service.clock_epoch().as_u64(), NOW)
}

/// Client ids are shown by `describe`, generations by every read.
#[test]
fn who_knows_the_client_and_the_put_cannot_end_it_without_its_token() {
    let service = service();
    let grant: proto::PutStartResponse =
        call(&service, Method::PutStart, &put_start("k", 1)).unwrap();
    let good = end_of("k", &grant);
    let refusal = |method, request: &proto::PutEndRequest| {
        call::<proto::PutEndResponse>(&service, method, request).unwrap_err().code
    };
    for put_token in [0, grant.put_token ^ 1, u64::MAX ^ grant.put_token] {
        let guessed = proto::PutEndRequest { put_token, ..good.clone() };
        for method in [Method::PutEnd, Method::PutRevoke, Method::UpsertEnd, Method::UpsertRevoke] {
            assert_eq!(refusal(method, &guessed), ErrorCode::IllegalClient, "{method}");
        }
        for method in [Method::DiskPutEnd, Method::DiskPutRevoke, Method::MemoryPutRevoke] {
            assert_eq!(refusal(method, &guessed), ErrorCode::IllegalClient, "{method}");
        }
        let item = proto::PutEndItem {
            key: "k".into(),
            generation: Some(grant.generation),
            put_token,
            ..Default::default()
        };
        let batch = proto::BatchPutEndRequest { client_id: me(), puts: vec![item] };
        for method in [Method::BatchPutEnd, Method::BatchPutRevoke, Method::BatchUpsertEnd] {
            let done: proto::BatchPutEndResponse = call(&service, method, &batch).unwrap();
            assert_eq!(done.items[0].status_code, ErrorCode::IllegalClient.code(), "{method}");
        }
    }
    let unnamed = proto::PutEndRequest { generation: None, ..good.clone() };
    assert_eq!(refusal(Method::PutEnd, &unnamed), ErrorCode::InvalidParams);
    let _: proto::PutEndResponse = call(&service, Method::PutEnd, &good).unwrap();
}

#[test]
fn space_that_late_bytes_may_reach_is_kept_until_a_fence_answers() {
    let service = service();
    let used = || service.master().report().totals.used;
    let grant: proto::PutStartResponse =
        call(&service, Method::PutStart, &put_start("k", 1)).unwrap();
    let taken = used();
    assert!(taken >= 300);
    let handle = super::named(grant.generation, grant.put_token);
    let revoke = |late| {
        let bytes = written(|out| PutFinishRequest::write_revoke(out, ME, key("k"), handle, late));
        let message = proto::PutRevokeRequest::decode(&bytes[..]).unwrap();
        call::<proto::PutRevokeResponse>(&service, Method::PutRevoke, &message)
    };
    revoke(LateWrites::Possible).unwrap();
    let exist = proto::ExistKeyRequest { key: "k".into(), ..Default::default() };
    let found: proto::ExistKeyResponse = call(&service, Method::ExistKey, &exist).unwrap();
    assert!(!found.exists);
    // The key is free for another put, the space is not.
    let again: proto::PutStartResponse =
        call(&service, Method::PutStart, &put_start("k", 1)).unwrap();
    assert_eq!(used(), 2 * taken);
    revoke(LateWrites::Impossible).unwrap();
    assert_eq!(used(), taken);
    let _: proto::PutEndResponse = call(&service, Method::PutEnd, &end_of("k", &again)).unwrap();
}
