//! Tenants are charged for their own objects alone, whatever happens.

use core::time::Duration;
use std::collections::BTreeMap;

use mc_ticket::PutToken;
use mc_types::{
    ClientId, Generation, KeyRef, LocalDiskId, ObjectKey, RemoteKey, SegmentId, Time, TransferId,
};
use proptest::prelude::*;

use crate::commands::tier::adopt::FoundInTier;
use crate::commands::tier::offload::OffloadOutcome;
use crate::config::MasterConfig;
use crate::master::Master;
use crate::object::local_disk::LocalDiskSpec;
use crate::rebuild::Rebuild;
use crate::rebuild::page::ExportCursor;
use crate::side_tables::local_disk::LocalDiskConfig;
use crate::side_tables::offload_queue::TierJob;
use crate::side_tables::promotion_queue::PromotionConfig;
use crate::space::replica::Replica;
use crate::space::segment::SegmentSpec;
use crate::tenant::below::TierQuotas;
use crate::tenant::id::{TenantId, unscoped};
use crate::tenant::quota::QuotaMode;
use crate::vocabulary::kinds::{FileState, ReplicaKind, SharedTierConfig};
use crate::vocabulary::request::{
    LateWrites, PutEnd, PutHandle, PutStart, ReplicateConfig, Slice, Slices, TransferHandle,
};

const NAMES: [&str; 3] = ["default", "a", "b"];
const KEYS: usize = 4;
const SEGMENTS: u128 = 3;
const SIZE: u64 = 400;
const WRITER: ClientId = ClientId::from_u128(1);
const NO_PUT: PutHandle =
    PutHandle { generation: Generation::new(0), token: PutToken::from_u64(0) };
const NO_TRANSFER: TransferHandle =
    TransferHandle { id: TransferId::new(NO_PUT.generation.as_u64()), token: NO_PUT.token };

/// Some of both.
const fn late(how: u8) -> LateWrites {
    if how.is_multiple_of(2) { LateWrites::Impossible } else { LateWrites::Possible }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Policy(usize, u64),
    DeletePolicy(usize),
    OnlyPolicy(usize, u64),
    Put {
        key: usize,
        len: u64,
        kind: u8,
        upsert: bool,
    },
    End(usize),
    Revoke(usize),
    RevokeMemory(usize),
    FileEnd(usize),
    FileRevoke(usize),
    FileGone(usize),
    Read(usize),
    Remove(usize, bool),
    RemoveAll(usize),
    Clear(usize, Option<u128>),
    Copy(usize, u128, u128),
    Move(usize, u128, u128),
    EndTransfer(usize, u8),
    Mount(u128),
    Unmount(u128),
    MountDisk(u128),
    UnmountDisk(u128),
    /// A client takes what it is to write, and has written it or not.
    Offload(u128, bool),
    /// A client takes what it is to bring back, and does, fails, or is not heard of.
    Promote(u128, u8),
    /// A client has deleted an object from its disk.
    DiskGone(u128, usize),
    /// A client reports what it has written to its disk, all of it or not.
    Report(u128, bool),
    /// A client reports the files that were written.
    ReportFiles(u128),
    /// Another master takes over.
    Restart,
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let tenant = || 0..NAMES.len();
    let key = || 0..NAMES.len() * KEYS;
    let segment = || 0..SEGMENTS;
    let quota = || 0..800u64;
    prop_oneof![
        2 => (tenant(), quota()).prop_map(|(at, bytes)| Op::Policy(at, bytes)),
        1 => tenant().prop_map(Op::DeletePolicy),
        1 => (tenant(), quota()).prop_map(|(at, bytes)| Op::OnlyPolicy(at, bytes)),
        16 => (key(), 1..150u64, any::<u8>(), any::<bool>())
            .prop_map(|(key, len, kind, upsert)| Op::Put { key, len, kind, upsert }),
        12 => key().prop_map(Op::End),
        2 => key().prop_map(Op::Revoke),
        1 => key().prop_map(Op::RevokeMemory),
        2 => key().prop_map(Op::FileEnd),
        1 => key().prop_map(Op::FileRevoke),
        1 => key().prop_map(Op::FileGone),
        3 => key().prop_map(Op::Read),
        2 => (key(), any::<bool>()).prop_map(|(key, force)| Op::Remove(key, force)),
        1 => tenant().prop_map(Op::RemoveAll),
        2 => (key(), prop::option::of(segment())).prop_map(|(key, at)| Op::Clear(key, at)),
        3 => (key(), segment(), segment()).prop_map(|(key, from, to)| Op::Copy(key, from, to)),
        3 => (key(), segment(), segment()).prop_map(|(key, from, to)| Op::Move(key, from, to)),
        4 => (key(), 0..4u8).prop_map(|(key, how)| Op::EndTransfer(key, how)),
        4 => segment().prop_map(Op::Mount),
        1 => segment().prop_map(Op::Unmount),
        2 => segment().prop_map(Op::MountDisk),
        1 => segment().prop_map(Op::UnmountDisk),
        4 => (segment(), any::<bool>()).prop_map(|(at, written)| Op::Offload(at, written)),
        4 => (segment(), 0..4u8).prop_map(|(at, how)| Op::Promote(at, how)),
        1 => (segment(), key()).prop_map(|(at, key)| Op::DiskGone(at, key)),
        2 => (segment(), any::<bool>()).prop_map(|(at, all)| Op::Report(at, all)),
        1 => segment().prop_map(Op::ReportFiles),
        1 => Just(Op::Restart),
        6 => prop_oneof![0..10u64, 0..20_000u64, 0..700_000u64].prop_map(Op::Wait),
    ]
}

fn tenant(at: usize) -> TenantId {
    TenantId::new(NAMES[at]).unwrap()
}

fn spec(number: u128) -> SegmentSpec {
    SegmentSpec {
        id: SegmentId::from_u128(number),
        name: name_of(number).into(),
        base: 0,
        size: SIZE,
        endpoint: format!("mem://node-{number}").parse().unwrap(),
        remote_key: RemoteKey::from_bytes([0; 16]),
        ticket_key: None,
        medium: mc_types::MediaType::Dram,
    }
}

fn name_of(segment: u128) -> String {
    format!("segment-{segment}")
}

fn node(segment: u128) -> ClientId {
    ClientId::from_u128(100 + segment)
}

/// Some of every way to put, by a number.
fn config(kind: u8) -> ReplicateConfig {
    let config = ReplicateConfig::default().replicas(u32::from(kind % 3) + 1);
    match kind / 4 % 8 {
        0 => config.soft_pin(),
        1 => config.hard_pin(),
        2 | 3 => config.group("g"),
        _ => config,
    }
}

struct Cluster {
    master: Master,
    now: Time,
    opened: BTreeMap<usize, PutHandle>,
    transfers: BTreeMap<usize, TransferHandle>,
    /// The objects that clients have written to their disks, and to files.
    written: Vec<(ClientId, TierJob)>,
    files: Vec<TierJob>,
}

impl Cluster {
    fn new(shards: usize, kind: u8) -> Self {
        let config = MasterConfig {
            shards,
            multi_tenant: true,
            client_ttl: Duration::from_secs(60),
            client_return_timeout: Duration::from_secs(120),
            shared_tier: (kind & 1 > 0).then(SharedTierConfig::default),
            local_disk: (kind & 2 > 0).then(|| LocalDiskConfig {
                on_evict: kind & 4 > 0,
                force_evict: kind & 8 > 0,
                ..LocalDiskConfig::default()
            }),
            promotion: Some(PromotionConfig {
                admission_threshold: 1,
                ..PromotionConfig::default()
            }),
            ttl_after_get: (kind & 16 > 0).then(|| Duration::from_secs(30)),
            ..MasterConfig::default()
        };
        let master = Master::new(config, 7).unwrap();
        let mut cluster = Self {
            master,
            now: Time::ORIGIN,
            opened: BTreeMap::new(),
            transfers: BTreeMap::new(),
            written: Vec::new(),
            files: Vec::new(),
        };
        (0..NAMES.len()).for_each(|at| cluster.apply(Op::Policy(at, 600)));
        (0..SEGMENTS).for_each(|number| cluster.apply(Op::Mount(number)));
        (0..SEGMENTS).for_each(|number| cluster.apply(Op::MountDisk(number)));
        cluster
    }

    /// Does it; what is answered to it other tests look at.
    fn apply(&mut self, op: Op) {
        let now = self.now;
        match op {
            Op::Policy(at, bytes) => {
                // Some of every quota there can be.
                let memory = (!bytes.is_multiple_of(7)).then_some(bytes);
                let mode =
                    if bytes.is_multiple_of(5) { QuotaMode::Evict } else { QuotaMode::Refuse };
                let below = TierQuotas {
                    disks: bytes.is_multiple_of(2).then_some(bytes / 2),
                    files: bytes.is_multiple_of(3).then_some(bytes / 2),
                };
                let _ = self.master.set_tenant_quotas(now, &tenant(at), memory, mode, below);
            }
            Op::DeletePolicy(at) => {
                let _ = self.master.delete_tenant_quota(now, &tenant(at));
            }
            Op::OnlyPolicy(at, bytes) => {
                let only = BTreeMap::from([(tenant(at), bytes)]);
                let _ = self.master.replace_tenant_quotas(now, &only);
            }
            Op::Mount(number) => {
                let _ = self.master.mount_segment(now, node(number), spec(number));
            }
            Op::Unmount(number) => {
                let id = SegmentId::from_u128(number);
                let _ = self.master.unmount_segment(now, node(number), id);
            }
            Op::MountDisk(number) => {
                let spec = LocalDiskSpec {
                    id: LocalDiskId::from_u128(number),
                    endpoint: format!("mem://disk-{number}").parse().unwrap(),
                    remote_key: RemoteKey::from_bytes([1; 16]),
                    ticket_key: None,
                };
                let _ = self.master.mount_local_disk(now, node(number), spec, true);
                let _ = self.master.report_ssd_capacity(node(number), 1 << 20);
            }
            Op::UnmountDisk(number) => {
                let _ = self.master.unmount_local_disk(now, node(number), number % 2 == 0);
            }
            Op::Offload(number, written) => self.offload(node(number), written),
            Op::Promote(number, how) => self.promote(node(number), how),
            Op::Report(number, all) => {
                let jobs = self.written.iter().filter(|(client, _)| *client == node(number));
                for (_, job) in jobs {
                    let _ = self.master.report_local_disk(now, node(number), &[found(job)]);
                }
                if all {
                    let _ = self.master.local_disk_reported(node(number));
                }
            }
            Op::ReportFiles(number) => {
                for job in &self.files {
                    let _ = self.master.report_files(now, node(number), &[found(job)]);
                }
            }
            Op::Restart => self.restart(),
            Op::RemoveAll(at) => {
                self.master.remove_all_of(now, &tenant(at), false);
            }
            Op::Wait(millis) => {
                self.now = now + Duration::from_millis(millis);
                for number in 0..SEGMENTS {
                    // One of them stays silent now and then.
                    if millis % 4 != number as u64 {
                        self.master.ping(self.now, node(number));
                    }
                }
                while self.master.tick(self.now) {}
            }
            Op::Put { key, len, kind, upsert } => {
                let (stored, config) = (stored(key), config(kind));
                let put = PutStart { key: stored.as_ref(), slice_lengths: &[len], config: &config };
                let granted = if upsert {
                    self.master.upsert_start(now, WRITER, &put)
                } else {
                    self.master.put_start(now, WRITER, &put)
                };
                if let Ok(grant) = granted {
                    self.opened.insert(key, grant.handle);
                }
            }
            op => self.apply_to_key(op),
        }
    }

    fn offload(&mut self, client: ClientId, written: bool) {
        let jobs = self.master.offload_heartbeat(self.now, client, true, 9).unwrap_or_default();
        for job in jobs.into_iter().map(|job| job.job) {
            let TierJob { ref key, generation, .. } = job;
            let outcome = OffloadOutcome {
                key: key.as_ref(),
                generation,
                written,
                too_long: false,
                address: 0,
            };
            self.master.notify_offload(self.now, client, &[outcome]);
            if written {
                self.written.push((client, job));
            }
        }
    }

    /// Continues with a master that is rebuilt from what this one exports.
    fn restart(&mut self) {
        let mut rebuild = Rebuild::new(self.master.config().clone(), 7).unwrap();
        let mut next = Some(ExportCursor::default());
        while let Some(cursor) = next {
            let page = self.master.export(self.now, cursor);
            page.records.iter().for_each(|record| rebuild.apply(record));
            next = page.next;
        }
        self.master = rebuild.finish(self.now).unwrap().master;
    }

    fn promote(&self, client: ClientId, how: u8) {
        let (master, now) = (&self.master, self.now);
        for TierJob { key, generation, len } in master.promotion_heartbeat(now, client) {
            let key = key.as_ref();
            let granted = master.promotion_alloc_start(now, client, key, generation, len, &[]);
            let _ = match (granted, how) {
                (Ok(grant), 0 | 1) => {
                    master.notify_promotion_success(now, client, key, generation, grant.handle)
                }
                (Ok(grant), 2 | 3) => {
                    let (handle, late) = (Some(grant.handle), late(how));
                    master.notify_promotion_failure(now, client, key, generation, handle, late)
                }
                _ => Ok(()),
            };
        }
    }

    fn apply_to_key(&mut self, op: Op) {
        let (master, now) = (&self.master, self.now);
        let named = |key: usize| (stored(key), self.opened.get(&key).copied().unwrap_or(NO_PUT));
        match op {
            Op::End(key) => {
                let (key, handle) = named(key);
                let end = PutEnd::new(key.as_ref(), handle);
                let _ = master.put_end(now, WRITER, &end);
            }
            Op::Revoke(key) => {
                let (key, handle) = named(key);
                let late = late((now.as_millis() % 4) as u8);
                let _ = master.put_revoke(now, WRITER, key.as_ref(), handle, late);
            }
            Op::RevokeMemory(key) => {
                let (key, handle) = named(key);
                let late = late((now.as_millis() % 4) as u8);
                let _ = master.memory_put_revoke(now, WRITER, key.as_ref(), handle, late);
            }
            Op::FileEnd(key) => {
                let (key, handle) = named(key);
                let generation = handle.generation;
                if master.file_put_end(now, WRITER, key.as_ref(), handle).is_ok() {
                    let len =
                        master.describe(now, key.as_ref()).map_or(1, |it| it.slices.total_len());
                    self.files.push(TierJob { key, generation, len });
                }
            }
            Op::FileRevoke(key) => {
                let (key, handle) = named(key);
                let _ = master.file_put_revoke(now, WRITER, key.as_ref(), handle);
            }
            Op::FileGone(key) => {
                let (key, kind) = (stored(key), ReplicaKind::SharedFile);
                let _ = master.evict_from_tier(now, WRITER, key.as_ref(), None, kind);
            }
            Op::DiskGone(number, key) => {
                let (key, kind) = (stored(key), ReplicaKind::LocalDisk);
                let _ = master.evict_from_tier(now, node(number), key.as_ref(), None, kind);
            }
            Op::Read(key) => {
                let _ = master.get_replica_list(now, stored(key).as_ref());
            }
            Op::Remove(key, force) => {
                let _ = master.remove(now, stored(key).as_ref(), force);
            }
            Op::Clear(key, segment) => {
                let (key, segment) = (stored(key), segment.map(name_of));
                master.batch_replica_clear(now, WRITER, &[key.as_ref()], segment.as_deref());
            }
            Op::Copy(key, from, to) => {
                let (stored, from, to) = (stored(key), name_of(from), name_of(to));
                let copy = master.copy_start(now, WRITER, stored.as_ref(), &from, &[&to]);
                self.transfers.extend(copy.ok().map(|grant| (key, grant.handle)));
            }
            Op::Move(key, from, to) => {
                let (stored, from, to) = (stored(key), name_of(from), name_of(to));
                let moved = master.move_start(now, WRITER, stored.as_ref(), &from, &to);
                self.transfers.extend(moved.ok().map(|grant| (key, grant.handle)));
            }
            Op::EndTransfer(key, how) => {
                let handle = self.transfers.get(&key).copied().unwrap_or(NO_TRANSFER);
                let (key, late) = (stored(key), late((now.as_millis() % 4) as u8));
                let _ = match how {
                    0 => master.copy_revoke(now, WRITER, key.as_ref(), handle, late),
                    1 => master.move_revoke(now, WRITER, key.as_ref(), handle, late),
                    2 => master.copy_end(now, WRITER, key.as_ref(), handle),
                    _ => master.move_end(now, WRITER, key.as_ref(), handle),
                };
            }
            _ => {}
        }
    }

    /// Bytes and objects of each tenant, and its bytes on disks and in files, counted by looking at
    /// everything.
    fn recount(&self) -> BTreeMap<String, [u64; 4]> {
        let slots = NAMES.iter().map(|name| (TenantId::new(name).unwrap(), (*name).to_owned()));
        let slots = slots.filter_map(|(id, name)| Some((self.master.quotas.slot(&id)?, name)));
        let names: BTreeMap<_, _> = slots.collect();
        let mut counts = BTreeMap::<String, [u64; 4]>::new();
        for shard in self.master.shards() {
            let shard = shard.lock();
            for slot in crate::vocabulary::slot::ObjectSlot::range(0..shard.end()) {
                let Some(object) = shard.object(slot) else { continue };
                let name = unscoped(shard.key(slot)).0.to_owned();
                assert_eq!(names[&shard.tenant(slot)], name);
                let targets = shard.transfer(slot).into_iter().flat_map(|it| it.targets.iter());
                let promoted = shard.promotion(slot).map(|promotion| &promotion.space);
                let [bytes, objects, on_disks, in_files] = counts.entry(name).or_default();
                let replicas = object.replicas().chain(targets).chain(promoted);
                *bytes += replicas.map(Replica::len).sum::<u64>();
                *objects += 1;
                let copies =
                    object.local_disks().len() + usize::from(shard.offload(slot).is_some());
                *on_disks += object.len() * copies as u64;
                *in_files += if object.file() == FileState::None { 0 } else { object.len() };
            }
            for kept in shard.retained().range(..).map(|(_, space)| space) {
                // After a restart it has no owner.
                let Some(slot) = kept.tenant else { continue };
                counts.entry(names[&slot].clone()).or_default()[0] += kept.replicas.bytes();
            }
        }
        counts
    }

    fn check(&self) {
        let report = self.master.tenant_quotas().unwrap();
        assert_eq!(report.mismatches, 0);
        let charged = report.tenants.iter().map(|row| {
            let counts = [row.charged, row.objects, row.disks.bytes, row.files.bytes];
            (row.tenant.to_string(), counts)
        });
        let charged: BTreeMap<_, _> = charged.filter(|(_, count)| *count != [0; 4]).collect();
        assert_eq!(charged, self.recount());
        let table = self.master.segments.read();
        let capacity: u64 = table.all().map(|segment| segment.spec().size).sum();
        assert_eq!(report.capacity, capacity);
    }
}

/// The objects that a client finds on its disk.
fn found(job: &TierJob) -> FoundInTier<'_> {
    let slices = Slices::One(Slice { len: job.len, checksum: None });
    FoundInTier { key: job.key.as_ref(), generation: job.generation, slices, address: 0 }
}

/// The key of this number as it is stored.
fn stored(key: usize) -> ObjectKey {
    let text = format!("key-{}", key % KEYS);
    let user = KeyRef::new(&text).unwrap();
    tenant(key / KEYS).scoped(user).unwrap().as_ref().to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// After every step the charges are the bytes that are taken: those of replicas,
    /// readable or not, of copies under way, and those that are kept for a while; on disks and in
    /// files those that are there or being written, also when another master took over.
    #[test]
    fn charges_are_what_a_recount_finds(
        shards in prop::sample::select(vec![1usize, 4]),
        kind in any::<u8>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut cluster = Cluster::new(shards, kind);
        for op in ops {
            cluster.apply(op);
            cluster.check();
        }
        // In the end nothing is left: not of segments, of files, nor of space that was kept.
        (0..SEGMENTS).for_each(|number| cluster.apply(Op::Unmount(number)));
        (0..SEGMENTS).for_each(|number| cluster.apply(Op::UnmountDisk(number)));
        cluster.apply(Op::Wait(700_000));
        for at in 0..NAMES.len() {
            cluster.master.remove_all_of(cluster.now, &tenant(at), true);
        }
        cluster.apply(Op::Wait(700_000));
        cluster.check();
        for row in cluster.master.tenant_quotas().unwrap().tenants {
            prop_assert_eq!((row.charged, row.objects), (0, 0));
            prop_assert_eq!((row.disks.bytes, row.files.bytes), (0, 0));
            let slot = cluster.master.quotas.slot(&row.tenant).unwrap();
            prop_assert_eq!(cluster.master.quotas.leaving(slot), 0);
        }
    }
}
