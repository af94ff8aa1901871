#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod batch;
mod clients;
mod command;
mod config;
mod error;
mod evict;
mod health;
mod journal;
mod lock;
mod master;
mod object;
mod put;
mod query;
mod read;
mod remove;
mod shard;
mod space;
mod tenant;
mod tier;
mod transfer;

pub use mc_lease::SoftPin;
pub use mc_ticket::{GrantSecret, PutToken, TicketKey};
pub use query::report::MasterReport;
pub use remove::{ObjectsLeft, RemovalCounts};
pub use space::allocator::{MemoryAllocator, UnknownAllocator};

pub use batch::Batch;
pub use command::{
    Beat, CHECKPOINT, ClientStatus, KeyInfo, KeyPage, LateWrites, ListCursor, MAX_AVOIDED_SEGMENTS,
    MAX_GROUP_NAME_LEN, MAX_NAMED_SEGMENTS, MAX_REPLICAS, MAX_SLICES, Mounted, ObjectInfo,
    Placement, Placements, Pong, PutEnd, PutGrant, PutHandle, PutRevoke, PutStart, RangeRead,
    RangedList, Renewed, ReplicaInfo, ReplicaList, ReplicateConfig, Slice, Slices, SoftPinAction,
    TransferHandle, VerifiedSpan,
};
pub use config::{AllocationStrategy, ConfigError, MasterConfig, UnknownStrategy};
pub use error::{
    DiskEvictError, GetError, InvalidPut, MountError, PutFinishError, PutStartError, RemoveError,
    RenewError, UnmountError,
};
pub use health::damage::{
    DamageReport, DamageTotals, MAX_HANDED_CHECKS, ReplicaCheck, ReplicaPlace, ReportOutcome,
    Verdict,
};
pub use health::suspicion::SuspicionTotals;
pub use journal::effect::{Effect, EffectSink, Removal};
pub use journal::export::{ExportCursor, ExportPage};
pub use journal::receipt::Receipt;
pub use journal::record::{Location, Locations, ObjectRecord, Record};
pub use journal::record_ref::{ObjectRecordRef, RecordRef};
pub use journal::recover::{
    Corrections, Dropped, Executor, Rebuild, RebuildError, RebuildPart, RebuildReport, Rebuilt,
};
pub use master::Master;
pub use object::states::{BufferStatus, ReplicaStatus, SegmentStatus};
pub use object::view::{ObjectView, SpaceView};
pub use query::explain::{EvictionBlocker, Explanation, KeyEvent, KeyEventKind};
pub use read::by_pattern::ReplicaPage;
pub use read::get::Reading;
pub use read::pattern::{MAX_PATTERN_LEN, Pattern, PatternError};
pub use read::readers::ReadProgress;
pub use space::segment::{MAX_SEGMENT_NAME_LEN, Segment, SegmentInfo, SegmentSpec};
pub use tenant::below::{TierQuotas, TierUsage};
pub use tenant::id::{MAX_TENANT_LEN, ScopeError, ScopedKey, TenantId, TenantIdError, unscoped};
pub use tenant::ledger::TenantSlot;
pub use tenant::quota::{
    Charge, DefaultQuota, MAX_QUOTA, MAX_TENANTS, PolicyError, QuotaError, QuotaMode, QuotaReport,
    Quotas, TenantUsage, UNLIMITED,
};
pub use tier::adopt::{FoundError, FoundOnDisk};
pub use tier::disk::{DiskIds, DiskPlacement, LocalDiskSpec};
pub use tier::files::{FileJobs, FileSystemState};
pub use tier::kinds::{DiskConfig, DiskReplica, LocalDiskReplica, ReplicaKind, ReplicaKinds};
pub use tier::local_disk::{
    DiskDeletions, LocalDiskConfig, LocalDiskInfo, MAX_DISK_OBJECTS, OffloadFilter, UnknownFilter,
};
pub use tier::offload::{LocalDiskError, OffloadJob, OffloadOutcome};
pub use tier::offload_queue::{
    DiskJob, DiskUsage, MAX_DISKS, OffloadConfig, OffloadError, OffloadTotals,
};
pub use tier::promote::{PromotionGrant, PromotionStartError};
pub use tier::promotion_queue::{PromotionConfig, PromotionError, PromotionTotals};
pub use transfer::drain::{
    DEFAULT_DRAIN_CONCURRENCY, DrainError, DrainJobInfo, JobStatus, MAX_DRAIN_CONCURRENCY,
    MAX_DRAIN_JOBS, MAX_DRAIN_SEGMENTS, MAX_ENDED_DRAIN_JOBS,
};
pub use transfer::tasks::{
    CreateTaskError, MAX_FETCHED_TASKS, MAX_TASK_MESSAGE_LEN, TaskAssignment, TaskConfig,
    TaskError, TaskInfo, TaskKind, TaskStatus,
};
pub use transfer::{TransferError, TransferFinishError, TransferGrant, TransferInfo, TransferKind};
