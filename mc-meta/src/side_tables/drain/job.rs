//! Drain jobs, and the reasons for which one is refused.

use core::fmt;

use mc_types::{ErrorCode, JobId, Time};
use thiserror::Error;

use crate::vocabulary::states::SegmentStatus;

/// Moves that a drain job has under way at a time when its creator does not say.
pub const DEFAULT_DRAIN_CONCURRENCY: usize = 4;

/// Most moves that one drain job may have under way at a time.
pub const MAX_DRAIN_CONCURRENCY: usize = 1024;

/// Most segments that one drain job empties, and most targets that it names.
pub const MAX_DRAIN_SEGMENTS: usize = 1024;

/// Most drain jobs at work.
pub const MAX_DRAIN_JOBS: usize = 64;

/// Drain jobs that are over and still known; the oldest is forgotten first.
pub const MAX_ENDED_DRAIN_JOBS: usize = 256;

/// The status of a drain job. The numbers are those of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum JobStatus {
    /// Nothing has been done yet.
    Created = 0,
    /// Objects are looked for.
    Planning = 1,
    /// Objects are moved.
    Running = 2,
    /// The segments are empty.
    Succeeded = 3,
    /// The job has failed; its message has the reason.
    Failed = 4,
    /// The job was canceled.
    Canceled = 5,
}

impl JobStatus {
    /// Returns whether the job is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled)
    }

    /// Its name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Planning => "planning",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Everything about one drain job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainJobInfo {
    /// The id that the start of the job returned.
    pub id: JobId,
    /// Its progress, or how it ended.
    pub status: JobStatus,
    /// Names of the segments that it empties.
    pub segments: Vec<Box<str>>,
    /// Names of the segments that it moves to; empty for any.
    pub targets: Vec<Box<str>>,
    /// Most moves under way at a time.
    pub max_concurrency: usize,
    /// The time of its creation.
    pub created_at: Time,
    /// The time of the last change.
    pub last_updated_at: Time,
    /// Objects moved so far.
    pub moved: u64,
    /// Bytes of those.
    pub moved_bytes: u64,
    /// Moves under way.
    pub active: u64,
    /// Objects that could not be moved when all were last looked at, and will be looked
    /// at again: unfinished ones, those that are being copied or moved by others, those
    /// whose client is silent, and those that no target had room for.
    pub blocked: u64,
    /// Objects that are not tried any more.
    pub failed: u64,
    /// The reason of a failure; empty without one.
    pub message: Box<str>,
}

/// Why a drain job is not created or canceled.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DrainError {
    /// No segment to empty, or more segments or targets than the limit.
    #[error("{count} segments; name between 1 and {MAX_DRAIN_SEGMENTS}")]
    SegmentCount {
        /// The number given.
        count: usize,
    },
    /// No move at a time, or more than the limit.
    #[error("{given} moves at a time; choose between 1 and {MAX_DRAIN_CONCURRENCY}")]
    Concurrency {
        /// The number given.
        given: usize,
    },
    /// No segment of this name is mounted.
    #[error("no segment named {name:?} is mounted")]
    SegmentNotFound {
        /// The name given.
        name: Box<str>,
    },
    /// The segment is not in use, or another job empties it.
    #[error("segment {name:?} is {status} and cannot be used now")]
    SegmentUnavailable {
        /// The name of the segment.
        name: Box<str>,
        /// The status that prevents it.
        status: SegmentStatus,
    },
    /// A segment is to be emptied and a target as well.
    #[error("segment {name:?} cannot be emptied and be a target as well")]
    SegmentIsTarget {
        /// The name of the segment.
        name: Box<str>,
    },
    /// No other segment of the same medium takes new objects, and no targets are named.
    #[error(
        "no other segment of the same medium takes new objects; mount one first, or name targets"
    )]
    NoTarget,
    /// As many jobs are at work as may.
    #[error("{MAX_DRAIN_JOBS} drain jobs are at work already, which is the limit")]
    TooManyJobs,
    /// No such job, or it was over so long ago that it is forgotten.
    #[error("no such job, or it was over so long ago that it is forgotten")]
    NotFound,
    /// The job is over.
    #[error("the job is over: it is {status}")]
    Ended {
        /// How it ended.
        status: JobStatus,
    },
}

impl DrainError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::SegmentCount { .. } | Self::Concurrency { .. } | Self::SegmentIsTarget { .. } => {
                ErrorCode::InvalidParams
            }
            Self::SegmentNotFound { .. } => ErrorCode::SegmentNotFound,
            Self::SegmentUnavailable { .. } | Self::Ended { .. } => {
                ErrorCode::UnavailableInCurrentStatus
            }
            Self::NoTarget => ErrorCode::TooFewSegments,
            Self::TooManyJobs => ErrorCode::TaskPendingLimitExceeded,
            Self::NotFound => ErrorCode::JobNotFound,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::TooManyJobs | Self::SegmentUnavailable { .. })
    }
}
