//! A standby's own snapshots, so that its journal is bounded as the leader's is.

use mc_meta::ExportCursor;

use crate::encoding::{BatchBuilder, PageOf};
use crate::journal::{JournalError, MetadataJournal, SnapshotInfo, SnapshotWriter};
use crate::position::Position;
use crate::recover::Replica;
use crate::snapshot::forget_older;

/// Pages that are written between two looks at what the leader has sent.
const PAGES: usize = 8;

/// A snapshot of a replica that takes in batches meanwhile.
pub(super) struct OwnSnapshot<'a> {
    journal: &'a dyn MetadataJournal,
    /// `None` when it is finished.
    writer: Option<Box<dyn SnapshotWriter + 'a>>,
    builder: BatchBuilder,
    /// The snapshot holds every change up to this position.
    at: Position,
    /// The next page, and the shard of those that wait in the builder.
    next: Option<ExportCursor>,
    of: Option<PageOf>,
}

impl<'a> OwnSnapshot<'a> {
    /// Begins one of what the replica has, all of which the journal has made durable.
    pub(super) fn begin(
        journal: &'a dyn MetadataJournal,
        replica: &Replica,
    ) -> Result<Self, JournalError> {
        let at = replica.position();
        Ok(Self {
            journal,
            writer: Some(journal.begin_snapshot(at)?),
            builder: BatchBuilder::new(at.epoch),
            at,
            next: Some(ExportCursor::default()),
            of: None,
        })
    }

    /// Returns whether it can go on: it cannot end in another term.
    pub(super) fn is_of_term(&self, replica: &Replica) -> bool {
        self.at.epoch == replica.position().epoch
    }

    /// Writes some of it, and returns it when it is whole. Everything that the replica has must be
    /// durable in the journal.
    pub(super) fn write_some(
        &mut self,
        replica: &Replica,
    ) -> Result<Option<SnapshotInfo>, JournalError> {
        for _ in 0..PAGES {
            let Some(cursor) = self.next else { return self.finish(replica).map(Some) };
            let page = replica.export(cursor);
            let of = page.shard.map(|shard| PageOf { shard, shards: replica.shards() });
            if of != self.of || self.builder.is_full() {
                self.write_page()?;
            }
            self.of = of;
            page.records.iter().for_each(|record| self.builder.record(&record.as_ref()));
            self.next = page.next;
        }
        Ok(None)
    }

    fn write_page(&mut self) -> Result<(), JournalError> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let page = self.builder.page(self.at.sequence, self.of);
        self.writer.as_mut().map_or(Ok(()), |writer| writer.write(&page))
    }

    fn finish(&mut self, replica: &Replica) -> Result<SnapshotInfo, JournalError> {
        self.write_page()?;
        let mut writer = self.writer.take().expect("it is finished once");
        writer.write(&self.builder.end(self.at.sequence, replica.position().sequence))?;
        let info = writer.finish()?;
        forget_older(self.journal)?;
        Ok(info)
    }
}
