//! Why a tier could not do what it was to do.

use core::error::Error;
use core::fmt;
use core::ops::Range;
use std::io;
use std::path::{Path, PathBuf};

use mc_types::{ByteSize, Checksum, LocalDiskId};

use crate::object::{InvalidObject, ObjectId};

/// Why a tier could not do what it was to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum TierError {
    /// The medium has no space left, or its user's quota is used up.
    #[error("cannot {action} {}: no space left; evict objects, or add space", path.display())]
    Full {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The file system is mounted read-only.
    #[error(
        "cannot {action} {}: the file system is read-only; mount it writable, and check its disk: \
         systems remount a failing one read-only",
        path.display()
    )]
    ReadOnly {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The process may not do that.
    #[error(
        "cannot {action} {}: permission denied; give this process's user read and write access",
        path.display()
    )]
    Denied {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The process may not do that in a folder that another user owns.
    #[error(
        "cannot {action} {}: permission denied: {} belongs to user {owner} and group {group} and has the mode \
         {mode:04o}, and this process is of user {user}; let its user write there, run all clients as one \
         user, or set dfs_mode (such as 2770) for the clients that make folders",
        path.display(), folder.display()
    )]
    DeniedIn {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: Box<Path>,
        /// The folder that it is in.
        folder: Box<Path>,
        /// The user that the folder belongs to.
        owner: u32,
        group: u32,
        mode: u32,
        /// The user of this process.
        user: u32,
        source: io::Error,
    },
    /// The tier's directory is not there any more.
    #[error(
        "cannot {action}: the directory {} is gone; mount its file system again, or open the tier \
         anew to make the directory",
        directory.display()
    )]
    Vanished {
        /// The operation that failed.
        action: &'static str,
        directory: PathBuf,
        source: io::Error,
    },
    /// The root of a directory tier is no directory.
    #[error(
        "{} is no directory; mount the shared file system there on every host, or give another root",
        path.display()
    )]
    NoRoot { path: PathBuf, source: io::Error },
    /// The root of a directory tier is not that of the cluster's file system.
    #[error(
        "{} is not the file system of the cluster ({known}): {}; mount it there; if it is the \
         right one, restart the master, which then learns from {} anew",
        root.display(), WhichMarker(**found), marker.display()
    )]
    NotMounted {
        root: PathBuf,
        /// The file that tells which file system it is.
        marker: PathBuf,
        /// The id of the cluster's file system.
        known: Box<LocalDiskId>,
        /// The id that the root's marker has; `None` where there is no marker.
        found: Box<Option<LocalDiskId>>,
    },
    /// The cluster's id cannot name a directory.
    #[error(
        "the cluster id {id:?} cannot name a directory; use 1 to 255 bytes without / and NUL, and \
         not . or .."
    )]
    InvalidClusterId { id: String },
    /// A file or directory cannot be used for another reason, such as a broken disk.
    #[error("cannot {action} {}: {source}; check the disk and the system's log", path.display())]
    File {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// A stored object is not what was put.
    #[error("{} is damaged: {source}; remove the object, and put it again", path.display())]
    Damaged {
        /// Where it is.
        path: PathBuf,
        source: Damage,
    },
    /// An object was written by a newer version.
    #[error(
        "{} has format {found}, and this version reads format {known}; use the version that wrote it",
        path.display()
    )]
    Newer {
        /// Where it is.
        path: PathBuf,
        found: u32,
        /// The format that can be read.
        known: u32,
    },
    /// The medium is shorter than it was when it was opened.
    #[error(
        "{} ends before the place of an object: it was cut while it was in use; restore it, or open \
         it anew to use what is left",
        path.display()
    )]
    Truncated { path: PathBuf, source: io::Error },
    /// Another process uses the directory.
    #[error(
        "{} is in use by another process; give each node a directory of its own",
        path.display()
    )]
    InUse { path: PathBuf },
    /// The medium holds something else than a log.
    #[error("{} holds no log of objects; give another place, or remove it", path.display())]
    Foreign { path: PathBuf },
    /// The medium is too short for a log.
    #[error(
        "{} has {len}, and a log needs {least}; give it more, or use shorter segments",
        path.display()
    )]
    TooShort { path: PathBuf, len: ByteSize, least: ByteSize },
    /// The object does not fit into a segment.
    #[error("the object takes {len}, and a segment has {limit}; use longer segments")]
    ObjectTooLong {
        /// The bytes that the object takes.
        len: ByteSize,
        /// The bytes that a segment has.
        limit: ByteSize,
    },
    /// The URL of an object store is invalid, or this build has no such store.
    #[error(
        "{url:?} is no place for objects: {reason}; use s3://BUCKET/PREFIX, file:///DIRECTORY or \
         memory:///"
    )]
    InvalidUrl {
        /// The URL, without a user and a password.
        url: String,
        reason: &'static str,
    },
    /// The parts of a multipart upload cannot have this length.
    #[error("parts of {len} cannot be sent; use {least} to {most}")]
    InvalidPartLen { len: ByteSize, least: ByteSize, most: ByteSize },
    /// The bucket does not exist.
    #[error("cannot {action} {}: the bucket does not exist; make it, or give another", path.display())]
    NoBucket {
        /// The operation that failed.
        action: &'static str,
        /// The URL of the object or place.
        path: PathBuf,
        source: Box<dyn Error + Send + Sync>,
    },
    /// The object store cannot be reached, does not answer in time, or has a failure of its own.
    #[error(
        "cannot {action} {}: the object store is unavailable: {source}; try again, and check that it \
         runs and that this host reaches it",
        path.display()
    )]
    Unavailable {
        /// The operation that failed.
        action: &'static str,
        /// The URL of the object or place.
        path: PathBuf,
        source: Box<dyn Error + Send + Sync>,
    },
    /// The object store rejected the request, or its answer makes no sense.
    #[error(
        "cannot {action} {}: the object store does not do it: {source}; check its settings and \
         those of its clients",
        path.display()
    )]
    Rejected {
        /// The operation that failed.
        action: &'static str,
        /// The URL of the object or place.
        path: PathBuf,
        source: Box<dyn Error + Send + Sync>,
    },
    /// The library of USRBIO cannot be loaded, or lacks a function.
    #[error(
        "cannot load {}: {source}; install the client of 3FS, or name the file of its library",
        library.display()
    )]
    NoLibrary { library: PathBuf, source: Box<dyn Error + Send + Sync> },
    /// The directory is on no mounted 3FS.
    #[error("{} is on no 3FS that is mounted here; mount it, or give another directory", path.display())]
    No3fs { path: PathBuf },
    /// A function of USRBIO fails.
    #[error(
        "{call} fails for {}: {source}; check that the client of 3FS runs, and that this user may use \
         3fs-virt in its mount point and /dev/shm",
        path.display()
    )]
    Usrbio { call: &'static str, path: PathBuf, source: io::Error },
    /// The shared memory of USRBIO cannot have this size.
    #[error(
        "a buffer of {blocks} times {block_len} is not possible; use up to 1024 blocks and 16 GiB"
    )]
    InvalidBuffer {
        blocks: usize,
        /// Bytes of a block.
        block_len: ByteSize,
    },
    /// The key that an object was sealed with is not among those of its tenant.
    #[error(
        "an object of tenant {tenant:?} is sealed with the key {key}, which is not among the keys of this \
         tenant here; give this process the key, or remove the object"
    )]
    NoKey {
        tenant: Box<str>,
        /// The key's name, in hexadecimal digits.
        key: String,
    },
    /// The range is empty or exceeds the object.
    #[error("bytes {} to {} are no range of an object of {len} bytes", range.start, range.end)]
    Range { range: Range<u64>, len: u64 },
}

impl TierError {
    /// Makes an error of an action on a file from the system's error.
    pub(crate) fn from_io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { action, path, source }
            }
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { action, path, source },
            io::ErrorKind::PermissionDenied => Self::Denied { action, path, source },
            _ => Self::File { action, path, source },
        }
    }

    /// Returns whether the same may succeed later, without a change by the caller: after an
    /// eviction, when the file system is mounted again, when a disk or an object store has
    /// recovered.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Full { .. }
                | Self::Vanished { .. }
                | Self::NotMounted { .. }
                | Self::File { .. }
                | Self::Unavailable { .. }
        )
    }
}

/// Words for the marker that was found.
struct WhichMarker(Option<LocalDiskId>);

impl fmt::Display for WhichMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "its marker names {id}"),
            None => write!(f, "it has no marker"),
        }
    }
}

/// The damage of a stored object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Damage {
    /// The bytes are not an object of a tier.
    #[error("it does not begin as an object does")]
    Magic,
    /// The end is missing, or there are bytes behind it.
    #[error("it has {found} bytes where {expected} were written")]
    Length {
        /// Bytes that were written.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The header's bytes do not have the header's checksum.
    #[error("the header has the checksum {found} where {expected} was written")]
    HeaderChecksum {
        /// The checksum that was written.
        expected: Checksum,
        /// The checksum of the bytes.
        found: Checksum,
    },
    /// A name in the header is not UTF-8, or the key is empty or too long.
    #[error("the header has an invalid {field}")]
    Name { field: &'static str },
    /// The header describes an object that cannot be.
    #[error("the header is invalid: {0}")]
    Object(#[source] InvalidObject),
    /// The index of a pack does not say where its objects are.
    #[error("its index is not one of a pack of these objects")]
    Index,
    /// A sealed object is not as it was sealed with its key.
    #[error("it is not as it was sealed: its bytes do not have their tags")]
    Seal,
    /// The place holds another object.
    #[error("it is object {found}")]
    OtherObject {
        /// The object that is there.
        found: ObjectId,
    },
    /// A slice's bytes do not have the slice's checksum.
    #[error("slice {index} has the checksum {found} where {expected} was written")]
    Slice {
        /// The slice's place, from 0.
        index: usize,
        /// The checksum that was written.
        expected: Checksum,
        /// The checksum of the bytes.
        found: Checksum,
    },
}
