//! Why a master refuses a call, and when it may say so.

use mc_types::{ErrorCode, Sequence};
use thiserror::Error;

/// The time at which a server may send the answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// At once.
    Now,
    /// When the effects up to this one are durable, as [`Service::durability`] tells. The call made
    /// the effect, or the answer shows what another call made.
    ///
    /// [`Service::durability`]: crate::Service::durability
    After(Sequence),
}

/// Longest message of a refusal, in bytes. What goes beyond is cut off.
pub const MAX_MESSAGE_LEN: usize = 1024;

/// A call that reached the master and was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message} [{code}]")]
pub struct Refusal {
    /// The cause.
    pub code: ErrorCode,
    /// The cause and what to do, as a text.
    pub message: Box<str>,
    /// The effect that the refusal is the result of; stays on the server.
    after: Option<Sequence>,
}

impl Refusal {
    /// A refusal for this cause. A message longer than [`MAX_MESSAGE_LEN`] is cut.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE_LEN {
            let cut = (0..=MAX_MESSAGE_LEN).rev().find(|&at| message.is_char_boundary(at));
            message.truncate(cut.unwrap_or(0));
        }
        Self { code, message: message.into_boxed_str(), after: None }
    }

    /// Has the server hold the refusal until the effects up to this one are durable: it says
    /// something about the state that they changed ("no such object"). A refusal for another reason
    /// leaves at once.
    #[must_use]
    pub const fn held_until(mut self, sequence: Sequence) -> Self {
        self.after = Some(sequence);
        self
    }

    /// Returns when the server may send the refusal.
    #[must_use]
    pub fn completion(&self) -> Completion {
        self.after.map_or(Completion::Now, Completion::After)
    }

    /// Reads a refusal from the wire. A number that this version does not know
    /// becomes [`ErrorCode::Internal`] and is kept in the message.
    pub(crate) fn from_wire(number: i32, message: &[u8]) -> Self {
        let message = String::from_utf8_lossy(&message[..message.len().min(MAX_MESSAGE_LEN)]);
        match ErrorCode::from_code(number) {
            Some(code) => Self::new(code, message),
            None => Self::new(
                ErrorCode::Internal,
                format!("{message} (cause {number}, which this version does not know)"),
            ),
        }
    }

    /// A refusal of a request that is malformed or not allowed by its parameters.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidParams, message)
    }

    /// Refuses a call that another server may have executed.
    pub(crate) fn outcome_unknown() -> Self {
        Self::new(
            ErrorCode::OutcomeUnknown,
            "a former leader, or this master before its restart, may have executed this call; look \
             at what it was to change before making it again",
        )
    }

    /// Returns whether the same call may succeed later without intervention.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self.code,
            ErrorCode::Full
                | ErrorCode::Fragmented
                | ErrorCode::AllLeased
                | ErrorCode::PutInProgress
                | ErrorCode::ReplicaIsNotReady
                | ErrorCode::ObjectHasLease
                | ErrorCode::ObjectHasReplicationTask
                | ErrorCode::TaskPendingLimitExceeded
                | ErrorCode::TenantNotEmpty
                | ErrorCode::Overloaded
        )
    }
}

macro_rules! refusal_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Refusal {
            fn from(error: $error) -> Self {
                Self::new(error.code(), error.to_string())
            }
        }
    )*};
}

refusal_from!(
    mc_meta::ScopeError,
    mc_meta::MountError,
    mc_meta::UnmountError,
    mc_meta::PutStartError,
    mc_meta::PutFinishError,
    mc_meta::GetError,
    mc_meta::PatternError,
    mc_meta::RemoveError,
    mc_meta::RenewError,
    mc_meta::PinError,
    mc_meta::TierEvictError,
    mc_meta::TransferError,
    mc_meta::TransferFinishError,
    mc_meta::CreateTaskError,
    mc_meta::TaskError,
    mc_meta::DrainError,
    mc_meta::PolicyError,
    mc_meta::QuotaError,
    mc_meta::LocalDiskError,
    mc_meta::OffloadError,
    mc_meta::FoundError,
    mc_meta::PromotionStartError,
    mc_meta::PromotionError
);

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn what_can_be_retried_can_be_over_the_wire() {
        use mc_meta::{
            GetError, PolicyError, PutStartError, RemoveError, TaskError, TenantId, TransferError,
        };
        let told = |refusal: Refusal| {
            let read = Refusal::from_wire(refusal.code.code(), refusal.message.as_bytes());
            assert_eq!(read, refusal);
            read.is_retryable()
        };
        for error in [
            RemoveError::NotFound,
            RemoveError::Leased { remaining: Duration::from_secs(1) },
            RemoveError::NotReady,
            RemoveError::InTransfer,
        ] {
            assert_eq!(told(error.into()), error.is_retryable(), "{error}");
        }
        for error in [GetError::NotFound, GetError::NotReady] {
            assert_eq!(told(error.into()), error.is_retryable(), "{error}");
        }
        for error in [
            PutStartError::AlreadyExists,
            PutStartError::InProgress { age: Duration::ZERO },
            PutStartError::OtherGroup,
            PutStartError::TooFewSegments { mounted: 0 },
            PutStartError::NoMedium { medium: mc_types::MediaType::Ssd, mounted: 0 },
            PutStartError::Full { len: 1 },
            PutStartError::Fragmented { len: 1, free: 1 },
            PutStartError::AllLeased { len: 1 },
        ] {
            assert_eq!(told(error.clone().into()), error.is_retryable(), "{error}");
        }
        for error in [TaskError::NotFound, TaskError::PendingLimit { limit: 1 }] {
            assert_eq!(told(error.into()), error.is_retryable(), "{error}");
        }
        let tenant = TenantId::DEFAULT;
        for error in [
            PolicyError::Off,
            PolicyError::NotRegistered { tenant: tenant.clone() },
            PolicyError::NotEmpty { tenant, charged: 1, objects: 1 },
        ] {
            assert_eq!(told(error.clone().into()), error.is_retryable(), "{error}");
        }
        for error in [TransferError::NotFound, TransferError::NotReady, TransferError::InTransfer] {
            assert_eq!(told(error.clone().into()), error.is_retryable(), "{error}");
        }
    }

    #[test]
    fn refusals_keep_unknown_causes_and_cut_long_messages() {
        let unknown = Refusal::from_wire(-31_337, b"odd");
        assert_eq!(unknown.code, ErrorCode::Internal);
        assert!(unknown.message.contains("-31337"), "{unknown}");
        let long = Refusal::new(ErrorCode::Full, "é".repeat(MAX_MESSAGE_LEN));
        assert!(long.message.len() <= MAX_MESSAGE_LEN);
        let torn = Refusal::from_wire(ErrorCode::Full.code(), &[0xff, b'x']);
        assert_eq!((torn.code, &*torn.message), (ErrorCode::Full, "\u{fffd}x"));
    }
}
