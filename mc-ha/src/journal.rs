//! Storage for batches of records and for snapshots.

use core::fmt;
use core::ops::ControlFlow;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use mc_types::Epoch;

use crate::encoding::{Batch, BatchError};
use crate::identity::Identity;
use crate::position::Position;

/// Keeps the changes of a master's state, in order, and snapshots of the whole state.
///
/// One process uses a journal at a time. Its methods block; they may be called from any thread that
/// may block. The suite in `mc_ha::conformance` (feature `conformance`) tests implementations.
///
/// The batches of one term follow each other without gaps, terms follow each other in the order of
/// their epochs, and a journal takes batches from masters of its [current term](Self::begin_epoch)
/// alone: what a master appends that another one has replaced is refused.
pub trait MetadataJournal: Send + Sync + fmt::Debug {
    /// The current term; 0 before the first.
    fn epoch(&self) -> Epoch;

    /// Begins a term. When this returns, no batch of a master of an earlier term will be taken, also
    /// after a restart.
    ///
    /// # Errors
    /// [`JournalError::Fenced`] when the current term is not older.
    fn begin_epoch(&self, epoch: Epoch) -> Result<(), JournalError>;

    /// Appends a batch for a master of this term: the leader, whose own batch it is, or a standby
    /// that follows it, whose leader also sends batches of former terms. The batch is durable after
    /// the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`JournalError::Fenced`] when the term is not the current one, [`JournalError::Gap`] for a
    /// batch that does not follow the last one, and what the medium says. A batch that was refused
    /// may be appended again.
    fn append(&self, term: Epoch, batch: &Batch) -> Result<(), JournalError>;

    /// Makes everything durable that was appended before.
    ///
    /// # Errors
    /// What the medium says; it is not known then what is durable.
    fn sync(&self) -> Result<(), JournalError>;

    /// The last position appended, or of the last snapshot if that is later. `None` in a new
    /// journal.
    fn last(&self) -> Option<Position>;

    /// Reads the batches that have effects after this position, in order. Damage is reported
    /// to `visit` like a batch, and reading continues behind it.
    ///
    /// # Errors
    /// What the medium says when nothing more can be read at all.
    fn read(
        &self,
        after: Position,
        visit: &mut dyn FnMut(Result<Batch, DamagedBatch>) -> ControlFlow<()>,
    ) -> Result<(), JournalError>;

    /// Begins a snapshot that holds everything up to this position. Nothing is kept of one that is
    /// dropped before it is [finished](SnapshotWriter::finish).
    ///
    /// # Errors
    /// What the medium says.
    fn begin_snapshot(&self, at: Position) -> Result<Box<dyn SnapshotWriter + '_>, JournalError>;

    /// The snapshots, the newest first.
    ///
    /// # Errors
    /// What the medium says.
    fn snapshots(&self) -> Result<Vec<SnapshotInfo>, JournalError>;

    /// Opens a snapshot: its bytes from the first on. May be opened several times.
    ///
    /// # Errors
    /// [`JournalError::NoSnapshot`] and what the medium says.
    fn open_snapshot(&self, at: Position) -> Result<Box<dyn Read + Send>, JournalError>;

    /// Forgets all snapshots before this position. The batches up to it need not be kept any longer:
    /// a start that begins with a snapshot of this position does not read them.
    ///
    /// # Errors
    /// What the medium says; part of it may be forgotten.
    fn forget(&self, until: Position) -> Result<(), JournalError>;

    /// Forgets everything but the snapshot of this position, and continues from there: a standby begins
    /// with its leader's snapshot, and has batches that its leader does not have.
    ///
    /// # Errors
    /// [`JournalError::NoSnapshot`] when there is no such snapshot, and what the medium says; part of
    /// it may be forgotten.
    fn begin_at(&self, snapshot: Position) -> Result<(), JournalError>;

    /// Moves everything that it holds to a place of its own, where it stays until an operator removes
    /// it, and becomes a new journal: without batches, snapshots, term and identity. For a journal
    /// whose history is not the one that is to be followed. Returns where it lies; `None` when the
    /// journal held nothing, and for a medium that ends with the process.
    ///
    /// A crash may leave a part of it where it was, which is the beginning of the former history.
    ///
    /// # Errors
    /// What the medium says; a part may be moved, and the next call moves the rest.
    fn set_aside(&self) -> Result<Option<PathBuf>, JournalError>;

    /// Returns whether the effects up to this position, and no others, are in the batches and
    /// snapshots that end there, so that [`read`](Self::read) gives what follows.
    ///
    /// # Errors
    /// What the medium says.
    fn contains(&self, position: Position) -> Result<bool, JournalError>;

    /// Returns the checksum of the batch that ends at this position; `None` when there is none, or it
    /// is kept in a snapshot only. Two journals in which it differs have different histories.
    ///
    /// # Errors
    /// What the medium says.
    fn checksum_at(&self, position: Position) -> Result<Option<u32>, JournalError>;

    /// The master's secrets that outlive it; `None` in a new journal.
    ///
    /// # Errors
    /// What the medium says.
    fn identity(&self) -> Result<Option<Identity>, JournalError>;

    /// Keeps these secrets, durably, in place of those that were there.
    ///
    /// # Errors
    /// What the medium says.
    fn set_identity(&self, identity: &Identity) -> Result<(), JournalError>;

    /// Bytes that the batches take, and the snapshots.
    fn usage(&self) -> JournalUsage;
}

/// Writes a snapshot.
pub trait SnapshotWriter: Send {
    /// Writes a batch of it.
    ///
    /// # Errors
    /// What the medium says; the snapshot is worthless then.
    fn write(&mut self, batch: &Batch) -> Result<(), JournalError>;

    /// Makes the snapshot durable, and one of the journal's.
    ///
    /// # Errors
    /// What the medium says; there is no such snapshot then.
    fn finish(self: Box<Self>) -> Result<SnapshotInfo, JournalError>;
}

/// A description of a snapshot, which is known without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The snapshot holds every change up to this position. What happened while it was made may be
    /// in it, or not.
    pub at: Position,
    /// Its size in bytes, as it is stored.
    pub bytes: u64,
    /// When it was finished.
    pub finished: SystemTime,
}

/// The bytes that a journal takes of its medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalUsage {
    /// Bytes of batches, with what the medium needs beside them.
    pub journal_bytes: u64,
    /// Bytes of snapshots.
    pub snapshot_bytes: u64,
}

/// A batch that cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("batch {at}: {source}")]
pub struct DamagedBatch {
    /// Where it stood, as the medium says.
    pub at: Position,
    /// The fault of the batch.
    pub source: BatchError,
}

/// Why a journal could not do what it was to do.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum JournalError {
    /// The journal belongs to a younger term.
    #[error("the journal is in term {current}; a master of term {offered} may not write to it")]
    Fenced {
        current: Epoch,
        /// The term of what was refused.
        offered: Epoch,
    },
    /// A batch does not follow the last one.
    #[error("a batch that begins after {after} was appended, but the journal ends at {last}")]
    Gap {
        /// The position that the batch follows.
        after: Position,
        /// Where the journal ends.
        last: Position,
    },
    /// Another process uses the directory.
    #[error(
        "{} is in use by another process; give each master a metadata directory of its own",
        path.display()
    )]
    InUse { path: PathBuf },
    /// The directory was written by a newer version.
    #[error(
        "{} has format {found} and this version reads formats up to {known}; start the version that \
         wrote it, or give another directory",
        path.display()
    )]
    Newer {
        path: PathBuf,
        found: u32,
        /// The newest format that can be read.
        known: u32,
    },
    /// The directory holds something else.
    #[error(
        "{} is not empty and has no file FORMAT, so it is no metadata directory; give another one",
        path.display()
    )]
    Foreign { path: PathBuf },
    /// A file is not what it should be.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        path: PathBuf,
        /// The fault of the file.
        reason: String,
    },
    /// There is no such snapshot.
    #[error("there is no snapshot of {at}")]
    NoSnapshot { at: Position },
    /// A file cannot be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// The operation that failed.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        source: Arc<io::Error>,
    },
    /// The embedded database failed.
    #[cfg(feature = "sled")]
    #[error("the journal in {} failed: {source}", path.display())]
    Database { path: PathBuf, source: sled::Error },
}

impl JournalError {
    /// Returns whether the same may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::File { .. } => true,
            #[cfg(feature = "sled")]
            Self::Database { .. } => true,
            _ => false,
        }
    }
}
