//! A master's journal: what it begins with, and what writes it.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use mc_ha::replication::{Hub, HubSettings};
use mc_ha::{
    Batch, Executor, Identity, JournalError, JournalProgress, JournalUsage, JournalWriter,
    MetadataJournal, RecoverError, ReplayReport, Replica, SnapshotInfo, WriterSettings,
    WriterStartError, WriterState, WriterWatch,
};
use mc_meta::{Corrections, MasterConfig, RebuildReport};
use mc_rpc::{DurableSequence, DurableWatch};
use mc_types::{Epoch, Sequence, Time};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use super::environment::HaEnvironment;
use super::snapshots::{SnapshotPolicy, SnapshotRequest, Snapshots, SnapshotsTaken};
use crate::environment::Environment;

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
    /// What is written.
    pub writer: WriterState,
    /// Bytes on the medium.
    pub usage: JournalUsage,
    /// The last snapshot.
    pub last_snapshot: Option<SnapshotInfo>,
    /// Snapshots that failed since the start.
    pub failed_snapshots: u64,
    /// What was read at the start.
    pub replayed: ReplayReport,
}

/// Why a master cannot start with its journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalStartError {
    /// It cannot be read.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriterStartError),
    /// The secrets beside it cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system has no randomness for the secrets.
    #[error("the system gave no random bytes for the secrets of a new journal")]
    NoRandomness(#[source] io::Error),
    /// No thread for the snapshots.
    #[error("cannot start the thread that takes snapshots")]
    Thread(#[source] io::Error),
}

/// What came of a journal.
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
    executor: Arc<HaEnvironment>,
    writer: Arc<JournalWriter>,
    settings: WriterSettings,
    snapshots: Snapshots,
    durable: DurableWatch,
    replayed: Arc<ReplayReport>,
}

/// Tells the server what may be acknowledged.
struct Progress(DurableSequence);

impl JournalProgress for Progress {
    fn acknowledge(&self, until: Sequence) {
        self.0.advance(until);
    }

    fn suspended(&self, cause: Option<&JournalError>) {
        match cause {
            Some(cause) => self.0.suspend(cause),
            None => self.0.resume(),
        }
    }

    fn appended(&self, _: &[Batch]) {}
}

impl RunningJournal {
    /// Begins the term after the journal's last one. Blocks.
    pub(crate) fn start(
        executor: Arc<HaEnvironment>,
        config: JournalConfig,
        corrections: &Corrections,
        replayed: ReplayReport,
    ) -> Result<Self, JournalStartError> {
        let durable = DurableSequence::new();
        let watch = durable.watch();
        let epoch = Epoch::new(config.journal.epoch().as_u64() + 1);
        let progress = Arc::new(Progress(durable));
        Self::write(executor, config, epoch, (corrections, replayed), progress, watch)
    }

    /// Begins a term that was won in an election, whose standbys get what is written. Blocks.
    pub(crate) fn lead(
        executor: Arc<HaEnvironment>,
        config: JournalConfig,
        epoch: Epoch,
        corrections: &Corrections,
        replayed: ReplayReport,
        replication: HubSettings,
    ) -> Result<(Self, Arc<Hub>), JournalStartError> {
        let durable = DurableSequence::new();
        let watch = durable.watch();
        let leader = Arc::new(Progress(durable));
        let hub = Hub::new(epoch, Arc::clone(&config.journal), leader, replication)?;
        let hub = Arc::new(hub.with_executor(Arc::clone(&executor) as Arc<dyn Executor>));
        let progress = Arc::clone(&hub) as Arc<dyn JournalProgress>;
        let running =
            Self::write(executor, config, epoch, (corrections, replayed), progress, watch)?;
        Ok((running, hub))
    }

    fn write(
        executor: Arc<HaEnvironment>,
        config: JournalConfig,
        epoch: Epoch,
        (corrections, replayed): (&Corrections, ReplayReport),
        progress: Arc<dyn JournalProgress>,
        durable: DurableWatch,
    ) -> Result<Self, JournalStartError> {
        let JournalConfig { journal, writer: settings, snapshots, .. } = config;
        let writer =
            JournalWriter::start_in(&*executor, journal, epoch, corrections, settings, progress)?;
        let writer = Arc::new(writer);
        let snapshots = Snapshots::new(snapshots, Arc::clone(&writer))?;
        Ok(Self { executor, writer, settings, snapshots, durable, replayed: Arc::new(replayed) })
    }

    /// Asks for a snapshot.
    pub(crate) fn snapshot_request(&self) -> SnapshotRequest {
        self.snapshots.request()
    }

    /// The sink that the master needs.
    pub(crate) fn sink(&self) -> mc_ha::JournalSink {
        self.writer.sink()
    }

    /// What answers wait for.
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
        let started = self.snapshots.start(&*self.executor, Arc::clone(state), now);
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

/// How often it is looked whether a journal has given up.
const LOOK: Duration = Duration::from_millis(200);

impl JournalWatch {
    /// The state now. Looks at files: blocks.
    #[must_use]
    pub fn read(&self) -> JournalReport {
        let SnapshotsTaken { last, failed } = *self.snapshots.lock();
        JournalReport {
            settings: self.settings,
            writer: self.writer.read(),
            usage: self.writer.usage(),
            last_snapshot: last,
            failed_snapshots: failed,
            replayed: (*self.replayed).clone(),
        }
    }

    /// Returns whether the journal cannot be written now.
    pub(crate) fn is_failing(&self) -> bool {
        self.writer.read().failure.is_some()
    }

    /// Waits until the journal has given up: it has not been written for so long that changes are
    /// not kept any more. Its master should be ended.
    pub async fn gave_up(&self) {
        while !self.writer.read().gave_up {
            tokio::time::sleep(LOOK).await;
        }
    }
}
