//! A journal that fails when a test wants it to.

use core::ops::ControlFlow;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use mc_types::Epoch;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::encoding::Batch;
use crate::identity::Identity;
use crate::journal::{
    DamagedBatch, JournalError, JournalUsage, MetadataJournal, SnapshotInfo, SnapshotWriter,
};
use crate::position::Position;

/// Wraps a journal that fails on demand, as a full or broken disk does.
#[derive(Debug)]
pub struct FaultyJournal<J> {
    inner: J,
    faults: Mutex<Faults>,
    /// Notified when the faults change.
    changed: Condvar,
}

/// The faults of a [`FaultyJournal`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// Further batches that are taken before the medium is full; `None` for no limit.
    pub room: Option<u64>,
    /// Whether `sync` fails.
    pub sync_fails: bool,
    /// Whether snapshots cannot be written.
    pub snapshots_fail: bool,
    /// Whether nothing that touches the medium returns until this is taken away, as on a disk that
    /// hangs: batches, syncs, snapshots, and looks at what is there.
    pub hangs: bool,
}

impl<J: MetadataJournal> FaultyJournal<J> {
    /// A journal without faults yet.
    #[must_use]
    pub fn new(inner: J) -> Self {
        Self { inner, faults: Mutex::default(), changed: Condvar::new() }
    }

    /// Has these faults from now on.
    pub fn set(&self, faults: Faults) {
        *self.faults.lock() = faults;
        self.changed.notify_all();
    }

    /// The faults, when it does not hang.
    fn faults(&self) -> MutexGuard<'_, Faults> {
        let mut faults = self.faults.lock();
        self.changed.wait_while(&mut faults, |faults| faults.hangs);
        faults
    }
}

fn fault(what: &'static str, kind: io::ErrorKind) -> JournalError {
    let path = PathBuf::from("faulty");
    JournalError::File { what, path, source: Arc::new(kind.into()) }
}

impl<J: MetadataJournal> MetadataJournal for FaultyJournal<J> {
    fn epoch(&self) -> Epoch {
        self.inner.epoch()
    }

    fn begin_epoch(&self, epoch: Epoch) -> Result<(), JournalError> {
        self.inner.begin_epoch(epoch)
    }

    fn append(&self, term: Epoch, batch: &Batch) -> Result<(), JournalError> {
        {
            let mut faults = self.faults();
            match &mut faults.room {
                Some(0) => return Err(fault("write", io::ErrorKind::StorageFull)),
                Some(room) => *room -= 1,
                None => {}
            }
        }
        self.inner.append(term, batch)
    }

    fn sync(&self) -> Result<(), JournalError> {
        if self.faults().sync_fails {
            return Err(fault("write", io::ErrorKind::Other));
        }
        self.inner.sync()
    }

    fn last(&self) -> Option<Position> {
        self.inner.last()
    }

    fn read(
        &self,
        after: Position,
        visit: &mut dyn FnMut(Result<Batch, DamagedBatch>) -> ControlFlow<()>,
    ) -> Result<(), JournalError> {
        self.inner.read(after, visit)
    }

    fn begin_snapshot(&self, at: Position) -> Result<Box<dyn SnapshotWriter + '_>, JournalError> {
        if self.faults().snapshots_fail {
            return Err(fault("write", io::ErrorKind::StorageFull));
        }
        self.inner.begin_snapshot(at)
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>, JournalError> {
        drop(self.faults());
        self.inner.snapshots()
    }

    fn open_snapshot(&self, at: Position) -> Result<Box<dyn Read + Send>, JournalError> {
        self.inner.open_snapshot(at)
    }

    fn forget(&self, until: Position) -> Result<(), JournalError> {
        self.inner.forget(until)
    }

    fn begin_at(&self, snapshot: Position) -> Result<(), JournalError> {
        self.inner.begin_at(snapshot)
    }

    fn set_aside(&self) -> Result<Option<PathBuf>, JournalError> {
        self.inner.set_aside()
    }

    fn checksum_at(&self, position: Position) -> Result<Option<u32>, JournalError> {
        self.inner.checksum_at(position)
    }

    fn contains(&self, position: Position) -> Result<bool, JournalError> {
        self.inner.contains(position)
    }

    fn identity(&self) -> Result<Option<Identity>, JournalError> {
        self.inner.identity()
    }

    fn set_identity(&self, identity: &Identity) -> Result<(), JournalError> {
        self.inner.set_identity(identity)
    }

    fn usage(&self) -> JournalUsage {
        drop(self.faults());
        self.inner.usage()
    }
}
