//! Upserts, and what a put can ask for.

use mc_meta::{LateWrites, MasterConfig, PutEnd, PutStart, ReplicateConfig, TenantId};
use mc_types::{ClientId, ErrorCode};
use prost::Message;

use super::{ME, call, call_as, key, me, named, service, service_with, written};
use crate::request::{
    BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartItem, PutStartRequest,
};
use crate::{Caller, Method, Role, answer, proto};

fn start(text: &str, value_length: i64) -> proto::UpsertStartRequest {
    proto::UpsertStartRequest {
        key: text.into(),
        value_length,
        client_id: me(),
        ..Default::default()
    }
}

fn end(text: &str, [generation, put_token]: [u64; 2]) -> proto::UpsertEndRequest {
    proto::UpsertEndRequest {
        key: text.into(),
        client_id: me(),
        generation: Some(generation),
        put_token,
        ..Default::default()
    }
}

/// Returns the numbers that name the put that was begun.
fn handle(grant: &proto::UpsertStartResponse) -> [u64; 2] {
    [grant.generation, grant.put_token]
}

#[test]
fn golden_upsert_start() {
    let config = ReplicateConfig::default().hard_pin().group("g").parent(key("p").to_owned());
    let put = PutStart { key: key("k"), slice_lengths: &[300], config: &config };
    let bytes = written(|out| PutStartRequest::write(out, ME, &put));
    assert_eq!(
        &bytes[..],
        b"\x0a\x01k\x10\xac\x02\x1a\x08\x30\x01\x3a\x01g\x42\x01p\
          \x2a\x10\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10"
    );
    let config = proto::ReplicateConfig {
        with_hard_pin: true,
        group: Some("g".into()),
        parent: "p".into(),
        ..Default::default()
    };
    let message = proto::UpsertStartRequest { config: Some(config), ..start("k", 300) };
    assert_eq!(proto::UpsertStartRequest::decode(&bytes[..]).unwrap(), message);
}

#[test]
fn the_requests_of_an_upsert_are_the_messages() {
    let handle = named(7, 9);
    let put = PutEnd::new(key("k"), handle);
    let bytes = written(|out| PutFinishRequest::write(out, ME, &put));
    assert_eq!(proto::UpsertEndRequest::decode(&bytes[..]).unwrap(), end("k", [7, 9]));
    let late = LateWrites::Possible;
    let bytes = written(|out| PutFinishRequest::write_revoke(out, ME, key("k"), handle, late));
    let revoke = proto::UpsertRevokeRequest {
        key: "k".into(),
        client_id: me(),
        generation: Some(7),
        put_token: 9,
        late_writes: true,
    };
    assert_eq!(proto::UpsertRevokeRequest::decode(&bytes[..]).unwrap(), revoke);

    let bytes = written(|out| BatchPutFinishRequest::write(out, ME, [put]));
    let ends = proto::BatchUpsertEndRequest::decode(&bytes[..]).unwrap();
    assert_eq!((ends.client_id, &*ends.puts[0].key, ends.puts.len()), (me(), "k", 1));
    let revokes = [(key("k"), handle, late)];
    let bytes = written(|out| BatchPutFinishRequest::write_revokes(out, ME, revokes));
    let revokes = proto::BatchUpsertRevokeRequest::decode(&bytes[..]).unwrap();
    assert_eq!((revokes.client_id, revokes.puts[0].generation), (me(), Some(7)));
    assert_eq!((revokes.puts[0].put_token, revokes.puts[0].late_writes), (9, true));

    let config = ReplicateConfig::default().group("g");
    let again = PutStartItem { again: true, ..PutStartItem::new(key("b"), &[3]) };
    let puts = [PutStartItem::new(key("a"), &[1, 2]), again];
    let bytes = written(|out| BatchPutStartRequest::write(out, ME, &config, &puts));
    let message = proto::BatchUpsertStartRequest::decode(&bytes[..]).unwrap();
    assert_eq!((&message.client_id, message.puts.len()), (&me(), 2));
    assert_eq!(message.encode_to_vec(), &bytes[..]);
    let batch = BatchPutStartRequest::parse(&bytes).unwrap();
    assert_eq!((batch.config, batch.puts.len()), (config, 2));
}

#[test]
fn a_new_value_takes_the_place_of_the_old_one_when_it_is_written() {
    let service = service();
    let old: proto::UpsertStartResponse =
        call(&service, Method::UpsertStart, &start("k", 64)).unwrap();
    let _: proto::UpsertEndResponse =
        call(&service, Method::UpsertEnd, &end("k", handle(&old))).unwrap();

    let new: proto::UpsertStartResponse =
        call(&service, Method::UpsertStart, &start("k", 100)).unwrap();
    assert_eq!(
        new.replica_list[0].status(),
        proto::replica_info::ReplicaStatus::Processing,
        "{new:?}"
    );
    let get = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![] };
    let generation = || {
        let list: proto::GetReplicaListResponse =
            call(&service, Method::GetReplicaList, &get).unwrap();
        list.generation
    };
    assert_eq!(generation(), old.generation);
    let read = answer::read_grant(&new.encode_to_vec(), 100).unwrap().unwrap();
    assert_eq!(read.handle, named(new.generation, new.put_token));
    let _: proto::UpsertEndResponse =
        call(&service, Method::UpsertEnd, &end("k", handle(&new))).unwrap();
    assert_eq!(generation(), new.generation);

    let third: proto::UpsertStartResponse =
        call(&service, Method::UpsertStart, &start("k", 64)).unwrap();
    let revoke = proto::UpsertRevokeRequest {
        key: "k".into(),
        client_id: me(),
        generation: Some(third.generation),
        put_token: third.put_token,
        late_writes: false,
    };
    let _: proto::UpsertRevokeResponse = call(&service, Method::UpsertRevoke, &revoke).unwrap();
    assert_eq!(generation(), new.generation);
}

#[test]
fn bad_upserts_are_refused() {
    let service = service();
    let refused = |request: &proto::UpsertStartRequest| {
        let refused = call::<proto::UpsertStartResponse>(&service, Method::UpsertStart, request);
        let refusal = refused.unwrap_err();
        (refusal.code, refusal.message.into_string())
    };
    let with = |config| proto::UpsertStartRequest { config: Some(config), ..start("k", 64) };
    let config = proto::ReplicateConfig::default;
    assert_eq!(refused(&start("", 64)).0, ErrorCode::InvalidKey);
    assert_eq!(refused(&start("k", -1)).0, ErrorCode::InvalidParams);
    let (code, message) =
        refused(&proto::UpsertStartRequest { client_id: vec![1; 15], ..start("k", 64) });
    assert_eq!((code, &*message), (ErrorCode::InvalidParams, "client_id has 15 bytes, not 16"));
    for (group, len) in [(String::new(), 0), ("g".repeat(257), 257)] {
        let (code, message) =
            refused(&with(proto::ReplicateConfig { group: Some(group), ..config() }));
        assert_eq!(code, ErrorCode::InvalidParams);
        assert!(message.starts_with(&format!("group has {len} bytes")), "{message}");
    }
    let (code, message) =
        refused(&with(proto::ReplicateConfig { parent: "p".repeat(1025), ..config() }));
    assert_eq!(code, ErrorCode::InvalidKey);
    assert!(message.starts_with("parent: "), "{message}");

    let other = ClientId::from_u128(9).to_bytes().to_vec();
    let opened: proto::UpsertStartResponse =
        call(&service, Method::UpsertStart, &start("k", 64)).unwrap();
    let end = proto::UpsertEndRequest { client_id: other, ..end("k", handle(&opened)) };
    let foreign = call::<proto::UpsertEndResponse>(&service, Method::UpsertEnd, &end);
    assert_eq!(foreign.unwrap_err().code, ErrorCode::IllegalClient);
}

#[test]
fn the_parent_is_a_key_of_the_callers_tenant() {
    let mut config = MasterConfig::default();
    config.multi_tenant = true;
    let service = service_with(config);
    let tenant = TenantId::new(&"t".repeat(128)).unwrap();
    service.master().set_tenant_quota(mc_types::Time::ORIGIN, &tenant, 1 << 20).unwrap();
    let caller = Caller::new("t", Role::Writer).of_tenant(tenant);
    let ask = |parent: usize, of_item: usize| {
        let config = proto::ReplicateConfig { parent: "p".repeat(parent), ..Default::default() };
        let request = proto::UpsertStartRequest { config: Some(config.clone()), ..start("k", 64) };
        let batch = proto::BatchUpsertStartRequest {
            client_id: me(),
            config: Some(config),
            puts: vec![proto::PutStartItem {
                key: "b".into(),
                value_length: 64,
                slice_lengths: vec![],
                parent: "p".repeat(of_item),
                ..Default::default()
            }],
        };
        let one =
            call_as::<proto::UpsertStartResponse>(&service, &caller, Method::UpsertStart, &request);
        let many = call_as::<proto::BatchUpsertStartResponse>(
            &service,
            &caller,
            Method::BatchUpsertStart,
            &batch,
        );
        (one.map(|_| ()), many.map(|many| many.items[0].status_code))
    };
    let room = 1024 - 128 - 2;
    assert_eq!(ask(room, 0), (Ok(()), Ok(0)));
    let (one, many) = ask(room + 1, 0);
    assert_eq!(one.unwrap_err().code, ErrorCode::InvalidKey);
    assert_eq!(many.unwrap_err().code, ErrorCode::InvalidKey);
    let (_, many) = ask(0, room + 1);
    assert_eq!(many.unwrap(), ErrorCode::InvalidKey.code(), "the item alone is refused");
}
