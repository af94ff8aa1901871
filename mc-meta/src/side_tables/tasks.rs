//! The book of copies and moves that clients do for the master.
//!
//! A task waits for the client it is assigned to, is fetched by it, and ends when
//! the client reports, when its time is up or when the client has gone. The last
//! ones that ended stay in the book for those who ask.

pub(crate) mod task;

use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use mc_lease::{TimerKey, TimerWheel};
use mc_types::{ClientId, ObjectKey, TaskId, Time};

#[cfg(test)]
mod tests;

pub use task::{
    MAX_TASK_MESSAGE_LEN, TaskAssignment, TaskConfig, TaskError, TaskInfo, TaskKind, TaskStatus,
};

/// The tasks of a client that has gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Orphans {
    /// Tasks that failed with it: those it worked on, and waiting moves, whose
    /// source was its own.
    pub(crate) failed: Vec<TaskInfo>,
    /// Copies that still wait, to be [reassigned](TaskBook::reassign) to a client
    /// with another replica, or [failed](TaskBook::fail).
    pub(crate) waiting: Vec<TaskInfo>,
}

/// How many tasks are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskCounts {
    pub(crate) pending: usize,
    pub(crate) processing: usize,
    /// Ended tasks that are still known.
    pub(crate) finished: usize,
}

/// Orders the tasks of one client by when they were created.
type Turn = (ClientId, u64);

/// Every task that is known.
///
/// Each operation on one task takes O(log n) in the number of tasks known, which
/// the configuration bounds; those on many take that for each task they return.
#[derive(Debug)]
pub(crate) struct TaskBook {
    config: TaskConfig,
    tasks: BTreeMap<TaskId, Task>,
    pending: BTreeMap<Turn, TaskId>,
    processing: BTreeMap<Turn, TaskId>,
    /// In the order in which they ended.
    finished: VecDeque<TaskId>,
    deadlines: TimerWheel<TaskId>,
    /// Tasks created so far.
    created: u64,
}

#[derive(Debug)]
struct Task {
    info: TaskInfo,
    /// Its number in the order of creation.
    number: u64,
    /// When its client's time is up.
    deadline: Option<TimerKey>,
}

impl Task {
    const fn turn(&self) -> Turn {
        (self.info.assigned_client, self.number)
    }
}

impl TaskBook {
    pub(crate) fn new(config: TaskConfig) -> Self {
        Self {
            config,
            tasks: BTreeMap::new(),
            pending: BTreeMap::new(),
            processing: BTreeMap::new(),
            finished: VecDeque::new(),
            deadlines: TimerWheel::new(),
            created: 0,
        }
    }

    /// Has `client` do something with the object of `key`. The caller has drawn
    /// `id` at random and knows the segments that `kind` names.
    ///
    /// # Errors
    /// [`TaskError::TargetCount`] and [`TaskError::SameSegment`] when `kind` makes
    /// no sense, [`TaskError::PendingLimit`], [`TaskError::IdTaken`].
    pub(crate) fn create(
        &mut self,
        now: Time,
        id: TaskId,
        client: ClientId,
        key: ObjectKey,
        kind: TaskKind,
    ) -> Result<(), TaskError> {
        kind.check()?;
        let limit = self.config.max_pending;
        if self.pending.len() >= limit {
            return Err(TaskError::PendingLimit { limit });
        }
        if self.tasks.contains_key(&id) {
            return Err(TaskError::IdTaken);
        }
        let info = TaskInfo {
            id,
            kind,
            key,
            status: TaskStatus::Pending,
            created_at: now,
            last_updated_at: now,
            assigned_client: client,
            message: Box::default(),
        };
        let deadline = set_deadline(&mut self.deadlines, id, now, self.config.pending_timeout);
        let task = Task { info, number: self.created, deadline };
        self.created += 1;
        self.pending.insert(task.turn(), id);
        self.tasks.insert(id, task);
        Ok(())
    }

    /// Gives a client up to `max` of the tasks that wait for it, oldest first. They
    /// are the client's to work on from then on.
    pub(crate) fn fetch(&mut self, now: Time, client: ClientId, max: usize) -> Vec<TaskAssignment> {
        let room = self.config.max_processing.saturating_sub(self.processing.len());
        let max_retry_attempts = self.config.max_retry_attempts;
        turns_of(&self.pending, client)
            .take(max.min(room))
            .collect::<Vec<TaskId>>()
            .into_iter()
            .filter_map(|id| self.advance(now, id, TaskStatus::Processing, "").ok())
            .map(|TaskInfo { id, kind, key, created_at, .. }| TaskAssignment {
                id,
                kind,
                key,
                created_at,
                max_retry_attempts,
            })
            .collect()
    }

    /// Takes a client's report on a task that it fetched. Says how the task ended,
    /// which is something else than reported when it had ended before: reporting
    /// again changes nothing.
    ///
    /// # Errors
    /// [`TaskError::NotFinal`], [`TaskError::NotFound`], [`TaskError::IllegalClient`],
    /// and [`TaskError::BadTransition`] when the client never fetched the task.
    pub(crate) fn complete(
        &mut self,
        now: Time,
        client: ClientId,
        id: TaskId,
        status: TaskStatus,
        message: &str,
    ) -> Result<TaskStatus, TaskError> {
        if !status.is_final() {
            return Err(TaskError::NotFinal { status });
        }
        let info = self.query(id)?;
        if info.assigned_client != client {
            return Err(TaskError::IllegalClient);
        }
        match info.status {
            ended if ended.is_final() => Ok(ended),
            TaskStatus::Processing => self.advance(now, id, status, message).map(|it| it.status),
            from => Err(TaskError::BadTransition { from, to: status }),
        }
    }

    /// Gives a task up, of any client. Says how the task ended, which is
    /// another way when it had ended before.
    ///
    /// # Errors
    /// [`TaskError::NotFound`].
    pub(crate) fn fail(
        &mut self,
        now: Time,
        id: TaskId,
        message: &str,
    ) -> Result<TaskStatus, TaskError> {
        let status = self.query(id)?.status;
        if status.is_final() {
            return Ok(status);
        }
        self.advance(now, id, TaskStatus::Failed, message).map(|info| info.status)
    }

    /// Everything about a task.
    ///
    /// # Errors
    /// [`TaskError::NotFound`].
    pub(crate) fn query(&self, id: TaskId) -> Result<&TaskInfo, TaskError> {
        self.tasks.get(&id).map(|task| &task.info).ok_or(TaskError::NotFound)
    }

    /// Up to `limit` of the tasks whose ids come after `after`, in the order of their ids.
    pub(crate) fn list(&self, after: Option<TaskId>, limit: usize) -> Vec<TaskInfo> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let tasks = self.tasks.range((from, Bound::Unbounded)).take(limit);
        tasks.map(|(_, task)| task.info.clone()).collect()
    }

    /// Fails up to `limit` tasks whose time is up, in the order in which it was, and
    /// returns them as they are then.
    pub(crate) fn expire(&mut self, now: Time, limit: usize) -> Vec<TaskInfo> {
        let mut expired = Vec::new();
        while expired.len() < limit
            && let Some((_, id)) = self.deadlines.pop_due(now)
        {
            let message = match self.query(id) {
                Ok(info) if info.status == TaskStatus::Pending => "pending timeout",
                _ => "processing timeout",
            };
            expired.extend(self.advance(now, id, TaskStatus::Failed, message));
        }
        expired
    }

    /// Takes note that a client has gone, with its segments.
    pub(crate) fn client_gone(&mut self, now: Time, client: ClientId) -> Orphans {
        let mut orphans = Orphans::default();
        let message = format!("client {client}, which worked on the task, has gone");
        for id in turns_of(&self.processing, client).collect::<Vec<TaskId>>() {
            orphans.failed.extend(self.advance(now, id, TaskStatus::Failed, &message));
        }
        let message = format!("client {client}, which held the source, has gone");
        for id in turns_of(&self.pending, client).collect::<Vec<TaskId>>() {
            match self.query(id) {
                Ok(info) if matches!(info.kind, TaskKind::Copy { .. }) => {
                    orphans.waiting.push(info.clone());
                }
                _ => orphans.failed.extend(self.advance(now, id, TaskStatus::Failed, &message)),
            }
        }
        orphans
    }

    /// Has another client do a copy that still waits, from a replica of its own. It
    /// keeps its turn, which its age decides, and its deadline.
    ///
    /// # Errors
    /// [`TaskError::NotFound`], [`TaskError::BadTransition`] when the copy does not
    /// wait any more, [`TaskError::SourceFixed`] when it is a move.
    pub(crate) fn reassign(
        &mut self,
        now: Time,
        id: TaskId,
        client: ClientId,
        source: Box<str>,
    ) -> Result<(), TaskError> {
        let task = self.tasks.get_mut(&id).ok_or(TaskError::NotFound)?;
        let from = task.info.status;
        if from != TaskStatus::Pending {
            return Err(TaskError::BadTransition { from, to: TaskStatus::Pending });
        }
        let TaskKind::Copy { source: old_source, .. } = &mut task.info.kind else {
            return Err(TaskError::SourceFixed);
        };
        *old_source = source;
        self.pending.remove(&task.turn());
        task.info.assigned_client = client;
        task.info.last_updated_at = now.max(task.info.last_updated_at);
        self.pending.insert(task.turn(), id);
        Ok(())
    }

    /// How many tasks wait for a client; no more than `limit` are counted.
    pub(crate) fn waiting(&self, client: ClientId, limit: usize) -> usize {
        turns_of(&self.pending, client).take(limit).count()
    }

    pub(crate) fn counts(&self) -> TaskCounts {
        TaskCounts {
            pending: self.pending.len(),
            processing: self.processing.len(),
            finished: self.finished.len(),
        }
    }

    /// Brings a task to its next status, the only way there is, and returns it as it
    /// is then; it may be forgotten at once.
    fn advance(
        &mut self,
        now: Time,
        id: TaskId,
        to: TaskStatus,
        message: &str,
    ) -> Result<TaskInfo, TaskError> {
        let task = self.tasks.get_mut(&id).ok_or(TaskError::NotFound)?;
        let from = task.info.status;
        if !from.may_become(to) {
            return Err(TaskError::BadTransition { from, to });
        }
        let turn = task.turn();
        match from {
            TaskStatus::Pending => self.pending.remove(&turn),
            _ => self.processing.remove(&turn),
        };
        if let Some(deadline) = task.deadline.take() {
            self.deadlines.cancel(deadline);
        }
        task.info.status = to;
        task.info.last_updated_at = now.max(task.info.last_updated_at);
        task.info.message = cut(message).into();
        let info = task.info.clone();
        if to == TaskStatus::Processing {
            let timeout = self.config.processing_timeout;
            task.deadline = set_deadline(&mut self.deadlines, id, now, timeout);
            self.processing.insert(turn, id);
        } else {
            self.finished.push_back(id);
            self.forget_oldest();
        }
        Ok(info)
    }

    fn forget_oldest(&mut self) {
        while self.finished.len() > self.config.max_finished
            && let Some(id) = self.finished.pop_front()
        {
            self.tasks.remove(&id);
        }
    }
}

/// A zero `timeout` is none.
fn set_deadline(
    deadlines: &mut TimerWheel<TaskId>,
    id: TaskId,
    now: Time,
    timeout: Duration,
) -> Option<TimerKey> {
    (!timeout.is_zero()).then(|| deadlines.schedule(now + timeout, id))
}

/// The tasks of one client, oldest first.
fn turns_of(turns: &BTreeMap<Turn, TaskId>, client: ClientId) -> impl Iterator<Item = TaskId> + '_ {
    turns.range((client, 0)..=(client, u64::MAX)).map(|(_, &id)| id)
}

/// As much of `message` as is kept.
fn cut(message: &str) -> &str {
    let end = (0..=MAX_TASK_MESSAGE_LEN.min(message.len()))
        .rev()
        .find(|&end| message.is_char_boundary(end));
    &message[..end.unwrap_or(0)]
}
