//! Copies and moves that the master asks of the nodes that hold the objects.
//!
//! A node learns from the answer to its heartbeat that tasks wait for it, fetches as many as
//! it has hands for, and does them in the application's runtime. The bytes go from its own
//! memory straight to the targets, after they were found to be what was put. What a node
//! leaves undone, because it ended or lost its master, is cancelled by the master's
//! time-outs.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_meta::{LateWrites, TaskKind, TaskStatus, TransferHandle};
use mc_rpc::{MasterClient, RpcError, SegmentLocation, Task, TransferGrant};
use mc_transport::{BootTime, MemorySlice, Operation, RemoteSpan};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::checksums::match_checksums;
use super::core::Core;
use super::data::{Holder, Job, LostLinks, Patience};
use super::late::when_fenced;
use crate::error::PeerError;

/// Tasks at work at a time.
pub(super) const WIDTH: usize = 4;

/// Bytes on their way at a time, in units of a mebibyte. An object that has more goes alone.
const ROOM: u32 = 256;
const UNIT: u64 = 1 << 20;

/// The first pause before a task is begun again that cannot begin; each is twice the one
/// before.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a report is tried. A task whose report is lost fails when its time is up.
const REPORTS: u32 = 5;

/// How long tasks may go on when the client ends.
const LAST_TASKS: Duration = Duration::from_secs(1);

/// Objects beyond this length are added up on a thread of their own, so that nothing else
/// in the runtime waits for that.
const LONG: u64 = 1 << 20;

/// Why a task is not done.
#[derive(Debug, thiserror::Error)]
enum TaskFailure {
    #[error("could not begin: {0}")]
    Start(#[source] RpcError),
    #[error("the source is not in a segment of this client any more")]
    SourceGone,
    #[error("the source cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error("the bytes of the source are not those that were put")]
    Damaged,
    #[error("a target could not be written: {error}")]
    Write {
        #[source]
        error: PeerError,
        late: Vec<Arc<LostLinks>>,
    },
    #[error("could not end: {0}")]
    End(#[source] RpcError),
}

/// Does the tasks that wait, whenever `waiting` says that there are some, until its sender
/// or the client is gone.
pub(super) async fn run(core: Weak<Core>, mut waiting: watch::Receiver<usize>) {
    let room = Arc::new(Semaphore::new(ROOM as usize));
    let mut at_work: JoinSet<()> = JoinSet::new();
    // Whether there may be tasks that were not fetched.
    let mut more = false;
    loop {
        tokio::select! {
            biased;
            told = waiting.changed() => match told {
                Ok(()) => more = true,
                Err(_) => break,
            },
            Some(_) = at_work.join_next() => {}
        }
        let free = WIDTH - at_work.len();
        if !more || free == 0 {
            continue;
        }
        let Some(core) = core.upgrade() else { break };
        match core.link.master.fetch_tasks(core.link.id, free).await {
            Ok(fetched) => {
                more = fetched.tasks.len() == free;
                for task in fetched.tasks {
                    let (core, room) = (Arc::clone(&core), Arc::clone(&room));
                    at_work.spawn(async move {
                        let work = Work { core: &core, task: &task };
                        work.carry_out(fetched.max_retry_attempts, &room).await;
                    });
                }
            }
            // The next heartbeat says so again.
            Err(error) => debug!(%error, "cannot fetch tasks; the next heartbeat tries again"),
        }
    }
    let rest = async { while at_work.join_next().await.is_some() {} };
    // Those that are not done by then are dropped here.
    let _ = tokio::time::timeout(LAST_TASKS, rest).await;
}

/// A task, and the client that does it.
#[derive(Clone, Copy)]
struct Work<'c> {
    core: &'c Arc<Core>,
    task: &'c Task,
}

impl Work<'_> {
    /// Does a task and reports how it went.
    async fn carry_out(&self, attempts: u32, room: &Semaphore) {
        let (status, message) = match self.perform(attempts, room).await {
            Ok(message) => (TaskStatus::Success, message),
            Err(failure) => {
                warn!(task = %self.task.id, key = %self.task.key, %failure, "a task failed");
                (TaskStatus::Failed, failure.to_string())
            }
        };
        self.core.metrics.task_ended(status == TaskStatus::Success);
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=REPORTS {
            let report = self.core.link.master.mark_task_to_complete(
                self.core.link.id,
                self.task.id,
                status,
                &message,
            );
            match report.await {
                Ok(_) => return,
                Err(error) if error.is_retryable() && attempt < REPORTS => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(error) => {
                    debug!(task = %self.task.id, %error, "could not report how a task ended");
                    return;
                }
            }
        }
    }

    /// Does a task; says what there was to do.
    async fn perform(&self, attempts: u32, room: &Semaphore) -> Result<String, TaskFailure> {
        let (grant, until) = self.begin(attempts).await?;
        let copies = grant.targets.len();
        let is_copy = matches!(self.task.kind, TaskKind::Copy { .. });
        if is_copy && copies == 0 {
            return Ok("every target has a replica already".into());
        }
        let transfer = grant.handle;
        let len = grant.slices.total_len();
        if let Err(failure) = self.copy(grant, until, room).await {
            let lost = match &failure {
                TaskFailure::Write { late, .. } => late.clone(),
                _ => Vec::new(),
            };
            let late = match lost.is_empty() {
                true => LateWrites::Impossible,
                false => LateWrites::Possible,
            };
            // When this is lost, the master's time-out gives the space back.
            if let Err(error) = self.revoke(transfer, late).await {
                debug!(task = %self.task.id, %error, "cannot revoke a transfer; the master's timeout frees its space");
            }
            if !lost.is_empty() {
                let task = self.task.clone();
                when_fenced(self.core, lost, until, move |core| async move {
                    let work = Work { core: &core, task: &task };
                    let _ = work.revoke(transfer, LateWrites::Impossible).await;
                });
            }
            return Err(failure);
        }
        let object = self.task.object();
        let ended = match self.task.kind {
            TaskKind::Copy { .. } => {
                self.core.link.master.copy_end(self.core.link.id, &object, transfer).await
            }
            TaskKind::Move { .. } => {
                self.core.link.master.move_end(self.core.link.id, &object, transfer).await
            }
        };
        ended.map_err(TaskFailure::End)?;
        Ok(format!("{len} bytes to {copies} targets"))
    }

    /// Asks for space in the targets, as often as the master says when there is none; it is
    /// the task's until the time that is returned.
    async fn begin(&self, attempts: u32) -> Result<(TransferGrant, BootTime), TaskFailure> {
        let mut pause = FIRST_PAUSE;
        let mut tried = 0;
        loop {
            // The master counts from later on.
            let asked = self.core.settings.clock.now();
            match start(&self.core.link.master, self.core.link.id, self.task).await {
                Ok(grant) => {
                    let until = asked + grant.time_left;
                    return Ok((grant, until));
                }
                Err(error) if error.is_retryable() && tried < attempts => {
                    tried += 1;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(error) => return Err(TaskFailure::Start(error)),
            }
        }
    }

    /// Brings the bytes to every target.
    async fn copy(
        &self,
        grant: TransferGrant,
        until: BootTime,
        room: &Semaphore,
    ) -> Result<(), TaskFailure> {
        let TransferGrant { generation, slices, source, targets, .. } = grant;
        if targets.is_empty() {
            return Ok(());
        }
        let own = self.core.segments.local(source.segment.remote_key, source.extent);
        let own = own.ok_or(TaskFailure::SourceGone)?;
        let len = slices.total_len();
        let units = len.div_ceil(UNIT).min(u64::from(ROOM)) as u32;
        let _room = room.acquire_many(units).await.expect("the semaphore is never closed");
        let sums: Vec<_> =
            slices.as_slice().iter().map(|slice| (slice.len, slice.checksum)).collect();
        let blocks = len > LONG || own.is_staged();
        let check = move || {
            let memory = own.on_host()?;
            Ok(match_checksums(std::slice::from_ref(&memory), sums).then_some(memory))
        };
        let checked = if blocks {
            let checked = self.core.tiers.environment.blocking(check).await;
            let not_ended = || Err(io::Error::other("the check did not end"));
            checked.and_then(Result::ok).unwrap_or_else(not_ended)
        } else {
            check()
        };
        let Some(own) = checked.map_err(TaskFailure::Read)? else {
            let key = self.task.key.as_ref();
            self.core.reports.damaged(Some(&self.task.tenant), key, generation, &source);
            return Err(TaskFailure::Damaged);
        };
        let jobs = targets.iter().map(|target| {
            let to = RemoteSpan::new(target.segment.remote_key, target.extent)
                .with_ticket(target.ticket)
                .until(until);
            write(Arc::clone(&target.segment), own.clone(), to)
        });
        let mut failure = None;
        let mut late = Vec::new();
        for moved in self.core.transfers.transfer(jobs.collect()).await {
            if let Err(failed) = moved {
                failure.get_or_insert(failed.error);
                late.extend(failed.late);
            }
        }
        failure.map_or(Ok(()), |error| Err(TaskFailure::Write { error, late }))
    }

    async fn revoke(&self, transfer: TransferHandle, late: LateWrites) -> Result<(), RpcError> {
        let object = self.task.object();
        match self.task.kind {
            TaskKind::Copy { .. } => {
                self.core.link.master.copy_revoke(self.core.link.id, &object, transfer, late).await
            }
            TaskKind::Move { .. } => {
                self.core.link.master.move_revoke(self.core.link.id, &object, transfer, late).await
            }
        }
    }
}

fn write(segment: Arc<SegmentLocation>, from: MemorySlice, to: RemoteSpan) -> Job {
    let holder = Holder::Segment(segment);
    Job { holder, operation: Operation::write(from, to), patience: Patience::Whole }
}

async fn start(
    master: &MasterClient,
    client: mc_types::ClientId,
    task: &Task,
) -> Result<TransferGrant, RpcError> {
    let object = task.object();
    match &task.kind {
        TaskKind::Copy { source, targets } => {
            let targets: Vec<&str> = targets.iter().map(|target| &**target).collect();
            master.copy_start(client, &object, source, &targets).await
        }
        TaskKind::Move { source, target } => {
            master.move_start(client, &object, source, target).await
        }
    }
}
