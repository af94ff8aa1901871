//! A range of memory.

use std::io;
use std::path::Path;
use std::sync::Arc;

use mc_types::ByteSize;
use parking_lot::RwLock;

use super::StorageBackend;

/// A range of this process's memory, for tests. Clones are the same range.
#[derive(Clone, Debug)]
pub struct MemoryBackend(Arc<RwLock<Vec<u8>>>);

impl MemoryBackend {
    /// A range of `len` zeros.
    ///
    /// # Panics
    /// When there is no memory for them.
    #[must_use]
    pub fn new(len: ByteSize) -> Self {
        Self(Arc::new(RwLock::new(vec![0; len.as_u64() as usize])))
    }
}

impl StorageBackend for MemoryBackend {
    fn len(&self) -> u64 {
        self.0.read().len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.read();
        let from = bytes.get(offset as usize..).and_then(|from| from.get(..buffer.len()));
        buffer.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.0.write();
        let to = all.get_mut(offset as usize..).and_then(|to| to.get_mut(..bytes.len()));
        to.ok_or(io::ErrorKind::WriteZero)?.copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn path(&self) -> &Path {
        Path::new("memory")
    }
}
