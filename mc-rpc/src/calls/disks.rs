//! The clients' local disks, and the objects that are written to them.

use core::time::Duration;

use bytes::BytesMut;
use mc_meta::{
    FoundInTier, LocalDiskInfo, LocalDiskSpec, LocalDiskUsage, Location, MAX_SLICES,
    MAX_TENANT_LEN, OffloadOutcome, Slices, TenantId, TicketKey, unscoped,
};
use mc_types::{
    ClientId, Generation, KeyRef, LocalDiskId, MAX_ENDPOINT_LEN, MAX_KEY_LEN, ObjectKey, RemoteKey,
    SegmentId,
};

use super::objects::{slices, slices_to_proto};
use super::{
    BadField, CallContext, DEFAULT_PAGE, MAX_BATCH, at_most, calls, client_id, count, endpoint,
    extent, id, message, missing, next_after, object_key, optional_id, page_limit, page_of, reply,
    tenant, tenant_name,
};
use crate::answer::{read_all_done, read_done};
use crate::proto;
use crate::refusal::Refusal;
use crate::reply::BatchReply;
use crate::request::{MAX_PAGE, TenantKey};

/// Most bytes that one job takes: its key, its tenant, two numbers, and their tags.
pub(super) const DISK_JOB_CEILING: usize = MAX_KEY_LEN + MAX_TENANT_LEN + 40;

/// Most bytes that one job of an offload takes: the object, its slices, its place, and their tags.
const OFFLOAD_JOB_CEILING: usize = DISK_JOB_CEILING + MAX_SLICES * 20 + 40;

/// Most bytes that one disk takes: its client, its endpoint, seven numbers, and their tags.
const DISK_CEILING: usize = MAX_ENDPOINT_LEN + 100;

/// An object to move between a client's memory and a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierJob {
    /// The tenant of the object.
    pub tenant: TenantId,
    /// The object's key, as its tenant knows it.
    pub key: ObjectKey,
    /// The put that the object came from. Names the job: a later put of the key is
    /// another object.
    pub generation: Generation,
    /// Its length in bytes.
    pub len: u64,
}

impl TierJob {
    /// The object, as the calls name it that say how it went.
    #[must_use]
    pub fn object(&self) -> TenantKey<'_> {
        TenantKey::of(&self.tenant, self.key.as_ref())
    }
}

/// A page of the clients' local disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalDisks {
    /// The disks, by their clients' ids.
    pub disks: Vec<LocalDiskInfo>,
    /// The client after which the next page begins; `None` at the end.
    pub next_after: Option<ClientId>,
}

/// Objects to delete from a client's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalDiskDeletions {
    /// Objects that were removed.
    pub objects: Vec<TierJob>,
    /// Whether to report everything on the disk, and to delete what is refused.
    pub report_all: bool,
    /// Whether to delete everything on the disk.
    pub remove_all: bool,
}

impl LocalDiskDeletions {
    fn from_proto(answer: &proto::FetchDiskDeletionsResponse) -> Result<Self, BadField> {
        let objects = disk_jobs(&answer.objects)?;
        Ok(Self { objects, report_all: answer.report_all, remove_all: answer.remove_all })
    }
}

/// One object of [`MasterClient::notify_offload`](crate::MasterClient::notify_offload).
#[derive(Clone, Debug)]
pub struct OffloadItem<'a> {
    /// The object, as [`TierJob::object`] says.
    pub object: TenantKey<'a>,
    /// The put that it came from, as the job said.
    pub generation: Generation,
    /// Where it begins in the disk's region, if it is on the disk now.
    pub written_at: Option<u64>,
    /// If it is not, whether the disk can take no object of this length.
    pub too_long: bool,
}

/// One object of [`MasterClient::report_local_disk`](crate::MasterClient::report_local_disk).
#[derive(Clone, Debug)]
pub struct FoundItem<'a> {
    /// The object.
    pub object: TenantKey<'a>,
    /// The put that it came from.
    pub generation: Generation,
    /// Its slices, with their checksums.
    pub slices: Slices,
    /// Where it begins in the disk's region; 0 on the shared tier.
    pub address: u64,
}

/// An object to write to a client's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadJob {
    /// The object.
    pub job: TierJob,
    /// Its slices, with their checksums.
    pub slices: Slices,
    /// Where it is in the client's own memory; see [`mc_meta::OffloadJob::source`].
    pub source: Location,
}

calls! {
    /// Makes a client's local disk known. From then on the client [pings](Self::ping), and fetches what
    /// to write with [`offload_heartbeat`](Self::offload_heartbeat) if it is `enabled`.
    fn mount_local_disk(&self, client: ClientId, disk: &LocalDiskSpec, enabled: bool) -> () {
        MountLocalDisk "Refused with the codes of [`mc_meta::LocalDiskError`].",
        message(proto::MountLocalDiskRequest {
            client_id: client.to_bytes().into(),
            endpoint: disk.endpoint.as_str().into(),
            enabled,
            disk_id: disk.id.to_bytes().into(),
            remote_key: disk.remote_key.to_bytes().into(),
            ticket_key: disk.ticket_key.as_ref().map(|key| key.to_bytes().into()).unwrap_or_default(),
        }),
        read_done,
    }

    /// Takes a client's local disk back; with `keep`, the objects on it are remembered for its return.
    fn unmount_local_disk(&self, client: ClientId, keep: bool) -> () {
        UnmountLocalDisk "Refused with the codes of [`mc_meta::LocalDiskError`].",
        message(proto::UnmountLocalDiskRequest { client_id: client.to_bytes().into(), keep }),
        read_done,
    }

    /// Returns up to `max` objects to write to the client's disk, oldest first; 0 is as many
    /// as one call fetches, [`MAX_PAGE`](crate::MAX_PAGE). Tells the master whether the
    /// client takes more.
    fn offload_heartbeat(&self, client: ClientId, enabled: bool, max: usize) -> Vec<OffloadJob> {
        OffloadHeartbeat
            "Refused with `SegmentNotFound` when the disk is not mounted. When the answer is lost \
             the objects wait until their time is up.",
        message(proto::OffloadHeartbeatRequest {
            client_id: client.to_bytes().into(),
            enabled,
            max_jobs: count(max),
        }),
        reply(offload_jobs),
    }

    /// Reports how the writing of objects went. One that is written can be read from the disk
    /// then.
    fn notify_offload(&self, client: ClientId, outcomes: &[OffloadItem<'_>]) -> Vec<Result<(), Refusal>> {
        NotifyOffload
            "As [`batch_get_replica_list`](Self::batch_get_replica_list). The client deletes an \
             object that is refused.",
        message(proto::NotifyOffloadRequest {
            client_id: client.to_bytes().into(),
            outcomes: outcomes.iter().map(proto::OffloadOutcome::from).collect(),
        }),
        |message: &[u8]| read_all_done(message, outcomes.len()),
    }

    /// Reports objects on a client's disk that it has just mounted. After the last ones (`is_last`),
    /// those that were not reported are not there.
    fn report_local_disk(&self, client: ClientId, found: &[FoundItem<'_>], is_last: bool) -> Vec<Result<(), Refusal>> {
        ReportLocalDisk
            "As [`batch_get_replica_list`](Self::batch_get_replica_list). The client deletes an \
             object that is refused.",
        message(proto::ReportLocalDiskRequest {
            client_id: client.to_bytes().into(),
            found: found.iter().map(proto::FoundOnDisk::from).collect(),
            is_last,
        }),
        |message: &[u8]| read_all_done(message, found.len()),
    }

    /// Reports how many bytes a client's disk can hold.
    fn report_ssd_capacity(&self, client: ClientId, bytes: u64) -> () {
        ReportSsdCapacity "Refused with `SegmentNotFound` when the disk is not mounted.",
        message(proto::ReportSsdCapacityRequest {
            client_id: client.to_bytes().into(),
            capacity: bytes,
        }),
        read_done,
    }

    /// Returns up to `max` objects to delete from the client's disk, or as many as one call fetches,
    /// [`MAX_PAGE`](crate::MAX_PAGE), when that is 0.
    fn fetch_disk_deletions(&self, client: ClientId, max: usize) -> LocalDiskDeletions {
        FetchDiskDeletions
            "When the answer is lost, the objects stay on the disk until its next report.",
        message(proto::FetchDiskDeletionsRequest {
            client_id: client.to_bytes().into(),
            max_objects: count(max),
        }),
        reply(LocalDiskDeletions::from_proto),
    }

    /// Returns up to `limit` of the disks of clients whose ids come after `after`; 0 lets the
    /// master choose how many.
    fn local_disks(&self, after: Option<ClientId>, limit: usize) -> LocalDisks {
        ListLocalDisks "Refused with `InvalidParams` beyond [`MAX_PAGE`](crate::MAX_PAGE) disks.",
        message(proto::ListLocalDisksRequest {
            after: after.map(|client| client.to_bytes().into()).unwrap_or_default(),
            limit: count(limit),
        }),
        reply(LocalDisks::from_proto),
    }
}

impl CallContext<'_> {
    pub(crate) fn mount_local_disk(
        self,
        request: &proto::MountLocalDiskRequest,
    ) -> Result<(), Refusal> {
        let client = client_id(&request.client_id)?;
        let disk = LocalDiskSpec {
            id: optional_id(&request.disk_id, "disk_id", LocalDiskId::from_bytes)?
                .unwrap_or(LocalDiskId::from_bytes(client.to_bytes())),
            endpoint: endpoint(&request.endpoint)?,
            remote_key: id(&request.remote_key, "remote_key", RemoteKey::from_bytes)?,
            ticket_key: optional_id(&request.ticket_key, "ticket_key", TicketKey::from_bytes)?,
        };
        Ok(self.master.mount_local_disk(self.now, client, disk, request.enabled)?)
    }

    pub(crate) fn unmount_local_disk(
        self,
        request: &proto::UnmountLocalDiskRequest,
    ) -> Result<(), Refusal> {
        let client = client_id(&request.client_id)?;
        Ok(self.master.unmount_local_disk(self.now, client, request.keep)?)
    }

    pub(crate) fn offload_heartbeat(
        self,
        request: &proto::OffloadHeartbeatRequest,
    ) -> Result<proto::OffloadHeartbeatResponse, Refusal> {
        let client = client_id(&request.client_id)?;
        let max = self.jobs_to_hand_out(request.max_jobs, MAX_PAGE, OFFLOAD_JOB_CEILING);
        let jobs = self.master.offload_heartbeat(self.now, client, request.enabled, max)?;
        let jobs = jobs.iter().map(offload_to_proto).collect();
        Ok(proto::OffloadHeartbeatResponse { jobs, ..Default::default() })
    }

    pub(crate) fn notify_offload(
        self,
        request: &proto::NotifyOffloadRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let client = client_id(&request.client_id)?;
        let outcomes = at_most(&request.outcomes, MAX_BATCH, "outcomes")?;
        BatchReply::new(out, 2, outcomes.len(), self.max_reply)?.all(outcomes, |item| {
            let key = self.stored(&item.key, &item.tenant_id)?;
            let generation = Generation::new(item.generation);
            let outcome = OffloadOutcome {
                key: key.as_ref(),
                generation,
                written: item.written,
                too_long: item.too_long,
                address: item.offset,
            };
            only(self.master.notify_offload(self.now, client, &[outcome]))
        });
        Ok(())
    }

    pub(crate) fn report_local_disk(
        self,
        request: &proto::ReportLocalDiskRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let client = client_id(&request.client_id)?;
        let items = at_most(&request.found, MAX_BATCH, "found")?;
        BatchReply::new(out, 2, items.len(), self.max_reply)?.all(items, |item| {
            let key = self.stored(&item.key, &item.tenant_id)?;
            let found = found(key.as_ref(), item)?;
            only(self.master.report_local_disk(self.now, client, &[found]))
        });
        if request.is_last {
            self.master.local_disk_reported(client)?;
        }
        Ok(())
    }

    pub(crate) fn report_ssd_capacity(
        self,
        request: &proto::ReportSsdCapacityRequest,
    ) -> Result<(), Refusal> {
        let client = client_id(&request.client_id)?;
        Ok(self.master.report_ssd_capacity(client, request.capacity)?)
    }

    pub(crate) fn fetch_disk_deletions(
        self,
        request: &proto::FetchDiskDeletionsRequest,
    ) -> Result<proto::FetchDiskDeletionsResponse, Refusal> {
        let client = client_id(&request.client_id)?;
        let max = self.jobs_to_hand_out(request.max_objects, MAX_PAGE, DISK_JOB_CEILING);
        let deletions = self.master.local_disk_deletions(client, max);
        Ok(proto::FetchDiskDeletionsResponse {
            objects: deletions.objects.iter().map(job_to_proto).collect(),
            report_all: deletions.report_all,
            remove_all: deletions.remove_all,
            ..Default::default()
        })
    }

    pub(crate) fn poll_remove_all(
        self,
        request: &proto::PollRemoveAllRequest,
    ) -> Result<proto::PollRemoveAllResponse, Refusal> {
        let remove_all = self.master.poll_remove_all(client_id(&request.client_id)?);
        Ok(proto::PollRemoveAllResponse { remove_all, ..Default::default() })
    }

    pub(crate) fn list_local_disks(
        self,
        request: &proto::ListLocalDisksRequest,
    ) -> Result<proto::ListLocalDisksResponse, Refusal> {
        let after = optional_id(&request.after, "after", ClientId::from_bytes)?;
        let limit = page_limit(request.limit, DEFAULT_PAGE)?;
        let disks = self.master.local_disks();
        // They are in the order of their clients' ids.
        let told = |disk: &LocalDiskInfo| after.is_some_and(|after| disk.client <= after);
        let fit = self.max_reply.saturating_sub(2) / DISK_CEILING;
        let (page, more) = page_of(&disks, told, (limit, fit));
        Ok(proto::ListLocalDisksResponse {
            disks: page.iter().map(to_proto).collect(),
            more,
            ..Default::default()
        })
    }
}

/// Decodes an object that a client has found, under the key as the master stores it.
pub(super) fn found<'k>(
    key: KeyRef<'k>,
    item: &proto::FoundOnDisk,
) -> Result<FoundInTier<'k>, BadField> {
    let generation = Generation::new(item.generation);
    let (slices, address) = (slices(&item.slices)?, item.offset);
    Ok(FoundInTier { key, generation, slices, address })
}

/// The answer about the one item of a batch.
pub(super) fn only<E>(answers: Vec<Result<(), E>>) -> Result<(), Refusal>
where
    Refusal: From<E>,
{
    answers.into_iter().try_for_each(|answer| answer.map_err(Refusal::from))
}

pub(super) fn job_to_proto(job: &mc_meta::TierJob) -> proto::DiskJob {
    let (tenant, key) = unscoped(job.key.as_ref());
    proto::DiskJob {
        key: key.into(),
        tenant_id: tenant.into(),
        generation: job.generation.as_u64(),
        length: job.len,
    }
}

fn offload_to_proto(job: &mc_meta::OffloadJob) -> proto::OffloadJob {
    proto::OffloadJob {
        job: Some(job_to_proto(&job.job)),
        slices: slices_to_proto(&job.slices),
        segment_id: job.source.segment.to_bytes().into(),
        offset: job.source.extent.offset(),
    }
}

fn offload_jobs(answer: &proto::OffloadHeartbeatResponse) -> Result<Vec<OffloadJob>, BadField> {
    at_most(&answer.jobs, MAX_PAGE, "jobs")?;
    let job = |job: &proto::OffloadJob| {
        let object = disk_job(job.job.as_ref().ok_or(missing("job"))?)?;
        let slices = slices(&job.slices)?;
        let extent = extent(job.offset, slices.total_len())?;
        let segment = id(&job.segment_id, "segment_id", SegmentId::from_bytes)?;
        Ok(OffloadJob { job: object, slices, source: Location { segment, extent } })
    };
    answer.jobs.iter().map(job).collect()
}

pub(super) fn disk_jobs(jobs: &[proto::DiskJob]) -> Result<Vec<TierJob>, BadField> {
    at_most(jobs, MAX_PAGE, "jobs")?;
    jobs.iter().map(disk_job).collect()
}

fn disk_job(job: &proto::DiskJob) -> Result<TierJob, BadField> {
    Ok(TierJob {
        tenant: tenant(&job.tenant_id)?,
        key: object_key(&job.key)?,
        generation: Generation::new(job.generation),
        len: job.length,
    })
}

impl From<&OffloadItem<'_>> for proto::OffloadOutcome {
    fn from(item: &OffloadItem<'_>) -> Self {
        Self {
            key: item.object.key.as_str().into(),
            tenant_id: tenant_name(&item.object),
            generation: item.generation.as_u64(),
            written: item.written_at.is_some(),
            offset: item.written_at.unwrap_or_default(),
            too_long: item.too_long,
        }
    }
}

impl From<&FoundItem<'_>> for proto::FoundOnDisk {
    fn from(item: &FoundItem<'_>) -> Self {
        Self {
            key: item.object.key.as_str().into(),
            tenant_id: tenant_name(&item.object),
            generation: item.generation.as_u64(),
            slices: slices_to_proto(&item.slices),
            offset: item.address,
        }
    }
}

fn to_proto(disk: &LocalDiskInfo) -> proto::LocalDiskReport {
    proto::LocalDiskReport {
        client_id: disk.client.to_bytes().into(),
        endpoint: disk.endpoint.as_str().into(),
        objects: disk.objects,
        enabled: disk.usage.enabled,
        used: disk.usage.used,
        capacity: disk.usage.capacity,
        queued: disk.usage.queued as u64,
        writing: disk.usage.writing as u64,
        waits_for_ms: u64::try_from(disk.usage.waits_for.as_millis()).unwrap_or(u64::MAX),
    }
}

fn local_disk(report: &proto::LocalDiskReport) -> Result<LocalDiskInfo, BadField> {
    let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
    let usage = LocalDiskUsage {
        enabled: report.enabled,
        used: report.used,
        capacity: report.capacity,
        queued: number(report.queued),
        writing: number(report.writing),
        waits_for: Duration::from_millis(report.waits_for_ms),
    };
    Ok(LocalDiskInfo {
        client: client_id(&report.client_id)?,
        endpoint: endpoint(&report.endpoint)?,
        objects: report.objects,
        usage,
    })
}

impl LocalDisks {
    fn from_proto(answer: &proto::ListLocalDisksResponse) -> Result<Self, BadField> {
        at_most(&answer.disks, MAX_PAGE, "disks")?;
        let disks: Vec<_> = answer.disks.iter().map(local_disk).collect::<Result<_, _>>()?;
        let next_after = next_after(&disks, answer.more, |disk| disk.client, "disks")?;
        Ok(Self { disks, next_after })
    }
}
