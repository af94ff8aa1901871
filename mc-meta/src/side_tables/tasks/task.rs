//! Tasks, their reports, and the reasons for which one is refused.

use core::fmt;
use core::slice;
use core::time::Duration;

use mc_types::{ClientId, ErrorCode, ObjectKey, TaskId, Time};
use thiserror::Error;

use crate::vocabulary::request::MAX_REPLICAS;

/// Longest message kept with a task, in bytes. What is longer is cut.
pub const MAX_TASK_MESSAGE_LEN: usize = 1024;

/// The work of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Make replicas in other segments.
    Copy {
        /// Name of the segment to read from.
        source: Box<str>,
        /// Names of the segments to write to, between 1 and [`MAX_REPLICAS`].
        targets: Vec<Box<str>>,
    },
    /// Make one replica in another segment and give the old one up.
    Move {
        /// Name of the segment to read from.
        source: Box<str>,
        /// Name of the segment to write to.
        target: Box<str>,
    },
}

impl TaskKind {
    /// Name of the segment to read from.
    #[must_use]
    pub fn source(&self) -> &str {
        match self {
            Self::Copy { source, .. } | Self::Move { source, .. } => source,
        }
    }

    /// Names of the segments to write to.
    #[must_use]
    pub fn targets(&self) -> &[Box<str>] {
        match self {
            Self::Copy { targets, .. } => targets,
            Self::Move { target, .. } => slice::from_ref(target),
        }
    }

    pub(crate) fn check(&self) -> Result<(), TaskError> {
        match self {
            Self::Copy { targets, .. } if !(1..=MAX_REPLICAS).contains(&targets.len()) => {
                Err(TaskError::TargetCount { count: targets.len() })
            }
            Self::Move { source, target } if source == target => Err(TaskError::SameSegment),
            Self::Copy { .. } | Self::Move { .. } => Ok(()),
        }
    }
}

/// The status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskStatus {
    /// The task waits for its client. Becomes processing or failed.
    Pending,
    /// Its client works on it. Becomes success or failed.
    Processing,
    /// The task is done.
    Success,
    /// The task has failed; the message has the reason.
    Failed,
}

impl TaskStatus {
    /// Returns whether the task is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Failed)
    }

    /// Returns whether a task may go from here to `next`; no task goes any other way.
    pub(crate) const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Pending => matches!(next, Self::Processing | Self::Failed),
            Self::Processing => next.is_final(),
            Self::Success | Self::Failed => false,
        }
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Success => "success",
            Self::Failed => "failed",
        })
    }
}

/// Everything about one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskInfo {
    /// The id that the task is queried by.
    pub id: TaskId,
    /// The copy or move to do.
    pub kind: TaskKind,
    /// The key of the object it is about.
    pub key: ObjectKey,
    /// Its progress, or how it ended.
    pub status: TaskStatus,
    /// The time of its creation.
    pub created_at: Time,
    /// The time of the last change of its status or its client.
    pub last_updated_at: Time,
    /// The client that is to do it.
    pub assigned_client: ClientId,
    /// The reason of its end; empty before.
    pub message: Box<str>,
}

/// A task as the client gets it that is to do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskAssignment {
    /// Its identity, to report under.
    pub id: TaskId,
    /// The copy or move to do.
    pub kind: TaskKind,
    /// The key of the object.
    pub key: ObjectKey,
    /// The time of the task's creation.
    pub created_at: Time,
    /// How often to try again when a target has no room.
    pub max_retry_attempts: u32,
}

/// Limits of the book of tasks. The defaults are Mooncake's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskConfig {
    /// Most tasks that wait. Default 10 000.
    pub max_pending: usize,
    /// Most tasks that are worked on. Default 10 000.
    pub max_processing: usize,
    /// Ended tasks that are kept; the oldest is forgotten first. Default 10 000.
    pub max_finished: usize,
    /// How long after its creation a waiting task fails; zero for never. Default
    /// 300 s.
    pub pending_timeout: Duration,
    /// How long after it was fetched a task fails; zero for never. Default 300 s.
    pub processing_timeout: Duration,
    /// How often a client tries a task again when a target has no room. Default 10.
    pub max_retry_attempts: u32,
}

impl Default for TaskConfig {
    fn default() -> Self {
        Self {
            max_pending: 10_000,
            max_processing: 10_000,
            max_finished: 10_000,
            pending_timeout: Duration::from_secs(300),
            processing_timeout: Duration::from_secs(300),
            max_retry_attempts: 10,
        }
    }
}

/// Why a task is not created, reassigned or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TaskError {
    /// As many tasks are waiting as may.
    #[error("{limit} tasks are waiting already, which is the limit; retry when some have begun")]
    PendingLimit {
        /// The limit.
        limit: usize,
    },
    /// The identity is in use.
    #[error("a task with this id is in the book already; draw another id")]
    IdTaken,
    /// A copy to no segment, or to more than the limit.
    #[error("{count} targets; a copy has between 1 and {MAX_REPLICAS}")]
    TargetCount {
        /// The number given.
        count: usize,
    },
    /// A move to where the replica is.
    #[error("source and target of the move are the same segment")]
    SameSegment,
    /// No such task, or it ended so long ago that it is forgotten.
    #[error("no such task, or it ended so long ago that it is forgotten")]
    NotFound,
    /// The task is another client's.
    #[error("the task is assigned to another client")]
    IllegalClient,
    /// A report that says neither success nor failure.
    #[error("a task ends as success or failed, not as {status}")]
    NotFinal {
        /// The status given.
        status: TaskStatus,
    },
    /// The task is not where it could do that.
    #[error("the task is {from} and cannot become {to}")]
    BadTransition {
        /// The status that the task has.
        from: TaskStatus,
        /// Where it was to go.
        to: TaskStatus,
    },
    /// A move is of one replica and cannot be of another.
    #[error("a move cannot be given another source")]
    SourceFixed,
}

impl TaskError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::PendingLimit { .. } => ErrorCode::TaskPendingLimitExceeded,
            Self::NotFound => ErrorCode::TaskNotFound,
            Self::IllegalClient => ErrorCode::IllegalClient,
            Self::IdTaken
            | Self::TargetCount { .. }
            | Self::SameSegment
            | Self::NotFinal { .. }
            | Self::BadTransition { .. }
            | Self::SourceFixed => ErrorCode::InvalidParams,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::PendingLimit { .. })
    }
}
