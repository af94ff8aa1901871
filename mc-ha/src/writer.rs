//! From the effects of a master to batches in a journal.

mod group_commit;

use core::fmt;
use core::mem;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mc_environment::{Environment, System};
use mc_meta::{Corrections, Effect, EffectSink, RecordRef};
use mc_types::{Epoch, Sequence, Time};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::error;

use crate::apart::{Apart, block_on};
use crate::encoding::{Batch, BatchBuilder};
use crate::journal::{JournalError, MetadataJournal};
use crate::position::Position;

/// When a change may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At once, as long as everything older than this is durable: a crash of the host loses changes
    /// of this last time at most. When the medium is slower, acknowledgements wait for it.
    Async(Duration),
    /// When it is durable. Changes that are made at the same time become durable together.
    Sync,
}

/// Is told how far the journal is.
pub trait JournalProgress: Send + Sync {
    /// Changes up to this one may be acknowledged. Called often: for each
    /// [receipt](mc_meta::Master::receipt), on the thread that executed its commands, and when
    /// changes are durable. Must not wait. May come late: what was told before holds.
    fn acknowledge(&self, until: Sequence);

    /// The journal cannot be written: nothing more can be acknowledged until it is told that it
    /// can (`None`).
    fn suspended(&self, cause: Option<&JournalError>);

    /// Batches were appended: standbys may have them.
    fn appended(&self, batches: &[Batch]);
}

/// Settings of a [`JournalWriter`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WriterSettings {
    /// When a change may be acknowledged. Default: asynchronously within 100 ms.
    pub durability: Durability,
    /// Bytes of changes that wait for the medium, from which on the writer
    /// [gives up](WriterState::gave_up). Default 256 MiB.
    pub max_waiting: usize,
}

impl Default for WriterSettings {
    fn default() -> Self {
        Self { durability: Durability::Async(Duration::from_millis(100)), max_waiting: 256 << 20 }
    }
}

/// Writes the changes of one master, for one term, to a journal, [apart](Environment::spawn_apart).
///
/// Dropping it [closes](Self::close) it, and waits for that where a thread
/// [may block](Environment::may_block).
pub struct JournalWriter {
    shared: Arc<Shared>,
    commits: Apart,
}

/// The sink of a [`JournalWriter`].
#[derive(Clone)]
pub struct JournalSink(Arc<Shared>);

/// Sees the state of a [`JournalWriter`]; it may outlive it.
#[derive(Clone)]
pub struct WriterWatch(Arc<Shared>);

/// The state of a [`JournalWriter`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterState {
    /// The last effect.
    pub last: Position,
    /// The last effect that is durable.
    pub durable: Position,
    /// Since when the oldest change waits that is not durable.
    pub lag: Duration,
    /// How long the write or sync that is under way has taken by now; zero when none is.
    pub stuck_for: Duration,
    /// Writes and syncs that took longer than [`JournalWriter::HANGS_AFTER`], the one under way included.
    pub hangs: u64,
    /// Bytes that wait.
    pub waiting: usize,
    /// Bytes that were appended since the start.
    pub written: u64,
    /// Why the journal cannot be written, if it cannot.
    pub failure: Option<String>,
    /// So many bytes wait that no more are kept: the master has to end, and what is not durable is
    /// lost.
    pub gave_up: bool,
}

struct Shared {
    journal: Arc<dyn MetadataJournal>,
    progress: Arc<dyn JournalProgress>,
    settings: WriterSettings,
    epoch: Epoch,
    waiting: Mutex<Waiting>,
    /// Microseconds since `begun` of the oldest change that waits; [`NOTHING`] without any.
    oldest: AtomicU64,
    begun: Instant,
    /// Nothing may be acknowledged that is not durable: the journal cannot be written.
    is_failing: AtomicBool,
    /// Wakes the group commit: there is something to write, or the end.
    wake: Notify,
    /// Notified when more is durable, and when the writer has failed for good.
    progressed: Notify,
}

struct Waiting {
    builder: BatchBuilder,
    /// Since when the builder's oldest effect waits.
    since: Option<Instant>,
    full: Vec<Batch>,
    bytes: usize,
    written: u64,
    /// Since when the oldest effect waits that is written now.
    writing: Option<Instant>,
    /// When the write began that has not returned.
    trying: Option<Instant>,
    hangs: u64,
    last: Sequence,
    /// The last effect of a receipt, whose caller waits.
    wanted: Sequence,
    durable: Sequence,
    failure: Option<JournalError>,
    gave_up: bool,
    /// The group commit waits for something to write.
    is_idle: bool,
    /// The group commit waits for the end of the commands whose first effects it has.
    is_gathering: bool,
    ends: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.builder.is_empty()
    }

    fn stuck_for(&self) -> Duration {
        self.trying.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn lag(&self, now: Instant) -> Duration {
        let oldest = self.writing.or(self.since);
        oldest.map_or(Duration::ZERO, |oldest| now.saturating_duration_since(oldest))
    }
}

/// See [`Shared::oldest`].
const NOTHING: u64 = u64::MAX;

impl JournalWriter {
    /// How long one write or sync may take before the medium is taken to hang. Disks that are slow, and
    /// not broken, answer within a second or two.
    pub const HANGS_AFTER: Duration = Duration::from_secs(3);

    /// Begins a term in the journal, and starts to write on a thread of its own. The first batch has
    /// the `corrections` of the rebuild that the term's master came of; those of a new master are
    /// empty. Blocks.
    ///
    /// # Errors
    /// [`JournalError`] when the term cannot begin, and what the system says when there is no
    /// thread.
    pub fn start(
        journal: Arc<dyn MetadataJournal>,
        epoch: Epoch,
        corrections: &Corrections,
        settings: WriterSettings,
        progress: Arc<dyn JournalProgress>,
    ) -> Result<Self, WriterStartError> {
        Self::start_in(&System, journal, epoch, corrections, settings, progress)
    }

    /// [`start`](Self::start)s to write where the environment runs work apart.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_in(
        environment: &dyn Environment,
        journal: Arc<dyn MetadataJournal>,
        epoch: Epoch,
        corrections: &Corrections,
        settings: WriterSettings,
        progress: Arc<dyn JournalProgress>,
    ) -> Result<Self, WriterStartError> {
        journal.begin_epoch(epoch)?;
        let mut builder = BatchBuilder::new(epoch);
        builder.effect(Sequence::new(0), None);
        corrections.records().for_each(|record| builder.record(&record));
        let first = builder.seal().expect("an effect was added");
        journal.append(epoch, &first)?;
        journal.sync()?;
        progress.appended(&[first]);
        let shared = Arc::new(Shared {
            journal,
            progress,
            settings,
            epoch,
            oldest: AtomicU64::new(NOTHING),
            begun: Instant::now(),
            is_failing: AtomicBool::new(false),
            waiting: Mutex::new(Waiting {
                builder,
                since: None,
                full: Vec::new(),
                bytes: 0,
                written: 0,
                writing: None,
                trying: None,
                hangs: 0,
                last: Sequence::new(0),
                wanted: Sequence::new(0),
                durable: Sequence::new(0),
                failure: None,
                gave_up: false,
                is_idle: false,
                is_gathering: false,
                ends: false,
            }),
            wake: Notify::new(),
            progressed: Notify::new(),
        });
        let run = Arc::clone(&shared);
        let write = async move {
            // A commit that panics keeps nothing any more.
            let ending = Ending(&run);
            run.write().await;
            mem::forget(ending);
        };
        let commits = Apart::start(environment, "mc-journal", write);
        Ok(Self { shared, commits: commits.map_err(WriterStartError::Thread)? })
    }

    /// The sink of the master whose changes are to be kept.
    #[must_use]
    pub fn sink(&self) -> JournalSink {
        JournalSink(Arc::clone(&self.shared))
    }

    /// Returns the writer's positions, its lag and its failure, if any.
    #[must_use]
    pub fn state(&self) -> WriterState {
        self.shared.state()
    }

    /// Sees its state from elsewhere.
    #[must_use]
    pub fn watch(&self) -> WriterWatch {
        WriterWatch(Arc::clone(&self.shared))
    }

    /// The journal.
    #[must_use]
    pub fn journal(&self) -> &Arc<dyn MetadataJournal> {
        &self.shared.journal
    }

    /// Returns the term that its batches belong to.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    /// Ends the batch that is being made, and returns the last effect: no batch has effects on both
    /// sides of it, so a snapshot that begins there can be followed by batches.
    pub(crate) fn end_batch(&self) -> Sequence {
        let mut waiting = self.shared.waiting.lock();
        let batch = waiting.builder.seal();
        waiting.full.extend(batch);
        waiting.last
    }

    /// Waits until everything up to this effect is durable, or never will be because the writer has
    /// [failed for good](WriterState::gave_up); returns whether it is. May be dropped at any point.
    pub async fn durable(&self, until: Sequence) -> bool {
        loop {
            let progressed = self.shared.progressed.notified();
            {
                let waiting = self.shared.waiting.lock();
                if waiting.durable >= until || waiting.gave_up {
                    return waiting.durable >= until;
                }
            }
            progressed.await;
        }
    }

    /// Blocks until everything up to this effect is [`durable`](Self::durable); returns whether it
    /// is, after `timeout` at the latest.
    #[must_use]
    pub fn wait_durable(&self, until: Sequence, timeout: Duration) -> bool {
        let deadline = std::time::Instant::now() + timeout;
        block_on(self.durable(until), Some(deadline)).unwrap_or(false)
    }

    /// Writes what waits, for ten seconds at most, and ends. Nothing is written afterwards. It ends
    /// also when the future is dropped.
    pub async fn close(&self) {
        self.end();
        self.commits.ended().await;
    }

    fn end(&self) {
        self.shared.waiting.lock().ends = true;
        self.shared.wake.notify_one();
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        self.end();
        self.commits.wait();
    }
}

impl WriterWatch {
    /// The state now.
    #[must_use]
    pub fn read(&self) -> WriterState {
        self.0.state()
    }
}

impl fmt::Debug for WriterWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriterWatch").field("epoch", &self.0.epoch).finish_non_exhaustive()
    }
}

impl fmt::Debug for JournalWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalWriter").field("epoch", &self.shared.epoch).finish_non_exhaustive()
    }
}

impl EffectSink for JournalSink {
    fn emit(&self, sequence: Sequence, _: Time, effect: &Effect<'_>) {
        let shared = &*self.0;
        let mut waiting = shared.waiting.lock();
        if waiting.gave_up {
            return;
        }
        waiting.last = sequence;
        if waiting.since.is_none() {
            waiting.since = Some(Instant::now());
            shared.note_oldest(&waiting);
        }
        let before = waiting.builder.bytes();
        waiting.builder.effect(sequence, RecordRef::from_effect(effect));
        waiting.bytes += waiting.builder.bytes() - before;
        if waiting.builder.is_full() {
            let full = waiting.builder.seal();
            waiting.full.extend(full);
        }
        if waiting.bytes > shared.settings.max_waiting {
            error!(
                limit = shared.settings.max_waiting,
                "too many changes wait for the journal; this master cannot go on"
            );
            shared.give_up(&mut waiting);
        }
        let wakes = mem::take(&mut waiting.is_idle);
        drop(waiting);
        if wakes {
            shared.wake.notify_one();
        }
    }

    fn executed(&self, last: Sequence) {
        let shared = &*self.0;
        match shared.settings.durability {
            Durability::Async(bound) => {
                if shared.is_on_time(bound) {
                    shared.progress.acknowledge(last);
                }
            }
            Durability::Sync => {
                let mut waiting = shared.waiting.lock();
                waiting.wanted = waiting.wanted.max(last);
                let wakes = mem::take(&mut waiting.is_gathering);
                drop(waiting);
                if wakes {
                    shared.wake.notify_one();
                }
            }
        }
    }
}

impl Shared {
    fn state(&self) -> WriterState {
        let waiting = self.waiting.lock();
        WriterState {
            last: Position::new(self.epoch, waiting.last),
            durable: Position::new(self.epoch, waiting.durable),
            lag: waiting.lag(Instant::now()),
            stuck_for: waiting.stuck_for(),
            hangs: waiting.hangs + u64::from(waiting.stuck_for() >= JournalWriter::HANGS_AFTER),
            waiting: waiting.bytes,
            written: waiting.written,
            failure: waiting.failure.as_ref().map(ToString::to_string),
            gave_up: waiting.gave_up,
        }
    }

    /// Notes since when the oldest change waits.
    fn note_oldest(&self, waiting: &Waiting) {
        let micros = |at: Instant| at.saturating_duration_since(self.begun).as_micros() as u64;
        let oldest = waiting.writing.or(waiting.since).map_or(NOTHING, micros);
        self.oldest.store(oldest, Ordering::Release);
    }

    /// Returns whether everything older than this is durable.
    fn is_on_time(&self, bound: Duration) -> bool {
        if self.is_failing.load(Ordering::Acquire) {
            return false;
        }
        let oldest = self.oldest.load(Ordering::Acquire);
        oldest == NOTHING || self.begun.elapsed() < Duration::from_micros(oldest) + bound
    }

    /// Forgets what waits, for good.
    fn give_up(&self, waiting: &mut Waiting) {
        waiting.gave_up = true;
        self.is_failing.store(true, Ordering::Release);
        waiting.full = Vec::new();
        waiting.builder = BatchBuilder::new(self.epoch);
        waiting.bytes = 0;
        self.progressed.notify_waiters();
    }
}

/// Gives up when the group commit ends in another way than it is to.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        if !waiting.ends {
            error!("the thread that writes the journal has ended; this master cannot go on");
            self.0.give_up(&mut waiting);
        }
    }
}

/// Why a journal does not begin to be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriterStartError {
    /// The journal refuses.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// There is no thread.
    #[error("cannot start the thread that writes the journal")]
    Thread(#[source] io::Error),
}
