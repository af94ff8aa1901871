//! Why a client's local disk is refused.

use mc_types::ErrorCode;
use thiserror::Error;

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
