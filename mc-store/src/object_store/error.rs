//! Why a call of a store fails, whatever carried it.

use std::error::Error as Cause;
use std::fmt;
use std::sync::Arc;

use mc_rpc::{Refusal, RpcError};
use mc_transport::Memory;
use mc_types::{ErrorCode, InfoTooLong, KeyError};
use thiserror::Error;

use crate::error::{CallError, GetError, PutError};

/// Why a call of an [`ObjectStore`](super::ObjectStore) fails.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The key is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The event info of a put is too long; the code is
    /// [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(transparent)]
    EventInfo(#[from] InfoTooLong),
    /// No object has this key.
    #[error("no such object")]
    NotFound,
    /// The target is shorter than the object.
    #[error("the object has {needed} bytes, the target {given}; give it at least as many")]
    BufferTooSmall {
        /// Bytes to be read.
        needed: u64,
        /// The target's length in bytes.
        given: u64,
    },
    /// The object is of another put than the named one, which is gone; the code is
    /// [`LeaseExpired`](ErrorCode::LeaseExpired).
    #[error("the object was replaced by another put; look it up again and read that one")]
    Replaced,
    /// The store was closed; the code is
    /// [`UnavailableInCurrentStatus`](ErrorCode::UnavailableInCurrentStatus).
    #[error("this client is closed; connect another one")]
    Closed,
    /// Anything else; the code tells the cause.
    #[error(transparent)]
    Failed(#[from] StoreFailure),
}

/// A failure of the kind that depends on the store, with the store's own error.
#[derive(Clone, Debug)]
pub struct StoreFailure {
    code: ErrorCode,
    retryable: bool,
    cause: Arc<dyn Cause + Send + Sync>,
}

impl StoreFailure {
    /// The store's own error, to be downcast.
    #[must_use]
    pub fn cause(&self) -> &(dyn Cause + Send + Sync + 'static) {
        &*self.cause
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl Cause for StoreFailure {
    fn source(&self) -> Option<&(dyn Cause + 'static)> {
        // The text is the cause's own.
        self.cause.source()
    }
}

impl StoreError {
    /// A failure whose `cause` is an error of the store that is implemented.
    #[must_use]
    pub fn failed(
        code: ErrorCode,
        retryable: bool,
        cause: impl Into<Box<dyn Cause + Send + Sync>>,
    ) -> Self {
        Self::Failed(StoreFailure { code, retryable, cause: Arc::from(cause.into()) })
    }

    /// The cause's number.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Key(_) => ErrorCode::InvalidKey,
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::EventInfo(_) | Self::BufferTooSmall { .. } => ErrorCode::InvalidParams,
            Self::Replaced => ErrorCode::LeaseExpired,
            Self::Closed => ErrorCode::UnavailableInCurrentStatus,
            Self::Failed(failure) => failure.code,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Failed(StoreFailure { retryable: true, .. }))
    }
}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        match refusal.code {
            ErrorCode::ObjectNotFound => Self::NotFound,
            // A master has this number for one cause: the put that a call named is gone.
            ErrorCode::LeaseExpired => Self::Replaced,
            code => Self::failed(code, refusal.is_retryable(), refusal),
        }
    }
}

impl From<PutError> for StoreError {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Key(error) => error.into(),
            PutError::EventInfo(error) => error.into(),
            PutError::Refused(refusal) => refusal.into(),
            PutError::Closed => Self::Closed,
            error => Self::failed(error.code(), error.is_retryable(), error),
        }
    }
}

impl From<GetError> for StoreError {
    fn from(error: GetError) -> Self {
        match error {
            GetError::Key(error) => error.into(),
            GetError::NotFound => Self::NotFound,
            GetError::BufferTooSmall { needed, given } => Self::BufferTooSmall { needed, given },
            GetError::Replaced => Self::Replaced,
            GetError::Closed => Self::Closed,
            GetError::Rpc(RpcError::Refused(refusal)) => refusal.into(),
            error => Self::failed(error.code(), error.is_retryable(), error),
        }
    }
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Key(error) => error.into(),
            CallError::Rpc(RpcError::Refused(refusal)) => refusal.into(),
            CallError::Closed => Self::Closed,
            error => Self::failed(error.code(), error.is_retryable(), error),
        }
    }
}

/// Memory of this process.
pub(super) fn allocate(len: usize) -> Result<Memory, StoreError> {
    Memory::allocate(len).map_err(|error| GetError::Memory(Arc::new(error)).into())
}
