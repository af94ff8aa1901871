//! A journal on a disk that forgets what was not synced when its host goes down.

use std::fmt;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mc_ha::{
    Batch, DamagedBatch, Identity, JournalError, JournalUsage, MemoryJournal, MetadataJournal,
    Position, SnapshotInfo, SnapshotWriter, check_follows,
};
use mc_types::Epoch;

use super::random::Random;

/// The journal of one host. Clones are the same journal.
///
/// Batches are durable when [`sync`](MetadataJournal::sync) has returned. A [crash](Self::crash) leaves
/// some of the others, the first ones.
#[derive(Clone)]
pub struct SimulatedJournal {
    durable: MemoryJournal,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Appended, and not synced.
    waiting: Vec<(Epoch, Batch)>,
    is_full: bool,
}

impl fmt::Debug for SimulatedJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedJournal").finish_non_exhaustive()
    }
}

impl Default for SimulatedJournal {
    fn default() -> Self {
        Self::new()
    }
}

impl SimulatedJournal {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { durable: MemoryJournal::new(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A journal of its own that holds what this one has made durable.
    ///
    /// # Panics
    /// When a snapshot cannot be copied.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self { durable: self.durable.copy(), state: Arc::default() }
    }

    /// Loses what was not synced, or the end of it.
    pub fn crash(&self, random: &Random) {
        let waiting = std::mem::take(&mut self.state().waiting);
        let kept = random.below(waiting.len() as u64 + 1) as usize;
        for (term, batch) in waiting.into_iter().take(kept) {
            if self.durable.append(term, &batch).is_err() {
                return;
            }
        }
    }

    /// Lets writing fail from now on, as a full disk does, or succeed again.
    pub fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    fn check_room(&self) -> Result<(), JournalError> {
        if !self.state().is_full {
            return Ok(());
        }
        let source = Arc::new(io::ErrorKind::StorageFull.into());
        Err(JournalError::File { what: "write", path: PathBuf::from("simulated"), source })
    }
}

impl MetadataJournal for SimulatedJournal {
    fn epoch(&self) -> Epoch {
        self.durable.epoch()
    }

    fn begin_epoch(&self, epoch: Epoch) -> Result<(), JournalError> {
        self.sync()?;
        self.durable.begin_epoch(epoch)
    }

    fn append(&self, term: Epoch, batch: &Batch) -> Result<(), JournalError> {
        self.check_room()?;
        check_follows(term, batch, self.durable.epoch(), self.last())?;
        self.state().waiting.push((term, batch.clone()));
        Ok(())
    }

    fn sync(&self) -> Result<(), JournalError> {
        self.check_room()?;
        let waiting = std::mem::take(&mut self.state().waiting);
        waiting.iter().try_for_each(|(term, batch)| self.durable.append(*term, batch))
    }

    fn last(&self) -> Option<Position> {
        let waiting = self.state().waiting.last().map(|(_, batch)| batch.last());
        waiting.or_else(|| self.durable.last())
    }

    fn read(
        &self,
        after: Position,
        visit: &mut dyn FnMut(Result<Batch, DamagedBatch>) -> ControlFlow<()>,
    ) -> Result<(), JournalError> {
        let mut goes_on = true;
        self.durable.read(after, &mut |batch| {
            let flow = visit(batch);
            goes_on = flow.is_continue();
            flow
        })?;
        let waiting = self.state().waiting.clone();
        for (_, batch) in waiting.into_iter().filter(|(_, batch)| batch.last() > after) {
            if !goes_on {
                break;
            }
            goes_on = visit(Ok(batch)).is_continue();
        }
        Ok(())
    }

    fn begin_snapshot(&self, at: Position) -> Result<Box<dyn SnapshotWriter + '_>, JournalError> {
        // What the snapshot follows must not be lost before it.
        self.sync()?;
        self.durable.begin_snapshot(at)
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>, JournalError> {
        self.durable.snapshots()
    }

    fn open_snapshot(&self, at: Position) -> Result<Box<dyn Read + Send>, JournalError> {
        self.durable.open_snapshot(at)
    }

    fn forget(&self, until: Position) -> Result<(), JournalError> {
        self.sync()?;
        self.durable.forget(until)
    }

    fn begin_at(&self, snapshot: Position) -> Result<(), JournalError> {
        self.state().waiting.clear();
        self.durable.begin_at(snapshot)
    }

    fn set_aside(&self) -> Result<Option<PathBuf>, JournalError> {
        self.state().waiting.clear();
        self.durable.set_aside()
    }

    fn checksum_at(&self, position: Position) -> Result<Option<u32>, JournalError> {
        let waiting = self.state().waiting.clone();
        match waiting.iter().find(|(_, batch)| batch.last() == position) {
            Some((_, batch)) => Ok(Some(batch.checksum())),
            None => self.durable.checksum_at(position),
        }
    }

    fn contains(&self, position: Position) -> Result<bool, JournalError> {
        let is_waiting = self.state().waiting.iter().any(|(_, batch)| batch.last() == position);
        Ok(is_waiting || self.durable.contains(position)?)
    }

    fn identity(&self) -> Result<Option<Identity>, JournalError> {
        self.durable.identity()
    }

    fn set_identity(&self, identity: &Identity) -> Result<(), JournalError> {
        self.durable.set_identity(identity)
    }

    fn usage(&self) -> JournalUsage {
        self.durable.usage()
    }
}

#[cfg(test)]
mod tests {
    use mc_ha::conformance;

    use super::*;

    #[test]
    fn it_is_a_journal() {
        let mut journal = SimulatedJournal::new();
        conformance::run(&mut |is_new| {
            if is_new {
                journal = SimulatedJournal::new();
            }
            Box::new(journal.clone())
        });
    }
}
