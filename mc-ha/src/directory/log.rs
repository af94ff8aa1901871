//! Batches in sled: one database for the time from one snapshot to the next.

use core::fmt;
use core::panic::AssertUnwindSafe;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_types::{Epoch, Sequence};
use tracing::{error, warn};

use super::files::{At, move_aside};
use super::raw;
use crate::encoding::{Batch, BatchError};
use crate::journal::{DamagedBatch, JournalError};
use crate::position::Position;

/// Bytes of batches that sled keeps in memory. They are read only after a restart.
const CACHE: u64 = 8 << 20;

/// Bytes of one of sled's segments. A batch stays below a quarter of it, from where on sled
/// writes values to files of their own.
const SEGMENT: usize = 2 << 20;

/// Time limit for a database to be closed, and the time between two looks.
const CLOSING: Duration = Duration::from_secs(10);
const CLOSING_PAUSE: Duration = Duration::from_millis(5);

/// The bytes before each batch of a database, drawn when the database is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark(pub(super) u64);

impl Mark {
    const LEN: usize = 8;

    /// Draws a mark that cannot be guessed.
    pub(super) fn draw() -> io::Result<Self> {
        Ok(Self(getrandom::u64()?))
    }

    pub(super) const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0.to_le_bytes()
    }
}

/// One database.
#[derive(Debug)]
pub(super) struct Log {
    mark: Mark,
    path: PathBuf,
    database: sled::Db,
    batches: sled::Tree,
}

impl Log {
    /// Opens a database, if need be without what it can do without. One that cannot be opened at
    /// all is moved aside, and a new one is in its place. In either case it has all batches that
    /// can be found in its files.
    pub(super) fn open(metadata: &Path, path: &Path, mark: Mark) -> Result<Self, JournalError> {
        // Before sled overwrites what it cannot read.
        let found = raw::batches(path, mark)?;
        let log = Self::open_or_move_aside(metadata, path, mark)?;
        log.restore(found)?;
        Ok(log)
    }

    fn open_or_move_aside(metadata: &Path, path: &Path, mark: Mark) -> Result<Self, JournalError> {
        let damaged = match Self::try_open(path, mark) {
            Ok(log) => return Ok(log),
            Err(SledFailure::Error(sled::Error::Io(source))) if !is_of_damage(&source) => {
                return Err(source).at("open", path);
            }
            Err(damaged) => damaged,
        };
        warn!(
            log = %path.display(), cause = %damaged,
            "a part of the journal does not open; trying again without its snap files"
        );
        // sled's own snapshots, which a power cut may leave empty. It makes them again.
        for entry in fs::read_dir(path).at("list", path)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("snap.") {
                move_aside(metadata, &entry.path())?;
            }
        }
        let damaged = match Self::try_open(path, mark) {
            Ok(log) => return Ok(log),
            Err(damaged) => damaged,
        };
        let aside = move_aside(metadata, path)?;
        error!(
            aside = %aside.display(), cause = %damaged,
            "a part of the journal does not open and was moved aside; its batches are restored as \
             far as they can be found"
        );
        Self::try_open(path, mark).map_err(|failure| failure.at(path))
    }

    /// Adds batches that were found in the files and that sled has lost.
    fn restore(&self, mut found: BTreeMap<Position, Batch>) -> Result<(), JournalError> {
        let has = |at: &Position| self.call(|| self.batches.contains_key(key(*at)));
        let (mut lost, mut last) = (BTreeMap::new(), None);
        while let Some((at, batch)) = found.pop_first() {
            if has(&at)? {
                last = Some(at);
            } else {
                lost.insert(at, batch);
            }
        }
        let mut tail = lost.split_off(&last.unwrap_or_default());
        raw::drop_torn_tail(&mut tail);
        lost.append(&mut tail);
        if lost.is_empty() {
            return Ok(());
        }
        lost.values().try_for_each(|batch| self.append(batch))?;
        self.sync()?;
        warn!(
            log = %self.path.display(), batches = lost.len(),
            "a part of the journal is damaged; batches that the database had lost were restored"
        );
        Ok(())
    }

    /// Opens a database, and waits for one that this process has closed a moment ago: it is locked until
    /// sled's threads have ended. No other process has it, because the lock of the directory is ours.
    fn try_open(path: &Path, mark: Mark) -> Result<Self, SledFailure> {
        let begun = Instant::now();
        loop {
            match Self::open_once(path, mark) {
                Err(failure) if failure.is_of_a_lock() && begun.elapsed() < CLOSING => {
                    thread::sleep(CLOSING_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    fn open_once(path: &Path, mark: Mark) -> Result<Self, SledFailure> {
        let open = || {
            let config = sled::Config::new()
                .path(path)
                .mode(sled::Mode::HighThroughput)
                .cache_capacity(CACHE)
                .segment_size(SEGMENT)
                .flush_every_ms(None);
            let database = config.open()?;
            let batches = database.open_tree("batches")?;
            Ok((database, batches))
        };
        let (database, batches) = guarded(open)?;
        Ok(Self { mark, path: path.into(), database, batches })
    }

    /// Calls sled, which panics where it meets what it does not expect.
    fn call<T>(&self, call: impl FnOnce() -> sled::Result<T>) -> Result<T, JournalError> {
        guarded(call).map_err(|failure| failure.at(&self.path))
    }

    pub(super) fn append(&self, batch: &Batch) -> Result<(), JournalError> {
        let bytes = [&self.mark.to_bytes(), batch.bytes().as_ref()].concat();
        self.call(|| self.batches.insert(key(batch.last()), bytes)).map(drop)
    }

    pub(super) fn sync(&self) -> Result<(), JournalError> {
        self.call(|| self.database.flush()).map(drop)
    }

    /// The last position in it.
    pub(super) fn last(&self) -> Result<Option<Position>, JournalError> {
        let last = self.call(|| self.batches.last())?;
        Ok(last.and_then(|(key, _)| position(&key)))
    }

    /// The batches behind this position.
    pub(super) fn after(
        &self,
        position: Position,
    ) -> impl Iterator<Item = Result<(Position, Result<Batch, DamagedBatch>), JournalError>> {
        let behind = (core::ops::Bound::Excluded(key(position)), core::ops::Bound::Unbounded);
        let mut rows = self.batches.range(behind);
        core::iter::from_fn(move || {
            let row = match self.call(|| rows.next().transpose()) {
                Ok(row) => row?,
                Err(error) => return Some(Err(error)),
            };
            Some(Ok(read(&row.0, &row.1)))
        })
    }

    /// The batch that ends at this position, if one does, and if it is whole.
    pub(super) fn at(&self, position: Position) -> Result<Option<Option<Batch>>, JournalError> {
        let key = key(position);
        let row = self.call(|| self.batches.get(key))?;
        Ok(row.map(|value| read(&key, &value).1.ok()))
    }
}

/// The bytes of a database's files. One that is removed or made meanwhile may count or not.
pub(super) fn bytes_on_disk(path: &Path) -> u64 {
    let files = raw::files(path).unwrap_or_default();
    files.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

fn read(key: &[u8], value: &[u8]) -> (Position, Result<Batch, DamagedBatch>) {
    let at = position(key).unwrap_or_default();
    let batch = Batch::parse(Bytes::copy_from_slice(value.get(Mark::LEN..).unwrap_or_default()));
    let batch = batch
        .and_then(|batch| if batch.last() == at { Ok(batch) } else { Err(BatchError::Header) });
    (at, batch.map_err(|source| DamagedBatch { at, source }))
}

/// The key of a batch: its last position.
fn key(at: Position) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&at.epoch.as_u64().to_be_bytes());
    key[8..].copy_from_slice(&at.sequence.as_u64().to_be_bytes());
    key
}

fn position(key: &[u8]) -> Option<Position> {
    let key: [u8; 16] = key.try_into().ok()?;
    let [epoch, sequence] =
        [0, 8].map(|at| u64::from_be_bytes(*key[at..].first_chunk().expect("16 bytes")));
    Some(Position::new(Epoch::new(epoch), Sequence::new(sequence)))
}

/// Returns whether an error is about what a file holds, and not about reading it.
fn is_of_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
}

/// Why sled did not do something.
enum SledFailure {
    Error(sled::Error),
    Panic(String),
}

impl SledFailure {
    /// Returns whether the database is open somewhere, which sled says in words only.
    fn is_of_a_lock(&self) -> bool {
        matches!(self, Self::Error(sled::Error::Io(source))
            if source.to_string().starts_with("could not acquire lock"))
    }

    fn at(self, path: &Path) -> JournalError {
        match self {
            Self::Error(sled::Error::Io(source)) => super::files::file_error("write", path, source),
            Self::Error(source) => JournalError::Database { path: path.into(), source },
            Self::Panic(reason) => {
                let source = sled::Error::ReportableBug(reason);
                JournalError::Database { path: path.into(), source }
            }
        }
    }
}

impl fmt::Display for SledFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Panic(reason) => f.write_str(reason),
        }
    }
}

fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, SledFailure> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(SledFailure::Error),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            Err(SledFailure::Panic(text.unwrap_or_else(|| "the database panicked".into())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_is_still_being_closed_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let open = || Log::open(directory.path(), &path, Mark(7)).map(drop);
        fs::create_dir(&path).unwrap();
        open().unwrap();
        // As sled's threads do: they hold it for a moment after it was dropped.
        let held = fs::File::options().write(true).open(path.join("db")).unwrap();
        held.lock().unwrap();
        thread::scope(|scope| {
            let opened = scope.spawn(open);
            thread::sleep(Duration::from_millis(100));
            assert!(!opened.is_finished(), "it is locked");
            drop(held);
            opened.join().unwrap().unwrap();
        });
    }
}
