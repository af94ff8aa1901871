//! Refusals as gRPC tells them.

use core::time::Duration;
use std::collections::HashMap;

use mc_rpc::Refusal;
use mc_types::ErrorCode;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of the reasons in a `google.rpc.ErrorInfo`.
pub(super) const DOMAIN: &str = "mc.store.v1";

/// The wait that a refusal recommends when it may pass by itself.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The refusal as a status, with the details that tell its cause apart from others of the
/// same status.
pub(super) fn status(refusal: &Refusal) -> Status {
    status_of(code_of(refusal.code), refusal)
}

/// The same for a refusal whose status does not follow from its cause.
pub(super) fn status_of(code: Code, refusal: &Refusal) -> Status {
    let number = HashMap::from([("code".to_owned(), refusal.code.code().to_string())]);
    let mut details = ErrorDetails::with_error_info(refusal.code.as_str(), DOMAIN, number);
    if refusal.is_retryable() {
        details.set_retry_info(Some(RETRY_DELAY));
    }
    Status::with_error_details(code, &*refusal.message, details)
}

/// The status of a cause. `Unavailable` and `Aborted` are those that pass: the same call may
/// succeed later, or what it was part of when it is begun again.
const fn code_of(code: ErrorCode) -> Code {
    match code {
        ErrorCode::Internal => Code::Internal,
        ErrorCode::ChecksumMismatch => Code::DataLoss,
        ErrorCode::Cancelled => Code::Cancelled,
        ErrorCode::RpcTimeout => Code::DeadlineExceeded,
        ErrorCode::Unauthenticated => Code::Unauthenticated,
        ErrorCode::IllegalClient | ErrorCode::PermissionDenied => Code::PermissionDenied,
        ErrorCode::NotSupported => Code::Unimplemented,
        ErrorCode::InvalidKey | ErrorCode::InvalidParams => Code::InvalidArgument,
        ErrorCode::ObjectTooLarge => Code::OutOfRange,
        ErrorCode::SegmentAlreadyExists | ErrorCode::ObjectAlreadyExists => Code::AlreadyExists,
        ErrorCode::SegmentNotFound
        | ErrorCode::ClientNotFound
        | ErrorCode::ObjectNotFound
        | ErrorCode::ReplicaNotFound
        | ErrorCode::ObjectNoReplicationTask
        | ErrorCode::TaskNotFound
        | ErrorCode::JobNotFound => Code::NotFound,
        ErrorCode::Full
        | ErrorCode::Fragmented
        | ErrorCode::AllLeased
        | ErrorCode::OffloadQueueFull
        | ErrorCode::TaskPendingLimitExceeded
        | ErrorCode::TenantQuotaExceeded => Code::ResourceExhausted,
        ErrorCode::InvalidWrite
        | ErrorCode::LeaseExpired
        | ErrorCode::ReplicaIsGone
        | ErrorCode::PutInProgress
        | ErrorCode::ObjectHasLease
        | ErrorCode::AnswerNotKept
        | ErrorCode::OutcomeUnknown
        | ErrorCode::ObjectHasReplicationTask
        | ErrorCode::ObjectReplicaBusy => Code::Aborted,
        ErrorCode::ReplicaIsNotReady
        | ErrorCode::TransferFail
        | ErrorCode::FileReadFail
        | ErrorCode::RpcFail
        | ErrorCode::Overloaded => Code::Unavailable,
        ErrorCode::TooFewSegments
        | ErrorCode::InvalidVersion
        | ErrorCode::UnavailableInCurrentStatus
        | ErrorCode::UnavailableInCurrentMode
        | ErrorCode::UnableOffload
        | ErrorCode::UnableOffloading
        | ErrorCode::TenantNotRegistered
        | ErrorCode::TenantNotEmpty => Code::FailedPrecondition,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_status() {
        for &code in ErrorCode::ALL {
            assert_ne!(code_of(code), Code::Unknown, "{code}");
            let refusal = Refusal::new(code, "words");
            // Statuses after which no client would try again.
            let final_ones = [
                Code::InvalidArgument,
                Code::NotFound,
                Code::AlreadyExists,
                Code::PermissionDenied,
                Code::Unauthenticated,
                Code::Unimplemented,
                Code::OutOfRange,
                Code::DataLoss,
            ];
            assert!(!refusal.is_retryable() || !final_ones.contains(&code_of(code)), "{code}");
        }
    }

    #[test]
    fn the_details_name_the_cause() {
        for &code in ErrorCode::ALL {
            let refusal = Refusal::new(code, "what happened, in words: \"é\"");
            let status = status(&refusal);
            assert_eq!(status.message(), &*refusal.message);
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!((&*info.reason, &*info.domain), (code.as_str(), DOMAIN));
            assert_eq!(info.metadata["code"], code.code().to_string());
            assert_eq!(details.retry_info().is_some(), refusal.is_retryable(), "{code}");
        }
    }
}
