//! The commands about tasks.

use std::sync::Arc;

use mc_types::{ClientId, ErrorCode, KeyRef, TaskId, Time};
use smallvec::SmallVec;
use thiserror::Error;

use crate::commands::transfer::error::TransferError;
use crate::effect::Effect;
use crate::master::Master;
use crate::side_tables::tasks::{
    TaskAssignment, TaskBook, TaskError, TaskInfo, TaskKind, TaskStatus,
};
use crate::space::segment::Segment;
use crate::vocabulary::request::MAX_REPLICAS;

/// Most tasks that one call fetches.
pub const MAX_FETCHED_TASKS: usize = 1024;

/// Tasks that one tick fails because their time is up.
const TICK_TASKS: usize = 512;

/// Why a task is not created.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CreateTaskError {
    /// The copy or move would be refused now.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The task itself is refused.
    #[error(transparent)]
    Task(#[from] TaskError),
}

impl CreateTaskError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Transfer(error) => error.code(),
            Self::Task(error) => error.code(),
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Transfer(error) => error.is_retryable(),
            Self::Task(error) => error.is_retryable(),
        }
    }
}

impl Master {
    /// Has a client that holds the object copy it to the segments named `targets`,
    /// between 1 and [`MAX_REPLICAS`]. Which of several holders does it is drawn. The
    /// client learns of it with the answer to its next [`ping`](Self::ping), and whether
    /// the targets have room when it [begins](Self::copy_start).
    ///
    /// # Errors
    /// [`CreateTaskError`]; nothing is changed then.
    pub fn create_copy_task(
        &self,
        now: Time,
        key: KeyRef<'_>,
        targets: &[&str],
    ) -> Result<TaskId, CreateTaskError> {
        let count = targets.len();
        if !(1..=MAX_REPLICAS).contains(&count) {
            return Err(TransferError::TargetCount { count }.into());
        }
        self.segments.read().targets(targets)?;
        let source = self.source_drawn(now, key, None)?.ok_or(TransferError::NotReady)?;
        let targets = targets.iter().map(|&name| name.into()).collect();
        let kind = TaskKind::Copy { source: source.spec().name.clone(), targets };
        self.create_task(now, key, &source, &kind)
    }

    /// Has the client of the segment named `source` move the object's replica from there
    /// to the segment named `target`; as [`create_copy_task`](Self::create_copy_task).
    ///
    /// # Errors
    /// [`CreateTaskError`]; nothing is changed then.
    pub fn create_move_task(
        &self,
        now: Time,
        key: KeyRef<'_>,
        source: &str,
        target: &str,
    ) -> Result<TaskId, CreateTaskError> {
        if source == target {
            return Err(TransferError::SameSegment.into());
        }
        let from = {
            let table = self.segments.read();
            table.targets(&[target])?;
            let not_found = || TransferError::SegmentNotFound { name: source.into() };
            Arc::clone(table.by_name(source).ok_or_else(not_found)?)
        };
        if !self.holders(now, key)?.iter().any(|segment| Arc::ptr_eq(segment, &from)) {
            return Err(TransferError::ReplicaNotFound { segment: source.into() }.into());
        }
        let kind = TaskKind::Move { source: source.into(), target: target.into() };
        self.create_task(now, key, &from, &kind)
    }

    /// Everything about a task.
    ///
    /// # Errors
    /// [`TaskError::NotFound`].
    pub fn query_task(&self, id: TaskId) -> Result<TaskInfo, TaskError> {
        self.tasks.lock().query(id).cloned()
    }

    /// Up to `limit` of the tasks whose ids come after `after`, in the order of their ids: those
    /// that wait, that a client works on, and the last ones that ended.
    pub fn list_tasks(&self, after: Option<TaskId>, limit: usize) -> Vec<TaskInfo> {
        self.tasks.lock().list(after, limit)
    }

    /// Gives a client up to `max`, and no more than [`MAX_FETCHED_TASKS`], of the tasks
    /// that wait for it, oldest first. It has
    /// [`processing_timeout`](crate::TaskConfig::processing_timeout) from then on to
    /// report.
    pub fn fetch_tasks(&self, now: Time, client: ClientId, max: usize) -> Vec<TaskAssignment> {
        let mut book = self.tasks.lock();
        let fetched = book.fetch(now, client, max.min(MAX_FETCHED_TASKS));
        for assignment in &fetched {
            self.emit_task(&book, now, assignment.id);
        }
        fetched
    }

    /// Takes a client's report on a task that it fetched: a success or a failure, and a
    /// message of which [`MAX_TASK_MESSAGE_LEN`](crate::MAX_TASK_MESSAGE_LEN) bytes are
    /// kept. Says how the task ended, which is something else than reported when it had
    /// ended before: reporting again changes nothing.
    ///
    /// # Errors
    /// [`TaskError`]; nothing is changed then.
    pub fn mark_task_to_complete(
        &self,
        now: Time,
        client: ClientId,
        id: TaskId,
        status: TaskStatus,
        message: &str,
    ) -> Result<TaskStatus, TaskError> {
        let mut book = self.tasks.lock();
        let before = book.query(id)?.status;
        let ended = book.complete(now, client, id, status, message)?;
        if ended != before {
            self.emit_task(&book, now, id);
        }
        Ok(ended)
    }

    /// Gives a task up that no client has fetched yet.
    pub(crate) fn withdraw_task(&self, now: Time, id: TaskId, message: &str) {
        let mut book = self.tasks.lock();
        let waits = book.query(id).is_ok_and(|info| info.status == TaskStatus::Pending);
        if waits && book.fail(now, id, message).is_ok() {
            self.emit_task(&book, now, id);
        }
    }

    /// Fails tasks whose time is up; true when some are left because they are too many
    /// for one time.
    pub(crate) fn expire_tasks(&self, now: Time) -> bool {
        let mut book = self.tasks.lock();
        let expired = book.expire(now, TICK_TASKS);
        self.emit_tasks(now, &expired);
        expired.len() == TICK_TASKS
    }

    /// Gives the copies that wait for a client that has gone to others that hold the
    /// objects, and fails its other tasks.
    pub(crate) fn hand_over_tasks(&self, now: Time, gone: ClientId) {
        let waiting = {
            let mut book = self.tasks.lock();
            let orphans = book.client_gone(now, gone);
            self.emit_tasks(now, &orphans.failed);
            orphans.waiting
        };
        for info in waiting {
            let source = self.source_drawn(now, info.key.as_ref(), Some(gone));
            let mut book = self.tasks.lock();
            // A client may have dealt with it meanwhile.
            if !book.query(info.id).is_ok_and(|it| it.status == TaskStatus::Pending) {
                continue;
            }
            let handed_over = match source {
                Ok(Some(source)) if source.is_readable() => {
                    let name = source.spec().name.clone();
                    book.reassign(now, info.id, source.client(), name).is_ok()
                }
                _ => false,
            };
            if !handed_over {
                let message = format!("client {gone}, which held the object, has gone");
                // It waits, so that it can fail.
                let failed = book.fail(now, info.id, &message);
                debug_assert!(failed.is_ok());
            }
            self.emit_task(&book, now, info.id);
        }
    }

    /// Enters a task for the client of its source.
    fn create_task(
        &self,
        now: Time,
        key: KeyRef<'_>,
        source: &Segment,
        kind: &TaskKind,
    ) -> Result<TaskId, CreateTaskError> {
        let mut book = self.tasks.lock();
        // A client that goes leaves its tasks under this lock, and its segments before.
        if !source.is_readable() {
            let (name, status) = (source.spec().name.clone(), source.status());
            return Err(TransferError::SegmentUnavailable { name, status }.into());
        }
        loop {
            let id = u128::from(self.draw()) << 64 | u128::from(self.draw());
            let id = TaskId::from_u128(id);
            match book.create(now, id, source.client(), key.to_owned(), kind.clone()) {
                Err(TaskError::IdTaken) => {}
                outcome => {
                    outcome?;
                    self.emit_task(&book, now, id);
                    return Ok(id);
                }
            }
        }
    }

    /// The segments of a complete object's replicas, those that are away included.
    pub(crate) fn holders(
        &self,
        now: Time,
        key: KeyRef<'_>,
    ) -> Result<SmallVec<[Arc<Segment>; 2]>, TransferError> {
        let key = self.hashed(key);
        let mut shard = self.shard_of(key);
        let (_, object) = shard.find_live(key, self.emit(now)).ok_or(TransferError::NotFound)?;
        if !object.is_complete() {
            return Err(TransferError::NotReady);
        }
        Ok(object.replicas().map(|replica| Arc::clone(&replica.segment)).collect())
    }

    /// One of the segments from which an object can be read, but none of `except`'s.
    fn source_drawn(
        &self,
        now: Time,
        key: KeyRef<'_>,
        except: Option<ClientId>,
    ) -> Result<Option<Arc<Segment>>, TransferError> {
        let mut holders = self.holders(now, key)?;
        holders.retain(|segment| segment.is_readable() && Some(segment.client()) != except);
        let at = self.draw() as usize % holders.len().max(1);
        Ok(holders.into_iter().nth(at))
    }

    fn emit_task(&self, book: &TaskBook, now: Time, id: TaskId) {
        if let Ok(task) = book.query(id) {
            self.emit(now).effect(&Effect::Task { task });
        }
    }

    fn emit_tasks(&self, now: Time, tasks: &[TaskInfo]) {
        for task in tasks {
            self.emit(now).effect(&Effect::Task { task });
        }
    }
}
