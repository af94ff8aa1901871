//! One test for each rule of the master.

mod batches;
mod clearing;
mod clients;
mod damage;
mod drains;
mod eviction;
mod expiring;
mod explain;
mod files;
mod grants;
mod late_writes;
mod media;
mod offload;
mod offload_filter;
mod own;
mod patterns;
mod pins;
mod placement;
mod promotion;
mod puts;
mod ranges;
mod reads;
mod receipts;
mod recovery;
mod renewals;
mod room;
mod shared_files;
mod slabs;
mod strategies;
mod suspicion;
mod taking;
mod tasks;
mod tenants;
mod tenants_below;
mod tiers;
mod transfers;
mod transfers_at_random;
mod unfinished;
mod upserts;

use core::time::Duration;
use std::sync::{Arc, Mutex};

use mc_meta::{
    AllocationStrategy, BufferStatus, Effect, EffectSink, ExportCursor, GrantSecret, LateWrites,
    Master, MasterConfig, PutEnd, PutFinishError, PutGrant, PutHandle, PutRevoke, PutStart,
    PutStartError, PutToken, Record, Removal, ReplicaStatus, ReplicateConfig, SegmentSpec, Slice,
    Slices, TenantId, TransferHandle,
};
use mc_types::{ClientId, Generation, KeyRef, RemoteKey, SegmentId, Sequence, Time, TransferId};

use crate::common::segment;

const NODE: ClientId = ClientId::from_u128(100);
const WRITER: ClientId = ClientId::from_u128(1);
const STRANGER: ClientId = ClientId::from_u128(2);

/// The masters' secret: with it a test makes every handle that it needs.
const SECRET: GrantSecret = GrantSecret::from_bytes(*b"a secret of 16 b");

/// The handle of the put of this generation.
fn handle(generation: Generation) -> PutHandle {
    PutHandle { generation, token: SECRET.token(generation.as_u64()) }
}

/// The number that was given out last, to a put, a copy or a move.
fn newest(master: &Master) -> Generation {
    let (mut cursor, mut last, mut newest) = (Some(ExportCursor::default()), None, None);
    while let Some(from) = cursor {
        let page = master.export(at(0), from);
        for record in &page.records {
            match record {
                Record::Generations { next } => last = Some(next.as_u64() - 1),
                Record::Object(object) => newest = newest.max(Some(object.generation)),
                _ => {}
            }
        }
        cursor = page.next;
    }
    let last = last.expect("an export says which generations are given");
    let step = Generation::STEP;
    // With files, numbers have marks, and there are gaps between them.
    match newest {
        _ if (last + 1) % step > 0 => Generation::new(last),
        Some(newest) if newest.as_u64() / step == last / step => newest,
        _ => Generation::new(last + 1 - step),
    }
}

/// The put that began last.
fn newest_put(master: &Master) -> PutHandle {
    handle(newest(master))
}

/// The copy or move that began last.
fn newest_transfer(master: &Master) -> TransferHandle {
    transfer_of(newest_put(master))
}

/// The transfer with the number and the token of a put.
fn transfer_of(put: PutHandle) -> TransferHandle {
    TransferHandle { id: TransferId::new(put.generation.as_u64()), token: put.token }
}

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn secs(secs: u64) -> Time {
    at(secs * 1000)
}

fn key(text: &str) -> KeyRef<'_> {
    KeyRef::new(text).unwrap()
}

/// An object of one slice without a checksum.
fn one_slice(len: u64) -> Slices {
    Slices::One(Slice { len, checksum: None })
}

/// Defaults, but one shard and clients that live on without pings.
fn settings() -> MasterConfig {
    let mut config = MasterConfig::default();
    config.shards = 1;
    config.client_ttl = Duration::from_secs(1 << 40);
    config
}

/// A master with segments of these sizes, all of one client.
fn master_with(config: MasterConfig, sizes: &[u64]) -> Master {
    let master = Master::new(config, 1).unwrap().with_secret(SECRET);
    for (number, size) in (0u128..).zip(sizes) {
        master.mount_segment(at(0), NODE, segment(number, *size)).unwrap();
    }
    master
}

fn master(sizes: &[u64]) -> Master {
    master_with(settings(), sizes)
}

/// The client that owns the segment of this number in a [`cluster`].
fn owner(number: u128) -> ClientId {
    ClientId::from_u128(200 + number)
}

fn id(number: u128) -> SegmentId {
    SegmentId::from_u128(number)
}

/// A master whose segments each belong to a client of their own.
fn cluster_with(config: MasterConfig, sizes: &[u64]) -> Master {
    let master = Master::new(config, 1).unwrap().with_secret(SECRET);
    for (number, size) in (0u128..).zip(sizes) {
        master.mount_segment(at(0), owner(number), segment(number, *size)).unwrap();
    }
    master
}

fn cluster(sizes: &[u64]) -> Master {
    cluster_with(settings(), sizes)
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

/// A key of a tenant as it is stored.
fn of(name: &str, key: &str) -> String {
    tenant(name).scoped(KeyRef::new(key).unwrap()).unwrap().as_ref().as_str().to_owned()
}

fn start_as(
    master: &Master,
    now: Time,
    name: &str,
    len: u64,
    config: &ReplicateConfig,
) -> Result<PutGrant, PutStartError> {
    master.put_start(now, WRITER, &PutStart { key: key(name), slice_lengths: &[len], config })
}

fn start(master: &Master, now: Time, name: &str, len: u64) -> Result<PutGrant, PutStartError> {
    start_as(master, now, name, len, &ReplicateConfig::default())
}

fn end(
    master: &Master,
    now: Time,
    name: &str,
    generation: Generation,
) -> Result<(), PutFinishError> {
    let put = PutEnd::new(key(name), handle(generation));
    master.put_end(now, WRITER, &put)
}

fn put_as(
    master: &Master,
    now: Time,
    name: &str,
    len: u64,
    config: &ReplicateConfig,
) -> Result<PutGrant, PutStartError> {
    let grant = start_as(master, now, name, len, config)?;
    end(master, now, name, grant.handle.generation).unwrap();
    Ok(grant)
}

fn put(master: &Master, now: Time, name: &str, len: u64) -> Result<PutGrant, PutStartError> {
    put_as(master, now, name, len, &ReplicateConfig::default())
}

/// Whether the object can be read, asked without using it.
fn has(master: &Master, name: &str) -> bool {
    master.describe(at(0), key(name)).is_ok_and(|object| {
        object.replicas.iter().any(|replica| replica.buffer == BufferStatus::Complete)
            || object.file == Some(ReplicaStatus::Complete)
            || !object.local_disks.is_empty()
    })
}

/// Keeps the keys of removed objects and why they went.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<(String, Removal)>>>);

impl Recorder {
    /// Keys removed for this cause since the last call, in order.
    fn removals(&self, cause: Removal) -> Vec<String> {
        let mut all = self.0.lock().unwrap();
        all.extract_if(.., |(_, why)| *why == cause).map(|(key, _)| key).collect()
    }
}

impl EffectSink for Recorder {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        if let Effect::Removed { key, cause, .. } = effect {
            self.0.lock().unwrap().push((key.as_str().to_owned(), *cause));
        }
    }
}
