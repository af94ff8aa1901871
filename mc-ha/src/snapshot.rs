//! A snapshot of a master that goes on meanwhile.

use std::time::Duration;

use mc_meta::{ExportCursor, Master};
use mc_types::{Sequence, Time};
use tokio::time::timeout;

use crate::encoding::{BatchBuilder, PageOf};
use crate::journal::{JournalError, SnapshotInfo, SnapshotWriter};
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
/// Takes seconds for millions of objects; blocks. [`take_snapshot_async`] is the same in an environment
/// where a thread may not block until the journal is durable.
///
/// # Errors
/// [`SnapshotError`]; the earlier snapshots are still there then.
pub fn take_snapshot(
    master: &Master,
    writer: &JournalWriter,
    now: impl Fn() -> Time,
) -> Result<SnapshotInfo, SnapshotError> {
    let pages = Pages::write(master, writer, now)?;
    let is_durable = writer.wait_durable(pages.last, DURABLE);
    pages.finish(is_durable)
}

/// [`take_snapshot`], which blocks while it writes, but not while it waits until the journal is
/// durable. Nothing is left of it when the future is dropped.
///
/// # Errors
/// As [`take_snapshot`].
pub async fn take_snapshot_async(
    master: &Master,
    writer: &JournalWriter,
    now: impl Fn() -> Time,
) -> Result<SnapshotInfo, SnapshotError> {
    let pages = Pages::write(master, writer, now)?;
    let is_durable = timeout(DURABLE, writer.durable(pages.last)).await.unwrap_or(false);
    pages.finish(is_durable)
}

/// A snapshot without its end.
struct Pages<'a> {
    writer: &'a JournalWriter,
    snapshot: Box<dyn SnapshotWriter + 'a>,
    builder: BatchBuilder,
    at: Sequence,
    /// The last effect that may be in it.
    last: Sequence,
}

impl<'a> Pages<'a> {
    fn write(
        master: &Master,
        writer: &'a JournalWriter,
        now: impl Fn() -> Time,
    ) -> Result<Self, SnapshotError> {
        let epoch = writer.epoch();
        let at = writer.end_batch();
        let mut snapshot = writer.journal().begin_snapshot(Position::new(epoch, at))?;
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
        Ok(Self { writer, snapshot, builder, at, last: master.last_sequence() })
    }

    /// Ends it when all that it has seen is durable: each page shows a later moment than the
    /// snapshot's, and the journal has what lies between.
    fn finish(self, is_durable: bool) -> Result<SnapshotInfo, SnapshotError> {
        let Self { writer, mut snapshot, mut builder, at, last } = self;
        if !is_durable {
            return Err(SnapshotError::NotDurable { until: Position::new(writer.epoch(), last) });
        }
        snapshot.write(&builder.end(at, last))?;
        let info = snapshot.finish()?;
        let journal = writer.journal();
        if let Some(oldest) = journal.snapshots()?.get(KEPT - 1) {
            journal.forget(oldest.at)?;
        }
        Ok(info)
    }
}
