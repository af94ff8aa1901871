//! Holds the messages about the cluster to the `.proto`: prost's generated types must
//! say the same as what this crate writes and reads by hand, in both directions.

mod transfers;

use std::sync::Arc;

use bytes::BytesMut;
use mc_meta::{Master, MasterConfig, PutEnd, PutStart, ReplicateConfig, SegmentSpec, TenantId};
use mc_types::{ClientId, Endpoint, ErrorCode, Generation, KeyRef, RemoteKey, SegmentId, Time};
use prost::Message;

use crate::service::{Call, Clock, MasterService, Service};
use crate::{Caller, Method, Refusal, Role};

const ME: ClientId = ClientId::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);

fn me() -> Vec<u8> {
    ME.to_bytes().to_vec()
}

fn key(text: &str) -> KeyRef<'_> {
    KeyRef::new(text).unwrap()
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
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

fn segment(number: u8) -> SegmentSpec {
    SegmentSpec {
        id: SegmentId::from_u128(number.into()),
        name: format!("node-{number}").into(),
        base: 4096,
        size: 1 << 20,
        endpoint: Endpoint::new("tcp", "10.0.0.1:1").unwrap(),
        remote_key: RemoteKey::from_bytes([number; 16]),
    }
}

fn service_with(config: MasterConfig) -> MasterService<Still> {
    let master = Arc::new(Master::new(config, 5).unwrap());
    for number in 1..=3 {
        master.mount_segment(Still.now(), ME, segment(number)).unwrap();
    }
    MasterService::new(master, Still)
}

fn service() -> MasterService<Still> {
    service_with(MasterConfig::default())
}

/// A service whose master has tenants: the default one and `blue`.
fn service_of_tenants() -> MasterService<Still> {
    let mut config = MasterConfig::default();
    config.multi_tenant = true;
    let service = service_with(config);
    for tenant in [TenantId::DEFAULT, tenant("blue")] {
        service.master().set_tenant_quota(Still.now(), &tenant, 1 << 20).unwrap();
    }
    service
}

/// Puts an object of this tenant into the first segment.
fn put(service: &MasterService<Still>, tenant: &TenantId, text: &str) -> Generation {
    let (master, now) = (service.master(), Still.now());
    let key = master.scoped(tenant, key(text)).unwrap();
    let config = ReplicateConfig::default().prefer("node-1");
    let start = PutStart { key: key.as_ref(), slice_lengths: &[100, 200], config: &config };
    let generation = master.put_start(now, ME, &start).unwrap().generation;
    let end = PutEnd { key: key.as_ref(), generation: Some(generation), checksums: &[] };
    master.put_end(now, ME, &end).unwrap();
    generation
}

fn call_as<T: Message + Default>(
    caller: &Caller,
    service: &impl Service,
    method: Method,
    request: &impl Message,
) -> Result<T, Refusal> {
    let mut out = BytesMut::from(&b"before"[..]);
    let payload = request.encode_to_vec();
    service.call(Call { method, payload: &payload, max_reply: 1 << 20, caller }, &mut out)?;
    assert_eq!(&out[..6], b"before");
    Ok(T::decode(&out[6..]).unwrap())
}

fn call<T: Message + Default>(
    service: &impl Service,
    method: Method,
    request: &impl Message,
) -> Result<T, Refusal> {
    call_as(&Caller::ANYBODY, service, method, request)
}

/// What a call is refused with whose answer does not matter.
fn refused(service: &impl Service, method: Method, request: &impl Message) -> (ErrorCode, String) {
    let refusal = call::<()>(service, method, request).unwrap_err();
    (refusal.code, refusal.message.into())
}

fn blue(role: Role) -> Caller {
    Caller::new("somebody", role).of_tenant(tenant("blue"))
}
