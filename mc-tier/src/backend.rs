//! The medium of a log.

mod faulty;
mod file;
mod memory;

use core::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use faulty::{BackendFaults, FaultyBackend};
pub use file::FileBackend;
pub use memory::MemoryBackend;

/// A range of bytes that outlives the process: a file, a partition, a device.
///
/// Its methods block, and may be called by several threads at once. Buffers stay the caller's: when a
/// method returns, with an error or without, nothing uses them any more.
pub trait StorageBackend: Send + Sync + fmt::Debug {
    /// The number of bytes, which does not change.
    fn len(&self) -> u64;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills the whole buffer with the bytes from `offset` on. Bytes that were never written are 0.
    ///
    /// # Errors
    /// What the medium says. The content of the buffer is not defined then.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all bytes from `offset` on. Reads return them at once; they are durable after the next
    /// [`sync`](Self::sync). A write of one byte is atomic.
    ///
    /// # Errors
    /// What the medium says. Any part of the bytes may be written then.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything durable that was written before.
    ///
    /// # Errors
    /// What the medium says; it is not known then what is durable.
    fn sync(&self) -> io::Result<()>;

    /// The medium's place, for messages.
    fn path(&self) -> &Path;
}

impl<B: StorageBackend + ?Sized> StorageBackend for Arc<B> {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        (**self).sync()
    }

    fn path(&self) -> &Path {
        (**self).path()
    }
}
