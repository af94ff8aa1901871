//! Why a client has no disk of its own.

use std::io;
use std::path::PathBuf;

use mc_tier::TierError;
use mc_transport::{MemoryError, RegisterError};

/// Why a client's local disk cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum LocalDiskOpenError {
    /// The log of objects cannot be opened.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// A file beside it cannot be read or written.
    #[error("cannot {action} {}; check the directory of the local disk", path.display())]
    File {
        /// The operation that failed.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The file that names the disk has something else in it.
    #[error("{} does not name a disk; remove it, and the disk gets another name", path.display())]
    BadIdentity { path: PathBuf },
    /// Peers could not read the disk.
    #[error(
        "a client with a local disk must be reachable by peers; give it an address to listen on"
    )]
    NotReachable,
    /// No transport of the client can serve a disk.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// There is no memory to stage reads in.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// There is no randomness for the disk's name and keys.
    #[error("no randomness for the name of the local disk")]
    NoRandomness(#[source] io::Error),
    /// The program ends.
    #[error("the program ends")]
    Ending,
}
