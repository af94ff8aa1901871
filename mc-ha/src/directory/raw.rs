//! Batches in the files of a sled database, whatever sled thinks of them.
//!
//! sled cuts a database off at the first byte that it finds damaged, and overwrites what follows.
//! Batches lie in its files as they are, so that they can be found again by their headers and by the
//! mark before each of them, which no client can know: what clients put into a batch may look like
//! one, too.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use mc_meta::RecordRef;
use mc_types::KeyRef;
use tracing::warn;

use super::files::At;
use super::log::Mark;
use crate::encoding::{Batch, BatchKind, BatchReader, DamagedRecord, RecordVisitor};
use crate::journal::JournalError;
use crate::position::Position;

/// Longest files that are searched: what is found is kept in memory until sled has opened them.
const MAX_SEARCHED: u64 = 1 << 30;

/// Searches a database's files for batches of effects behind its mark.
pub(super) fn batches(
    database: &Path,
    mark: Mark,
) -> Result<BTreeMap<Position, Batch>, JournalError> {
    let mut found = BTreeMap::new();
    let mut left = MAX_SEARCHED;
    for path in files(database)? {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).at("read", &path),
        };
        let len = file.metadata().at("read", &path)?.len();
        if len > left {
            warn!(
                file = %path.display(), bytes = len,
                "a part of the journal is too large to be searched for what the database may lose"
            );
            continue;
        }
        left -= len;
        let mut reader = BatchReader::marked(file, &mark.to_bytes());
        while let Some(batch) = reader.next_batch().at("read", &path)? {
            if let Ok(batch) = batch
                && batch.kind() == BatchKind::Effects
            {
                keep(&mut found, batch);
            }
        }
    }
    Ok(found)
}

/// The files that have a database's contents.
pub(super) fn files(database: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let mut files = vec![database.join("db")];
    let blobs = database.join("blobs");
    match fs::read_dir(&blobs) {
        Ok(entries) => files.extend(entries.flatten().map(|entry| entry.path())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).at("list", &blobs),
    }
    Ok(files)
}

/// Keeps the best of several copies of a batch.
fn keep(found: &mut BTreeMap<Position, Batch>, batch: Batch) {
    match found.entry(batch.last()) {
        Entry::Vacant(place) => drop(place.insert(batch)),
        Entry::Occupied(mut place) => {
            if *place.get() != batch && damaged_records(&batch) < damaged_records(place.get()) {
                place.insert(batch);
            }
        }
    }
}

/// Drops the last batches that are not whole: a crash cut them off before they were durable.
pub(super) fn drop_torn_tail(found: &mut BTreeMap<Position, Batch>) {
    while let Some(last) = found.last_entry()
        && damaged_records(last.get()) > 0
    {
        last.remove();
    }
}

fn damaged_records(batch: &Batch) -> usize {
    struct Count(usize);
    impl RecordVisitor for Count {
        fn wants(&self, _: KeyRef<'_>) -> bool {
            false
        }

        fn records(&mut self, _: &[RecordRef<'_>]) {}

        fn damaged(&mut self, _: DamagedRecord) {
            self.0 += 1;
        }
    }
    let mut count = Count(0);
    batch.visit(&mut count);
    count.0
}
