//! Why a server does not start, and why a thin client's call fails.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_store::StoreError;
use mc_transport::MemoryError;
use mc_types::{ByteSize, ErrorCode};
use thiserror::Error;

use super::wire::{Failure, Verdict};

/// Why a [`Server`](super::Server) does not start.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum ServeError {
    /// The port cannot be had.
    #[error("cannot serve thin clients at {address}; choose another port")]
    Bind {
        /// Where it should have been.
        address: SocketAddr,
        source: io::Error,
    },
    /// The Unix socket cannot be had.
    #[error(
        "cannot take the Unix socket @{name}; another node agent may serve the same port of \
         another address: choose another port"
    )]
    Socket { name: String, source: io::Error },
    /// The system has no randomness for a secret.
    #[error("the system gave no random bytes for a secret")]
    NoRandomness(#[source] io::Error),
}

/// Why a [`DummyClient`](super::DummyClient) does not connect, or a call of it fails.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum DummyError {
    /// The node agent, or the cluster behind it, did not do it.
    #[error(transparent)]
    Failed(#[from] CallFailure),
    /// The node agent is not there, or went away before it answered. The call may have
    /// been executed; targets of reads may still change until the node agent is back.
    #[error(
        "the node agent at {address} is gone: {source}; start it again there \
         (mc-node --port), the thin client finds it by itself"
    )]
    RealClientGone {
        /// The address as configured.
        address: Arc<str>,
        /// The error that broke the connection, or prevented it.
        source: Arc<io::Error>,
    },
    /// Another program answers at the address.
    #[error("what answers at {address} is no node agent: {reason}")]
    NotARealClient {
        /// The address as configured.
        address: Arc<str>,
        /// The peer's behaviour instead of a node agent's.
        reason: &'static str,
    },
    /// The node agent runs, but not where its memory can be shared.
    #[error(
        "the node agent at {address} cannot be reached at its Unix socket @{socket}: {source}; \
         both must run on one host and in one network namespace"
    )]
    NotOnThisHost {
        /// The address as configured.
        address: Arc<str>,
        /// The abstract name that it told.
        socket: Arc<str>,
        source: Arc<io::Error>,
    },
    /// The node agent does not serve this process.
    #[error("the node agent at {address} does not serve this process: {reason}")]
    NotAdmitted {
        /// The address as configured.
        address: Arc<str>,
        /// Why, and what to do.
        reason: &'static str,
        /// Whether it may serve it later.
        retryable: bool,
    },
    /// No answer came in time. The call may have been executed.
    #[error("the node agent at {address} did not answer within {after:?}; is it stopped?")]
    TimedOut {
        /// The address as configured.
        address: Arc<str>,
        /// How long was waited.
        after: Duration,
    },
    /// The node agent cannot reach these bytes.
    #[error(
        "the memory is not shared with the node agent; take it from `DummyClient::allocate`, \
         or register memory that was allocated with `Memory::options().shared()`"
    )]
    NotRegistered,
    /// A value does not fit in the local buffer.
    #[error(
        "{needed} bytes do not fit in the local buffer of {capacity}; make it larger \
         (`DummyClientBuilder::local_buffer`), or register memory of your own"
    )]
    TooLarge {
        /// Bytes of the value.
        needed: u64,
        /// Bytes of the buffer.
        capacity: ByteSize,
    },
    /// Others use the local buffer.
    #[error(
        "the local buffer of {capacity} has no room for {needed} bytes now; drop what is not \
         needed, or make it larger (`DummyClientBuilder::local_buffer`)"
    )]
    BufferFull {
        /// Bytes asked for.
        needed: u64,
        /// Bytes of the buffer.
        capacity: ByteSize,
    },
    /// An object lies in too many pieces of memory for one call.
    #[error("an object may lie in {max} pieces of memory, not in {given}")]
    TooManyPieces {
        /// Pieces given.
        given: usize,
        /// Most there may be.
        max: usize,
    },
    /// There is no memory for the local buffer, or memory cannot be shared.
    #[error("no memory to share with the node agent")]
    Memory(#[source] Arc<MemoryError>),
}

/// A node agent's report of a call that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message} [{code}]")]
#[non_exhaustive]
pub struct CallFailure {
    /// The cause.
    pub code: ErrorCode,
    /// A message for people: what happened and what to do.
    pub message: Box<str>,
    /// Whether the same call may succeed later.
    pub retryable: bool,
}

impl DummyError {
    /// Returns the thin client's own error behind that of a call; `None` if the error is one that
    /// every store has.
    ///
    /// ```
    /// use mc_standalone::DummyError;
    /// use mc_store::StoreError;
    /// let error = StoreError::from(DummyError::NotRegistered);
    /// assert!(matches!(DummyError::behind(&error), Some(DummyError::NotRegistered)));
    /// assert!(DummyError::behind(&StoreError::NotFound).is_none());
    /// ```
    #[must_use]
    pub fn behind(error: &StoreError) -> Option<&Self> {
        match error {
            StoreError::Failed(failure) => failure.cause().downcast_ref(),
            _ => None,
        }
    }

    /// The cause's number.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Failed(failure) => failure.code,
            Self::RealClientGone { .. }
            | Self::NotARealClient { .. }
            | Self::NotOnThisHost { .. } => ErrorCode::RpcFail,
            Self::NotAdmitted { retryable: true, .. } | Self::BufferFull { .. } => {
                ErrorCode::Overloaded
            }
            Self::NotAdmitted { .. } => ErrorCode::PermissionDenied,
            Self::TimedOut { .. } => ErrorCode::RpcTimeout,
            Self::NotRegistered | Self::TooLarge { .. } | Self::TooManyPieces { .. } => {
                ErrorCode::InvalidParams
            }
            Self::Memory(_) => ErrorCode::Internal,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Failed(failure) => failure.retryable,
            Self::NotAdmitted { retryable, .. } => *retryable,
            Self::RealClientGone { .. } | Self::TimedOut { .. } | Self::BufferFull { .. } => true,
            _ => false,
        }
    }

    pub(super) fn not_admitted(address: &Arc<str>, verdict: Verdict) -> Self {
        let (reason, retryable) = match verdict {
            Verdict::Welcome => ("it contradicts itself", false),
            Verdict::UnknownVersion => ("it is of another version; use programs of one", false),
            Verdict::WrongUser => {
                ("it serves one user; start both as that user, or allow this one", false)
            }
            Verdict::NotProven => ("the secret that it told is not its own any more", true),
            Verdict::Busy => ("it serves as many as it may; try later, or raise its limit", true),
            Verdict::Unsettled => ("it still works on calls of the connection before", true),
        };
        Self::NotAdmitted { address: Arc::clone(address), reason, retryable }
    }
}

impl From<DummyError> for StoreError {
    fn from(error: DummyError) -> Self {
        match (error.code(), error.is_retryable()) {
            (ErrorCode::ObjectNotFound, _) => Self::NotFound,
            // A lease that ran out may be taken anew; a put that is gone does not come back.
            (ErrorCode::LeaseExpired, false) => Self::Replaced,
            (code, retryable) => Self::failed(code, retryable, error),
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        DummyError::from(failure).into()
    }
}

impl From<Failure> for DummyError {
    fn from(failure: Failure) -> Self {
        let code = ErrorCode::from_code(failure.code).unwrap_or(ErrorCode::Internal);
        let message = failure.message.into_boxed_str();
        Self::Failed(CallFailure { code, message, retryable: failure.retryable })
    }
}
