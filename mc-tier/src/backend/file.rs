//! A file of fixed length.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mc_types::ByteSize;

use super::StorageBackend;
use crate::error::TierError;

/// The file's name in its directory.
const NAME: &str = "objects.log";

/// A file in a directory of a local disk, which one process uses at a time.
#[derive(Debug)]
pub struct FileBackend {
    /// Locked for as long as it is open.
    file: File,
    path: PathBuf,
    len: u64,
}

impl FileBackend {
    /// Opens the file of a directory. Makes both where they are missing, for this user alone. A file
    /// that is shorter than `len` grows to it; one that is longer stays as it is.
    ///
    /// The disk's space is taken when it is written to, not before.
    ///
    /// # Errors
    /// [`TierError::InUse`] when another process has the directory, and what the file system says.
    pub fn open(directory: impl AsRef<Path>, len: ByteSize) -> Result<Self, TierError> {
        let directory = directory.as_ref();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|source| TierError::from_io("make the directory", directory, source))?;
        let path = directory.join(NAME);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|source| TierError::from_io("open", &path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(TierError::InUse { path: directory.to_owned() });
            }
            Err(TryLockError::Error(source)) => {
                return Err(TierError::from_io("lock", &path, source));
            }
        }
        let len = grow(&file, len.as_u64())
            .map_err(|source| TierError::from_io("set the length of", &path, source))?;
        Ok(Self { file, path, len })
    }
}

/// Returns the file's length, which is at least `len` afterwards.
fn grow(file: &File, len: u64) -> io::Result<u64> {
    let found = file.metadata()?.len();
    if found < len {
        file.set_len(len)?;
    }
    Ok(found.max(len))
}

impl StorageBackend for FileBackend {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FileBackend {
    fn drop(&mut self) {
        // A child process that was forked and has not yet begun its program has the file open, too:
        // closing it here would not end the lock. What fails here ends with the process.
        let _ = self.file.unlock();
    }
}
