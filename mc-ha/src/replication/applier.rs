//! What keeps a standby's journal.

use core::fmt;
use core::num::NonZeroUsize;
use std::io;
use std::sync::Arc;

use mc_meta::MasterConfig;
use mc_types::{BoxFuture, Epoch};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::frame::ReplicationError;
use crate::encoding::{Batch, BatchKind};
use crate::executor::{Executor, Threads, block_on};
use crate::journal::{Identity, MetadataJournal};
use crate::position::Position;
use crate::recover::{RecoverError, Replica};

/// Batches that may wait to be kept.
const WAITING: usize = 64;

/// Keeps a standby's journal, and the state that comes of it, [apart](Executor::spawn_apart): journals
/// block. It ends when it is dropped and what it was given is done.
pub struct Applier {
    journal: Arc<dyn MetadataJournal>,
    jobs: mpsc::Sender<Job>,
    state: watch::Receiver<ApplierState>,
    /// Its state at the end.
    replica: oneshot::Receiver<Option<Replica>>,
}

/// How far a standby is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApplierState {
    /// Its journal is durable up to here.
    pub durable: Position,
    /// When it last got anything.
    pub heard: Option<Instant>,
    /// Counts the streams that were begun with.
    pub(super) stream: u64,
    /// Why it takes nothing more of this stream.
    pub(super) failure: Option<Arc<ReplicationError>>,
}

pub(super) enum Job {
    /// A stream begins, of this term.
    Begin {
        epoch: Epoch,
        identity: Identity,
        with_snapshot: bool,
    },
    Batch(Batch),
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
        threads: NonZeroUsize,
    ) -> Result<Self, RecoverError> {
        Self::start_in(&Threads, journal, config, threads)
    }

    /// [`start`](Self::start)s to keep what follows where the executor runs work apart.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_in(
        executor: &dyn Executor,
        journal: Arc<dyn MetadataJournal>,
        config: MasterConfig,
        threads: NonZeroUsize,
    ) -> Result<Self, RecoverError> {
        let replica = match journal.identity()? {
            Some(identity) => Some(Replica::load(&*journal, &config, &identity, threads)?),
            None => None,
        };
        let durable = journal.last().unwrap_or_default();
        let state = ApplierState { durable, heard: None, stream: 0, failure: None };
        let (told, state) = watch::channel(state);
        let (jobs, waiting) = mpsc::channel(WAITING);
        let work = Work { journal: Arc::clone(&journal), config, threads, replica, told };
        let (ended, replica) = oneshot::channel();
        let run = async move {
            // Nobody wants it when the standby does not lead.
            let _ = ended.send(work.run(waiting).await);
        };
        executor.spawn_apart("mc-standby", Box::pin(run)).map_err(RecoverError::Thread)?;
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

    /// Ends and returns the state that it has, when what it was given is done; `None` for a journal
    /// that is new.
    ///
    /// # Panics
    /// When keeping the journal has panicked.
    pub fn close(self) -> BoxFuture<'static, Option<Replica>> {
        Box::pin(async move {
            drop(self.jobs);
            self.replica.await.expect("what keeps the journal ends only when it is told to")
        })
    }

    /// [`close`](Self::close)s. Blocks; not where the executor says that no thread
    /// [may](Executor::may_block).
    ///
    /// # Panics
    /// As [`close`](Self::close).
    #[must_use]
    pub fn stop(self) -> Option<Replica> {
        block_on(self.close(), None).expect("there is no deadline")
    }
}

struct Work {
    journal: Arc<dyn MetadataJournal>,
    config: MasterConfig,
    threads: NonZeroUsize,
    replica: Option<Replica>,
    told: watch::Sender<ApplierState>,
}

impl Work {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) -> Option<Replica> {
        let mut next = jobs.recv().await;
        let mut has_failed = true;
        while let Some(job) = next.take() {
            match job {
                Job::Begin { epoch, identity, with_snapshot } => {
                    let begun = self.begin(epoch, &identity, with_snapshot, &mut jobs).await;
                    has_failed = begun.is_err();
                    self.tell(begun.err(), true);
                }
                // Of a stream that failed.
                Job::Batch(_) if has_failed => {}
                Job::Batch(batch) => {
                    let mut some = vec![batch];
                    while some.len() < WAITING
                        && let Ok(job) = jobs.try_recv()
                    {
                        match job {
                            Job::Batch(batch) => some.push(batch),
                            job => {
                                next = Some(job);
                                break;
                            }
                        }
                    }
                    let kept = self.keep(&some);
                    has_failed = kept.is_err();
                    self.tell(kept.err(), false);
                }
            }
            if next.is_none() {
                next = jobs.recv().await;
            }
        }
        self.replica
    }

    fn tell(&self, failure: Option<ReplicationError>, is_new: bool) {
        let durable = self.journal.last().unwrap_or_default();
        self.told.send_modify(|state| {
            // What was appended before a failure may not be durable.
            if failure.is_none() {
                state.durable = durable;
            }
            state.heard = Some(Instant::now());
            state.stream += u64::from(is_new);
            state.failure = failure.map(Arc::new);
        });
    }

    /// Begins to follow a term, with a snapshot of it if need be.
    async fn begin(
        &mut self,
        epoch: Epoch,
        identity: &Identity,
        with_snapshot: bool,
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Result<(), ReplicationError> {
        let known = self.journal.epoch();
        if epoch < known {
            return Err(ReplicationError::Deposed { theirs: epoch, known });
        }
        if epoch > known {
            self.journal.begin_epoch(epoch)?;
        }
        if self.journal.identity()? != Some(*identity) {
            self.journal.set_identity(identity)?;
            if !with_snapshot {
                self.replica = Some(self.load(identity)?);
            }
        }
        if with_snapshot {
            let at = keep_snapshot(&*self.journal, jobs).await?;
            self.journal.begin_at(at)?;
            self.replica = None;
            self.replica = Some(self.load(identity)?);
        }
        Ok(())
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
        }
        self.journal.sync()?;
        if let Some(replica) = &mut self.replica {
            replica.apply_all(batches);
        }
        Ok(())
    }
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
