//! The store's errors as Mooncake's error numbers.

use std::error::Error;
use std::fmt;

use mc_rpc::{Refusal, RpcError};
use mc_standalone::DummyError;
use mc_store::{CallError, ErrorCode, SegmentError, StartError, StoreError};

use crate::repeats;

/// Success.
pub(crate) const OK: i32 = 0;

/// A failed call as one of Mooncake's negative error numbers.
///
/// Converting an error of the store logs its text and its causes: at level debug for outcomes that
/// callers expect, such as a missing object or a full pool, and as a warning otherwise, which is
/// [not repeated](repeats) for each object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(i32);

impl Failure {
    /// The arguments cannot be used, or the store is not set up.
    pub(crate) const INVALID_PARAMS: Self = Self::of(ErrorCode::InvalidParams);
    /// No object has the key.
    pub(crate) const NOT_FOUND: Self = Self::of(ErrorCode::ObjectNotFound);
    /// The object was removed or evicted while it was read, or another put has replaced it.
    pub(crate) const LEASE_EXPIRED: Self = Self::of(ErrorCode::LeaseExpired);
    /// A failure without a number of its own.
    pub(crate) const INTERNAL: Self = Self::of(ErrorCode::Internal);
    /// A transfer failed.
    pub(crate) const TRANSFER: Self = Self::of(ErrorCode::TransferFail);
    /// The caller has stopped waiting.
    pub(crate) const GIVEN_UP: Self = Self::of(ErrorCode::Cancelled);
    /// Mooncake's DFS_SERVICE_UNAVAILABLE: the cluster has no files.
    pub(crate) const NO_FILES: Self = Self(-1601);
    /// This kind of client does not support the call.
    pub(crate) const NOT_SUPPORTED: Self = Self::of(ErrorCode::NotSupported);

    /// Returns the failure for an error code.
    pub(crate) const fn of(code: ErrorCode) -> Self {
        Self(code.reference_code())
    }

    /// Returns Mooncake's number.
    pub(crate) const fn code(self) -> i32 {
        self.0
    }

    /// Rejects arguments and logs the reason.
    pub(crate) fn refuse(why: impl fmt::Display) -> Self {
        repeats::warn(None, format!("rejected: {why}"));
        Self::INVALID_PARAMS
    }

    fn logged(code: ErrorCode, error: &(dyn Error + 'static)) -> Self {
        let text = Chain(error);
        match code {
            _ if is_replaced(error) => tracing::debug!(%code, "{text}"),
            ErrorCode::ObjectNotFound
            | ErrorCode::ObjectHasLease
            | ErrorCode::ObjectAlreadyExists
            | ErrorCode::PutInProgress
            | ErrorCode::ReplicaIsNotReady
            | ErrorCode::TaskNotFound
            | ErrorCode::Cancelled
            | ErrorCode::Full
            | ErrorCode::Fragmented
            | ErrorCode::TooFewSegments
            | ErrorCode::AllLeased => tracing::debug!(%code, "{text}"),
            _ => repeats::warn(Some(code), text.to_string()),
        }
        // Mooncake reports an invalid key as an invalid argument.
        let code = if code == ErrorCode::InvalidKey { ErrorCode::InvalidParams } else { code };
        Self::of(code)
    }
}

/// Returns whether another put has replaced the requested one. Callers that request one put expect
/// that; a lease that is too short has the same number and should be visible in the log.
fn is_replaced(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::Replaced))
}

/// Displays an error and its causes.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let why = error.to_string();
            // Some errors include the text of their cause.
            if !said.contains(&why) {
                write!(f, ": {why}")?;
                said = why;
            }
            cause = error.source();
        }
        Ok(())
    }
}

macro_rules! failures {
    ($($error:ident $(or $closed:ident)?,)*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                $(
                    // Callers get the same number whether the store was closed before or during
                    // their call.
                    if matches!(error, $error::$closed) {
                        return Self::INVALID_PARAMS;
                    }
                )?
                Self::logged(error.code(), &error)
            }
        }
    )*};
}

failures! {
    StoreError or Closed, CallError or Closed, SegmentError or Closed,
    DummyError, RpcError,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::logged(refusal.code, &refusal)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let code = match &error {
            StartError::Master(error) => error.code(),
            StartError::Segment(error) => error.code(),
            StartError::GivenUp(_) => ErrorCode::Cancelled,
            StartError::Memory { .. } | StartError::LocalBuffer { .. } => ErrorCode::Internal,
            _ => ErrorCode::InvalidParams,
        };
        Self::logged(code, &error)
    }
}

/// Returns 0 for success, or the number of the failure.
pub(crate) fn code_of(outcome: Result<(), Failure>) -> i32 {
    outcome.map_or_else(Failure::code, |()| OK)
}

/// Returns the count, or the number of the failure.
pub(crate) fn count_of(outcome: Result<u64, Failure>) -> i64 {
    match outcome {
        Ok(count) => i64::try_from(count).unwrap_or(i64::MAX),
        Err(failure) => failure.code().into(),
    }
}
