//! Why a run ends without its figures.

use std::io;
use std::path::PathBuf;

use mc_rpc::RpcError;
use mc_transport::{ConnectError, MemoryError, RegisterError, TransferError};

/// Why a run ends without its figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BenchError {
    /// A measured operation failed or had a wrong result. A figure that comes of it
    /// would be worth nothing.
    #[error("{what}: {found}")]
    Wrong { what: &'static str, found: String },
    /// A signal came.
    #[error("interrupted; what the run has stored is removed")]
    Interrupted,
    /// A measurement gave no number.
    #[error("{figure} is not a number; the machine's clock may be too coarse for this scale")]
    NothingMeasured { figure: &'static str },
    /// A process that takes part in a measurement ended early.
    #[error("the {role} process ended early ({status}); its message stands above")]
    PeerGone { role: &'static str, status: String },
    /// A process that takes part in a measurement said something else than
    /// expected.
    #[error("the {role} process did not say what was expected of it")]
    PeerWords { role: &'static str, source: serde_json::Error },
    /// A process could not be started.
    #[error("cannot start the {role} process")]
    Spawn { role: &'static str, source: io::Error },
    /// A trace could not be read.
    #[error("cannot read the trace {}; name another with --trace", path.display())]
    Trace { path: PathBuf, source: io::Error },
    /// A picture could not be written.
    #[error("cannot write the picture {}; name another with --plot", path.display())]
    Plot { path: PathBuf, source: io::Error },
    /// Mooncake is not there, or fails.
    #[error("cannot {what} Mooncake: {found}")]
    Reference { what: &'static str, found: String },
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A call to the master failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// There is no memory for a measurement.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Memory could not be opened to a peer.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A peer could not be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Bytes did not move.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// A put failed.
    #[error(transparent)]
    Put(#[from] mc_store::PutError),
    /// A get failed.
    #[error(transparent)]
    Get(#[from] mc_store::GetError),
    /// A call about keys failed.
    #[error(transparent)]
    Call(#[from] mc_store::CallError),
    /// A tier failed.
    #[error(transparent)]
    Tier(#[from] mc_tier::TierError),
    /// A part of the system did not start.
    #[error("cannot start the {what}")]
    Start {
        /// The part of the system.
        what: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl BenchError {
    /// A part of the system that did not start.
    pub(crate) fn start(
        what: &'static str,
    ) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> Self {
        move |source| Self::Start { what, source }
    }

    /// A measured operation failed or had a wrong result.
    pub(crate) fn wrong(what: &'static str, found: impl Into<String>) -> Self {
        Self::Wrong { what, found: found.into() }
    }
}

impl From<rustix::io::Errno> for BenchError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
