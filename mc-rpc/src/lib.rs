#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod access;
mod answer;
mod c2c;
mod caller;
mod calls;
mod check;
mod client;
#[cfg(test)]
mod contract;
mod error;
pub mod frame;
mod ha;
mod handshake;
mod latency;
mod method;
pub mod proto;
mod refusal;
mod reply;
mod request;
mod server;
mod service;
mod storage;
mod stream;
#[cfg(feature = "tls")]
pub mod tls;
mod wire;

pub use access::{Access, AccessError, AccessFile, Authenticate, LineError, Presented};
pub use answer::{
    ClockReading, DiskLocation, Pong, PutGrant, RangedList, ReplicaList, ReplicaLocation,
    SegmentLocation,
};
pub use c2c::C2cSettings;
pub use caller::{Caller, Role, UnknownRole};
pub use calls::{
    ClusterReport, Connections, DrainJob, DrainJobs, Failure, FetchedTasks, FileJobs, FileOutcome,
    FoundItem, LocalDiskDeletions, LocalDisks, MAX_FAILURES, MAX_LISTED_CONNECTIONS,
    ObjectDescription, ObjectExplanation, OffloadItem, OffloadJob, PromotionGrant, PutRevokeItem,
    RemovedAll, ReplicaDescription, ReplicaPage, Reported, RequestMessage, SegmentReport,
    StorageConfig, Task, TaskReport, Tasks, TenantQuotas, TierEviction, TierJob, TransferGrant,
};
pub use client::{
    ClientConfig, ClientEnvironment, ClientMetrics, Connecting, JournalStream, MasterClient,
    MethodMetrics, OpenRead, ReadCounter, Resolve, Token, blocking,
};
pub use error::{AddressError, BindError, CredentialError, MalformedReply, ResolveError, RpcError};
pub use frame::preface::{ForeignProtocol, HandshakeError};
pub use ha::{
    DurabilityMode, ElectionOutage, FollowerStatus, HaReport, HaRole, HaStatus, SnapshotStatus,
};
pub use latency::{LatencyHistogram, LatencyRecorder};
pub use mc_tls::{FileError, Reload};
pub use method::Method;
pub use refusal::{Completion, MAX_MESSAGE_LEN, Refusal};
pub use request::{
    Heartbeat, MAX_BATCH, MAX_PAGE, MAX_PEER_SPEEDS, MAX_RANGES, NodeLoad, PeerSpeed, PutStartItem,
    TenantKey,
};
pub use server::{
    Authority, Buffered, CloseReason, ConnectionKind, ConnectionReport, Guest, GuestCall,
    GuestCalls, GuestProtocol, Liveness, MethodCalls, OpenConnections, Server, ServerConfig,
    ServerHandle, ServerMetrics, ServerWatch, Standby, Streams, TakeStream, Taking, Term,
};
pub use service::{
    Call, Clock, DurableSequence, DurableWatch, History, MasterService, Minute, NodeLoads,
    NodeReport, Service, SystemClock,
};
pub use storage::StorageSettings;
pub use stream::ByteStream;
pub use wire::WireError;
