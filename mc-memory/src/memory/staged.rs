//! Memory that is reached by copies through memory of the host.

use std::io;

use super::MemorySlice;

/// Memory that peers reach by copies through memory of the host: a GPU's, or another device's.
///
/// Copies may block; several run at a time. The bytes are there when a copy returns.
///
/// ```
/// use std::io;
/// use mc_memory::{Memory, MemorySlice, StagedMemory};
///
/// struct Device(Memory);
///
/// impl StagedMemory for Device {
///     fn size(&self) -> usize {
///         self.0.len()
///     }
///     fn read(&self, at: usize, into: &MemorySlice) -> io::Result<()> {
///         let from = self.0.slice(at, into.len()).ok_or(io::ErrorKind::InvalidInput)?;
///         from.copy_to_slice(into).map_err(io::Error::other)
///     }
///     fn write(&self, at: usize, from: &MemorySlice) -> io::Result<()> {
///         let into = self.0.slice(at, from.len()).ok_or(io::ErrorKind::InvalidInput)?;
///         from.copy_to_slice(&into).map_err(io::Error::other)
///     }
/// }
/// ```
pub trait StagedMemory: Send + Sync + 'static {
    /// Bytes of it.
    fn size(&self) -> usize;

    /// Copies the bytes from `at` on over `into`.
    ///
    /// # Errors
    /// When the device fails.
    fn read(&self, at: usize, into: &MemorySlice) -> io::Result<()>;

    /// Copies `from` over the bytes from `at` on.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn write(&self, at: usize, from: &MemorySlice) -> io::Result<()>;
}
