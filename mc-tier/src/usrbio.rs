//! A file of 3FS by USRBIO.

mod lane;
mod library;

use core::fmt;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_types::ByteSize;
use parking_lot::Mutex;
use tracing::warn;

use crate::backend::{FileBackend, StorageBackend};
use crate::error::TierError;
use lane::{Lane, Target};
use library::{Api, Registered, Ring};

/// Most blocks of a buffer.
const MAX_BLOCKS: usize = 1024;

/// Most bytes of a buffer.
const MAX_BUFFER_LEN: u64 = 16 << 30;

/// A file in a directory of 3FS, which one process uses at a time, for a
/// [`LogTier`](crate::LogTier).
///
/// Reads and writes go by USRBIO, the interface of 3FS with rings in shared memory, past the
/// kernel; everything else is done through the mounted file system, as [`FileBackend`] does it.
/// USRBIO's own library, `libhf3fs_api_shared.so`, is loaded when the backend is opened. A call is
/// cut into blocks that are on their way at once. Bytes are copied between the caller's buffer and
/// the shared one.
///
/// **Not tested with 3FS**: there was no cluster to run it on. It is written after the header and the
/// source of 3FS, and tested with a stand-in library that a C compiler makes, which has the same
/// functions and does the requests by `pread` and `pwrite`. Try it on your cluster before you rely on
/// it. The fallback is tested, since it is [`FileBackend`].
pub struct UsrbioBackend {
    /// Has the lock, too.
    file: FileBackend,
    usrbio: Option<Usrbio>,
}

/// How a [`UsrbioBackend`] uses USRBIO. The shared memory is `block_len` times `blocks` for each of
/// the `read_rings`, and once more for writes: 40 MiB by default.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UsrbioSettings {
    /// The library, by its path, or by a name that the system's search finds:
    /// `libhf3fs_api_shared.so` by default. Its code runs in this process: name none that others
    /// may write.
    pub library: PathBuf,
    /// Bytes of a request at most; 1 MiB by default.
    pub block_len: ByteSize,
    /// Requests of a call that are on their way at once; 8 by default, at most 1024.
    pub blocks: NonZeroUsize,
    /// Reads that are done at once; 4 by default, at most 1024. Others wait. Writes are done one
    /// after the other, so that one that timed out cannot overtake the next.
    pub read_rings: NonZeroUsize,
    /// How long a call waits without any result; 30 s by default.
    pub timeout: Duration,
    /// Whether to use the mounted file system alone where USRBIO cannot be used, which is logged.
    /// Not by default.
    pub falls_back: bool,
}

impl Default for UsrbioSettings {
    fn default() -> Self {
        Self {
            library: "libhf3fs_api_shared.so".into(),
            block_len: ByteSize::mib(1),
            blocks: NonZeroUsize::new(8).expect("it is not zero"),
            read_rings: NonZeroUsize::new(4).expect("it is not zero"),
            timeout: Duration::from_secs(30),
            falls_back: false,
        }
    }
}

impl UsrbioBackend {
    /// Opens the file of a directory, as [`FileBackend::open`] does, and USRBIO for it.
    ///
    /// # Errors
    /// Those of [`FileBackend::open`]; [`TierError::InvalidBuffer`]; [`TierError::NoLibrary`],
    /// [`TierError::No3fs`] and [`TierError::Usrbio`] when USRBIO cannot be used and the settings do
    /// not fall back.
    pub fn open(
        directory: impl AsRef<Path>,
        len: ByteSize,
        settings: &UsrbioSettings,
    ) -> Result<Self, TierError> {
        let (blocks, block_len) = (settings.blocks.get(), settings.block_len);
        let is_right = blocks <= MAX_BLOCKS
            && settings.read_rings.get() <= MAX_BLOCKS
            && block_len.as_u64() > 0
            && block_len.as_u64().saturating_mul(blocks as u64) <= MAX_BUFFER_LEN;
        if !is_right {
            return Err(TierError::InvalidBuffer { blocks, block_len });
        }
        let directory = directory.as_ref();
        // First, so that the directory exists.
        let file = FileBackend::open(directory, len)?;
        let usrbio = match Usrbio::open(directory, file.path(), settings) {
            Ok(usrbio) => Some(usrbio),
            Err(error) if settings.falls_back => {
                warn!(%error, "reads and writes go through the mounted file system");
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self { file, usrbio })
    }

    /// Returns whether reads and writes go by USRBIO.
    #[must_use]
    pub const fn uses_usrbio(&self) -> bool {
        self.usrbio.is_some()
    }
}

impl fmt::Debug for UsrbioBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsrbioBackend")
            .field("file", &self.file)
            .field("uses_usrbio", &self.uses_usrbio())
            .finish()
    }
}

impl StorageBackend for UsrbioBackend {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        match &self.usrbio {
            None => self.file.read(offset, buffer),
            Some(usrbio) => {
                let holes = usrbio.read(offset, buffer)?;
                // 3FS has nothing there, or the file ends before: the file system knows.
                holes.into_iter().try_for_each(|hole| {
                    self.file.read(offset + hole.start as u64, &mut buffer[hole])
                })
            }
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.usrbio {
            None => self.file.write(offset, bytes),
            Some(usrbio) => usrbio.write(offset, bytes),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

/// The rings of a file.
struct Usrbio {
    reads: Vec<Mutex<Lane>>,
    /// The lane of the next read that finds none free.
    next: AtomicUsize,
    writes: Mutex<Lane>,
    timeout: Duration,
    /// Dropped after the rings.
    file: Registered,
}

impl Usrbio {
    fn open(directory: &Path, path: &Path, settings: &UsrbioSettings) -> Result<Self, TierError> {
        let library = || settings.library.clone();
        let api = Api::load(&settings.library)
            .map_err(|error| TierError::NoLibrary { library: library(), source: error.into() })?;
        let api = Arc::new(api);
        let failure =
            |call| move |source| TierError::Usrbio { call, path: path.to_owned(), source };
        let mount_point =
            api.mount_point(directory).map_err(failure("hf3fs_extract_mount_point"))?;
        let Some(mount_point) = mount_point else {
            return Err(TierError::No3fs { path: directory.to_owned() });
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|source| TierError::from_io("open", path, source))?;
        let file = Registered::new(&api, file).map_err(failure("hf3fs_reg_fd"))?;
        let lane = |for_read| {
            let (blocks, block_len) = (settings.blocks.get(), settings.block_len.as_u64() as usize);
            let ring = Ring::new(&api, &mount_point, for_read, blocks, block_len);
            let ring = ring.map_err(|(call, error)| failure(call)(error))?;
            Ok(Mutex::new(Lane::new(ring)))
        };
        let reads = (0..settings.read_rings.get()).map(|_| lane(true)).collect::<Result<_, _>>()?;
        let writes = lane(false)?;
        Ok(Self { reads, next: AtomicUsize::new(0), writes, timeout: settings.timeout, file })
    }

    /// Returns the ranges of the buffer that were not read because there was nothing.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<Vec<core::ops::Range<usize>>> {
        let free = self.reads.iter().find_map(Mutex::try_lock);
        let mut lane = free.unwrap_or_else(|| {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            self.reads[next % self.reads.len()].lock()
        });
        lane.transfer(&self.file, offset, Target::Read(buffer), self.timeout)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut lane = self.writes.lock();
        lane.transfer(&self.file, offset, Target::Write(bytes), self.timeout).map(drop)
    }
}
