//! Holds what this crate writes and reads by hand to the `.proto`: prost's generated types
//! must say the same, in both directions. A file for each family of calls; what all of them
//! need is here. `tests/it/cold_calls` has the calls whose messages are prost's.

mod event_infos;
mod exist;
mod failures;
mod leases;
mod media;
mod patterns;
mod ranges;
mod replicas;
mod tickets;
mod upserts;

use core::time::Duration;
use std::sync::Arc;

use bytes::BytesMut;
use mc_meta::{
    LateWrites, Master, MasterConfig, PutEnd, PutHandle, PutStart, RangeRead, ReplicateConfig,
    SegmentSpec, SoftPinAction,
};
use mc_ticket::PutToken;
use mc_types::{
    Checksum, ClientId, Endpoint, ErrorCode, Generation, KeyRef, RemoteKey, SegmentId, Time,
};
use proptest::prelude::*;
use prost::Message;

use crate::answer;
use crate::calls::read_replica_page;
use crate::proto;
use crate::request::{
    self, BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartItem,
    PutStartRequest,
};
use crate::service::{Call, Clock, MasterService, Service};
use crate::{Caller, Method, Refusal};

const ME: ClientId = ClientId::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);

fn me() -> Vec<u8> {
    ME.to_bytes().to_vec()
}

fn key(text: &str) -> KeyRef<'_> {
    KeyRef::new(text).unwrap()
}

fn written(write: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::new();
    write(&mut out);
    out
}

/// Does not move.
struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time::from_millis(1000)
    }
}

fn service() -> MasterService<Still> {
    service_with(MasterConfig::default())
}

/// A master with three segments of a mebibyte.
fn service_with(config: MasterConfig) -> MasterService<Still> {
    let master = Arc::new(Master::new(config, 5).unwrap());
    for number in 1..=3 {
        master.mount_segment(Still.now(), ME, segment(number)).unwrap();
    }
    MasterService::new(master, Still)
}

fn segment(number: u8) -> SegmentSpec {
    SegmentSpec {
        id: SegmentId::from_u128(number.into()),
        name: format!("node-{number}").into(),
        base: 4096,
        size: 1 << 20,
        endpoint: Endpoint::new("tcp", "10.0.0.1:1").unwrap(),
        remote_key: RemoteKey::from_bytes([number; 16]),
        ticket_key: None,
        medium: mc_types::MediaType::Dram,
    }
}

fn call<T: Message + Default>(
    service: &impl Service,
    method: Method,
    request: &impl Message,
) -> Result<T, Refusal> {
    call_as(service, &Caller::ANYBODY, method, request)
}

fn call_as<T: Message + Default>(
    service: &impl Service,
    caller: &Caller,
    method: Method,
    request: &impl Message,
) -> Result<T, Refusal> {
    let mut out = BytesMut::from(&b"before"[..]);
    let payload = request.encode_to_vec();
    service.call(Call::new(method, &payload, 1 << 20, caller), &mut out)?;
    assert_eq!(&out[..6], b"before");
    Ok(T::decode(&out[6..]).unwrap())
}

/// Puts an object of 64 bytes, and says which put that was.
fn put(service: &MasterService<Still>, text: &str) -> u64 {
    put_named(service, text).generation.as_u64()
}

/// [`put`], and what names the put.
fn put_named(service: &MasterService<Still>, text: &str) -> PutHandle {
    let (master, now, config) = (service.master(), Still.now(), ReplicateConfig::default());
    let start = PutStart { key: key(text), slice_lengths: &[64], config: &config };
    let handle = master.put_start(now, ME, &start).unwrap().handle;
    let end = PutEnd::new(key(text), handle);
    master.put_end(now, ME, &end).unwrap();
    handle
}

/// The name of a put.
fn named(generation: u64, token: u64) -> PutHandle {
    PutHandle { generation: Generation::new(generation), token: PutToken::from_u64(token) }
}

/// Returns the request that ends a put that was begun.
fn end_of(text: &str, grant: &proto::PutStartResponse) -> proto::PutEndRequest {
    proto::PutEndRequest {
        key: text.into(),
        client_id: me(),
        generation: Some(grant.generation),
        put_token: grant.put_token,
        ..Default::default()
    }
}

#[test]
fn every_rpc_of_the_proto_has_its_method() {
    let text = include_str!("../proto/mc/store/v1/master.proto");
    let mut rpcs: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("rpc ")?.split_once('('))
        .map(|(name, _)| name)
        .collect();
    let mut methods: Vec<&str> = Method::ALL.iter().map(|method| method.as_str()).collect();
    rpcs.sort_unstable();
    methods.sort_unstable();
    assert_eq!(rpcs, methods);
}

#[test]
fn golden_put_start() {
    let config = ReplicateConfig::default().replicas(2).soft_pin().prefer("n1");
    let put = PutStart { key: key("k"), slice_lengths: &[300, 1], config: &config };
    let bytes = written(|out| PutStartRequest::write(out, ME, &put));
    assert_eq!(
        &bytes[..],
        b"\x0a\x01k\x22\x03\xac\x02\x01\x1a\x08\x08\x02\x10\x01\x22\x02n1\
          \x2a\x10\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10"
    );
}

#[test]
fn single_key_requests_are_the_messages() {
    let bytes = written(|out| request::write_flagged_key(out, key("a"), true));
    let message = proto::RemoveRequest { key: "a".into(), force: true };
    assert_eq!(proto::RemoveRequest::decode(&bytes[..]).unwrap(), message);
    assert_eq!(request::parse_flagged_key(&message.encode_to_vec()).unwrap(), (key("a"), true));

    let [checksums, prefixes] = [[7], [8]].map(|crcs| crcs.map(Checksum::from_crc32c));
    let handle = named(0, 9);
    let end =
        PutEnd { checksums: &checksums, prefixes: &prefixes, ..PutEnd::new(key("a"), handle) };
    let bytes = written(|out| PutFinishRequest::write(out, ME, &end));
    let message = proto::PutEndRequest {
        key: "a".into(),
        client_id: me(),
        generation: Some(0),
        slice_checksums: vec![7],
        put_token: 9,
        prefix_checksums: vec![8],
        event_info: None,
    };
    assert_eq!(proto::PutEndRequest::decode(&bytes[..]).unwrap(), message);
    let parsed = PutFinishRequest::parse(&bytes).unwrap();
    assert_eq!((parsed.client, parsed.key, parsed.handle), (ME, key("a"), handle));
    assert_eq!((&parsed.checksums[..], &parsed.prefixes[..]), (end.checksums, end.prefixes));

    for late in [LateWrites::Impossible, LateWrites::Possible] {
        let bytes = written(|out| PutFinishRequest::write_revoke(out, ME, key("a"), handle, late));
        let message = proto::PutRevokeRequest {
            key: "a".into(),
            client_id: me(),
            generation: Some(0),
            put_token: 9,
            late_writes: late == LateWrites::Possible,
        };
        assert_eq!(proto::PutRevokeRequest::decode(&bytes[..]).unwrap(), message);
        let parsed = PutFinishRequest::parse(&bytes).unwrap();
        assert_eq!((parsed.handle, parsed.late), (handle, late));
    }
}

#[test]
fn the_preferred_segment_of_the_old_field_comes_first() {
    let config = proto::ReplicateConfig {
        preferred_segment: "first".into(),
        preferred_segments: vec!["second".into(), "third".into()],
        ..Default::default()
    };
    let message = proto::PutStartRequest {
        key: "k".into(),
        value_length: 8,
        config: Some(config),
        slice_lengths: vec![],
        client_id: me(),
        ..Default::default()
    };
    let bytes = message.encode_to_vec();
    let parsed = PutStartRequest::parse(&bytes).unwrap();
    let names: Vec<&str> = parsed.config.preferred_segments.iter().map(|name| &**name).collect();
    assert_eq!((names, parsed.config.replica_num), (vec!["first", "second", "third"], 1));
    assert_eq!(parsed.slice_lengths, [8]);
}

#[test]
fn answers_are_the_messages() {
    let service = service();
    let start = proto::PutStartRequest {
        key: "k".into(),
        value_length: 300,
        config: Some(proto::ReplicateConfig { replica_num: 2, ..Default::default() }),
        slice_lengths: vec![100, 200],
        client_id: me(),
        ..Default::default()
    };
    let grant: proto::PutStartResponse = call(&service, Method::PutStart, &start).unwrap();
    assert_eq!(grant.replica_list.len(), 2);
    for replica in &grant.replica_list {
        assert_eq!(replica.status(), proto::replica_info::ReplicaStatus::Processing);
        let handle = &replica.handles[0];
        assert_eq!(handle.status(), proto::buf_handle::BufStatus::Init);
        assert_eq!((handle.size, handle.segment_id.len(), handle.remote_key.len()), (300, 16, 16));
        assert_eq!((&*handle.endpoint, handle.segment_index), ("tcp://10.0.0.1:1", 0));
    }
    let end = proto::PutEndRequest { slice_checksums: vec![0, 9], ..end_of("k", &grant) };
    let _: proto::PutEndResponse = call(&service, Method::PutEnd, &end).unwrap();

    let get = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![] };
    let list: proto::GetReplicaListResponse = call(&service, Method::GetReplicaList, &get).unwrap();
    assert_eq!((list.generation, list.lease_ttl_ms), (grant.generation, 5000));
    let slice = |length, checksum| proto::Slice { length, checksum: Some(checksum) };
    assert_eq!(list.slices, [slice(100, 0), slice(200, 9)]);
    assert_eq!(list.replica_list[0].status(), proto::replica_info::ReplicaStatus::Complete);
    let read = answer::read_replica_list(&list.encode_to_vec()).unwrap().unwrap();
    assert_eq!(read.lease, Duration::from_secs(5));

    let pong: proto::PingResponse =
        call(&service, Method::Ping, &proto::PingRequest { client_id: me(), ..Default::default() })
            .unwrap();
    assert_eq!(pong.client_status(), proto::ping_response::ClientStatus::Ok);
}

#[test]
fn a_batch_answer_describes_each_segment_once() {
    let service = service();
    let keys: Vec<String> = (0..50).map(|i| format!("k{i}")).collect();
    let puts = keys.iter().map(|key| proto::PutStartItem {
        key: key.clone(),
        value_length: 64,
        slice_lengths: vec![],
        ..Default::default()
    });
    let start = proto::BatchPutStartRequest {
        client_id: me(),
        config: Some(proto::ReplicateConfig { replica_num: 3, ..Default::default() }),
        puts: puts.collect(),
    };
    let grants: proto::BatchPutStartResponse =
        call(&service, Method::BatchPutStart, &start).unwrap();
    assert_eq!((grants.segments.len(), grants.items.len()), (3, 50));
    for item in &grants.items {
        let mut places: Vec<u32> =
            item.replica_list.iter().map(|replica| replica.handles[0].segment_index).collect();
        places.sort_unstable();
        assert_eq!(places, [1, 2, 3]);
        assert!(item.replica_list.iter().all(|r| r.handles[0].segment_name.is_empty()));
    }
    let puts = keys.iter().zip(&grants.items).map(|(key, grant)| proto::PutEndItem {
        key: key.clone(),
        generation: Some(grant.generation),
        put_token: grant.put_token,
        ..Default::default()
    });
    let end = proto::BatchPutEndRequest { client_id: me(), puts: puts.collect() };
    let ended: proto::BatchPutEndResponse = call(&service, Method::BatchPutEnd, &end).unwrap();
    assert!(ended.items.iter().all(|item| item.status_code == 0));

    let keys = [&keys[..], &["absent".into()]].concat();
    let get = proto::BatchGetReplicaListRequest { keys, reads: vec![] };
    let lists: proto::BatchGetReplicaListResponse =
        call(&service, Method::BatchGetReplicaList, &get).unwrap();
    assert_eq!((lists.segments.len(), lists.items.len()), (3, 51));
    assert_eq!(lists.items[50].status_code, ErrorCode::ObjectNotFound.code());
    assert_eq!(lists.items[50].message, "no such object");
    // A reader that knows the table only by the messages agrees.
    let read = answer::read_replica_lists(&lists.encode_to_vec(), 51).unwrap().unwrap();
    for (item, read) in lists.items.iter().zip(&read[..50]) {
        let (handle, read) =
            (&item.replica_list[0].handles[0], &read.as_ref().unwrap().replicas[0]);
        let named = &lists.segments[handle.segment_index as usize - 1];
        assert_eq!(*named.segment_name, *read.segment.name);
        assert_eq!(handle.buffer, read.extent.offset());
    }
}

fn name() -> impl Strategy<Value = String> {
    "[a-z/é]{1,40}"
}

fn soft_pin() -> impl Strategy<Value = SoftPinAction> {
    let ttl = prop::option::of(any::<u64>().prop_map(Duration::from_millis));
    prop_oneof![
        Just(SoftPinAction::Preserve),
        Just(SoftPinAction::Disable),
        ttl.prop_map(|ttl| SoftPinAction::Enable { ttl }),
    ]
}

proptest! {
    #[test]
    fn put_start_requests_are_the_message(
        name in name(),
        lengths in prop::collection::vec(1u64..1 << 50, 1..20),
        replica_num in 1u32..=32,
        soft_pin in soft_pin(),
        with_hard_pin in any::<bool>(),
        group in prop::option::of("[a-z]{1,20}"),
        parent in prop::option::of(name()),
        preferred in prop::collection::vec("[a-z]{1,20}", 0..5),
        excluded in prop::collection::vec("[a-z]{1,20}", 0..5),
        avoided in prop::collection::vec(any::<u128>(), 0..5),
        medium in prop::option::of(0u8..3),
    ) {
        let mut config = ReplicateConfig::default().replicas(replica_num);
        config.soft_pin = soft_pin;
        config.with_hard_pin = with_hard_pin;
        config.group = group.as_deref().map(Into::into);
        config.parent = parent.as_deref().map(|parent| key(parent).to_owned());
        config.preferred_segments = preferred.iter().map(|name| (**name).into()).collect();
        config.excluded_segments = excluded.iter().map(|name| (**name).into()).collect();
        config.avoided_segments = avoided.iter().copied().map(SegmentId::from_u128).collect();
        config.medium = medium.and_then(mc_types::MediaType::from_number);
        let put = PutStart { key: key(&name), slice_lengths: &lengths, config: &config };
        let bytes = written(|out| PutStartRequest::write(out, ME, &put));

        let message = proto::PutStartRequest::decode(&bytes[..]).unwrap();
        prop_assert_eq!(&message.key, &name);
        let total: u64 = lengths.iter().sum();
        prop_assert!(message.slice_lengths == lengths || message.value_length == total as i64);
        if let Some(told) = &message.config {
            prop_assert_eq!(told.with_hard_pin, with_hard_pin);
            prop_assert_eq!((told.with_soft_pin, told.soft_pin_ttl_ms), match soft_pin {
                SoftPinAction::Preserve => (false, None),
                SoftPinAction::Disable => (false, Some(0)),
                SoftPinAction::Enable { ttl } => (true, ttl.map(|ttl| ttl.as_millis() as u64)),
            });
            prop_assert_eq!(told.medium, medium.map(i32::from));
            prop_assert_eq!((&told.group, &told.parent), (&group, &parent.unwrap_or_default()));
        }
        for bytes in [bytes.to_vec(), message.encode_to_vec()] {
            let parsed = PutStartRequest::parse(&bytes).unwrap();
            prop_assert_eq!((parsed.key, parsed.client), (key(&name), ME));
            prop_assert_eq!(&parsed.slice_lengths, &lengths);
            prop_assert_eq!(&parsed.config, &config);
        }
    }

    #[test]
    fn batch_requests_are_the_messages(
        puts in prop::collection::vec((name(), prop::collection::vec(any::<u32>(), 0..5), any::<(u64, u64)>()), 0..20),
    ) {
        let checksums: Vec<Vec<Checksum>> = puts.iter()
            .map(|(_, crcs, _)| crcs.iter().map(|crc| Checksum::from_crc32c(*crc)).collect())
            .collect();
        let ends: Vec<PutEnd<'_>> = puts.iter().zip(&checksums)
            .map(|((name, _, (generation, token)), checksums)| {
                let end = PutEnd::new(key(name), named(*generation, *token));
                PutEnd { checksums, prefixes: checksums, ..end }
            })
            .collect();
        let bytes = written(|out| BatchPutFinishRequest::write(out, ME, ends.iter().copied()));
        let message = proto::BatchPutEndRequest::decode(&bytes[..]).unwrap();
        prop_assert_eq!(message.encode_to_vec(), &bytes[..]);
        let mut at = 0;
        BatchPutFinishRequest::parse(&bytes).unwrap().for_each(|end| {
            let (end, late) = end.unwrap();
            assert_eq!((end.key, end.handle, late),
                (ends[at].key, ends[at].handle, LateWrites::Impossible));
            assert_eq!((end.checksums, end.prefixes), (ends[at].checksums, ends[at].prefixes));
            at += 1;
        });
        prop_assert_eq!(at, puts.len());

        let lengths: Vec<Vec<u64>> = puts.iter()
            .map(|(_, lengths, _)| lengths.iter().map(|length| 1 + u64::from(*length)).chain([1]).collect())
            .collect();
        let starts: Vec<PutStartItem<'_>> = puts.iter().zip(&lengths).enumerate()
            .map(|(at, ((name, ..), slice_lengths))| PutStartItem {
                again: at % 2 == 1,
                may_be_begun: at % 5 < 2,
                parent: (at % 3 == 1).then(|| key(&puts[at - 1].0)),
                ..PutStartItem::new(key(name), slice_lengths)
            })
            .collect();
        let config = ReplicateConfig::default().parent(key("of the first").to_owned());
        let bytes = written(|out| BatchPutStartRequest::write(out, ME, &config, &starts));
        let message = proto::BatchPutStartRequest::decode(&bytes[..]).unwrap();
        prop_assert_eq!(message.encode_to_vec(), &bytes[..]);
        let mut at = 0;
        let scoped = |parent: KeyRef<'_>| Ok(key(&format!("t/{parent}")).to_owned());
        BatchPutStartRequest::parse(&bytes).unwrap().for_each(scoped, |put| {
            let (put, repeated) = put.unwrap();
            let parent = match starts[at].parent {
                Some(parent) => Some(format!("t/{parent}")),
                None => (at == 0).then(|| "of the first".to_owned()),
            };
            let read = put.config.parent.as_ref().map(|parent| parent.as_str().to_owned());
            assert_eq!(read, parent);
            assert_eq!((put.key.as_str(), put.slice_lengths), (&*puts[at].0, &lengths[at][..]));
            assert_eq!((repeated.again, repeated.may_be_begun), (at % 2 == 1, at % 5 < 2));
            at += 1;
        });
        prop_assert_eq!(at, puts.len());
    }

    /// No request panics the master, and no answer passes its limit unnoticed.
    #[test]
    fn arbitrary_requests_are_answered_or_refused(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        fields in prop::collection::vec((0u8..16, prop::sample::select(vec![0u8, 2, 5]), 0usize..20), 0..20),
    ) {
        let service = service();
        // Half of the cases have the shape of a message.
        let mut shaped = Vec::new();
        for (number, wire_type, len) in fields {
            shaped.push(number << 3 | wire_type);
            match wire_type {
                0 => shaped.push(len as u8),
                5 => shaped.extend_from_slice(&[len as u8; 4]),
                _ => {
                    shaped.push(len as u8);
                    shaped.extend(payload.iter().copied().cycle().take(if payload.is_empty() { 0 } else { len }));
                }
            }
        }
        for payload in [&payload, &shaped] {
            for &method in Method::ALL {
                let mut out = BytesMut::new();
                let _ = service.call(Call::new(method, payload, 4096, &Caller::ANYBODY), &mut out);
            }
        }
    }

    /// No answer panics the client.
    #[test]
    fn arbitrary_answers_are_read_or_refused(message in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = answer::read_replica_list(&message);
        let _ = answer::read_grant(&message, 1);
        let _ = answer::read_done(&message);
        let _ = answer::read_pong(&message);
        let _ = answer::read_replica_lists(&message, 1);
        let _ = answer::read_grants(&message, [1].into_iter());
        let _ = answer::read_all_done(&message, 1);
        let _ = answer::read_all_exist(&message, 1);
        let _ = read_replica_page(&message, 1);
        let reads = [RangeRead { key: key("k"), ranges: &[0..1, 5..9] }];
        let _ = answer::read_ranged_lists(&message, &reads);
    }
}
