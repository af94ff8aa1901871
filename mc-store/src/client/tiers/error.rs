//! Why work on a tier is not done.

use mc_rpc::RpcError;
use mc_tier::TierError;
use mc_types::ErrorCode;

/// Why work on a tier is not done.
#[derive(Debug, thiserror::Error)]
pub(in crate::client) enum WorkError {
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error(transparent)]
    Tier(#[from] TierError),
    #[error("the client ends")]
    Ended,
}

impl WorkError {
    /// The master's reason, if it has refused the work.
    pub(in crate::client) const fn refused(&self) -> Option<ErrorCode> {
        match self {
            Self::Rpc(RpcError::Refused(refusal)) => Some(refusal.code),
            _ => None,
        }
    }
}
