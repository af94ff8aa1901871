//! Whether a put that was refused waits for room.

use mc_rpc::Refusal;
use mc_types::ErrorCode;
use tokio::time::Instant;

use crate::client::put::PutOutcome;
use crate::error::PutError;

/// The attempts that a refused put has left.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Until when it waits for room.
    pub(super) deadline: Instant,
    /// Whether its request excluded segments of suspect peers.
    pub(super) avoiding: bool,
    /// Whether a segment that is mounted in the meantime could take the put.
    pub(super) may_come: bool,
}

impl Patience {
    /// The outcome of a refused put; `None` when it may try again.
    pub(super) fn refused(self, refusal: Refusal) -> Option<Result<PutOutcome, PutError>> {
        match refusal.code {
            ErrorCode::ObjectAlreadyExists => Some(Ok(PutOutcome::Existing)),
            ErrorCode::PutInProgress => Some(Ok(PutOutcome::Pending)),
            ErrorCode::TooFewSegments | ErrorCode::ObjectTooLarge if self.avoiding => None,
            // A master that has just begun has no segments until its nodes have come back.
            ErrorCode::TooFewSegments if self.may_come && Instant::now() < self.deadline => None,
            ErrorCode::Full
            | ErrorCode::Fragmented
            | ErrorCode::AllLeased
            | ErrorCode::Overloaded
                if Instant::now() < self.deadline =>
            {
                None
            }
            _ => Some(Err(PutError::Refused(refusal))),
        }
    }
}
