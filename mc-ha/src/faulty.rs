//! A journal that fails when a test wants it to.

use core::ops::ControlFlow;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use mc_types::Epoch;
use parking_lot::Mutex;

use crate::encoding::Batch;
use crate::journal::{
    DamagedBatch, Identity, JournalError, JournalUsage, MetadataJournal, SnapshotInfo,
    SnapshotWriter,
};
use crate::position::Position;

/// Wraps a journal that fails on demand, as a full or broken disk does.
#[derive(Debug)]
pub struct FaultyJournal<J> {
    inner: J,
    faults: Mutex<Faults>,
}

/// What a [`FaultyJournal`] does wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// Further batches that are taken before the medium is full; `None` for no limit.
    pub room: Option<u64>,
    /// Whether `sync` fails.
    pub sync_fails: bool,
    /// Whether snapshots cannot be written.
    pub snapshots_fail: bool,
}

impl<J: MetadataJournal> FaultyJournal<J> {
    /// A journal without faults yet.
    #[must_use]
    pub fn new(inner: J) -> Self {
        Self { inner, faults: Mutex::default() }
    }

    /// Has these faults from now on.
    pub fn set(&self, faults: Faults) {
        *self.faults.lock() = faults;
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
            let mut faults = self.faults.lock();
            match &mut faults.room {
                Some(0) => return Err(fault("write", io::ErrorKind::StorageFull)),
                Some(room) => *room -= 1,
                None => {}
            }
        }
        self.inner.append(term, batch)
    }

    fn sync(&self) -> Result<(), JournalError> {
        if self.faults.lock().sync_fails {
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
        if self.faults.lock().snapshots_fail {
            return Err(fault("write", io::ErrorKind::StorageFull));
        }
        self.inner.begin_snapshot(at)
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>, JournalError> {
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
        self.inner.usage()
    }
}
