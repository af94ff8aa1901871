//! A journal in memory.

use core::ops::{Bound, ControlFlow};
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use mc_types::Epoch;
use parking_lot::Mutex;

use crate::encoding::Batch;
use crate::identity::Identity;
use crate::journal::{
    DamagedBatch, JournalError, JournalUsage, MetadataJournal, SnapshotInfo, SnapshotWriter,
};
use crate::order::check_follows;
use crate::position::Position;

/// A journal in this process's memory: for tests, and for masters that keep nothing but feed
/// standbys. Clones are the same journal, so that one may stay when a master is dropped.
#[derive(Clone, Debug)]
pub struct MemoryJournal(Arc<Mutex<State>>);

#[derive(Clone, Debug)]
struct State {
    epoch: Epoch,
    identity: Option<Identity>,
    batches: BTreeMap<Position, Batch>,
    snapshots: BTreeMap<Position, (SnapshotInfo, Bytes)>,
}

impl State {
    const NEW: Self = Self {
        epoch: Epoch::new(0),
        identity: None,
        batches: BTreeMap::new(),
        snapshots: BTreeMap::new(),
    };

    fn last(&self) -> Option<Position> {
        let batch = self.batches.last_key_value().map(|(at, _)| *at);
        let snapshot = self.snapshots.last_key_value().map(|(at, _)| *at);
        batch.max(snapshot)
    }
}

impl MemoryJournal {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State::NEW)))
    }
}

impl MemoryJournal {
    /// Returns a journal of its own that holds the same.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().clone())))
    }
}

impl Default for MemoryJournal {
    fn default() -> Self {
        Self::new()
    }
}

impl MetadataJournal for MemoryJournal {
    fn epoch(&self) -> Epoch {
        self.0.lock().epoch
    }

    fn begin_epoch(&self, epoch: Epoch) -> Result<(), JournalError> {
        let mut state = self.0.lock();
        if epoch <= state.epoch {
            return Err(JournalError::Fenced { current: state.epoch, offered: epoch });
        }
        state.epoch = epoch;
        Ok(())
    }

    fn append(&self, term: Epoch, batch: &Batch) -> Result<(), JournalError> {
        let mut state = self.0.lock();
        check_follows(term, batch, state.epoch, state.last())?;
        state.batches.insert(batch.last(), batch.clone());
        Ok(())
    }

    fn sync(&self) -> Result<(), JournalError> {
        Ok(())
    }

    fn last(&self) -> Option<Position> {
        self.0.lock().last()
    }

    fn read(
        &self,
        after: Position,
        visit: &mut dyn FnMut(Result<Batch, DamagedBatch>) -> ControlFlow<()>,
    ) -> Result<(), JournalError> {
        let mut after = after;
        loop {
            let state = self.0.lock();
            let next = state.batches.range((Bound::Excluded(after), Bound::Unbounded)).next();
            let Some((at, batch)) = next.map(|(at, batch)| (*at, batch.clone())) else {
                return Ok(());
            };
            drop(state);
            if visit(Ok(batch)).is_break() {
                return Ok(());
            }
            after = at;
        }
    }

    fn begin_snapshot(&self, at: Position) -> Result<Box<dyn SnapshotWriter + '_>, JournalError> {
        Ok(Box::new(Writer { journal: self, at, bytes: Vec::new() }))
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>, JournalError> {
        Ok(self.0.lock().snapshots.values().rev().map(|(info, _)| *info).collect())
    }

    fn open_snapshot(&self, at: Position) -> Result<Box<dyn Read + Send>, JournalError> {
        let state = self.0.lock();
        let (_, bytes) = state.snapshots.get(&at).ok_or(JournalError::NoSnapshot { at })?;
        Ok(Box::new(Cursor::new(bytes.clone())))
    }

    fn forget(&self, until: Position) -> Result<(), JournalError> {
        let mut state = self.0.lock();
        state.batches.retain(|at, _| *at > until);
        state.snapshots.retain(|at, _| *at >= until);
        Ok(())
    }

    fn begin_at(&self, snapshot: Position) -> Result<(), JournalError> {
        let mut state = self.0.lock();
        if !state.snapshots.contains_key(&snapshot) {
            return Err(JournalError::NoSnapshot { at: snapshot });
        }
        state.batches.clear();
        state.snapshots.retain(|at, _| *at == snapshot);
        Ok(())
    }

    fn set_aside(&self) -> Result<Option<PathBuf>, JournalError> {
        *self.0.lock() = State::NEW;
        Ok(None)
    }

    fn checksum_at(&self, position: Position) -> Result<Option<u32>, JournalError> {
        Ok(self.0.lock().batches.get(&position).map(Batch::checksum))
    }

    fn contains(&self, position: Position) -> Result<bool, JournalError> {
        let state = self.0.lock();
        let is_snapshot = state.snapshots.contains_key(&position);
        Ok(is_snapshot || state.batches.contains_key(&position))
    }

    fn identity(&self) -> Result<Option<Identity>, JournalError> {
        Ok(self.0.lock().identity)
    }

    fn set_identity(&self, identity: &Identity) -> Result<(), JournalError> {
        self.0.lock().identity = Some(*identity);
        Ok(())
    }

    fn usage(&self) -> JournalUsage {
        let state = self.0.lock();
        JournalUsage {
            journal_bytes: state.batches.values().map(|batch| batch.bytes().len() as u64).sum(),
            snapshot_bytes: state.snapshots.values().map(|(info, _)| info.bytes).sum(),
        }
    }
}

struct Writer<'a> {
    journal: &'a MemoryJournal,
    at: Position,
    bytes: Vec<u8>,
}

impl SnapshotWriter for Writer<'_> {
    fn write(&mut self, batch: &Batch) -> Result<(), JournalError> {
        self.bytes.extend_from_slice(batch.bytes());
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<SnapshotInfo, JournalError> {
        let bytes = Bytes::from(self.bytes);
        let (at, finished) = (self.at, SystemTime::now());
        let info = SnapshotInfo { at, bytes: bytes.len() as u64, finished };
        self.journal.0.lock().snapshots.insert(at, (info, bytes));
        Ok(info)
    }
}
