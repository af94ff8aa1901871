#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod commands;
mod config;
mod effect;
mod eviction;
mod master;
mod object;
mod rebuild;
mod record;
mod shard;
mod side_tables;
mod space;
mod tables;
mod tenant;
mod vocabulary;

pub use commands::query::report::MasterReport;
pub use commands::remove::{ObjectsLeft, RemovalCounts};
pub use mc_lease::SoftPin;
pub use mc_ticket::{GrantSecret, PutToken, TicketKey};
pub use space::allocator::{MemoryAllocator, UnknownAllocator};

pub use commands::batch::Batch;
pub use commands::error::{
    GetError, InvalidPut, MountError, PinError, PutFinishError, PutStartError, RemoveError,
    RenewError, TierEvictError, UnmountError,
};
pub use commands::query::explain::{EvictionBlocker, Explanation};
pub use commands::read::by_pattern::ReplicaPage;
pub use commands::read::get::Reading;
pub use commands::receipt::Receipt;
pub use commands::reply::{ObjectInfo, PutGrant, RangedList, Renewed, ReplicaInfo, ReplicaList};
pub use commands::tier::adopt::{FoundError, FoundInTier};
pub use commands::tier::offload::{LocalDiskError, OffloadJob, OffloadOutcome};
pub use commands::transfer::error::{TransferError, TransferFinishError};
pub use commands::transfer::tasks::{CreateTaskError, MAX_FETCHED_TASKS};
pub use config::{ConfigError, MasterConfig};
pub use effect::view::{ObjectView, SpaceView};
pub use effect::{Effect, EffectSink};
pub use master::Master;
pub use object::local_disk::LocalDiskReplica;
pub use object::local_disk::{LocalDiskIds, LocalDiskPlacement, LocalDiskSpec};
pub use rebuild::page::{ExportCursor, ExportPage};
pub use rebuild::{
    Corrections, Dropped, Executor, Rebuild, RebuildError, RebuildPart, RebuildReport, Rebuilt,
};
pub use record::record_ref::{ObjectRecordRef, RecordRef};
pub use record::{Location, Locations, ObjectRecord, Record};
pub use side_tables::damage::{
    DamageReport, MAX_HANDED_CHECKS, ReplicaCheck, ReplicaPlace, ReportOutcome, Verdict,
};
pub use side_tables::drain::{
    DEFAULT_DRAIN_CONCURRENCY, DrainError, DrainJobInfo, JobStatus, MAX_DRAIN_CONCURRENCY,
    MAX_DRAIN_JOBS, MAX_DRAIN_SEGMENTS, MAX_ENDED_DRAIN_JOBS,
};
pub use side_tables::files::{FileJobs, FileSystemState};
pub use side_tables::history::{KeyEvent, KeyEventKind};
pub use side_tables::local_disk::{
    LocalDiskConfig, LocalDiskDeletions, LocalDiskInfo, MAX_DISK_OBJECTS, OffloadFilter,
    UnknownFilter,
};
pub use side_tables::offload_queue::{
    LocalDiskUsage, MAX_DISKS, OffloadConfig, OffloadError, TierJob,
};
pub use side_tables::promotion::{PromotionGrant, PromotionStartError};
pub use side_tables::promotion_queue::{PromotionConfig, PromotionError};
pub use side_tables::readers::ReadProgress;
pub use side_tables::tasks::{
    MAX_TASK_MESSAGE_LEN, TaskAssignment, TaskConfig, TaskError, TaskInfo, TaskKind, TaskStatus,
};
pub use side_tables::transfer::{TransferGrant, TransferInfo, TransferKind};
pub use space::replica::{Placement, Placements};
pub use space::segment::{MAX_SEGMENT_NAME_LEN, Segment, SegmentInfo, SegmentSpec};
pub use space::strategy::{AllocationStrategy, UnknownStrategy};
pub use tenant::below::{TierQuotas, TierUsage};
pub use tenant::id::{MAX_TENANT_LEN, ScopeError, ScopedKey, TenantId, TenantIdError, unscoped};
pub use tenant::ledger::TenantSlot;
pub use tenant::quota::{
    Charge, DefaultQuota, MAX_QUOTA, MAX_TENANTS, PolicyError, QuotaError, QuotaMode, QuotaReport,
    Quotas, TenantUsage, UNLIMITED,
};
pub use vocabulary::kinds::{ReplicaKind, ReplicaKinds, SharedFile, SharedTierConfig};
pub use vocabulary::metrics::{Metric, MetricKind, MetricUnit, Totals};
pub use vocabulary::pattern::{MAX_PATTERN_LEN, Pattern, PatternError};
pub use vocabulary::removal::Removal;
pub use vocabulary::request::{
    Beat, CHECKPOINT, ClientStatus, KeyInfo, KeyPage, LateWrites, ListCursor, MAX_AVOIDED_SEGMENTS,
    MAX_GROUP_NAME_LEN, MAX_NAMED_SEGMENTS, MAX_REPLICAS, MAX_SLICES, Mounted, Pong, PutEnd,
    PutHandle, PutRevoke, PutStart, RangeRead, ReplicateConfig, Slice, Slices, SoftPinAction,
    TransferHandle, VerifiedSpan,
};
pub use vocabulary::states::{BufferStatus, ReplicaStatus, SegmentStatus};
