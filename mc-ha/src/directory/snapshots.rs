//! Snapshots in files.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mc_types::{Epoch, Sequence};
use parking_lot::Mutex;

use super::files::{At, create_dir, rename};
use crate::encoding::Batch;
use crate::journal::{JournalError, SnapshotInfo, SnapshotWriter};
use crate::position::Position;

#[derive(Debug)]
pub(super) struct Snapshots {
    directory: PathBuf,
    newest: Mutex<Option<Position>>,
}

impl Snapshots {
    /// Opens the directory, and removes what was left unfinished.
    pub(super) fn open(metadata: &Path) -> Result<Self, JournalError> {
        let directory = metadata.join("snapshots");
        create_dir(&directory)?;
        for entry in fs::read_dir(&directory).at("list", &directory)?.flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "part") {
                fs::remove_file(entry.path()).at("remove", &entry.path())?;
            }
        }
        let snapshots = Self { directory, newest: Mutex::default() };
        snapshots.look()?;
        Ok(snapshots)
    }

    /// Begins with an empty directory, in place of one that was moved.
    pub(super) fn reopen(&self) -> Result<(), JournalError> {
        create_dir(&self.directory)?;
        self.look()
    }

    /// Looks which one is the newest.
    fn look(&self) -> Result<(), JournalError> {
        *self.newest.lock() = self.list()?.first().map(|info| info.at);
        Ok(())
    }

    /// The position of the newest one.
    pub(super) fn newest(&self) -> Option<Position> {
        *self.newest.lock()
    }

    fn file(&self, at: Position) -> PathBuf {
        // Leading zeros, so that a listing is in order.
        let (epoch, sequence) = (at.epoch.as_u64(), at.sequence.as_u64());
        self.directory.join(format!("{epoch:020}-{sequence:020}"))
    }

    /// The newest first.
    pub(super) fn list(&self) -> Result<Vec<SnapshotInfo>, JournalError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory).at("list", &self.directory)?.flatten() {
            let Some(at) = entry.file_name().to_str().and_then(position) else { continue };
            let known = entry.metadata().at("look at", &entry.path())?;
            let finished = known.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push(SnapshotInfo { at, bytes: known.len(), finished });
        }
        found.sort_unstable_by_key(|info| core::cmp::Reverse(info.at));
        Ok(found)
    }

    pub(super) fn read(&self, at: Position) -> Result<Box<dyn Read + Send>, JournalError> {
        let path = self.file(at);
        match File::open(&path) {
            Ok(file) => Ok(Box::new(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(JournalError::NoSnapshot { at })
            }
            Err(error) => Err(error).at("read", &path),
        }
    }

    pub(super) fn begin(&self, at: Position) -> Result<Writer<'_>, JournalError> {
        let path = self.file(at);
        let part = path.with_extension("part");
        let file = File::create(&part).at("write", &part)?;
        let out = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(Writer { snapshots: self, at, path, part, out, unsynced: 0 })
    }

    pub(super) fn contains(&self, at: Position) -> Result<bool, JournalError> {
        let path = self.file(at);
        path.try_exists().at("look at", &path)
    }

    pub(super) fn forget(&self, is_old: impl Fn(Position) -> bool) -> Result<(), JournalError> {
        for info in self.list()? {
            if is_old(info.at) {
                let path = self.file(info.at);
                fs::remove_file(&path).at("remove", &path)?;
            }
        }
        self.look()
    }
}

fn position(name: &str) -> Option<Position> {
    let (epoch, sequence) = name.split_once('-')?;
    Some(Position::new(Epoch::new(epoch.parse().ok()?), Sequence::new(sequence.parse().ok()?)))
}

pub(super) struct Writer<'a> {
    snapshots: &'a Snapshots,
    at: Position,
    path: PathBuf,
    part: PathBuf,
    /// `None` when it is finished.
    out: Option<BufWriter<File>>,
    /// Bytes that were written since the last sync.
    unsynced: usize,
}

/// Bytes after which a snapshot is synced, so that its end does not wait for all of it.
const SYNC_EVERY: usize = 16 << 20;

impl Writer<'_> {
    fn out(&mut self) -> &mut BufWriter<File> {
        self.out.as_mut().expect("only the end takes it")
    }
}

impl SnapshotWriter for Writer<'_> {
    fn write(&mut self, batch: &Batch) -> Result<(), JournalError> {
        let mut written = self.out().write_all(batch.bytes());
        self.unsynced += batch.bytes().len();
        if self.unsynced >= SYNC_EVERY {
            self.unsynced = 0;
            written = written.and_then(|()| self.out().flush());
            written = written.and_then(|()| self.out().get_ref().sync_data());
        }
        written.at("write", &self.part)
    }

    fn finish(mut self: Box<Self>) -> Result<SnapshotInfo, JournalError> {
        let written = self.out().flush().and_then(|()| {
            let file = self.out().get_ref();
            file.sync_all()?;
            file.metadata()
        });
        let bytes = written.at("write", &self.part)?.len();
        rename(&self.part, &self.path)?;
        self.out = None;
        let mut newest = self.snapshots.newest.lock();
        *newest = (*newest).max(Some(self.at));
        Ok(SnapshotInfo { at: self.at, bytes, finished: SystemTime::now() })
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            // It is of no use; what is left of it is removed at the next start.
            let _ = fs::remove_file(&self.part);
        }
    }
}
