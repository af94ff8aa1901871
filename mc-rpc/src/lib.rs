#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod access;
mod answer;
mod caller;
mod client;
#[cfg(test)]
mod contract;
mod error;
pub mod frame;
mod handshake;
mod method;
pub mod proto;
mod reply;
mod request;
mod server;
mod service;
mod stream;
#[cfg(feature = "tls")]
pub mod tls;
mod wire;

pub use access::{Access, AccessError, AccessFile, Authenticate, LineError, Presented};
pub use answer::{
    ClockReading, ClusterReport, DiskJob, DrainJob, DrainJobs, FetchedTasks, LocalDisks,
    ObjectDescription, ObjectExplanation, Pong, PromotionGrant, PutGrant, RangedList, Renewed,
    ReplicaDescription, ReplicaList, ReplicaLocation, ReplicaPage, Reported, SegmentLocation,
    SegmentReport, Task, TaskReport, TenantQuotas, TransferGrant,
};
pub use caller::{Caller, Role, UnknownRole};
pub use client::{
    AddressError, ClientConfig, ClientMetrics, CredentialError, EvictDiskItem, FoundItem,
    Latencies, MasterClient, MethodMetrics, OffloadItem, PutRevokeItem, PutStartItem, Resolve,
    ResolveError, Token, blocking,
};
pub use error::{
    BindError, ForeignProtocol, HandshakeError, MAX_MESSAGE_LEN, MalformedReply, Refusal, RpcError,
};
pub use mc_tls::{FileError, Reload};
pub use method::Method;
pub use request::{Failure, Heartbeat, MAX_BATCH, MAX_FAILURES, MAX_PAGE, MAX_RANGES, TenantKey};
pub use server::{
    Liveness, MethodCalls, Server, ServerConfig, ServerHandle, ServerMetrics, ServerWatch,
};
pub use service::{Call, Clock, MasterService, Service, SystemClock};
pub use wire::WireError;
