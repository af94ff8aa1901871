#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod blocking;
mod by_key;
mod client;
#[cfg(feature = "config")]
mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod local_host;
mod object_store;

pub use by_key::{Positions, by_key};
#[cfg(feature = "c2c")]
pub use client::{C2cError, C2cMetrics, C2cSkip};
pub use client::{
    Client, ClientBuilder, ClientMetrics, ClientOperation, ClientRole, DataPath, DrainReport,
    GetInto, HotCacheConfig, LocalDiskOptions, MakeMemory, MountedSegment, OperationMetrics,
    OwnTier, PathMetrics, Put, PutMode, PutOutcome, ReportMetrics, SegmentOptions, Stat,
    TierMetrics, VramError, VramStage,
};
#[cfg(feature = "config")]
pub use config::{
    ClientConfig, ConfigError, ConfigSource, ParseProtocolError, Protocol, Setting, nearest_name,
};
pub use error::{
    CallError, GetError, KeepError, LocalDiskOpenError, PeerError, PutError, SegmentError,
    StartError,
};
#[cfg(feature = "etcd")]
pub use etcd::EtcdResolver;
pub use local_host::{HostError, LocalHost};
pub use mc_environment::{Environment, System, Work};
pub use mc_meta::{
    ListCursor, MAX_REPLICAS, MasterConfig, MasterReport, ObjectsLeft, ReplicateConfig,
    SoftPinAction, TaskStatus,
};
pub use mc_rpc::{
    C2cSettings, ClusterReport, LatencyHistogram, ObjectDescription, Refusal, RemovedAll,
    ReplicaDescription, ReplicaList, ReplicaPage, ServerMetrics, ServerWatch, StorageSettings,
    TaskReport,
};
#[cfg(feature = "master")]
pub use mc_server::{
    ClusterConfig, EventPublisher, HandOverError, JournalConfig, JournalReport, JournalStartError,
    JournalTrouble, JournalWatch, LeaderSeat, Master, MasterBuilder, MasterStartError,
    SnapshotPolicy, Standby, StandbyError, Ticker, TickerProblem, TickerState, TickerWatch,
};
pub use mc_tier::{FolderMode, InvalidPlace, SharedPlace, SyncPolicy};
#[cfg(feature = "encryption")]
pub use mc_tier::{KeySource, KeysError, SourceError, TierKeys};
pub use mc_transport::{
    HugePageSize, Memory, MemoryError, MemoryOptions, MemorySlice, NodeConfig, Source,
    StagedMemory, Staging,
};
pub use mc_types::{
    ByteSize, ClientId, ErrorCode, Generation, InfoTooLong, KeyError, MAX_KEY_LEN, MediaType,
    ObjectKey, SegmentId, StoreEventInfo, TaskId,
};
pub use object_store::{
    MemoryStore, ObjectStore, ReplicaTransfer, ReplicatedStore, StoreError, StoreFailure,
};
