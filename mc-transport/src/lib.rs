#![doc = include_str!("../README.md")]

#[cfg(feature = "tcp")]
mod accept;
mod access;
mod boot_time;
mod breaker;
mod bundle;
mod cancel;
mod checksum;
mod completion;
#[cfg(feature = "conformance")]
pub mod conformance;
mod copy;
#[cfg(any(feature = "quic", feature = "tcp"))]
mod counters;
#[cfg(any(feature = "quic", feature = "tcp"))]
mod description;
mod environment;
mod error;
#[cfg(any(feature = "quic", feature = "tcp"))]
mod first;
#[cfg(any(feature = "quic", feature = "tcp"))]
mod headers;
mod link_id;
#[cfg(any(feature = "quic", feature = "tcp"))]
mod listen;
mod mem;
mod memory;
#[cfg(feature = "tcp")]
mod node;
#[cfg(any(feature = "quic", feature = "tcp"))]
mod open_links;
mod operation;
#[cfg(any(feature = "rdma", all(feature = "shm", target_os = "linux")))]
#[doc(hidden)]
pub mod proof;
#[cfg(all(any(feature = "rdma", feature = "shm"), target_os = "linux"))]
mod proven_links;
#[cfg(feature = "quic")]
pub mod quic;
#[cfg(all(feature = "rdma", target_os = "linux"))]
pub mod rdma;
mod region;
#[cfg(all(feature = "shm", target_os = "linux"))]
pub mod shm;
mod slice_sums;
#[cfg(any(feature = "quic", feature = "tcp"))]
mod staged;
#[cfg(feature = "tcp")]
mod stream;
#[cfg(any(feature = "quic", feature = "tcp"))]
mod sweep;
#[cfg(any(feature = "quic", feature = "tcp"))]
mod tasks;
#[cfg(feature = "tcp")]
pub mod tcp;
#[cfg(any(feature = "quic", feature = "tls"))]
mod tls_failure;
pub mod topology;
mod transport;

pub use access::Access;
pub use boot_time::{BootClock, BootTime, TimeSource};
pub use breaker::{Breaker, BreakerConfig};
pub use bundle::{Bundle, BundleConfig};
pub use cancel::Cancel;
pub use checksum::{Digest, checksum, combined};
pub use completion::{Completion, Completions, Outcome, ToComplete, Transferred};
pub use environment::BadVariable;
pub use error::{ConnectError, InvalidOperation, ProtocolViolation, RegisterError, TransferError};
pub use link_id::LinkId;
#[cfg(any(feature = "quic", feature = "tcp"))]
pub use listen::ListenError;
pub use mem::{FabricError, MemFabric, MemLink, MemTransport};
pub use memory::cuda;
pub use memory::{
    BufferPool, CopyError, HugePageSize, HugePages, Memory, MemoryError, MemoryOptions,
    MemorySlice, OutOfRange,
};
#[cfg(feature = "tcp")]
pub use node::{Node, NodeConfig, NodeError, NodeLink};
pub use operation::{Operation, Pieces, RemoteSpan, Source, Sums};
#[cfg(any(feature = "rdma", all(feature = "shm", target_os = "linux")))]
pub use proof::NodeSecret;
#[cfg(feature = "quic")]
pub use quic::{QuicConfig, QuicLink, QuicTransport};
#[cfg(all(feature = "rdma", target_os = "linux"))]
pub use rdma::{RdmaConfig, RdmaLink, RdmaTransport};
pub use region::{Admitted, MasterClock, Region, RegionTable, Registration, ServedTotals, Tickets};
#[cfg(all(feature = "shm", target_os = "linux"))]
pub use shm::{ShmConfig, ShmLink, ShmTransport};
pub use slice_sums::{CHECKPOINT, SliceDigest, SliceSums};
#[cfg(any(feature = "quic", feature = "tcp"))]
pub use staged::{StagedMemory, Staging};
#[cfg(feature = "tcp")]
pub use stream::link::StreamLink;
#[cfg(feature = "tls")]
pub use tcp::TcpTls;
#[cfg(feature = "tcp")]
pub use tcp::{TcpConfig, TcpTransport};
#[cfg(any(feature = "quic", feature = "tls"))]
pub use tls_failure::TlsFailure;
pub use transport::{
    Capabilities, DynTransport, Link, MAX_BATCH, Ordering, PeerConnections, Transport, View,
};
