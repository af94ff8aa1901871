//! A file of fixed length.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_types::ByteSize;
use tracing::info;

use super::StorageBackend;
use super::buffer::{BufferPool, IoBuffer};
#[cfg(target_os = "linux")]
use super::queue::Read;
use super::queue::{self, Threads};
#[cfg(target_os = "linux")]
use super::ring::Ring;
use crate::error::TierError;

/// The file's name in its directory.
const NAME: &str = "objects.log";

/// The most threads that read where there is no io_uring: each costs memory and switches.
const MAX_THREADS: u32 = 16;

/// A file in a directory of a local disk, which one process uses at a time.
///
/// Reads and writes go past the page cache (`O_DIRECT`) where the file system can do that. Several reads
/// at once go through one io_uring where the kernel lets the process use it, and otherwise through some
/// threads. What is not there is logged once, at the level info.
#[derive(Debug)]
pub struct FileBackend {
    /// Dropped before the file, with all that is in flight.
    queue: Queue,
    /// Locked for as long as it is open.
    file: Arc<File>,
    path: PathBuf,
    len: u64,
    /// 1 for reads and writes through the page cache.
    alignment: usize,
    pool: BufferPool,
}

/// How a file is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileSettings {
    /// Whether the page cache is used; by default not.
    pub direct: DirectIo,
    /// The queue for several reads at once; by default io_uring.
    pub queue: ReadQueue,
    /// How many reads are in flight at most when several are wanted at once, from 1 to 1024; by
    /// default 32. Of threads there are no more than 16.
    pub queue_depth: u32,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self { direct: DirectIo::Auto, queue: ReadQueue::Auto, queue_depth: 32 }
    }
}

/// Whether reads and writes go past the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectIo {
    /// Where the file system can do that.
    Auto,
    /// Never.
    Never,
}

/// The queue for several reads at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadQueue {
    /// io_uring where the kernel lets the process use it, and threads elsewhere.
    Auto,
    /// Threads.
    Threads,
}

/// The queue in use.
#[derive(Debug)]
enum Queue {
    #[cfg(target_os = "linux")]
    Ring(Ring),
    Threads(Threads),
}

impl FileBackend {
    /// [`open_with`](Self::open_with) the default settings.
    ///
    /// # Errors
    /// As of [`open_with`](Self::open_with).
    pub fn open(directory: impl AsRef<Path>, len: ByteSize) -> Result<Self, TierError> {
        Self::open_with(directory, len, FileSettings::default())
    }

    /// Opens the file of a directory. Makes both where they are missing, for this user alone. A file
    /// that is shorter than `len` grows to it; one that is longer stays as it is.
    ///
    /// The disk's space is taken when it is [reserved](StorageBackend::reserve) or written to, not before.
    ///
    /// # Errors
    /// [`TierError::InUse`] when another process has the directory, and what the file system says.
    pub fn open_with(
        directory: impl AsRef<Path>,
        len: ByteSize,
        settings: FileSettings,
    ) -> Result<Self, TierError> {
        let directory = directory.as_ref();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|source| TierError::from_io("make the directory", directory, source))?;
        let path = directory.join(NAME);
        let file = open_locked(directory, &path)?;
        let failed = |action, source| TierError::from_io(action, &path, source);
        let len = grow(&file, len.as_u64());
        let len = len.map_err(|source| failed("set the length of", source))?;
        let alignment = match settings.direct {
            DirectIo::Never => 1,
            DirectIo::Auto => direct(&file, len).unwrap_or_else(|error| {
                info!(path = %path.display(), %error, "no direct I/O; using the page cache");
                1
            }),
        };
        let file = Arc::new(file);
        let queue = Queue::start(&file, alignment, settings, &path);
        let queue = queue.map_err(|source| failed("start threads for", source))?;
        Ok(Self { queue, file, path, len, alignment, pool: BufferPool::default() })
    }

    /// Makes the file shorter; one that has at most `len` bytes stays as it is. What was behind is lost, and
    /// its space is free. To be called before a tier uses the file.
    ///
    /// # Errors
    /// What the file system says; the file is as it was then.
    pub fn cut(&mut self, len: ByteSize) -> Result<(), TierError> {
        if len.as_u64() < self.len {
            let cut = self.file.set_len(len.as_u64());
            let failed = |source| TierError::from_io("set the length of", &self.path, source);
            cut.map_err(failed)?;
            self.len = len.as_u64();
        }
        Ok(())
    }

    /// The path of the file in a directory, whether it is there or not.
    #[must_use]
    pub fn file_in(directory: &Path) -> PathBuf {
        directory.join(NAME)
    }

    /// Returns whether reads and writes go past the page cache.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.alignment > 1
    }

    /// Returns whether several reads at once go through io_uring.
    #[must_use]
    pub const fn uses_io_uring(&self) -> bool {
        !matches!(self.queue, Queue::Threads(_))
    }

    fn is_aligned(&self, offset: u64, bytes: &[u8]) -> bool {
        let unaligned = offset as usize | bytes.len();
        unaligned.is_multiple_of(self.alignment)
            && (bytes.as_ptr() as usize).is_multiple_of(self.alignment)
    }
}

fn open_locked(directory: &Path, path: &Path) -> Result<File, TierError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(|source| TierError::from_io("open", path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(TierError::InUse { path: directory.to_owned() }),
        Err(TryLockError::Error(source)) => Err(TierError::from_io("lock", path, source)),
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

/// Makes reads and writes of a file go past the page cache. Returns what they have to be aligned to.
#[cfg(target_os = "linux")]
fn direct(file: &File, len: u64) -> io::Result<usize> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(file)?;
    fcntl_setfl(file, flags | OFlags::DIRECT)?;
    // File systems take the flag that cannot read then, and devices have different blocks.
    let mut buffer = IoBuffer::new(4096);
    let mut error = io::Error::from(io::ErrorKind::Unsupported);
    for alignment in [512, 4096].into_iter().filter(|alignment| 2 * alignment <= len) {
        match file.read_at(&mut buffer[..alignment as usize], alignment) {
            Ok(_) => return Ok(alignment as usize),
            Err(refused) => error = refused,
        }
    }
    fcntl_setfl(file, flags)?;
    Err(error)
}

#[cfg(not(target_os = "linux"))]
fn direct(_: &File, _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Queue {
    fn start(
        file: &Arc<File>,
        alignment: usize,
        settings: FileSettings,
        path: &Path,
    ) -> io::Result<Self> {
        let depth = settings.queue_depth.clamp(1, 1024);
        #[cfg(target_os = "linux")]
        if settings.queue == ReadQueue::Auto {
            match Ring::start(file, alignment, depth) {
                Ok(ring) => return Ok(Self::Ring(ring)),
                Err(error) => {
                    info!(path = %path.display(), %error, "no io_uring; reading by threads");
                }
            }
        }
        Threads::start(file, alignment, depth.min(MAX_THREADS) as usize).map(Self::Threads)
    }
}

impl StorageBackend for FileBackend {
    fn len(&self) -> u64 {
        self.len
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    /// Reads on the caller's own thread: reads of many threads are in flight together, without switches.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.is_aligned(offset, buffer) {
            return queue::read_exact(&self.file, self.alignment, offset, buffer);
        }
        let alignment = self.alignment as u64;
        let before = offset % alignment;
        let len = (before + buffer.len() as u64).next_multiple_of(alignment);
        let mut aligned = self.pool.take(len as usize);
        queue::read_exact(&self.file, self.alignment, offset - before, &mut aligned)?;
        buffer.copy_from_slice(&aligned[before as usize..][..buffer.len()]);
        Ok(())
    }

    fn read_many(
        &self,
        reads: Vec<(u64, IoBuffer)>,
        done: &mut dyn FnMut(usize, io::Result<IoBuffer>),
    ) {
        let is_aligned = |(offset, buffer): &(u64, IoBuffer)| {
            self.is_aligned(*offset, buffer) && !buffer.is_empty()
        };
        if reads.len() <= 1 || !reads.iter().all(is_aligned) {
            for (place, (offset, mut buffer)) in reads.into_iter().enumerate() {
                let read = self.read(offset, &mut buffer);
                done(place, read.map(|()| buffer));
            }
            return;
        }
        match &self.queue {
            #[cfg(target_os = "linux")]
            Queue::Ring(ring) => queue::read_many(reads, |reads: Vec<Read>| ring.send(reads), done),
            Queue::Threads(threads) => queue::read_many(reads, |reads| threads.send(reads), done),
        }
    }

    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for an offset or a length that direct I/O cannot
    /// write, and what the system says.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_aligned(offset, bytes) {
            return self.file.write_all_at(bytes, offset);
        }
        let mut aligned = self.pool.take(bytes.len());
        aligned.copy_from_slice(bytes);
        if !self.is_aligned(offset, &aligned) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.write_all_at(&aligned, offset)
    }

    #[cfg(target_os = "linux")]
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(&*self.file, FallocateFlags::empty(), offset, len) {
            Ok(()) => Ok(()),
            // The file system cannot do it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => {
                // Some file systems keep what they have found. It would not be used.
                let _ = self.discard(offset, len);
                Err(error.into())
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&*self.file, flags, offset, len)?)
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
