//! Why a client's own disk, or what is on it, is refused.

use mc_types::ErrorCode;
use thiserror::Error;

use crate::tier::local_disk::MAX_DISK_OBJECTS;

/// Why a disk is not mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LocalDiskError {
    /// The master runs without local disks.
    #[error("this master uses no local disks; start it with offloading enabled")]
    Unsupported,
    /// No more disks can be mounted.
    #[error("{limit} local disks are mounted, which is the limit")]
    TooManyDisks {
        /// The most there can be.
        limit: usize,
    },
}

impl LocalDiskError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Unsupported => ErrorCode::UnableOffload,
            Self::TooManyDisks { .. } => ErrorCode::Overloaded,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::TooManyDisks { .. })
    }
}

/// Why what a client found on its disk is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FoundError {
    /// The client has mounted no local disk.
    #[error("the client has no local disk mounted; mount it first")]
    NoDisk,
    /// The key has another value now, or one is being written.
    #[error("the key has another value; delete this one")]
    OtherObject,
    /// The object has another length.
    #[error("the object has another length; delete what was found")]
    WrongLength,
    /// The object's tenant may not write.
    #[error("no quota is set for the object's tenant")]
    NotRegistered,
    /// As many objects are on the disk as may.
    #[error("{MAX_DISK_OBJECTS} objects are on this disk, which is the limit")]
    TooManyObjects,
}

impl FoundError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NoDisk => ErrorCode::SegmentNotFound,
            Self::OtherObject => ErrorCode::ObjectAlreadyExists,
            Self::WrongLength => ErrorCode::InvalidParams,
            Self::NotRegistered => ErrorCode::TenantNotRegistered,
            Self::TooManyObjects => ErrorCode::OffloadQueueFull,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}
