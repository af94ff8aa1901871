#![doc = include_str!("../README.md")]

pub mod backend;
mod breaker;
mod bundle;
mod cancel;
mod completion;
#[cfg(feature = "conformance")]
pub mod conformance;
mod copiers;
mod copy;
mod error;
mod link_id;
mod mem;
mod node;
mod open_links;
mod operation;
mod region;
#[cfg(target_os = "linux")]
pub mod shm;
mod slice_sums;
mod staged;
mod stream;
pub mod tcp;
#[cfg(feature = "tls")]
mod tls_failure;
mod transport;

pub use backend::listen::ListenError;
pub use backend::proof::NodeSecret;
pub use breaker::{Breaker, BreakerConfig};
pub use bundle::{Bundle, BundleConfig};
pub use cancel::Cancel;
pub use completion::{Completion, Completions, Outcome, ToComplete, Transferred};
pub use copiers::Copiers;
pub use error::{ConnectError, InvalidOperation, ProtocolViolation, RegisterError, TransferError};
pub use link_id::LinkId;
pub use mc_environment::{BootClock, BootTime, TimeSource};
pub use mc_memory::{
    Access, BadVariable, BufferPool, CopyError, Digest, FileLock, HugePageSize, HugePages, Memory,
    MemoryError, MemoryOptions, MemorySlice, OutOfRange, StagedMemory, checksum, combined,
    topology,
};
pub use mem::{FabricError, MemFabric, MemLink, MemTransport};
pub use node::{Node, NodeConfig, NodeError, NodeLink};
pub use operation::{Operation, Pieces, RemoteSpan, Source, Sums};
pub use region::{Admitted, MasterClock, Region, RegionTable, Registration, ServedTotals, Tickets};
#[cfg(target_os = "linux")]
pub use shm::{ShmConfig, ShmLink, ShmTransport};
pub use slice_sums::{CHECKPOINT, SliceDigest, SliceSums};
pub use staged::Staging;
pub use stream::link::StreamLink;
#[cfg(feature = "tls")]
pub use tcp::TcpTls;
pub use tcp::{TcpConfig, TcpTransport};
#[cfg(feature = "tls")]
pub use tls_failure::TlsFailure;
pub use transport::{
    Capabilities, DynTransport, Link, MAX_BATCH, Ordering, PeerConnections, Transport, View,
};
