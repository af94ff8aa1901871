#![doc = include_str!("../README.md")]

mod checksum;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod mem;
mod memory;
mod operation;
mod region;
#[cfg(feature = "tcp")]
pub mod tcp;
mod transport;

pub use checksum::{Digest, checksum};
pub use error::{ConnectError, InvalidOperation, ProtocolViolation, RegisterError, TransferError};
pub use mem::{FabricError, MemFabric, MemTransport};
pub use memory::{Memory, MemoryError, MemorySlice, OutOfRange};
pub use operation::{Operation, Pieces, RemoteSpan, Source};
pub use region::{Access, Region, RegionTable};
#[cfg(feature = "tcp")]
pub use tcp::{TcpConfig, TcpTransport};
pub use transport::{Link, Transport};
