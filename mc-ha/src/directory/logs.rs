//! The logs of a journal, one behind the other.

use core::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_types::{Epoch, Sequence};
use parking_lot::Mutex;

use super::files::{At, create_dir};
use super::log::{Log, Mark, bytes_on_disk};
use crate::journal::JournalError;
use crate::position::Position;

/// One of the logs, which is opened when it is first needed: a start that finds a whole snapshot
/// does not need those before it.
pub(super) struct NumberedLog {
    metadata: PathBuf,
    path: PathBuf,
    number: u64,
    mark: Mark,
    /// All its batches are behind this position, and those of older logs that are behind it are in
    /// newer ones again.
    pub(super) begin: Position,
    state: Mutex<State>,
}

enum State {
    Closed,
    Open(Arc<Log>),
    Removed,
}

impl fmt::Debug for NumberedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NumberedLog").field("path", &self.path).finish_non_exhaustive()
    }
}

impl NumberedLog {
    fn new(metadata: &Path, number: u64, begin: Position, mark: Mark) -> Self {
        let (epoch, sequence) = (begin.epoch.as_u64(), begin.sequence.as_u64());
        let name = format!("{number:020}-{epoch:020}-{sequence:020}-{:016x}", mark.0);
        let (path, metadata) = (directory(metadata).join(name), metadata.into());
        Self { metadata, path, number, mark, begin, state: Mutex::new(State::Closed) }
    }

    /// Makes the log that follows this one.
    pub(super) fn create(
        metadata: &Path,
        after: Option<&Self>,
        begin: Position,
    ) -> Result<Self, JournalError> {
        let number = after.map_or(1, |log| log.number + 1);
        let mark = Mark::draw().at("draw a random mark for a log in", metadata)?;
        let new = Self::new(metadata, number, begin, mark);
        if let Err(error) = new.open() {
            // Trials that fail leave nothing: a full disk fails many of them.
            new.remove()?;
            return Err(error);
        }
        Ok(new)
    }

    /// The log, opened. `None` when it was removed.
    pub(super) fn open(&self) -> Result<Option<Arc<Log>>, JournalError> {
        let mut state = self.state.lock();
        match &*state {
            State::Open(log) => return Ok(Some(Arc::clone(log))),
            State::Removed => return Ok(None),
            State::Closed => {}
        }
        let log = Arc::new(Log::open(&self.metadata, &self.path, self.mark)?);
        *state = State::Open(Arc::clone(&log));
        Ok(Some(log))
    }

    /// Closes it for good: its files are moved.
    pub(super) fn close(&self) {
        *self.state.lock() = State::Removed;
    }

    /// Removes its files.
    pub(super) fn remove(&self) -> Result<(), JournalError> {
        *self.state.lock() = State::Removed;
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).at("remove", &self.path)
            }
            _ => Ok(()),
        }
    }

    /// The room that it takes.
    pub(super) fn bytes(&self) -> u64 {
        bytes_on_disk(&self.path)
    }
}

pub(super) fn directory(metadata: &Path) -> PathBuf {
    metadata.join("logs")
}

/// Finds the logs, the oldest first.
pub(super) fn find_logs(metadata: &Path) -> Result<Vec<Arc<NumberedLog>>, JournalError> {
    let directory = directory(metadata);
    create_dir(&directory)?;
    let mut logs = Vec::new();
    for entry in fs::read_dir(&directory).at("list", &directory)? {
        let name = entry.at("list", &directory)?.file_name();
        let log = name.to_str().and_then(|name| parse(metadata, name));
        logs.extend(log.map(Arc::new));
    }
    logs.sort_unstable_by_key(|log| (log.number, log.begin));
    Ok(logs)
}

fn parse(metadata: &Path, name: &str) -> Option<NumberedLog> {
    let (numbers, mark) = name.rsplit_once('-')?;
    let mark = Mark(u64::from_str_radix(mark, 16).ok()?);
    let mut numbers = numbers.split('-').map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let (number, epoch, sequence) = (next()?, next()?, next()?);
    let begin = Position::new(Epoch::new(epoch), Sequence::new(sequence));
    Some(NumberedLog::new(metadata, number, begin, mark))
}
