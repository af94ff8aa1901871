//! A journal in a directory: batches in sled, snapshots in files.
//!
//! | file | what |
//! |---|---|
//! | `FORMAT` | `mc-ha metadata 1`: the layout's version |
//! | `LOCK` | locked by the process that uses the directory |
//! | `term` | the current term, and a checksum |
//! | `identity` | the secrets that outlive a master, and a checksum |
//! | `logs/NUMBER-EPOCH-SEQUENCE-MARK/` | sled databases: the batches behind this position, under their last positions, each behind the 8 bytes of the mark |
//! | `snapshots/EPOCH-SEQUENCE` | a snapshot |
//! | `damaged/` | what could not be used and was moved aside |
//! | `former/EPOCH-SEQUENCE.NUMBER/` | a history that was [set aside](MetadataJournal::set_aside), itself a directory of this layout |
//!
//! sled keeps the batches and is trusted with no more than that: each batch has checksums of its
//! own, `sync` flushes, and a database that does not open is tried again without its `snap.*` files,
//! which a power cut may leave empty and which it can do without. If it does not open then either,
//! it is moved aside, and a new one is in its place. What sled discards behind a damaged byte, or
//! has in a database that does not open, is found in its files by the batches' own headers.
//!
//! With each snapshot, and after each failure, another database begins: one that fails once, for
//! want of space say, takes nothing more, and one that is not needed any more is removed as a whole,
//! because sled does not give space back.

mod files;
mod former;
mod log;
mod logs;
mod raw;
mod snapshots;
mod terms;

use core::fmt;
use core::ops::ControlFlow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_types::{Epoch, Sequence};
use parking_lot::{Mutex, RwLock};

use crate::encoding::{Batch, BatchError};
use crate::identity::Identity;
use crate::journal::{
    DamagedBatch, JournalError, JournalUsage, MetadataJournal, SnapshotInfo, SnapshotWriter,
};
use crate::order::check_follows;
use crate::position::Position;
use files::{At, create_dir};
use log::Log;
use logs::{NumberedLog, find_logs};
use snapshots::Snapshots;
use terms::{read_identity, read_term, write_identity, write_term};

/// The version of the layout.
const LAYOUT: u32 = 1;

/// Logs from which on a snapshot begins no further one.
const MAX_LOGS: usize = 3;

const FORMAT: &str = "FORMAT";
const FORMAT_WORDS: &str = "mc-ha metadata ";

/// A journal in a directory.
///
/// Opening it locks the directory for this process.
pub struct DirectoryJournal {
    path: PathBuf,
    snapshots: Snapshots,
    state: Mutex<State>,
    /// The oldest first. Locked for writing while one is added or removed.
    logs: RwLock<Vec<Arc<NumberedLog>>>,
    /// Locked for as long as it is open.
    _lock: File,
}

#[derive(Debug)]
struct State {
    epoch: Epoch,
    last: Option<Position>,
    /// The last position that was synced.
    synced: Option<Position>,
    /// Why the newest log takes no more, if it does not.
    failed: Option<JournalError>,
}

impl State {
    fn new(epoch: Epoch, last: Option<Position>) -> Self {
        Self { epoch, last, synced: last, failed: None }
    }
}

impl fmt::Debug for DirectoryJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryJournal").field("path", &self.path).finish_non_exhaustive()
    }
}

impl DirectoryJournal {
    /// Opens the journal in this directory, which is made if it is not there.
    ///
    /// # Errors
    /// [`JournalError`]: the directory cannot be written, belongs to another process or to a newer
    /// version, or holds something else. Nothing was changed then.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, JournalError> {
        let path = path.into();
        create_dir(&path)?;
        check_format(&path)?;
        let lock = lock(&path)?;
        write_format(&path)?;
        let snapshots = Snapshots::open(&path)?;
        let epoch = read_term(&path)?;
        let logs = find_logs(&path)?;
        let last = last_of(&logs, snapshots.newest())?;
        // A term file that was lost must not let an older term in.
        let newest = last.max(snapshots.newest()).unwrap_or_default();
        let epoch = epoch.max(newest.epoch);
        let state = Mutex::new(State::new(epoch, last));
        Ok(Self { path, snapshots, state, logs: RwLock::new(logs), _lock: lock })
    }

    /// Goes on in another log.
    fn begin_log(&self, state: &mut State) -> Result<(), JournalError> {
        let mut logs = self.logs.write();
        let begin = state.last.unwrap_or_default();
        // One that failed before it held anything would be there once more after each trial.
        if state.failed.is_some() && logs.last().is_some_and(|last| last.begin == begin) {
            logs.pop().map_or(Ok(()), |log| log.remove())?;
        }
        let log = NumberedLog::create(&self.path, logs.last().map(|log| &**log), begin)?;
        logs.push(Arc::new(log));
        state.failed = None;
        Ok(())
    }

    fn newest_log(&self) -> Result<Option<Arc<Log>>, JournalError> {
        let newest = self.logs.read().last().map(Arc::clone);
        newest.map_or(Ok(None), |log| log.open())
    }

    /// The logs that have what follows this position, the oldest first.
    fn logs_behind(&self, position: Position) -> Vec<Arc<NumberedLog>> {
        let logs = self.logs.read();
        let first = logs.iter().rposition(|log| log.begin <= position).unwrap_or(0);
        logs[first..].iter().map(Arc::clone).collect()
    }

    /// The batch that ends at this position, if one does, and if it is whole.
    fn batch_at(&self, position: Position) -> Result<Option<Option<Batch>>, JournalError> {
        let logs: Vec<_> = self.logs.read().iter().rev().map(Arc::clone).collect();
        for log in logs.into_iter().filter(|log| log.begin < position) {
            if let Some(log) = log.open()?
                && let Some(batch) = log.at(position)?
            {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Notes a failure of the newest log: what it has not synced is not counted on, and it takes
    /// nothing more.
    fn note<T>(state: &mut State, result: Result<T, JournalError>) -> Result<T, JournalError> {
        if let Err(error) = &result {
            state.failed = Some(error.clone());
            state.last = state.synced;
        }
        result
    }

    /// Removes the logs that hold nothing behind this position.
    fn remove_logs(&self, until: Position) -> Result<(), JournalError> {
        let mut logs = self.logs.write();
        while logs.get(1).is_some_and(|next| next.begin <= until) {
            logs.remove(0).remove()?;
        }
        Ok(())
    }
}

/// The last position in the logs, if it is behind the newest snapshot's.
fn last_of(
    logs: &[Arc<NumberedLog>],
    snapshot: Option<Position>,
) -> Result<Option<Position>, JournalError> {
    let mut last = None;
    for log in logs.iter().rev() {
        let own = log.open()?.map_or(Ok(None), |opened| opened.last())?;
        last = last.max(own).max((log.begin != Position::EMPTY).then_some(log.begin));
        // One that failed may have kept more than the next one begins with.
        if own.is_some() || Some(log.begin) <= snapshot {
            break;
        }
    }
    Ok(last)
}

/// Checks that the directory is one of ours, or empty.
fn check_format(path: &Path) -> Result<(), JournalError> {
    let file = path.join(FORMAT);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut entries = fs::read_dir(path).at("list", path)?;
            // A start that was killed may have left the first two.
            let ours = ["LOCK", "FORMAT.part", "lost+found"];
            let is_ours = |name: &std::ffi::OsStr| ours.iter().any(|ours| name == *ours);
            let foreign = entries.any(|entry| entry.is_ok_and(|e| !is_ours(&e.file_name())));
            return if foreign { Err(JournalError::Foreign { path: path.into() }) } else { Ok(()) };
        }
        Err(error) => return Err(error).at("read", &file),
    };
    let found = text.trim_end().strip_prefix(FORMAT_WORDS).and_then(|number| number.parse().ok());
    match found {
        Some(LAYOUT) => Ok(()),
        Some(found) => Err(JournalError::Newer { path: path.into(), found, known: LAYOUT }),
        None => Err(JournalError::Damaged {
            path: file,
            reason: format!("it does not say `{FORMAT_WORDS}{LAYOUT}`"),
        }),
    }
}

fn write_format(path: &Path) -> Result<(), JournalError> {
    let file = path.join(FORMAT);
    if file.exists() {
        return Ok(());
    }
    files::replace(&file, format!("{FORMAT_WORDS}{LAYOUT}\n").as_bytes())
}

fn lock(path: &Path) -> Result<File, JournalError> {
    let file = path.join("LOCK");
    let lock = File::options().create(true).truncate(false).write(true).open(&file);
    let lock = lock.at("write", &file)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(JournalError::InUse { path: path.into() }),
        Err(fs::TryLockError::Error(error)) => Err(error).at("lock", &file),
    }
}

impl MetadataJournal for DirectoryJournal {
    fn epoch(&self) -> Epoch {
        self.state.lock().epoch
    }

    fn begin_epoch(&self, epoch: Epoch) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        if epoch <= state.epoch {
            return Err(JournalError::Fenced { current: state.epoch, offered: epoch });
        }
        write_term(&self.path, epoch)?;
        state.epoch = epoch;
        Ok(())
    }

    fn append(&self, term: Epoch, batch: &Batch) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        let last = state.last.max(self.snapshots.newest());
        // After a failure between two batches of one commit the second one no longer follows.
        check_follows(term, batch, state.epoch, last).map_err(|refused| match &state.failed {
            Some(failure) if matches!(refused, JournalError::Gap { .. }) => failure.clone(),
            _ => refused,
        })?;
        if state.failed.is_some() || self.logs.read().is_empty() {
            self.begin_log(&mut state)?;
        }
        let log = self.newest_log()?.expect("a log was begun");
        Self::note(&mut state, log.append(batch))?;
        state.last = Some(batch.last());
        Ok(())
    }

    fn sync(&self) -> Result<(), JournalError> {
        let (log, last) = {
            let state = self.state.lock();
            if let Some(error) = &state.failed {
                // What was appended before is lost; it has to be appended again.
                return Err(error.clone());
            }
            let Some(log) = self.newest_log()? else { return Ok(()) };
            (log, state.last)
        };
        let synced = log.sync();
        let mut state = self.state.lock();
        Self::note(&mut state, synced)?;
        if let Some(error) = &state.failed {
            // Another thread met it meanwhile.
            return Err(error.clone());
        }
        state.synced = state.synced.max(last);
        Ok(())
    }

    fn last(&self) -> Option<Position> {
        self.state.lock().last.max(self.snapshots.newest())
    }

    fn read(
        &self,
        after: Position,
        visit: &mut dyn FnMut(Result<Batch, DamagedBatch>) -> ControlFlow<()>,
    ) -> Result<(), JournalError> {
        let mut last = after;
        for log in self.logs_behind(after) {
            let Some(log) = log.open()? else { continue };
            // What a log that failed has kept of its end stands in the next one again.
            for row in log.after(last) {
                let (at, batch) = row?;
                if let Ok(batch) = &batch {
                    let first = batch.first();
                    let follows = match first.epoch == last.epoch {
                        true => first.sequence <= next(last.sequence),
                        false => first.sequence == Sequence::new(0),
                    };
                    let source = BatchError::Missing { after: last, before: first };
                    if !follows && visit(Err(DamagedBatch { at, source })).is_break() {
                        return Ok(());
                    }
                }
                if visit(batch).is_break() {
                    return Ok(());
                }
                last = at;
            }
        }
        Ok(())
    }

    fn begin_snapshot(&self, at: Position) -> Result<Box<dyn SnapshotWriter + '_>, JournalError> {
        {
            let mut state = self.state.lock();
            // So that the older one can go when this snapshot is all that is needed. Snapshots that
            // fail must not leave one log each, which is an open database.
            let (count, newest) = {
                let logs = self.logs.read();
                (logs.len(), logs.last().map(|last| last.begin))
            };
            if count < MAX_LOGS && newest.is_some_and(|begin| Some(begin) < state.last) {
                let log = self.newest_log()?;
                let synced = log.map_or(Ok(()), |log| log.sync());
                Self::note(&mut state, synced)?;
                state.synced = state.last;
                self.begin_log(&mut state)?;
            }
        }
        Ok(Box::new(self.snapshots.begin(at)?))
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>, JournalError> {
        self.snapshots.list()
    }

    fn open_snapshot(&self, at: Position) -> Result<Box<dyn Read + Send>, JournalError> {
        self.snapshots.read(at)
    }

    fn forget(&self, until: Position) -> Result<(), JournalError> {
        self.snapshots.forget(|at| at < until)?;
        self.remove_logs(until)
    }

    fn begin_at(&self, snapshot: Position) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        if !self.snapshots.contains(snapshot)? {
            return Err(JournalError::NoSnapshot { at: snapshot });
        }
        self.snapshots.forget(|at| at != snapshot)?;
        (state.last, state.synced, state.failed) = (Some(snapshot), Some(snapshot), None);
        self.begin_log(&mut state)?;
        let mut logs = self.logs.write();
        while logs.len() > 1 {
            logs.remove(0).remove()?;
        }
        Ok(())
    }

    fn set_aside(&self) -> Result<Option<PathBuf>, JournalError> {
        let mut state = self.state.lock();
        let mut logs = self.logs.write();
        let last = state.last.max(self.snapshots.newest());
        let Some(last) = last else {
            former::begin_anew(&self.path)?;
            *state = State::new(Epoch::new(0), None);
            return Ok(None);
        };
        let moved = former::move_aside(&self.path, last, &logs);
        // Whatever of it failed: what is there now counts, and the logs that were open are closed.
        self.snapshots.reopen()?;
        *logs = find_logs(&self.path)?;
        *state = State::new(state.epoch, last_of(&logs, self.snapshots.newest())?);
        let former = moved?;
        former::begin_anew(&self.path)?;
        *state = State::new(Epoch::new(0), None);
        Ok(Some(former))
    }

    fn contains(&self, position: Position) -> Result<bool, JournalError> {
        if self.snapshots.contains(position)? {
            return Ok(true);
        }
        // What lies before the oldest log is in a snapshot that ends there, or later.
        let is_begin =
            |log: &Arc<NumberedLog>| log.begin == position && position != Position::EMPTY;
        if self.logs.read().iter().any(is_begin) {
            return Ok(true);
        }
        Ok(self.batch_at(position)?.is_some())
    }

    fn checksum_at(&self, position: Position) -> Result<Option<u32>, JournalError> {
        Ok(self.batch_at(position)?.flatten().map(|batch| batch.checksum()))
    }

    fn identity(&self) -> Result<Option<Identity>, JournalError> {
        read_identity(&self.path)
    }

    fn set_identity(&self, identity: &Identity) -> Result<(), JournalError> {
        write_identity(&self.path, identity)
    }

    fn usage(&self) -> JournalUsage {
        let snapshots = self.snapshots.list().unwrap_or_default();
        JournalUsage {
            journal_bytes: self.logs.read().iter().map(|log| log.bytes()).sum(),
            snapshot_bytes: snapshots.iter().map(|info| info.bytes).sum(),
        }
    }
}

fn next(sequence: Sequence) -> Sequence {
    Sequence::new(sequence.as_u64() + 1)
}
