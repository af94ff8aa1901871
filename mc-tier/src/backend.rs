//! The medium of a log.

mod buffer;
mod faulty;
mod file;
mod memory;
mod queue;
#[cfg(target_os = "linux")]
mod ring;

use core::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub(crate) use buffer::BufferPool;
pub use buffer::IoBuffer;
pub use faulty::{BackendFaults, FaultyBackend};
pub use file::{DirectIo, FileBackend, FileSettings, ReadQueue};
pub use memory::MemoryBackend;

/// A range of bytes that outlives the process: a file, a partition, a device.
///
/// Its methods block, and may be called by several threads at once. When a method returns, with an
/// error or without, nothing uses its buffers any more.
pub trait StorageBackend: Send + Sync + fmt::Debug {
    /// The number of bytes, which does not change.
    fn len(&self) -> u64;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The power of two, at most 4096, that offsets and lengths of reads are best multiples of; by
    /// default 1. Other reads cost a copy.
    fn alignment(&self) -> usize {
        1
    }

    /// Fills the whole buffer with the bytes from `offset` on. Bytes that were never written are 0.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) when the medium ends before, and what the medium
    /// says. The content of the buffer is not defined then.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Fills several buffers, each from its offset on, and calls `done` with the place of each in
    /// `reads`, in any order. By default one after the other.
    ///
    /// # Errors
    /// Each read has a result of its own, as of [`read`](Self::read). A buffer whose read has failed is
    /// not returned.
    fn read_many(
        &self,
        reads: Vec<(u64, IoBuffer)>,
        done: &mut dyn FnMut(usize, io::Result<IoBuffer>),
    ) {
        for (place, (offset, mut buffer)) in reads.into_iter().enumerate() {
            let read = self.read(offset, &mut buffer);
            done(place, read.map(|()| buffer));
        }
    }

    /// Writes all bytes from `offset` on. Reads return them at once; they are durable after the next
    /// [`sync`](Self::sync). Logs write at multiples of 4096 and whole multiples of it, from memory that
    /// is aligned to it. A write is atomic for each aligned range of 512 bytes.
    ///
    /// # Errors
    /// What the medium says. Any part of the bytes may be written then.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Takes the medium's space for a range, so that writes there do not find the medium full. The bytes
    /// stay as they are. By default, and where the medium cannot do that, nothing happens: writes tell.
    ///
    /// # Errors
    /// [`StorageFull`](io::ErrorKind::StorageFull) and [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) when
    /// the medium has no such space left, and what else it says. No space is taken then.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Gives the medium's space for a range back. The bytes are lost, and may read as 0 or as they were. By
    /// default nothing happens.
    ///
    /// # Errors
    /// What the medium says.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

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

    fn alignment(&self) -> usize {
        (**self).alignment()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read(offset, buffer)
    }

    fn read_many(
        &self,
        reads: Vec<(u64, IoBuffer)>,
        done: &mut dyn FnMut(usize, io::Result<IoBuffer>),
    ) {
        (**self).read_many(reads, done);
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write(offset, bytes)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).reserve(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).discard(offset, len)
    }

    fn sync(&self) -> io::Result<()> {
        (**self).sync()
    }

    fn path(&self) -> &Path {
        (**self).path()
    }
}
