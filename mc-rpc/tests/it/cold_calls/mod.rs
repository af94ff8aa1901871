//! The calls whose messages prost writes and reads: what a master makes of any request, and a
//! client of any answer. That they do what they say is shown in `cluster_calls.rs` and
//! `object_calls.rs`.

mod answers;
mod c2c;
mod disks;
mod limits;
mod mutations;
mod refusals;
mod storage;
mod tenants;

use std::sync::Arc;

use bytes::BytesMut;
use mc_meta::{
    DefaultQuota, LocalDiskConfig, Master, MasterConfig, PromotionConfig, PutEnd, PutStart,
    ReplicateConfig, SegmentSpec, SharedTierConfig, TenantId,
};
use mc_rpc::{Call, Caller, Clock, MasterService, Method, Refusal, Role, Service, proto};
use mc_types::{
    ClientId, Endpoint, ErrorCode, Generation, KeyRef, MediaType, RemoteKey, SegmentId, Time,
};
use prost::Message;

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

/// Does not move.
struct Still;

const NOW: Time = Time::from_millis(1000);

impl Clock for Still {
    fn now(&self) -> Time {
        NOW
    }
}

/// A master with all kinds of disks, and three segments of a mebibyte.
fn config() -> MasterConfig {
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::with_capacity(1 << 20));
    config.local_disk = Some(LocalDiskConfig::default());
    config.promotion = Some(PromotionConfig::default());
    config
}

fn service_with(config: MasterConfig) -> MasterService<Still> {
    let master = Arc::new(Master::new(config, 5).unwrap());
    for number in 1..=3 {
        master.mount_segment(NOW, ME, segment(number)).unwrap();
    }
    MasterService::new(master, Still)
}

/// A service whose master has tenants: the default one and `blue`.
fn service() -> MasterService<Still> {
    let mut config = config();
    config.multi_tenant = true;
    config.default_tenant_quota = DefaultQuota::Denied;
    let service = service_with(config);
    for tenant in [TenantId::DEFAULT, tenant("blue")] {
        service.master().set_tenant_quota(NOW, &tenant, 1 << 20).unwrap();
    }
    service
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
        medium: MediaType::Dram,
    }
}

/// The answer's bytes, of at most `max_reply`.
fn answer(
    service: &impl Service,
    caller: &Caller,
    (method, payload, max_reply): (Method, &[u8], usize),
) -> Result<BytesMut, Refusal> {
    let mut out = BytesMut::new();
    service.call(Call::new(method, payload, max_reply, caller), &mut out)?;
    Ok(out)
}

fn call_as<T: Message + Default>(
    service: &impl Service,
    caller: &Caller,
    method: Method,
    request: &impl Message,
) -> Result<T, Refusal> {
    let bytes = answer(service, caller, (method, &request.encode_to_vec(), 1 << 20))?;
    Ok(T::decode(bytes).unwrap())
}

fn call<T: Message + Default>(
    service: &impl Service,
    method: Method,
    request: &impl Message,
) -> Result<T, Refusal> {
    call_as(service, &Caller::ANYBODY, method, request)
}

/// The code that a call is refused with.
fn refused(service: &impl Service, method: Method, request: &impl Message) -> ErrorCode {
    call::<()>(service, method, request).unwrap_err().code
}

fn blue(role: Role) -> Caller {
    Caller::new("somebody", role).of_tenant(tenant("blue"))
}

/// Puts an object of this tenant, of 300 bytes, into the first segment.
fn put(service: &MasterService<Still>, tenant: &TenantId, text: &str) -> Generation {
    let master = service.master();
    let key = master.scoped(tenant, key(text)).unwrap();
    let config = ReplicateConfig::default().prefer("node-1");
    let start = PutStart { key: key.as_ref(), slice_lengths: &[100, 200], config: &config };
    let handle = master.put_start(NOW, ME, &start).unwrap().handle;
    let end = PutEnd::new(key.as_ref(), handle);
    master.put_end(NOW, ME, &end).unwrap();
    handle.generation
}

/// A put of another master: found on a disk, it is unknown to this one.
const FOREIGN: Generation = Generation::new(1 << 62);

/// How the client mounts its disk.
fn mount() -> proto::MountLocalDiskRequest {
    proto::MountLocalDiskRequest {
        client_id: me(),
        endpoint: "tcp://h:1".into(),
        enabled: true,
        disk_id: vec![5; 16],
        remote_key: vec![6; 16],
        ticket_key: vec![],
    }
}

fn mount_disk(service: &MasterService<Still>) {
    let _: proto::MountLocalDiskResponse = call(service, Method::MountLocalDisk, &mount()).unwrap();
}

/// An object of 300 bytes in two slices, as a client finds it.
fn found_on_disk(text: &str, tenant_id: &str, generation: Generation) -> proto::FoundOnDisk {
    proto::FoundOnDisk {
        key: text.into(),
        tenant_id: tenant_id.into(),
        generation: generation.as_u64(),
        slices: vec![
            proto::Slice { length: 100, checksum: None },
            proto::Slice { length: 200, checksum: Some(7) },
        ],
        offset: 4096,
    }
}
