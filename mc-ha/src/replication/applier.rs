//! The thread that keeps a standby's journal.

use core::fmt;
use core::num::NonZeroUsize;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mc_environment::{Environment, System};
use mc_meta::MasterConfig;
use mc_types::BoxFuture;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::frame::{Difference, ReplicationError, Start};
use super::own_snapshot::OwnSnapshot;
use crate::apart::block_on;
use crate::encoding::{Batch, BatchKind};
use crate::identity::{HistoryId, Identity};
use crate::journal::{JournalError, JournalUsage, MetadataJournal, SnapshotInfo};
use crate::position::Position;
use crate::recover::{RecoverError, Replica};
use crate::snapshot::{SnapshotPolicy, SnapshotSchedule};

/// Batches that may wait to be kept.
const WAITING: usize = 64;

/// How often it is looked at the journal's files, and whether a snapshot is due while nothing comes.
const LOOK: Duration = Duration::from_secs(1);

/// Keeps a standby's journal, and the state that comes of it, [apart](Environment::spawn_apart): journals
/// block. It ends when it is dropped and what it was given is done.
///
/// It takes snapshots of its own, so that its journal stays as short as the leader's.
pub struct Applier {
    journal: Arc<dyn MetadataJournal>,
    jobs: mpsc::Sender<Job>,
    state: watch::Receiver<ApplierState>,
    /// Its state at the end.
    replica: oneshot::Receiver<Option<Replica>>,
}

/// How an [`Applier`] works.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ApplierSettings {
    /// Threads that read the journal at the start. Default one.
    pub threads: NonZeroUsize,
    /// When snapshots are taken.
    pub snapshots: SnapshotPolicy,
}

impl Default for ApplierSettings {
    fn default() -> Self {
        Self { threads: NonZeroUsize::MIN, snapshots: SnapshotPolicy::default() }
    }
}

/// How far a standby is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApplierState {
    /// Its journal is durable up to here.
    pub durable: Position,
    /// The history that its journal has a part of; `None` for one that is empty, or whose secrets are
    /// lost.
    pub history: Option<HistoryId>,
    /// When it last got anything.
    pub heard: Option<Instant>,
    /// The bytes that the journal took of its medium a second ago.
    pub usage: JournalUsage,
    /// The journal's last snapshot then.
    pub snapshot: Option<SnapshotInfo>,
    /// Snapshots that could not be written.
    pub failed_snapshots: u64,
    /// Counts the streams that were begun with.
    pub(super) stream: u64,
    /// Why it takes nothing more of this stream.
    pub(super) failure: Option<Arc<ReplicationError>>,
}

pub(super) enum Job {
    /// A stream begins.
    Begin(Start),
    Batch(Batch),
    SetAside(oneshot::Sender<Result<Option<PathBuf>, JournalError>>),
}

impl fmt::Debug for Applier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applier").field("state", &*self.state.borrow()).finish_non_exhaustive()
    }
}

impl Applier {
    /// Begins with what the journal holds, which is read on the thread that calls: blocks. A journal
    /// without identity is new and gets the leader's. What follows is kept on a thread of its own.
    ///
    /// # Errors
    /// [`RecoverError`] when it cannot be read.
    pub fn start(
        journal: Arc<dyn MetadataJournal>,
        config: MasterConfig,
        settings: ApplierSettings,
    ) -> Result<Self, RecoverError> {
        Self::start_in(&System, journal, config, settings)
    }

    /// [`start`](Self::start)s to keep what follows where the environment runs work apart.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_in(
        environment: &dyn Environment,
        journal: Arc<dyn MetadataJournal>,
        config: MasterConfig,
        settings: ApplierSettings,
    ) -> Result<Self, RecoverError> {
        let threads = settings.threads;
        let identity = journal.identity()?;
        let replica = match &identity {
            Some(identity) => Some(Replica::load(&*journal, &config, identity, threads)?),
            None => None,
        };
        let last = journal.last();
        let newest = journal.snapshots()?.first().copied();
        let history = identity.map(|identity| identity.history());
        let state = ApplierState {
            durable: last.unwrap_or_default(),
            history: last.and(history),
            heard: None,
            usage: journal.usage(),
            snapshot: newest,
            failed_snapshots: 0,
            stream: 0,
            failure: None,
        };
        let (told, state) = watch::channel(state);
        let (jobs, waiting) = mpsc::channel(WAITING);
        let schedule = SnapshotSchedule::new(settings.snapshots, newest);
        let work = ApplierWork {
            journal: Arc::clone(&journal),
            config,
            threads,
            replica,
            history,
            schedule,
            written: 0,
            looked: Instant::now(),
            told,
        };
        let (ended, replica) = oneshot::channel();
        let run = async move {
            // The receiver is gone when the standby does not lead.
            let _ = ended.send(work.run(waiting).await);
        };
        environment.spawn_apart("mc-standby", Box::pin(run)).map_err(RecoverError::Thread)?;
        Ok(Self { journal, jobs, state, replica })
    }

    /// How far it is.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<ApplierState> {
        self.state.clone()
    }

    /// The journal.
    #[must_use]
    pub fn journal(&self) -> &Arc<dyn MetadataJournal> {
        &self.journal
    }

    pub(super) fn jobs(&self) -> &mpsc::Sender<Job> {
        &self.jobs
    }

    /// [Sets the journal aside](MetadataJournal::set_aside), for a leader whose history is
    /// [another one](ReplicationError::OtherHistory), and becomes a standby with an empty one.
    /// Returns where the former one lies.
    ///
    /// # Errors
    /// [`ReplicationError::Journal`] when it cannot be moved, [`ReplicationError::Ended`].
    pub async fn set_aside(&self) -> Result<Option<PathBuf>, ReplicationError> {
        let (done, moved) = oneshot::channel();
        self.jobs.send(Job::SetAside(done)).await.map_err(|_| ReplicationError::Ended)?;
        Ok(moved.await.map_err(|_| ReplicationError::Ended)??)
    }

    /// Waits until what keeps the journal has ended although it was not told to: it has panicked.
    pub async fn ended(&self) {
        let mut state = self.state.clone();
        while state.changed().await.is_ok() {}
    }

    /// Ends and returns the state that it has, when what it was given is done; `None` for a journal
    /// that is new.
    ///
    /// # Errors
    /// [`ReplicationError::Ended`] when keeping the journal has panicked.
    pub fn close(self) -> BoxFuture<'static, Result<Option<Replica>, ReplicationError>> {
        Box::pin(async move {
            drop(self.jobs);
            self.replica.await.map_err(|_| ReplicationError::Ended)
        })
    }

    /// [`close`](Self::close)s. Blocks; not where the environment says that no thread
    /// [may](Environment::may_block).
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn stop(self) -> Result<Option<Replica>, ReplicationError> {
        block_on(self.close(), None).expect("there is no deadline")
    }
}

struct ApplierWork {
    journal: Arc<dyn MetadataJournal>,
    config: MasterConfig,
    threads: NonZeroUsize,
    replica: Option<Replica>,
    /// The history that the journal's secrets name.
    history: Option<HistoryId>,
    schedule: SnapshotSchedule,
    /// Bytes that were appended.
    written: u64,
    /// When the journal's files were looked at.
    looked: Instant,
    told: watch::Sender<ApplierState>,
}

impl ApplierWork {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) -> Option<Replica> {
        let journal = Arc::clone(&self.journal);
        let mut snapshot = None;
        let mut next = None;
        let mut has_failed = true;
        loop {
            let job = match next.take() {
                Some(job) => Some(job),
                None => match receive(&mut jobs, snapshot.is_some()).await {
                    Ok(job) => job,
                    Err(TryRecvError::Disconnected) => return self.replica,
                    Err(TryRecvError::Empty) => None,
                },
            };
            match job {
                Some(Job::Begin(start)) => {
                    snapshot = None;
                    let begun = self.begin(&start, &mut jobs).await;
                    has_failed = begun.is_err();
                    self.tell(begun.err(), true);
                }
                Some(Job::SetAside(done)) => {
                    (snapshot, has_failed) = (None, true);
                    let moved = self.set_aside();
                    self.tell(None, false);
                    // The caller may have gone.
                    let _ = done.send(moved);
                }
                // Of a stream that failed.
                Some(Job::Batch(_)) if has_failed => {}
                Some(Job::Batch(batch)) => {
                    let some = with_more(batch, &mut jobs, &mut next);
                    let kept = self.keep(&some);
                    has_failed = kept.is_err();
                    self.tell(kept.err(), false);
                }
                None => {}
            }
            if self.looked.elapsed() >= LOOK {
                self.look();
            }
            if has_failed {
                snapshot = None;
            } else {
                if snapshot.is_none() {
                    self.settle();
                }
                self.go_on_with(&mut snapshot, &*journal);
            }
        }
    }

    /// Looks at the journal's files, for those who must not wait for them.
    fn look(&mut self) {
        self.looked = Instant::now();
        let usage = self.journal.usage();
        let snapshot = self.journal.snapshots().ok().and_then(|all| all.first().copied());
        self.told.send_if_modified(|state| {
            let changed = (state.usage, state.snapshot) != (usage, snapshot);
            (state.usage, state.snapshot) = (usage, snapshot);
            changed
        });
    }

    fn tell(&self, failure: Option<ReplicationError>, is_new: bool) {
        let last = self.journal.last();
        self.told.send_modify(|state| {
            // What was appended before a failure may not be durable.
            if failure.is_none() {
                state.durable = last.unwrap_or_default();
            }
            state.history = last.and(self.history);
            state.heard = Some(Instant::now());
            state.failed_snapshots = self.schedule.failures();
            state.stream += u64::from(is_new);
            state.failure = failure.map(Arc::new);
        });
    }

    /// Begins to follow a term, with a snapshot of it if need be.
    async fn begin(
        &mut self,
        start: &Start,
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Result<(), ReplicationError> {
        let last = self.journal.last();
        if let Some(last) = last {
            self.check_history(start, last)?;
        }
        let is_lost = last.is_some_and(|last| last.epoch < start.last_unclean);
        if start.epoch < self.journal.epoch() || start.with_snapshot && is_lost {
            // Of a term that never had a change, or before an unclean takeover.
            let aside = self.set_aside()?;
            if let Some(position) = last {
                let aside =
                    aside.map_or("lost with the memory".into(), |at| at.display().to_string());
                warn!(
                    aside, %position,
                    "this master's journal may have changes that the leader lacks, since another one took \
                     over without them; it was set aside: look into it, or remove it"
                );
            }
        }
        let Start { epoch, identity, with_snapshot, .. } = *start;
        if epoch > self.journal.epoch() {
            self.journal.begin_epoch(epoch)?;
        }
        if self.journal.identity()? != Some(identity) {
            self.journal.set_identity(&identity)?;
            self.history = Some(identity.history());
        }
        if with_snapshot {
            let at = keep_snapshot(&*self.journal, jobs).await?;
            self.journal.begin_at(at)?;
            self.replica = None;
        }
        if self.replica.is_none() {
            self.replica = Some(self.load(&identity)?);
        }
        Ok(())
    }

    /// Checks that the journal, which ends at `position`, is a beginning of the leader's history, or
    /// has no more than the end of a former leader's term besides.
    fn check_history(&self, start: &Start, position: Position) -> Result<(), ReplicationError> {
        let theirs = start.identity.history();
        let other = |difference| {
            Err(ReplicationError::OtherHistory { epoch: start.epoch, theirs, position, difference })
        };
        if self.history != Some(theirs) {
            return other(Difference::Origin);
        }
        let known = self.journal.epoch();
        if start.epoch < known {
            return other(Difference::Term(known));
        }
        let own = self.journal.checksum_at(position)?;
        match (own, start.checksum) {
            (Some(own), Some(theirs)) if own != theirs => other(Difference::Batch),
            _ => Ok(()),
        }
    }

    fn set_aside(&mut self) -> Result<Option<PathBuf>, JournalError> {
        (self.replica, self.history) = (None, None);
        self.journal.set_aside()
    }

    fn load(&self, identity: &Identity) -> Result<Replica, RecoverError> {
        Replica::load(&*self.journal, &self.config, identity, self.threads)
    }

    fn keep(&mut self, batches: &[Batch]) -> Result<(), ReplicationError> {
        for batch in batches {
            if batch.kind() != BatchKind::Effects {
                return Err(ReplicationError::Protocol("a page outside of a snapshot"));
            }
            self.journal.append(self.journal.epoch(), batch)?;
            self.written += batch.bytes().len() as u64;
        }
        self.journal.sync()?;
        if let Some(replica) = &mut self.replica {
            replica.apply_all(batches);
        }
        Ok(())
    }

    /// Has a takeover cost little.
    fn settle(&mut self) {
        let Some(replica) = self.replica.as_mut().filter(|replica| !replica.is_settled()) else {
            return;
        };
        let begun = Instant::now();
        if let Err(error) = replica.settle() {
            // It is told again when this one takes over.
            warn!(%error, "the state of the standby is not ready for a takeover");
        } else if replica.is_settled() {
            info!(position = %replica.position(), took = ?begun.elapsed(), "ready to take over");
        }
    }

    /// Writes some of the snapshot, or begins one when it is due.
    fn go_on_with<'j>(
        &mut self,
        snapshot: &mut Option<OwnSnapshot<'j>>,
        journal: &'j dyn MetadataJournal,
    ) {
        let Some(replica) = &self.replica else { return };
        let written = match snapshot {
            None if !self.schedule.is_due(self.written) => return,
            None => {
                self.schedule.began(self.written);
                OwnSnapshot::begin(journal, replica).map(|begun| {
                    *snapshot = Some(begun);
                    None
                })
            }
            Some(under_way) if !under_way.is_of_term(replica) => {
                *snapshot = None;
                return;
            }
            Some(under_way) => under_way.write_some(replica),
        };
        match written {
            Ok(None) => {}
            Ok(Some(whole)) => {
                info!(at = %whole.at, bytes = whole.bytes, "snapshot taken");
                *snapshot = None;
                self.schedule.finished(whole);
            }
            Err(error) => {
                warn!(%error, "no snapshot was taken; the journal is kept until one is");
                *snapshot = None;
                self.schedule.failed();
                let failures = self.schedule.failures();
                self.told.send_modify(|state| state.failed_snapshots = failures);
            }
        }
    }
}

/// The next job, if there is one now, or comes before it is time to look around.
async fn receive(
    jobs: &mut mpsc::Receiver<Job>,
    is_busy: bool,
) -> Result<Option<Job>, TryRecvError> {
    if is_busy {
        return jobs.try_recv().map(Some);
    }
    match timeout(LOOK, jobs.recv()).await {
        Ok(Some(job)) => Ok(Some(job)),
        Ok(None) => Err(TryRecvError::Disconnected),
        Err(_) => Err(TryRecvError::Empty),
    }
}

/// A batch with those that wait behind it; a job of another kind that ends them is the `next` one.
fn with_more(batch: Batch, jobs: &mut mpsc::Receiver<Job>, next: &mut Option<Job>) -> Vec<Batch> {
    let mut some = vec![batch];
    while some.len() < WAITING
        && let Ok(job) = jobs.try_recv()
    {
        match job {
            Job::Batch(batch) => some.push(batch),
            job => {
                *next = Some(job);
                break;
            }
        }
    }
    some
}

/// Writes the snapshot that arrives; what was there before stays until it is whole.
async fn keep_snapshot(
    journal: &dyn MetadataJournal,
    jobs: &mut mpsc::Receiver<Job>,
) -> Result<Position, ReplicationError> {
    let broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let mut writer = None;
    loop {
        let Some(Job::Batch(batch)) = jobs.recv().await else {
            return Err(broken().into());
        };
        let is_end = match batch.kind() {
            BatchKind::Page => false,
            BatchKind::End => true,
            BatchKind::Effects => {
                return Err(ReplicationError::Protocol("effects inside of a snapshot"));
            }
        };
        let at = batch.first();
        let (begun, snapshot) = match writer.take() {
            Some(writing) => writing,
            None => (at, journal.begin_snapshot(at)?),
        };
        let mut snapshot = snapshot;
        if begun != at {
            return Err(ReplicationError::Protocol("pages of two snapshots"));
        }
        snapshot.write(&batch)?;
        if is_end {
            snapshot.finish()?;
            return Ok(at);
        }
        writer = Some((begun, snapshot));
    }
}
