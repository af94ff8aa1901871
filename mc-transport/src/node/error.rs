//! Why a node does not start.

use crate::backend::carrier::CarrierError;
#[cfg(target_os = "linux")]
use crate::shm;
use crate::tcp;

/// Why a [`Node`](super::Node) did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Because of TCP.
    #[error(transparent)]
    Tcp(#[from] tcp::StartError),
    /// Because of a transport of another crate, such as QUIC.
    #[error(transparent)]
    Carrier(CarrierError),
    /// Because of shared memory.
    #[cfg(target_os = "linux")]
    #[error("memory cannot be shared with processes of this host; see NodeConfig::shm")]
    Shm(#[from] shm::StartError),
}
