//! The shared tier of files: where it is, and the work that keeps it in step with the objects.

use bytes::BytesMut;
use mc_meta::{FileSystemState, PutHandle, PutToken, TenantId};
use mc_types::{ClientId, Generation, KeyRef, LocalDiskId};

use super::disks::{DISK_JOB_CEILING, FoundItem, TierJob, disk_jobs, found, job_to_proto, only};
use super::{
    BadField, CallContext, MAX_BATCH, at_most, calls, client_id, count, key, message, optional_id,
    reply, tenant,
};
use crate::answer::read_all_done;
use crate::proto;
use crate::refusal::Refusal;
use crate::reply::BatchReply;
use crate::request::MAX_PAGE;
use crate::storage::StorageSettings;

/// Where the caller keeps files of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageConfig {
    /// The settings that all clients have in common.
    pub settings: StorageSettings,
    /// The caller's tenant, which is a part of the files' names.
    pub tenant: TenantId,
    /// Bytes that the files may take together; `None` is no limit.
    pub quota: Option<u64>,
    /// Whether the master does not keep tenants apart, whatever tenant callers name.
    pub tenants_are_together: bool,
    /// The id of the file system that the files are on; `None` when the master knows none.
    pub storage: Option<LocalDiskId>,
}

/// One object of [`MasterClient::batch_file_put_end`](crate::MasterClient::batch_file_put_end).
#[derive(Clone, Debug)]
pub struct FileOutcome<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// The put, as it began.
    pub handle: PutHandle,
    /// Whether the file is written; it will not be otherwise.
    pub written: bool,
}

/// Work on the shared tier of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileJobs {
    /// Objects that were removed, whose files are to be deleted.
    pub delete: Vec<TierJob>,
    /// Whether to report all files with
    /// [`report_files`](crate::MasterClient::report_files).
    pub compare: bool,
    /// Whether to delete the oldest files until there is room, and to report them with
    /// [`batch_evict_from_tier`](crate::MasterClient::batch_evict_from_tier).
    pub evict: bool,
    /// Whether a client that takes longer says so ([`FileSystemState::busy`]), so that no other one is handed
    /// the same. Masters that do not say it hand things out instead.
    pub renews: bool,
    /// The id of the file system that the files are on; `None` when the master knows none. A client that
    /// has found another id has another file system.
    pub storage: Option<LocalDiskId>,
}

calls! {
    /// Returns where the client keeps files of objects.
    fn storage_config(&self) -> StorageConfig {
        GetStorageConfig
            "Refused with `NotSupported` by masters that do not know the call.",
        message(proto::GetStorageConfigRequest {}),
        reply(StorageConfig::from_proto),
    }

    /// Reports which files of objects on the shared tier are written, before or after
    /// [`put_end`](Self::put_end), and which will not be. An object can be read from its file then.
    fn batch_file_put_end(&self, client: ClientId, outcomes: &[FileOutcome<'_>]) -> Vec<Result<(), Refusal>> {
        BatchDiskPutEnd
            "As [`batch_get_replica_list`](Self::batch_get_replica_list). The client deletes a file \
             that is refused.",
        message(proto::BatchDiskPutEndRequest {
            client_id: client.to_bytes().into(),
            outcomes: outcomes.iter().map(proto::FileOutcome::from).collect(),
        }),
        |message: &[u8]| read_all_done(message, outcomes.len()),
    }

    /// Returns work on the shared tier: up to `max` files to delete, or as many as one call
    /// fetches, [`MAX_PAGE`](crate::MAX_PAGE), when that is 0. Tells the master the state of the
    /// file system.
    fn fetch_file_jobs(&self, client: ClientId, state: FileSystemState, max: usize) -> FileJobs {
        FetchFileJobs
            "When the answer is lost, the files are handed out again to a client that says so \
             ([`FileSystemState::deleted`]), and are found by the next comparison otherwise.",
        message(proto::FetchFileJobsRequest {
            client_id: client.to_bytes().into(),
            is_compared: state.is_compared,
            is_full: state.is_full,
            max_jobs: count(max),
            is_whole: state.is_whole,
            tells_deleted: state.has_deleted.is_some(),
            has_deleted: state.has_deleted.unwrap_or_default(),
            is_vain: state.is_vain,
            is_busy: state.is_busy,
            storage_id: id_bytes(state.storage),
        }),
        reply(FileJobs::from_proto),
    }

    /// Reports the files that a client has found on the shared tier.
    fn report_files(&self, client: ClientId, found: &[FoundItem<'_>]) -> Vec<Result<(), Refusal>> {
        ReportFiles
            "As [`batch_get_replica_list`](Self::batch_get_replica_list). The client deletes a file \
             that is refused.",
        message(proto::ReportFilesRequest {
            client_id: client.to_bytes().into(),
            found: found.iter().map(proto::FoundOnDisk::from).collect(),
        }),
        |message: &[u8]| read_all_done(message, found.len()),
    }
}

impl CallContext<'_> {
    pub(crate) fn get_storage_config(
        self,
        _: &proto::GetStorageConfigRequest,
    ) -> Result<proto::GetStorageConfigResponse, Refusal> {
        let StorageSettings { root, shared_tier, cluster_id, evicts } = self.storage;
        let disk = self.master.config().shared_tier;
        Ok(proto::GetStorageConfigResponse {
            fsdir: root.as_deref().filter(|_| disk.is_some()).unwrap_or_default().into(),
            shared_tier: shared_tier
                .as_deref()
                .filter(|_| disk.is_some())
                .unwrap_or_default()
                .into(),
            cluster_id: cluster_id.to_string(),
            tenant_id: self.tenant.as_str().into(),
            quota_bytes: disk.and_then(|disk| disk.capacity).unwrap_or_default(),
            enable_disk_eviction: *evicts,
            tenants_are_together: !self.master.config().multi_tenant,
            storage_id: id_bytes(self.master.storage_id()),
            ..Default::default()
        })
    }

    pub(crate) fn batch_file_put_end(
        self,
        request: &proto::BatchDiskPutEndRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let client = client_id(&request.client_id)?;
        let outcomes = at_most(&request.outcomes, MAX_BATCH, "outcomes")?;
        BatchReply::new(out, 2, outcomes.len(), self.max_reply)?.all(outcomes, |item| {
            let key = self.scoped(key(&item.key, "key")?)?;
            let generation = Generation::new(item.generation);
            let handle = PutHandle { generation, token: PutToken::from_u64(item.put_token) };
            let (master, now, key) = (self.master, self.now, key.as_ref());
            let finished = match item.written {
                true => master.file_put_end(now, client, key, handle),
                false => master.file_put_revoke(now, client, key, handle),
            };
            Ok(finished?)
        });
        Ok(())
    }

    pub(crate) fn fetch_file_jobs(
        self,
        request: &proto::FetchFileJobsRequest,
    ) -> Result<proto::FetchFileJobsResponse, Refusal> {
        let client = client_id(&request.client_id)?;
        let max = self.jobs_to_hand_out(request.max_jobs, MAX_PAGE, DISK_JOB_CEILING);
        let state = FileSystemState::default();
        let storage = optional_id(&request.storage_id, "storage_id", LocalDiskId::from_bytes)?;
        let state = state.on(storage);
        let mut state = state.compared(request.is_compared).full(request.is_full);
        state = state.whole(request.is_whole).in_vain(request.is_vain).busy(request.is_busy);
        if request.tells_deleted {
            state = state.deleted(request.has_deleted);
        }
        let jobs = self.master.file_jobs(self.now, client, state, max);
        Ok(proto::FetchFileJobsResponse {
            delete: jobs.delete.iter().map(job_to_proto).collect(),
            compare: jobs.compare,
            evict: jobs.evict && self.storage.evicts,
            renews: jobs.renews,
            storage_id: id_bytes(jobs.storage),
            ..Default::default()
        })
    }

    pub(crate) fn report_files(
        self,
        request: &proto::ReportFilesRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let client = client_id(&request.client_id)?;
        let items = at_most(&request.found, MAX_BATCH, "found")?;
        BatchReply::new(out, 2, items.len(), self.max_reply)?.all(items, |item| {
            let key = self.stored(&item.key, &item.tenant_id)?;
            let found = found(key.as_ref(), item)?;
            only(self.master.report_files(self.now, client, &[found]))
        });
        Ok(())
    }
}

impl StorageConfig {
    fn from_proto(answer: &proto::GetStorageConfigResponse) -> Result<Self, BadField> {
        let mut settings = StorageSettings::default().cluster_id(&*answer.cluster_id);
        let named = |text: &str| Some(text).filter(|text| !text.is_empty()).map(Box::from);
        settings.root = named(&answer.fsdir);
        settings.shared_tier = named(&answer.shared_tier);
        settings.evicts = answer.enable_disk_eviction;
        let quota = Some(answer.quota_bytes).filter(|bytes| *bytes > 0);
        let (tenant, tenants_are_together) =
            (tenant(&answer.tenant_id)?, answer.tenants_are_together);
        let storage = optional_id(&answer.storage_id, "storage_id", LocalDiskId::from_bytes)?;
        Ok(Self { settings, tenant, quota, tenants_are_together, storage })
    }
}

impl FileJobs {
    fn from_proto(answer: &proto::FetchFileJobsResponse) -> Result<Self, BadField> {
        let delete = disk_jobs(&answer.delete)?;
        let storage = optional_id(&answer.storage_id, "storage_id", LocalDiskId::from_bytes)?;
        let proto::FetchFileJobsResponse { compare, evict, renews, .. } = *answer;
        Ok(Self { delete, compare, evict, renews, storage })
    }
}

fn id_bytes(storage: Option<LocalDiskId>) -> Vec<u8> {
    storage.map(|id| id.to_bytes().into()).unwrap_or_default()
}

impl From<&FileOutcome<'_>> for proto::FileOutcome {
    fn from(outcome: &FileOutcome<'_>) -> Self {
        Self {
            key: outcome.key.as_str().into(),
            generation: outcome.handle.generation.as_u64(),
            put_token: outcome.handle.token.as_u64(),
            written: outcome.written,
        }
    }
}
