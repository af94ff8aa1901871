//! How a client's local disk is described, and what of it outlasts the client.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_tier::Tier;
use mc_types::{ByteSize, LocalDiskId};

use crate::error::LocalDiskOpenError;

/// The file that names the disk.
const IDENTITY: &str = "disk_id";

/// The unit of the log's segments.
const BLOCK: u64 = 4096;

/// The part of the file system's free space that a new log takes, in percent.
const USABLE_PERCENT: u64 = 90;

/// Describes a client's local disk; see [`ClientBuilder::local_disk`](crate::ClientBuilder::local_disk).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalDiskOptions {
    /// The directory; the objects are in `PATH/CLUSTER_ID/`, and those of further clients with the same
    /// path in `PATH/CLUSTER_ID/rank-1/` and so on. A client takes the first one that is free. Made if it
    /// is missing.
    pub path: PathBuf,
    /// The bytes that objects may take, at least 17 MiB. A disk that was made with more is cut to that, or
    /// to four times its largest object, and loses what was behind. The default is nine tenths of the file
    /// system's free space when the disk is first used; a disk that is there keeps its size then. No object
    /// may have more than a sixteenth of it (of the default, a 128th, which is at least 4 MiB), or 256 MiB.
    pub size: Option<ByteSize>,
}

impl LocalDiskOptions {
    /// A disk in this directory.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), size: None }
    }

    /// Sets the bytes that objects may take.
    #[must_use]
    pub fn size(self, size: ByteSize) -> Self {
        Self { size: Some(size), ..self }
    }
}

/// A tier of the application's own in place of the log in a directory; see
/// [`ClientBuilder::own_tier`](crate::ClientBuilder::own_tier).
#[derive(Clone)]
#[non_exhaustive]
pub struct OwnTier {
    /// The objects. No other process changes them.
    pub tier: Arc<dyn Tier>,
    /// The bytes that objects may take.
    pub capacity: ByteSize,
    /// The name of the medium: the same whenever it is opened, and no other medium's.
    pub id: LocalDiskId,
}

impl OwnTier {
    /// This tier, of the medium with this name.
    #[must_use]
    pub fn new(tier: Arc<dyn Tier>, capacity: ByteSize, id: LocalDiskId) -> Self {
        Self { tier, capacity, id }
    }
}

impl fmt::Debug for OwnTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnTier").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Where a client keeps objects that memory has no room for.
#[derive(Clone, Debug)]
pub(in crate::client) enum OwnPlace {
    Directory(LocalDiskOptions),
    Tier(OwnTier),
}

/// The length of the log's segments. Long ones take long objects; many waste little. Of a size that nobody
/// has `said`, several logs of one file system may have to share the space.
pub(super) fn segment_len(size: ByteSize, said: bool) -> ByteSize {
    let [shortest, longest] = [4, 256].map(|mib: u64| mib << 20);
    let part = (size.as_u64() / if said { 16 } else { 128 }).clamp(shortest, longest);
    ByteSize::bytes(part / BLOCK * BLOCK)
}

/// Nine tenths of the free space of a directory's file system.
pub(super) fn default_size(directory: &Path) -> Result<ByteSize, LocalDiskOpenError> {
    let failed = |action| {
        move |source| LocalDiskOpenError::File { action, path: directory.to_owned(), source }
    };
    fs::create_dir_all(directory).map_err(failed("make the directory"))?;
    let space = rustix::fs::statvfs(directory)
        .map_err(io::Error::from)
        .map_err(failed("see the free space of"))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    Ok(ByteSize::bytes(free / 100 * USABLE_PERCENT))
}

/// The disk's id; the new one when it has none.
pub(super) fn identity(
    directory: &Path,
    fresh: LocalDiskId,
) -> Result<LocalDiskId, LocalDiskOpenError> {
    let path = directory.join(IDENTITY);
    let failed = |action| {
        move |source| LocalDiskOpenError::File { action, path: directory.join(IDENTITY), source }
    };
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| LocalDiskOpenError::BadIdentity { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let unfinished = directory.join("disk_id.new");
            let write = || {
                let mut file = fs::File::create(&unfinished)?;
                writeln!(file, "{fresh}")?;
                file.sync_all()?;
                fs::rename(&unfinished, &path)?;
                fs::File::open(directory)?.sync_all()
            };
            write().map_err(failed("write"))?;
            Ok(fresh)
        }
        Err(error) => Err(failed("read")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_keeps_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let [one, two] = [1, 2].map(LocalDiskId::from_u128);
        assert_eq!(identity(directory.path(), one).unwrap(), one);
        assert_eq!(identity(directory.path(), two).unwrap(), one);
        fs::write(directory.path().join(IDENTITY), "something else").unwrap();
        let error = identity(directory.path(), two).unwrap_err();
        assert!(matches!(error, LocalDiskOpenError::BadIdentity { .. }), "{error}");
        assert!(default_size(&directory.path().join("new")).unwrap() > ByteSize::bytes(0));
    }
}
