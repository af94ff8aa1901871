#![doc = include_str!("../README.md")]

mod access;
mod checksum;
mod environment;
mod memory;
pub mod topology;

pub use access::Access;
pub use checksum::{Digest, checksum, combined};
pub use environment::BadVariable;
pub use memory::{
    BufferPool, CopyError, FileLock, HugePageSize, HugePages, Memory, MemoryError, MemoryOptions,
    MemorySlice, OutOfRange, StagedMemory,
};
