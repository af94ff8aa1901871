//! A snapshot of a master that serves calls meanwhile.

use std::time::Duration;

use mc_meta::{ExportCursor, Master};
use mc_types::{Sequence, Time};
use tokio::time::{Instant, timeout};

use crate::encoding::{BatchBuilder, PageOf};
use crate::journal::{JournalError, MetadataJournal, SnapshotInfo, SnapshotWriter};
use crate::position::Position;
use crate::writer::JournalWriter;

/// Snapshots that are kept. The older ones are for the case that the newest turns out to be
/// damaged: the journal is kept from the oldest on.
const KEPT: usize = 2;

/// How long the journal may take to make what a snapshot has seen durable.
const DURABLE: Duration = Duration::from_secs(60);

/// When snapshots are taken. A start reads the last one and the journal since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotPolicy {
    /// At least so often, while there are changes. Default 10 minutes.
    pub interval: Duration,
    /// When so much was written since the last one, or a quarter of its size if that is more.
    /// Default 64 MiB.
    pub bytes: u64,
    /// Never sooner after the last one, however it ended. Default 15 seconds.
    pub min_interval: Duration,
}

impl Default for SnapshotPolicy {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(600),
            bytes: 64 << 20,
            min_interval: Duration::from_secs(15),
        }
    }
}

/// The longest pause after snapshots that failed.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// The shortest pause, when a snapshot is requested.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// Decides when the next snapshot of a journal is due, by a [`SnapshotPolicy`].
#[derive(Debug)]
pub struct SnapshotSchedule {
    policy: SnapshotPolicy,
    begun: Instant,
    last: Option<SnapshotInfo>,
    /// The age of the snapshot that was there at the beginning.
    age: Duration,
    tried: Option<Instant>,
    /// Bytes written when the last one that was finished began, and when the last one did.
    covered: u64,
    tried_at: u64,
    /// Snapshots that failed since the last one that was finished, and all that failed.
    failures: u32,
    failed: u64,
}

impl SnapshotSchedule {
    /// The schedule of a journal, the last snapshot of which is this.
    #[must_use]
    pub fn new(policy: SnapshotPolicy, last: Option<SnapshotInfo>) -> Self {
        let age = last.and_then(|last| last.finished.elapsed().ok()).unwrap_or_default();
        Self {
            policy,
            begun: Instant::now(),
            last,
            age,
            tried: None,
            covered: 0,
            tried_at: 0,
            failures: 0,
            failed: 0,
        }
    }

    /// Returns whether one is due, when so many bytes of batches were written since the schedule
    /// began. After failures it waits longer and longer, up to ten minutes.
    #[must_use]
    pub fn is_due(&self, written: u64) -> bool {
        let written = written.saturating_sub(self.covered);
        if written == 0 || self.is_too_soon(self.policy.min_interval) {
            return false;
        }
        let size = self.last.map_or(0, |last| last.bytes);
        let is_old = match self.tried {
            Some(tried) => tried.elapsed() >= self.policy.interval,
            // What was there at the start counts from its own time.
            None => self.age + self.begun.elapsed() >= self.policy.interval,
        };
        is_old && self.last.is_some() || written >= self.policy.bytes.max(size / 4)
    }

    /// Returns whether one that is asked for may be taken: at once, but after failures.
    #[must_use]
    pub fn may_be_asked(&self) -> bool {
        self.failures == 0 || !self.is_too_soon(MIN_PAUSE)
    }

    fn is_too_soon(&self, pause: Duration) -> bool {
        let doubled = pause.saturating_mul(1 << self.failures.min(16));
        let pause = if self.failures == 0 { pause } else { doubled.min(MAX_PAUSE.max(pause)) };
        self.tried.is_some_and(|tried| tried.elapsed() < pause)
    }

    /// One begins, when so many bytes are written.
    pub fn began(&mut self, written: u64) {
        self.tried = Some(Instant::now());
        self.tried_at = written;
    }

    /// Notes that the last snapshot was finished.
    pub fn finished(&mut self, info: SnapshotInfo) {
        self.last = Some(info);
        self.covered = self.tried_at;
        self.failures = 0;
    }

    /// Notes that the last snapshot failed.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.failed += 1;
    }

    /// Returns the last snapshot that was finished.
    #[must_use]
    pub fn last(&self) -> Option<SnapshotInfo> {
        self.last
    }

    /// Returns how many came to nothing since the beginning.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failed
    }
}

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
        forget_older(&**writer.journal())?;
        Ok(info)
    }
}

/// Forgets what no start needs any more, after a snapshot.
pub(crate) fn forget_older(journal: &dyn MetadataJournal) -> Result<(), JournalError> {
    match journal.snapshots()?.get(KEPT - 1) {
        Some(oldest) => journal.forget(oldest.at),
        None => Ok(()),
    }
}
