//! What the client hands out: answers parsed once into checked types, bounded
//! whatever the other side sends.

mod disks;
mod drains;
mod explain;
mod hosts;
mod patterns;
mod read;
mod report;
mod tasks;
mod tenants;
mod transfers;

use core::time::Duration;
use std::sync::Arc;

use mc_meta::{BufferStatus, DiskReplica, LocalDiskReplica, ReplicaStatus, Slices};
use mc_types::{ClientId, Endpoint, Extent, Generation, RemoteKey, SegmentId};

pub(crate) use read::{
    Answer, read_all_done, read_all_exist, read_cleared_keys, read_count, read_done, read_exists,
    read_grant, read_grants, read_key_page, read_lease, read_leases, read_length, read_object,
    read_pong, read_replica_list, read_replica_lists,
};

pub use disks::{DiskJob, LocalDisks};
pub(crate) use disks::{read_disk_jobs, read_local_disks, read_promotion};
pub use drains::{DrainJob, DrainJobs};
pub(crate) use drains::{read_drain_job, read_drain_jobs, read_job_id, read_job_status};
pub use explain::ObjectExplanation;
pub(crate) use explain::read_explanation;
pub(crate) use hosts::read_hosts;
pub use patterns::ReplicaPage;
pub(crate) use patterns::read_replica_page;
pub(crate) use report::read_report;
pub use report::{ClusterReport, SegmentReport};
pub use tasks::{FetchedTasks, Task, TaskReport};
pub(crate) use tasks::{read_task_id, read_task_report, read_task_status, read_tasks};
pub use tenants::TenantQuotas;
pub(crate) use tenants::{read_quota_report, read_tenant_usage};
pub use transfers::TransferGrant;
pub(crate) use transfers::read_transfer;

/// A segment, as far as one needs to know it to reach its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLocation {
    /// Its name.
    pub name: Box<str>,
    /// Its id.
    pub id: SegmentId,
    /// Where its bytes are served.
    pub endpoint: Endpoint,
    /// What opens it.
    pub remote_key: RemoteKey,
}

/// Where one replica's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaLocation {
    /// The segment; the replicas of one answer share it.
    pub segment: Arc<SegmentLocation>,
    /// The range inside the segment.
    pub extent: Extent,
}

/// Space to write an object into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutGrant {
    /// Names this put among all puts of the key.
    pub generation: Generation,
    /// One range for each replica, each as long as the object; at least one.
    pub replicas: Vec<ReplicaLocation>,
    /// Whether the object is to be written to the shared tier of files as well; see
    /// [`mc_meta::PutGrant::disk`].
    pub disk: bool,
}

/// What a reader needs to read an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaList {
    /// The put that the object came from.
    pub generation: Generation,
    /// The object's slices.
    pub slices: Slices,
    /// Readable replicas in memory, each as long as the slices together. Empty when the
    /// object is on disks only; it is somewhere.
    pub replicas: Vec<ReplicaLocation>,
    /// Its file on the shared tier, if that can be read.
    pub disk: Option<DiskReplica>,
    /// Clients' own disks that it is on, at most as many as there can be replicas.
    pub local_disks: Vec<LocalDiskReplica>,
    /// How long the master keeps these replicas, counted from when it wrote the
    /// answer: the reader counts from before it asked.
    pub lease: Duration,
}

/// One replica, as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaDescription {
    /// Its state.
    pub status: ReplicaStatus,
    /// The state of its space: [`BufferStatus::Unregistered`] while its segment is
    /// suspended.
    pub buffer: BufferStatus,
    /// The name of its segment.
    pub segment_name: Box<str>,
    /// The id of its segment.
    pub segment_id: SegmentId,
    /// Where that segment's bytes are served.
    pub endpoint: Endpoint,
    /// The range inside the segment.
    pub extent: Extent,
}

/// One object, as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectDescription {
    /// The put that the object came from.
    pub generation: Generation,
    /// Who put it.
    pub owner: ClientId,
    /// Its slices.
    pub slices: Slices,
    /// Its replicas in memory, in every state.
    pub replicas: Vec<ReplicaDescription>,
    /// The state of its file on the shared tier, if it has one.
    pub disk: Option<ReplicaStatus>,
    /// Clients' own disks that it is on, at most as many as there can be replicas.
    pub local_disks: Vec<LocalDiskReplica>,
    /// What is left of its lease; zero when none is active.
    pub lease: Duration,
    /// Whether it is soft-pinned now.
    pub soft_pinned: bool,
    /// Time since the last access, or since the put when there was none.
    pub idle: Duration,
}
