//! A snapshot of a master that goes on meanwhile.

use std::time::Duration;

use mc_meta::{ExportCursor, Master};
use mc_types::Time;

use crate::encoding::{BatchBuilder, PageOf};
use crate::journal::{JournalError, SnapshotInfo};
use crate::position::Position;
use crate::writer::JournalWriter;

/// Snapshots that are kept. The older ones are for the case that the newest turns out to be
/// damaged: the journal is kept from the oldest on.
const KEPT: usize = 2;

/// How long the journal may take to make what a snapshot has seen durable.
const DURABLE: Duration = Duration::from_secs(60);

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The journal refuses it.
    #[error("cannot write a snapshot: {0}")]
    Journal(#[from] JournalError),
    /// The journal does not become durable as far as the snapshot has seen.
    #[error("the journal does not become durable up to {until}, so the snapshot is worth nothing")]
    NotDurable {
        /// The last effect that may be in the snapshot.
        until: Position,
    },
}

/// Writes a snapshot of `master`, whose changes `writer` keeps, to its journal, and forgets what no
/// start needs any more. Commands go on meanwhile. `now` is the master's clock.
///
/// Takes seconds for millions of objects; blocks.
///
/// # Errors
/// [`SnapshotError`]; the earlier snapshots are still there then.
pub fn take_snapshot(
    master: &Master,
    writer: &JournalWriter,
    now: impl Fn() -> Time,
) -> Result<SnapshotInfo, SnapshotError> {
    let (journal, epoch) = (writer.journal(), writer.epoch());
    let at = writer.end_batch();
    let mut snapshot = journal.begin_snapshot(Position::new(epoch, at))?;
    let mut builder = BatchBuilder::new(epoch);
    let shards = master.config().shards as u32;
    let (mut next, mut of) = (Some(ExportCursor::default()), None);
    while let Some(cursor) = next {
        let page = master.export(now(), cursor);
        let is_other = page.shard.map(|shard| PageOf { shard, shards }) != of;
        if !builder.is_empty() && (is_other || builder.is_full()) {
            snapshot.write(&builder.page(at, of))?;
        }
        of = page.shard.map(|shard| PageOf { shard, shards });
        for record in &page.records {
            builder.record(&record.as_ref());
        }
        next = page.next;
    }
    if !builder.is_empty() {
        snapshot.write(&builder.page(at, of))?;
    }
    // Each page shows a later moment than the snapshot's; the journal has what lies between.
    let last = master.last_sequence();
    if !writer.wait_durable(last, DURABLE) {
        return Err(SnapshotError::NotDurable { until: Position::new(epoch, last) });
    }
    snapshot.write(&builder.end(at, last))?;
    let info = snapshot.finish()?;
    if let Some(oldest) = journal.snapshots()?.get(KEPT - 1) {
        journal.forget(oldest.at)?;
    }
    Ok(info)
}
