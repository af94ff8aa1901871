//! Why the master does not have a segment.

use std::io;
use std::path::PathBuf;

use mc_rpc::RpcError;
use mc_transport::{MemoryError, RegisterError};
use mc_types::ErrorCode;

use crate::error::SegmentError;

/// Why the master does not have a segment that is served.
#[derive(Debug, thiserror::Error)]
pub(in crate::client) enum MountFailure {
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error("the system gave no random bytes for an identity")]
    NoRandomness(#[source] io::Error),
    #[error("cannot take fresh memory for a segment that is mounted anew")]
    Memory(#[from] MemoryError),
    #[error("cannot remove the record {} of the segment's life before", path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("the client's runtime ends")]
    Ending,
}

impl MountFailure {
    /// Returns advice for an operator.
    pub(super) fn advice(&self) -> &'static str {
        let error = match self {
            Self::Rpc(error) => error,
            Self::Record { .. } => return "remove the record, or let the node remove it",
            _ => return "restart the node if it goes on",
        };
        match error.code() {
            ErrorCode::PermissionDenied | ErrorCode::Unauthenticated => {
                "give the node's token or certificate the role node in the access list of every master"
            }
            ErrorCode::IllegalClient => {
                "let the node show the token or certificate with which its client id is bound"
            }
            ErrorCode::UnavailableInCurrentStatus => "see which master leads: mc-ctl ha status",
            _ => "see the log of the master",
        }
    }
}

impl From<MountFailure> for SegmentError {
    fn from(failure: MountFailure) -> Self {
        match failure {
            MountFailure::Register(error) => Self::Register(error),
            MountFailure::Rpc(error) => Self::Rpc(error),
            MountFailure::NoRandomness(error) => Self::NoRandomness(error),
            MountFailure::Memory(source) => Self::FreshMemory(source),
            MountFailure::Record { path, source } => Self::Record { path, source },
            MountFailure::Ending => Self::Closed,
        }
    }
}
