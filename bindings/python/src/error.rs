//! Errors of the store as the numbers that Mooncake gives for them.

use std::error::Error;
use std::fmt;

use mc_rpc::{Refusal, RpcError};
use mc_standalone::DummyError;
use mc_store::{CallError, ErrorCode, SegmentError, StartError, StoreError};

/// Success.
pub(crate) const OK: i32 = 0;

/// Why a call failed, as a negative number of Mooncake.
///
/// It is made of an error of the store, whose text, the causes behind it included, goes to the
/// log then: as a warning, or as a detail when callers live with it, as with an object that is
/// not there, or a full pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(i32);

impl Failure {
    /// The arguments cannot be used, or the store is not set up.
    pub(crate) const INVALID_PARAMS: Self = Self::of(ErrorCode::InvalidParams);
    /// No object has the key.
    pub(crate) const NOT_FOUND: Self = Self::of(ErrorCode::ObjectNotFound);
    /// The object went away while it was read, or another put has replaced it.
    pub(crate) const LEASE_EXPIRED: Self = Self::of(ErrorCode::LeaseExpired);
    /// What is not said by any other number.
    pub(crate) const INTERNAL: Self = Self::of(ErrorCode::Internal);
    /// A transfer failed.
    pub(crate) const TRANSFER: Self = Self::of(ErrorCode::TransferFail);
    /// Whoever called does not wait any more.
    pub(crate) const GIVEN_UP: Self = Self::of(ErrorCode::Cancelled);
    /// This kind of client does not do it.
    pub(crate) const NOT_SUPPORTED: Self = Self::of(ErrorCode::NotSupported);

    /// The failure with this cause.
    pub(crate) const fn of(code: ErrorCode) -> Self {
        Self(code.reference_code())
    }

    /// The number.
    pub(crate) const fn code(self) -> i32 {
        self.0
    }

    /// Refuses arguments, and says in the log what is wrong with them.
    pub(crate) fn refuse(why: impl fmt::Display) -> Self {
        tracing::warn!("refused: {why}");
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
            _ => tracing::warn!(%code, "{text}"),
        }
        // Mooncake calls a bad key a bad argument.
        let code = if code == ErrorCode::InvalidKey { ErrorCode::InvalidParams } else { code };
        Self::of(code)
    }
}

/// Whether another put than the one that was asked for is there. Who asks for one put lives with
/// that; a lease that is too short, which has the same number, should be seen.
fn is_replaced(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::Replaced))
}

/// An error's text and those of the causes behind it.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let why = error.to_string();
            // Some errors show their cause themselves.
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
                    // For callers it is all the same whether the store was closed before their
                    // call or under it.
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

/// The number of an outcome that says nothing else.
pub(crate) fn code_of(outcome: Result<(), Failure>) -> i32 {
    outcome.map_or_else(Failure::code, |()| OK)
}

/// A count, or the number of the failure.
pub(crate) fn count_of(outcome: Result<u64, Failure>) -> i64 {
    match outcome {
        Ok(count) => i64::try_from(count).unwrap_or(i64::MAX),
        Err(failure) => failure.code().into(),
    }
}
