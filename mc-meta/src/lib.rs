#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod admin;
mod batch;
mod by_pattern;
mod clear;
mod clients;
mod command;
mod config;
mod credits;
mod damage;
mod deadlines;
mod disk;
mod drain;
mod effect;
mod error;
mod expiry;
mod explain;
mod export;
mod get;
mod group;
mod hash;
mod index;
mod keys;
mod kinds;
mod ledger;
mod local_disk;
mod master;
mod object;
mod offload;
mod offloading;
mod order;
mod owners;
mod pattern;
mod place;
mod promoting;
mod promotion;
mod put;
mod quota;
mod reclaim;
mod record;
mod recover;
mod remove;
mod renew;
mod room;
mod segment;
mod shard;
mod sketch;
mod slab;
mod spans;
mod states;
mod suspicion;
mod table;
mod tasks;
mod tenant;
mod tenant_order;
mod tenants;
mod transfer;
mod upsert;
mod view;

pub use by_pattern::ReplicaPage;
pub use command::{
    CHECKPOINT, ClientStatus, KeyInfo, KeyPage, LateWrites, ListCursor, MAX_GROUP_NAME_LEN,
    MAX_NAMED_SEGMENTS, MAX_REPLICAS, MAX_SLICES, MasterReport, Mounted, ObjectInfo, Placement,
    Placements, Pong, PutEnd, PutGrant, PutHandle, PutRevoke, PutStart, RangeRead, RangedList,
    Renewed, ReplicaInfo, ReplicaList, ReplicateConfig, Slice, Slices, TransferHandle,
    VerifiedSpan,
};
pub use config::{
    AllocationStrategy, ConfigError, MasterConfig, MemoryAllocator, UnknownAllocator,
    UnknownStrategy,
};
pub use damage::{
    DamageReport, DamageTotals, MAX_HANDED_CHECKS, ReplicaCheck, ReplicaPlace, ReportOutcome,
    Verdict,
};
pub use drain::{
    DEFAULT_DRAIN_CONCURRENCY, DrainError, DrainJobInfo, JobStatus, MAX_DRAIN_CONCURRENCY,
    MAX_DRAIN_JOBS, MAX_DRAIN_SEGMENTS, MAX_ENDED_DRAIN_JOBS,
};
pub use effect::{Effect, EffectSink, Removal};
pub use error::{
    DiskEvictError, GetError, InvalidPut, MountError, PutFinishError, PutStartError, RemoveError,
    RenewError, UnmountError,
};
pub use explain::{Explanation, Happening, KeptBy, What};
pub use export::{ExportCursor, ExportPage};
pub use kinds::{DiskConfig, DiskReplica, LocalDiskReplica, ReplicaKind};
pub use ledger::TenantSlot;
pub use local_disk::{LocalDiskConfig, LocalDiskInfo, MAX_DISK_OBJECTS};
pub use master::Master;
pub use mc_ticket::{GrantSecret, PutToken, TicketKey};
pub use offload::{DiskJob, DiskUsage, MAX_DISKS, OffloadConfig, OffloadError, OffloadTotals};
pub use offloading::{FoundError, FoundOnDisk, LocalDiskError, OffloadOutcome};
pub use pattern::{MAX_PATTERN_LEN, Pattern, PatternError};
pub use promoting::{PromotionGrant, PromotionStartError};
pub use promotion::{PromotionConfig, PromotionError, PromotionTotals};
pub use quota::{
    Charge, DefaultQuota, MAX_QUOTA, MAX_TENANTS, PolicyError, QuotaError, QuotaReport, Quotas,
    TenantUsage, UNLIMITED,
};
pub use record::{Location, Locations, ObjectRecord, Record};
pub use recover::{Dropped, Rebuild, RebuildError, RebuildReport};
pub use segment::{MAX_SEGMENT_NAME_LEN, Segment, SegmentInfo, SegmentSpec};
pub use states::{BufferStatus, ReplicaStatus, SegmentStatus};
pub use suspicion::SuspicionTotals;
pub use tasks::{
    CreateTaskError, MAX_FETCHED_TASKS, MAX_TASK_MESSAGE_LEN, TaskAssignment, TaskConfig,
    TaskError, TaskInfo, TaskKind, TaskStatus,
};
pub use tenant::{MAX_TENANT_LEN, ScopeError, ScopedKey, TenantId, TenantIdError, unscoped};
pub use transfer::{TransferError, TransferFinishError, TransferGrant, TransferInfo, TransferKind};
pub use view::{ObjectView, SpaceView};
