#![doc = include_str!("../README.md")]

mod checksum;
mod error;
mod mem;
mod memory;
mod operation;
mod region;
mod transport;

pub use checksum::{Digest, checksum};
pub use error::{ConnectError, InvalidOperation, ProtocolViolation, RegisterError, TransferError};
pub use mem::{FabricError, MemFabric, MemTransport};
pub use memory::{Memory, MemoryError, MemorySlice, OutOfRange};
pub use operation::{Operation, Pieces, RemoteSpan, Source};
pub use region::{Access, Region, RegionTable};
pub use transport::{Link, Transport};
