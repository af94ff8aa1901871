//! Why a node does not start.

#[cfg(feature = "quic")]
use crate::quic;
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
    /// Because of QUIC.
    #[cfg(feature = "quic")]
    #[error(transparent)]
    Quic(#[from] quic::StartError),
    /// Because of shared memory.
    #[cfg(target_os = "linux")]
    #[error("memory cannot be shared with processes of this host; see NodeConfig::shm")]
    Shm(#[from] shm::StartError),
}
