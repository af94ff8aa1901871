//! The thread that keeps a standby's journal.

use core::fmt;
use core::num::NonZeroUsize;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use mc_meta::MasterConfig;
use mc_types::Epoch;
use tokio::sync::{mpsc, watch};

use super::frame::ReplicationError;
use crate::encoding::{Batch, BatchKind};
use crate::journal::{Identity, MetadataJournal};
use crate::position::Position;
use crate::recover::{RecoverError, Replica};

/// Batches that may wait for the thread.
const WAITING: usize = 64;

/// Keeps a standby's journal, and the state that comes of it, on a thread of its own: journals block.
pub struct Applier {
    journal: Arc<dyn MetadataJournal>,
    jobs: mpsc::Sender<Job>,
    state: watch::Receiver<ApplierState>,
    thread: JoinHandle<Option<Replica>>,
}

/// How far a standby is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApplierState {
    /// Its journal is durable up to here.
    pub durable: Position,
    /// When it last got anything.
    pub heard: Option<Instant>,
    /// Counts the streams that the thread has begun with.
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
    /// without identity is new and gets the leader's.
    ///
    /// # Errors
    /// [`RecoverError`] when it cannot be read.
    pub fn start(
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
        let thread = std::thread::Builder::new().name("mc-standby".into());
        let thread = thread.spawn(move || work.run(waiting)).map_err(RecoverError::Thread)?;
        Ok(Self { journal, jobs, state, thread })
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

    /// Ends the thread and returns the state that it has, when what it was given is done; `None` for
    /// a journal that is new. Blocks.
    #[must_use]
    pub fn stop(self) -> Option<Replica> {
        drop(self.jobs);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) -> Option<Replica> {
        let mut next = jobs.blocking_recv();
        let mut has_failed = true;
        while let Some(job) = next.take() {
            match job {
                Job::Begin { epoch, identity, with_snapshot } => {
                    let begun = self.begin(epoch, &identity, with_snapshot, &mut jobs);
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
                next = jobs.blocking_recv();
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
    fn begin(
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
            let at = self.take_snapshot(jobs)?;
            self.journal.begin_at(at)?;
            self.replica = None;
            self.replica = Some(self.load(identity)?);
        }
        Ok(())
    }

    fn load(&self, identity: &Identity) -> Result<Replica, RecoverError> {
        Replica::load(&*self.journal, &self.config, identity, self.threads)
    }

    /// Writes the snapshot that arrives; what was there before stays until it is whole.
    fn take_snapshot(&self, jobs: &mut mpsc::Receiver<Job>) -> Result<Position, ReplicationError> {
        let broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let mut writer = None;
        loop {
            let Some(Job::Batch(batch)) = jobs.blocking_recv() else {
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
                None => (at, self.journal.begin_snapshot(at)?),
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
