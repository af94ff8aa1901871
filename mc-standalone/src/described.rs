//! Descriptions of objects and tasks, as they travel.

use std::time::Duration;

use mc_meta::{
    BufferStatus, LocalDiskReplica, MAX_REPLICAS, ReplicaStatus, Slice, Slices, TaskKind,
    TaskStatus, TenantId,
};
use mc_rpc::{ObjectDescription, ReplicaDescription, Task, TaskReport};
use mc_types::{Checksum, ClientId, Extent, Generation, ObjectKey, SegmentId, TaskId};
use serde::{Deserialize, Serialize};

use super::wire::at_most;

/// Most slices of one object that are described.
const MAX_SLICES: usize = 65_536;

/// Most replicas of one kind, with those that are on their way out.
const MAX_LISTED: usize = 1024;

/// An [`ObjectDescription`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Described {
    generation: u64,
    owner: [u8; 16],
    /// Lengths and checksums.
    #[serde(deserialize_with = "at_most::<_, _, MAX_SLICES>")]
    slices: Vec<(u64, Option<u32>)>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_LISTED>")]
    replicas: Vec<Replica>,
    disk: Option<u8>,
    /// Clients and endpoints.
    #[serde(deserialize_with = "at_most::<_, _, MAX_LISTED>")]
    local_disks: Vec<([u8; 16], String)>,
    lease: Duration,
    soft_pinned: bool,
    idle: Duration,
}

/// A [`ReplicaDescription`].
#[derive(Debug, Serialize, Deserialize)]
struct Replica {
    status: u8,
    buffer: u8,
    segment_name: String,
    segment_id: [u8; 16],
    endpoint: String,
    offset: u64,
    len: u64,
}

/// A [`TaskReport`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reported {
    id: [u8; 16],
    moves: bool,
    source: String,
    #[serde(deserialize_with = "at_most::<_, _, MAX_REPLICAS>")]
    targets: Vec<String>,
    tenant: String,
    key: String,
    age: Duration,
    status: u8,
    unchanged: Duration,
    client: [u8; 16],
    outcome: String,
}

const BUFFERS: [BufferStatus; 4] =
    [BufferStatus::Init, BufferStatus::Complete, BufferStatus::Failed, BufferStatus::Unregistered];

const TASK_STATUSES: [TaskStatus; 4] =
    [TaskStatus::Pending, TaskStatus::Processing, TaskStatus::Success, TaskStatus::Failed];

impl From<ObjectDescription> for Described {
    fn from(object: ObjectDescription) -> Self {
        let slices = object.slices.as_slice().iter();
        Self {
            generation: object.generation.as_u64(),
            owner: object.owner.to_bytes(),
            slices: slices.map(|one| (one.len, one.checksum.map(Checksum::as_u32))).collect(),
            replicas: object.replicas.into_iter().map(Replica::from).collect(),
            disk: object.file.map(|status| status as u8),
            local_disks: (object.local_disks.into_iter())
                .map(|disk| (disk.client.to_bytes(), disk.endpoint.to_string()))
                .collect(),
            lease: object.lease,
            soft_pinned: object.soft_pinned,
            idle: object.idle,
        }
    }
}

impl Described {
    /// `None` when it describes nothing that there could be.
    pub(super) fn decoded(self) -> Option<ObjectDescription> {
        let slice = |(len, crc): (u64, Option<u32>)| Slice {
            len,
            checksum: crc.map(Checksum::from_crc32c),
        };
        let slices = match *self.slices {
            [one] => Slices::One(slice(one)),
            _ => Slices::Many(self.slices.into_iter().map(slice).collect()),
        };
        let disks = self.local_disks.into_iter().map(|(client, endpoint)| {
            let client = ClientId::from_bytes(client);
            Some(LocalDiskReplica { client, endpoint: endpoint.parse().ok()? })
        });
        Some(ObjectDescription {
            generation: Generation::new(self.generation),
            owner: ClientId::from_bytes(self.owner),
            slices,
            replicas: self.replicas.into_iter().map(Replica::decoded).collect::<Option<_>>()?,
            file: match self.disk {
                Some(number) => Some(*ReplicaStatus::ALL.get(usize::from(number))?),
                None => None,
            },
            local_disks: disks.collect::<Option<_>>()?,
            lease: self.lease,
            soft_pinned: self.soft_pinned,
            idle: self.idle,
        })
    }
}

impl From<ReplicaDescription> for Replica {
    fn from(replica: ReplicaDescription) -> Self {
        Self {
            status: replica.status as u8,
            buffer: replica.buffer as u8,
            segment_name: replica.segment_name.into_string(),
            segment_id: replica.segment_id.to_bytes(),
            endpoint: replica.endpoint.to_string(),
            offset: replica.extent.offset(),
            len: replica.extent.len(),
        }
    }
}

impl Replica {
    fn decoded(self) -> Option<ReplicaDescription> {
        Some(ReplicaDescription {
            status: *ReplicaStatus::ALL.get(usize::from(self.status))?,
            buffer: *BUFFERS.get(usize::from(self.buffer))?,
            segment_name: self.segment_name.into(),
            segment_id: SegmentId::from_bytes(self.segment_id),
            endpoint: self.endpoint.parse().ok()?,
            extent: Extent::new(self.offset, self.len)?,
        })
    }
}

impl From<TaskReport> for Reported {
    fn from(report: TaskReport) -> Self {
        let (moves, source, targets) = match report.task.kind {
            TaskKind::Copy { source, targets } => (false, source, targets),
            TaskKind::Move { source, target } => (true, source, vec![target]),
        };
        let position = TASK_STATUSES.iter().position(|&status| status == report.status);
        Self {
            id: report.task.id.to_bytes(),
            moves,
            source: source.into_string(),
            targets: targets.into_iter().map(str::into_string).collect(),
            tenant: report.task.tenant.as_str().to_owned(),
            key: report.task.key.as_str().to_owned(),
            age: report.task.age,
            status: position.expect("every status is listed") as u8,
            unchanged: report.unchanged,
            client: report.client.to_bytes(),
            outcome: report.outcome.into_string(),
        }
    }
}

impl Reported {
    /// `None` when it reports nothing that there could be.
    pub(super) fn decoded(self) -> Option<TaskReport> {
        let source = self.source.into();
        let mut targets = self.targets.into_iter().map(String::into_boxed_str);
        let kind = match self.moves {
            true => TaskKind::Move { source, target: targets.next()? },
            false => TaskKind::Copy { source, targets: targets.collect() },
        };
        let tenant = match &*self.tenant {
            name if name == TenantId::DEFAULT.as_str() => TenantId::DEFAULT,
            name => TenantId::new(name).ok()?,
        };
        let (id, key) = (TaskId::from_bytes(self.id), ObjectKey::new(self.key).ok()?);
        Some(TaskReport {
            task: Task { id, kind, tenant, key, age: self.age },
            status: *TASK_STATUSES.get(usize::from(self.status))?,
            unchanged: self.unchanged,
            client: ClientId::from_bytes(self.client),
            outcome: self.outcome.into(),
        })
    }
}
