//! A master from a journal.

use core::cell::Cell;
use core::num::NonZeroUsize;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::io;
use std::panic::resume_unwind;
use std::thread;

use mc_meta::{
    ConfigError, ExportCursor, ExportPage, MasterConfig, Rebuild, RebuildError, RebuildPart,
    Rebuilt, RecordRef,
};
use mc_ticket::GrantSecret;
use mc_types::{KeyRef, Time};
use tracing::warn;

use crate::encoding::{Batch, BatchError, BatchKind, BatchReader, DamagedRecord, RecordVisitor};
use crate::identity::Identity;
use crate::journal::{DamagedBatch, JournalError, MetadataJournal, SnapshotInfo};
use crate::position::Position;

/// Damages that are named; of the rest there is the number.
const NAMED: usize = 16;

/// The state of a master, as far as a journal tells, to which more batches can be applied: what a
/// standby keeps.
#[derive(Debug)]
pub struct Replica {
    rebuild: Rebuild,
    position: Position,
    report: ReplayReport,
    threads: NonZeroUsize,
    /// Where the pages of the snapshot are consistent, and which attempt to settle comes next.
    consistent: Position,
    settle: Attempt,
}

/// When a replica is settled again after it was tried in vain.
#[derive(Clone, Copy, Debug, Default)]
struct Attempt {
    /// Records that are to have been read.
    at: u64,
    /// Records until the next one.
    patience: u64,
}

/// The input that was read to make a [`Replica`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayReport {
    /// The snapshot that it began with.
    pub snapshot: Option<Position>,
    /// Batches read, those of the snapshot included.
    pub batches: u64,
    /// Records read.
    pub records: u64,
    /// Records and batches that could not be read.
    pub damaged: u64,
    /// The first of those.
    pub damages: Vec<Damage>,
}

/// A part of a journal or snapshot that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Damage {
    /// A record.
    #[error(transparent)]
    Record(DamagedRecord),
    /// A batch of the journal.
    #[error("batch {at} of the journal: {reason}")]
    Batch {
        at: Position,
        /// The fault of the batch.
        reason: BatchError,
    },
    /// A part of a snapshot.
    #[error("a part of snapshot {at}: {reason}")]
    Snapshot {
        at: Position,
        /// The fault of the part.
        reason: BatchError,
    },
    /// A snapshot has no end.
    #[error("snapshot {at} ends too early")]
    NoEnd { at: Position },
}

/// Why no master comes of a journal.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum RecoverError {
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A snapshot cannot be read.
    #[error("cannot read snapshot {at}: {source}")]
    Read { at: Position, source: io::Error },
    /// A newer version wrote part of the journal.
    #[error(
        "the journal has a batch of format {found}, which this version does not read; start the \
         version that wrote it"
    )]
    Newer { found: u8 },
    /// The settings make no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no thread.
    #[error("cannot start the thread that keeps a standby's journal")]
    Thread(#[source] io::Error),
    /// The records make no master.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
}

impl RecoverError {
    /// Returns whether the same may succeed later: the medium failed, and may be mended.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Journal(error) => error.is_retryable(),
            Self::Read { .. } | Self::Thread(_) => true,
            _ => false,
        }
    }
}

impl ReplayReport {
    /// Adds what a part has met. All parts read the same batches; what all of them meet the first one
    /// alone has counted.
    fn add(&mut self, part: Self, is_first: bool) {
        self.records += part.records;
        if is_first {
            self.batches += part.batches;
        }
        self.damaged += part.damaged;
        let room = NAMED - self.damages.len();
        self.damages.extend(part.damages.into_iter().take(room));
    }

    fn damage(&mut self, damage: Damage) {
        self.damaged += 1;
        if self.damages.len() < NAMED {
            self.damages.push(damage);
        }
    }
}

impl Replica {
    /// Reads a journal: its newest snapshot, and what was appended since. When that snapshot is
    /// damaged and an older one is whole, the older one and what was appended since that. What
    /// cannot be read is left out and named in the report. Works on so many threads; on the calling one
    /// alone when that is one.
    ///
    /// # Errors
    /// [`RecoverError`].
    pub fn load(
        journal: &dyn MetadataJournal,
        config: &MasterConfig,
        identity: &Identity,
        threads: NonZeroUsize,
    ) -> Result<Self, RecoverError> {
        let mut damaged = None;
        for snapshot in journal.snapshots()? {
            let replica = Self::begin(journal, config, identity, threads, Some(snapshot))?;
            if replica.report.damaged == 0 {
                return replica.follow(journal);
            }
            warn!(
                snapshot = %snapshot.at, damages = ?replica.report.damages,
                "a snapshot is damaged; trying an older one"
            );
            damaged.get_or_insert(snapshot);
        }
        // If none is whole, the newest has most.
        Self::begin(journal, config, identity, threads, damaged)?.follow(journal)
    }

    /// Reads a snapshot.
    fn begin(
        journal: &dyn MetadataJournal,
        config: &MasterConfig,
        identity: &Identity,
        threads: NonZeroUsize,
        snapshot: Option<SnapshotInfo>,
    ) -> Result<Self, RecoverError> {
        let mut rebuild = Rebuild::in_parts(config.clone(), identity.seed, threads.get())?
            .with_secret(GrantSecret::from_bytes(identity.secret));
        let mut report = ReplayReport::default();
        let (mut position, mut consistent) = (Position::EMPTY, Position::EMPTY);
        if snapshot.is_none() {
            rebuild.expect_objects((journal.usage().journal_bytes / APPENDED_EACH) as usize);
        }
        if let Some(SnapshotInfo { at, bytes, .. }) = snapshot {
            (report.snapshot, position) = (Some(at), at);
            rebuild.expect_objects((bytes / BYTES_EACH) as usize);
            let parts = rebuild.parts();
            let is_sorted = is_sorted(journal, at, config.shards, &parts)?;
            let shards = is_sorted.then_some(config.shards);
            let read = |part| read_part(journal, at, shards, part);
            let parts = in_parallel(parts, read);
            for (number, part) in parts.into_iter().enumerate() {
                let (part, last) = part?;
                report.add(part, number == 0);
                consistent = consistent.max(last);
            }
        }
        Ok(Self { rebuild, position, report, threads, consistent, settle: Attempt::default() })
    }

    /// Reads what was appended since.
    fn follow(mut self, journal: &dyn MetadataJournal) -> Result<Self, RecoverError> {
        let mut newer = None;
        let mut some: Vec<Batch> = Vec::with_capacity(AT_A_TIME);
        journal.read(self.position, &mut |batch| {
            match batch {
                Ok(batch) => some.push(batch),
                Err(DamagedBatch { source: BatchError::Newer { found }, .. }) => {
                    newer = Some(found);
                    return ControlFlow::Break(());
                }
                Err(DamagedBatch { at, source }) => {
                    self.report.damage(Damage::Batch { at, reason: source });
                }
            }
            if some.len() == AT_A_TIME {
                self.apply_all(&some);
                some.clear();
            }
            ControlFlow::Continue(())
        })?;
        self.apply_all(&some);
        newer.map_or(Ok(self), |found| Err(RecoverError::Newer { found }))
    }

    /// Applies the next batch of effects.
    pub fn apply(&mut self, batch: &Batch) {
        self.apply_all(core::slice::from_ref(batch));
    }

    /// Applies the next batches of effects, on several threads when there are many.
    pub fn apply_all(&mut self, batches: &[Batch]) {
        let Some(last) = batches.last() else { return };
        let fill = |mut part: RebuildPart<'_>| {
            let mut report = ReplayReport::default();
            for batch in batches {
                report.batches += 1;
                let is_counting = is_first(&part);
                batch.visit(&mut Filler { part: &mut part, report: &mut report, is_counting });
            }
            report
        };
        let parts = if batches.len() < MANY {
            self.rebuild.parts().into_iter().map(fill).collect()
        } else {
            in_parallel(self.rebuild.parts(), fill)
        };
        for (number, part) in parts.into_iter().enumerate() {
            self.report.add(part, number == 0);
        }
        self.position = last.last();
    }

    /// Gives each object its space, for a takeover that costs little more than a look at each: what a
    /// standby does when it has caught up. Does nothing where that was done before or tried in vain
    /// lately, nor before the end of what a snapshot shows that was taken while the leader was at work.
    /// From then on records are applied on one thread. An [export](Self::export) that was begun before
    /// cannot go on.
    ///
    /// Takes the time of a takeover without it, half a second for each million objects on a thread.
    ///
    /// # Errors
    /// [`RecoverError::Rebuild`].
    pub fn settle(&mut self) -> Result<(), RecoverError> {
        let records = self.report.records;
        let is_early = self.position < self.consistent || records < self.settle.at;
        if self.rebuild.is_settled() || is_early {
            return Ok(());
        }
        let threads = self.threads.get();
        self.rebuild.settle_on(&|count, task| on_threads(threads, count, task))?;
        // For when it did not succeed, or records contradict each other later.
        let patience = self.settle.patience.saturating_mul(4).max(FIRST_RECORDS);
        self.settle = Attempt { at: records.saturating_add(patience), patience };
        Ok(())
    }

    /// Returns whether each object [has its space](Self::settle).
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.rebuild.is_settled()
    }

    /// Returns a page of the state so far, as [`Master::export`](mc_meta::Master::export) does of a
    /// master: all of them, followed by the batches that were applied since before the first, make
    /// this replica again.
    #[must_use]
    pub fn export(&self, cursor: ExportCursor) -> ExportPage {
        self.rebuild.export(cursor)
    }

    /// Returns the number of shards that the pages of an [export](Self::export) are divided into.
    pub(crate) fn shards(&self) -> u32 {
        self.rebuild.shards() as u32
    }

    /// The last effect that was applied.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the report of the input that was read.
    #[must_use]
    pub fn report(&self) -> &ReplayReport {
        &self.report
    }

    /// Counts as leased what the last leader listed when it handed over, and nothing else: see
    /// [`Rebuild::trust_leases`]. To be called only by the member that leads the term after its
    /// [`position`](Self::position)'s, if that began with a member in sync.
    pub fn trust_leases(&mut self) {
        self.rebuild.trust_leases();
    }

    /// The master that comes of it, whose clients have to come back from `now` on.
    ///
    /// # Errors
    /// [`RecoverError::Rebuild`].
    pub fn finish(self, now: Time) -> Result<(Rebuilt, ReplayReport), RecoverError> {
        let threads = self.threads.get();
        let rebuilt =
            self.rebuild.finish_on(now, &|count, task| on_threads(threads, count, task))?;
        Ok((rebuilt, self.report))
    }
}

/// Does a task with each number below `count`, on so many threads.
fn on_threads(threads: usize, count: usize, task: &(dyn Fn(usize) + Sync)) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && number < count
        {
            task(number);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(work);
        }
        work();
    });
}

/// Records between the first attempt to settle and the second.
const FIRST_RECORDS: u64 = 10_000;

/// Batches that are applied together, each part of the rebuild on a thread of its own.
const AT_A_TIME: usize = 64;

/// From so many on, threads are worth it.
const MANY: usize = 4;

/// Does the work on each part: on a thread of its own, when there are several.
fn in_parallel<'a, T: Send>(
    parts: Vec<RebuildPart<'a>>,
    work: impl Fn(RebuildPart<'a>) -> T + Sync,
) -> Vec<T> {
    if parts.len() == 1 {
        return parts.into_iter().map(work).collect();
    }
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            parts.into_iter().map(|part| scope.spawn(move || work(part))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Returns whether a part is the one that counts what all parts meet.
fn is_first(part: &RebuildPart<'_>) -> bool {
    part.owns_shard(0)
}

/// Gives one part of a rebuild the records that it needs.
struct Filler<'a, 'b> {
    part: &'a mut RebuildPart<'b>,
    report: &'a mut ReplayReport,
    /// Whether it counts what is damaged of no known object: no other part does.
    is_counting: bool,
}

impl RecordVisitor for Filler<'_, '_> {
    fn wants(&self, key: KeyRef<'_>) -> bool {
        self.part.owns(key)
    }

    fn records(&mut self, records: &[RecordRef<'_>]) {
        self.report.records += records.len() as u64;
        self.part.apply_all(records);
    }

    fn damaged(&mut self, record: DamagedRecord) {
        if record.is_wanted || self.is_counting {
            self.report.damage(Damage::Record(record));
        }
    }
}

/// Bytes of an object in a snapshot, at least, to guess how many there are.
const BYTES_EACH: u64 = 64;

/// Bytes of an object's put in a journal, about. What is not used of the room is given back.
const APPENDED_EACH: u64 = 128;

/// Keys of a snapshot that are looked at to see whether its pages are sorted.
const LOOKED_AT: usize = 128;

/// Returns whether the pages of a snapshot are sorted by the shards of this rebuild. Those of a journal
/// whose secrets were lost are not: another seed spreads the keys differently.
fn is_sorted(
    journal: &dyn MetadataJournal,
    at: Position,
    shards: usize,
    parts: &[RebuildPart<'_>],
) -> Result<bool, RecoverError> {
    struct Keys<'a, 'b> {
        part: &'a RebuildPart<'b>,
        seen: Cell<usize>,
        are_own: Cell<bool>,
    }
    impl RecordVisitor for Keys<'_, '_> {
        fn wants(&self, key: KeyRef<'_>) -> bool {
            self.seen.set(self.seen.get() + 1);
            self.are_own.set(self.are_own.get() && self.part.owns(key));
            false
        }

        fn records(&mut self, _: &[RecordRef<'_>]) {}

        fn damaged(&mut self, _: DamagedRecord) {}
    }
    let mut reader = BatchReader::new(journal.open_snapshot(at)?);
    let mut seen = 0;
    while seen < LOOKED_AT
        && let Some(batch) =
            reader.next_batch().map_err(|source| RecoverError::Read { at, source })?
    {
        let Ok(batch) = batch else { continue };
        let Some(shard) = batch.shard_of(shards) else { continue };
        let Some(part) = parts.iter().find(|part| part.owns_shard(shard)) else { continue };
        let mut keys = Keys { part, seen: Cell::new(0), are_own: Cell::new(true) };
        batch.visit(&mut keys);
        if !keys.are_own.get() {
            return Ok(false);
        }
        seen += keys.seen.get();
    }
    Ok(true)
}

/// Reads a snapshot for one part of a rebuild: its pages of other shards are passed over, where they
/// are sorted by so many. Also returns the last effect that its pages may show.
fn read_part(
    journal: &dyn MetadataJournal,
    at: Position,
    shards: Option<usize>,
    mut part: RebuildPart<'_>,
) -> Result<(ReplayReport, Position), RecoverError> {
    let mut report = ReplayReport::default();
    let mut last = at;
    let failed = |source| RecoverError::Read { at, source };
    let mut reader = BatchReader::new(journal.open_snapshot(at)?);
    let mut has_end = false;
    while let Some(batch) = reader.next_batch().map_err(failed)? {
        report.batches += 1;
        match batch {
            Ok(batch) if batch.kind() == BatchKind::End => {
                (has_end, last) = (true, batch.last());
            }
            Ok(batch) => {
                let shard = shards.and_then(|shards| batch.shard_of(shards));
                let owned = shard.map(|shard| part.owns_shard(shard));
                // A page of one shard is this part's alone, or not at all.
                let is_counting = owned.unwrap_or(is_first(&part));
                if owned != Some(false) {
                    let (part, report) = (&mut part, &mut report);
                    batch.visit(&mut Filler { part, report, is_counting });
                }
            }
            Err(BatchError::Newer { found }) => return Err(RecoverError::Newer { found }),
            Err(reason) if is_first(&part) => report.damage(Damage::Snapshot { at, reason }),
            Err(_) => {}
        }
    }
    if !has_end && is_first(&part) {
        report.damage(Damage::NoEnd { at });
    }
    Ok((report, last))
}
