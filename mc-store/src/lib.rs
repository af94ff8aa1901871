#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
mod error;
mod master;

pub use client::{
    Client, ClientBuilder, ClientMetrics, ClientOperation, DataPath, GetInto, LatencyHistogram,
    OperationMetrics, PathMetrics, Put, PutOutcome,
};
pub use error::{CallError, GetError, MasterStartError, PeerError, PutError, StartError};
pub use master::{Master, MasterBuilder};
pub use mc_meta::{MasterConfig, MasterReport, ReplicateConfig};
pub use mc_rpc::{ClusterReport, ObjectDescription, ServerMetrics, ServerWatch};
pub use mc_transport::{Memory, MemoryError, MemoryOptions, MemorySlice, NodeConfig, Source};
pub use mc_types::{ByteSize, ErrorCode};

/// The repository's front page, so that its examples are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct RepositoryFrontPage;
