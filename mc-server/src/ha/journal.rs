//! A master's journal: what it begins with, and what writes it.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_environment::Environment;
use mc_ha::election::Leadership;
use mc_ha::replication::{Hub, HubSettings};
use mc_ha::{
    Batch, Identity, JournalError, JournalProgress, JournalUsage, JournalWriter, MetadataJournal,
    Position, RecoverError, ReplayReport, Replica, SnapshotInfo, SnapshotPolicy, WriterSettings,
    WriterStartError, WriterState, WriterWatch,
};
use mc_meta::{Corrections, MasterConfig, RebuildReport};
use mc_rpc::{DurableSequence, DurableWatch};
use mc_types::{Epoch, Sequence, Time};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use super::snapshots::{SnapshotRequest, Snapshots, SnapshotsTaken};

/// How a master keeps its metadata; see [`MasterBuilder::journal`](crate::MasterBuilder::journal).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JournalConfig {
    /// Where.
    pub journal: Arc<dyn MetadataJournal>,
    /// When a change may be acknowledged, and how much may wait.
    pub writer: WriterSettings,
    /// When snapshots are taken.
    pub snapshots: SnapshotPolicy,
    /// Threads that read the journal at the start. Default: one for each processor.
    pub threads: NonZeroUsize,
}

impl JournalConfig {
    /// Keeps the metadata in this journal, with the defaults.
    #[must_use]
    pub fn new(journal: Arc<dyn MetadataJournal>) -> Self {
        Self {
            journal,
            writer: WriterSettings::default(),
            snapshots: SnapshotPolicy::default(),
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// The state of a master's journal at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JournalReport {
    /// Whether an acknowledged change is durable, or will be soon.
    pub settings: WriterSettings,
    /// The state of the writer.
    pub writer: WriterState,
    /// Bytes on the medium.
    pub usage: JournalUsage,
    /// The last snapshot.
    pub last_snapshot: Option<SnapshotInfo>,
    /// Snapshots that failed since the start.
    pub failed_snapshots: u64,
    /// The report of the replay at the start.
    pub replayed: ReplayReport,
}

/// Why a master cannot start with its journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalStartError {
    /// The journal cannot be read.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The journal cannot be written.
    #[error(transparent)]
    Write(#[from] WriterStartError),
    /// The secrets beside it cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system has no randomness for the secrets.
    #[error("the system gave no random bytes for the secrets of a new journal")]
    NoRandomness(#[source] io::Error),
    /// The thread for the snapshots could not be started.
    #[error("cannot start the thread that takes snapshots")]
    Thread(#[source] io::Error),
}

impl JournalStartError {
    /// Returns whether the same may succeed later: the medium failed, and may be mended.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Recover(error) => error.is_retryable(),
            Self::Write(WriterStartError::Journal(error)) | Self::Journal(error) => {
                error.is_retryable()
            }
            Self::Write(_) | Self::NoRandomness(_) | Self::Thread(_) => false,
        }
    }
}

/// A master that was recovered from a journal.
pub(crate) struct Recovered {
    pub(crate) state: mc_meta::Master,
    pub(crate) corrections: Corrections,
    pub(crate) replayed: ReplayReport,
}

/// Makes a master of a journal, or a new one when it is empty. Blocks.
pub(crate) fn recover(
    config: &JournalConfig,
    master: &MasterConfig,
    seed: Option<u64>,
    environment: &dyn Environment,
) -> Result<Recovered, JournalStartError> {
    let begun = Instant::now();
    let identity = identity(&*config.journal, seed, environment)?;
    let replica = Replica::load(&*config.journal, master, &identity, config.threads)?;
    finish(replica, begun)
}

/// Makes a master of what a standby has.
pub(crate) fn take_over(
    replica: Option<Replica>,
    config: &JournalConfig,
    master: &MasterConfig,
    seed: Option<u64>,
    environment: &dyn Environment,
) -> Result<Recovered, JournalStartError> {
    match replica {
        Some(replica) => finish(replica, Instant::now()),
        None => recover(config, master, seed, environment),
    }
}

fn finish(replica: Replica, begun: Instant) -> Result<Recovered, JournalStartError> {
    let (rebuilt, replayed) = replica.finish(Time::ORIGIN)?;
    tell(&rebuilt.report, &replayed, begun);
    Ok(Recovered { state: rebuilt.master, corrections: rebuilt.corrections, replayed })
}

/// The secrets of the journal, drawn when it is new.
fn identity(
    journal: &dyn MetadataJournal,
    seed: Option<u64>,
    environment: &dyn Environment,
) -> Result<Identity, JournalStartError> {
    if let Some(identity) = journal.identity()? {
        return Ok(identity);
    }
    let draw = || environment.random_u128().map_err(JournalStartError::NoRandomness);
    let seed = seed.map_or_else(|| draw().map(|bits| bits as u64), Ok)?;
    let identity = Identity { seed, secret: draw()?.to_ne_bytes() };
    journal.set_identity(&identity)?;
    Ok(identity)
}

/// Logs what came of a journal.
pub(crate) fn tell(rebuilt: &RebuildReport, replayed: &ReplayReport, begun: Instant) {
    if replayed.damaged > 0 {
        for damage in &replayed.damages {
            warn!(%damage, "a part of the journal is lost");
        }
        warn!(
            parts = replayed.damaged,
            "parts of the journal could not be read; the objects that they were about may be missing"
        );
    }
    if rebuilt.dropped.total() > 0 {
        warn!(dropped = ?rebuilt.dropped, "records contradict each other; those objects are missing");
    }
    if replayed.batches > 0 {
        info!(
            objects = rebuilt.objects,
            segments = rebuilt.segments,
            records = replayed.records,
            seconds = format_args!("{:.1}", begun.elapsed().as_secs_f64()),
            "metadata is back; waiting for the clients that hold the objects"
        );
    }
}

/// The journal of a master that runs.
#[derive(Debug)]
pub(crate) struct RunningJournal {
    environment: Arc<dyn Environment>,
    writer: Arc<JournalWriter>,
    settings: WriterSettings,
    snapshots: Snapshots,
    durable: DurableWatch,
    replayed: Arc<ReplayReport>,
}

/// Tells the server what may be acknowledged.
#[derive(Debug)]
pub(crate) struct AnswerGate {
    durable: DurableSequence,
    is_held: AtomicBool,
}

impl AnswerGate {
    fn new() -> (Arc<Self>, DurableWatch) {
        let durable = DurableSequence::new();
        let watch = durable.watch();
        (Arc::new(Self { durable, is_held: AtomicBool::new(false) }), watch)
    }

    /// Acknowledges nothing more until it is [released](Self::release): calls go on and wait for their
    /// answers. What was acknowledged, or is at this moment, the writer has taken in when this returns.
    pub(crate) fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    /// Goes on acknowledging from the next time on that there is something to acknowledge.
    pub(crate) fn release(&self) {
        self.is_held.store(false, Ordering::SeqCst);
    }
}

impl JournalProgress for AnswerGate {
    fn acknowledge(&self, until: Sequence) {
        if !self.is_held.load(Ordering::SeqCst) {
            self.durable.advance(until);
        }
    }

    fn suspended(&self, cause: Option<&JournalError>) {
        match cause {
            Some(cause) => self.durable.suspend(cause),
            None => self.durable.resume(),
        }
    }

    fn appended(&self, _: &[Batch]) {}
}

/// A term as its standbys and those who wait for answers see it.
#[derive(Clone, Debug)]
pub(crate) struct LedJournal {
    pub(crate) hub: Arc<Hub>,
    pub(crate) answers: Arc<AnswerGate>,
}

impl LedJournal {
    /// Goes on acknowledging, after the answers were [held](AnswerGate::hold).
    pub(crate) fn release(&self, journal: &JournalWatch) {
        self.answers.release();
        // What was not acknowledged meanwhile.
        let (_, durable) = journal.ends();
        self.hub.acknowledge(durable.sequence);
    }
}

impl RunningJournal {
    /// Begins the term after the journal's last one. Blocks.
    pub(crate) fn start(
        environment: Arc<dyn Environment>,
        config: JournalConfig,
        corrections: &Corrections,
        replayed: ReplayReport,
    ) -> Result<Self, JournalStartError> {
        let (progress, watch) = AnswerGate::new();
        let epoch = Epoch::new(config.journal.epoch().as_u64() + 1);
        Self::write(environment, config, epoch, (corrections, replayed), progress, watch)
    }

    /// Begins a term that was won in an election, whose standbys get what is written. Blocks.
    pub(crate) fn lead(
        environment: Arc<dyn Environment>,
        config: JournalConfig,
        leadership: &Leadership,
        corrections: &Corrections,
        replayed: ReplayReport,
        replication: HubSettings,
    ) -> Result<(Self, LedJournal), JournalStartError> {
        let epoch = leadership.epoch();
        let (answers, watch) = AnswerGate::new();
        let leader = Arc::clone(&answers) as Arc<dyn JournalProgress>;
        let hub = Hub::new(epoch, Arc::clone(&config.journal), leader, replication)?;
        let hub = hub.with_last_unclean(leadership.last_unclean());
        let hub = Arc::new(hub.with_environment(Arc::clone(&environment)));
        let told = Arc::clone(&hub) as Arc<dyn JournalProgress>;
        let running =
            Self::write(environment, config, epoch, (corrections, replayed), told, watch)?;
        Ok((running, LedJournal { hub, answers }))
    }

    fn write(
        environment: Arc<dyn Environment>,
        config: JournalConfig,
        epoch: Epoch,
        (corrections, replayed): (&Corrections, ReplayReport),
        progress: Arc<dyn JournalProgress>,
        durable: DurableWatch,
    ) -> Result<Self, JournalStartError> {
        let JournalConfig { journal, writer: settings, snapshots, .. } = config;
        let writer = JournalWriter::start_in(
            &*environment,
            journal,
            epoch,
            corrections,
            settings,
            progress,
        )?;
        let writer = Arc::new(writer);
        let snapshots = Snapshots::new(snapshots, Arc::clone(&writer))?;
        Ok(Self { environment, writer, settings, snapshots, durable, replayed: Arc::new(replayed) })
    }

    /// Asks for a snapshot.
    pub(crate) fn snapshot_request(&self) -> SnapshotRequest {
        self.snapshots.request()
    }

    /// The sink that the master needs.
    pub(crate) fn sink(&self) -> mc_ha::JournalSink {
        self.writer.sink()
    }

    /// Returns the watch that answers wait for.
    pub(crate) fn durability(&self) -> DurableWatch {
        self.durable.clone()
    }

    /// Takes snapshots of this master from now on. `now` is its clock.
    ///
    /// # Errors
    /// [`JournalStartError::Thread`].
    pub(crate) fn attend(
        &mut self,
        state: &Arc<mc_meta::Master>,
        now: impl Fn() -> Time + Send + Sync + 'static,
    ) -> Result<(), JournalStartError> {
        let started = self.snapshots.start(&*self.environment, Arc::clone(state), now);
        started.map_err(JournalStartError::Thread)
    }

    /// Waits for the snapshot under way, writes what waits, for ten seconds at most, and ends.
    pub(crate) async fn close(&self) {
        self.snapshots.close().await;
        self.writer.close().await;
    }

    /// Sees its state from elsewhere.
    pub(crate) fn watch(&self) -> JournalWatch {
        JournalWatch {
            settings: self.settings,
            writer: self.writer.watch(),
            snapshots: self.snapshots.taken(),
            replayed: Arc::clone(&self.replayed),
        }
    }
}

/// Sees the state of a master's journal; it may outlive the master.
#[derive(Clone, Debug)]
pub struct JournalWatch {
    settings: WriterSettings,
    writer: WriterWatch,
    snapshots: Arc<Mutex<SnapshotsTaken>>,
    replayed: Arc<ReplayReport>,
}

/// The reason why a journal cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum JournalTrouble {
    /// The medium says that it cannot.
    #[error("the journal cannot be written: {cause}")]
    Fails { cause: String },
    /// The medium does not answer. A slow one does, however late.
    #[error(
        "the journal hangs: its medium has not answered for {} s; look at the disk",
        since.as_secs()
    )]
    Hangs {
        /// How long one write or sync has taken by now.
        since: Duration,
    },
}

/// How often a journal is checked for a writer that has stopped retrying.
const LOOK: Duration = Duration::from_millis(200);

impl JournalWatch {
    /// The state now, with the sizes of a second ago. Waits for no medium.
    #[must_use]
    pub fn read(&self) -> JournalReport {
        let SnapshotsTaken { last, failed, usage } = *self.snapshots.lock();
        JournalReport {
            settings: self.settings,
            writer: self.writer.read(),
            usage,
            last_snapshot: last,
            failed_snapshots: failed,
            replayed: (*self.replayed).clone(),
        }
    }

    /// Returns what keeps the journal from being written now, if anything does.
    #[must_use]
    pub fn trouble(&self) -> Option<JournalTrouble> {
        let WriterState { failure, stuck_for, .. } = self.writer.read();
        match failure {
            Some(cause) => Some(JournalTrouble::Fails { cause }),
            None if stuck_for >= JournalWriter::HANGS_AFTER => {
                Some(JournalTrouble::Hangs { since: stuck_for })
            }
            None => None,
        }
    }

    /// Returns the last change, and the last one that is durable.
    pub(crate) fn ends(&self) -> (Position, Position) {
        let WriterState { last, durable, .. } = self.writer.read();
        (last, durable)
    }

    /// Waits until the journal's writer has stopped retrying: the journal could not be written for so
    /// long that changes are not kept any more. Its master should be ended.
    pub async fn gave_up(&self) {
        while !self.writer.read().gave_up {
            tokio::time::sleep(LOOK).await;
        }
    }
}
