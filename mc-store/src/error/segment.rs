//! Why a segment cannot be mounted or unmounted.

use std::io;
use std::path::PathBuf;

use mc_cuda::CudaError;
use mc_rpc::RpcError;
use mc_transport::{MemoryError, RegisterError};
use mc_types::{ByteSize, ErrorCode, MediaType, SegmentId};

/// Most segments of one client.
pub(crate) const MAX_SEGMENTS: usize = 256;

/// Why a segment is not mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum SegmentError {
    /// Peers could not reach it.
    #[error("the client accepts no peers; give ClientBuilder::listen an address when it starts")]
    NotListening,
    /// A segment of no bytes.
    #[error("a segment of no bytes holds nothing; give it a size")]
    Empty,
    /// Memory of no file is DRAM, or a GPU's.
    #[error(
        "a segment of medium {medium} needs a file on that medium; give one (segment_file), or \
         leave the medium out"
    )]
    Medium {
        /// The medium asked for.
        medium: MediaType,
    },
    /// Another segment of this client has the name.
    #[error("this client has a segment named {name:?} already; choose another name")]
    NameTaken { name: Box<str> },
    /// The client keeps its segment, and has no other.
    #[error(
        "this client keeps its segment for its next process (keep_segment), which takes over that one \
         alone; mount others in a client of their own"
    )]
    KeptAlone,
    /// The record of a segment that was kept is in the way.
    #[error("cannot remove {}, which tells of the file's bytes of before; remove it", path.display())]
    Record { path: PathBuf, source: io::Error },
    /// As many segments as a client may have.
    #[error("this client has {MAX_SEGMENTS} segments, which is the limit; make them larger")]
    TooMany,
    /// None of this client's segments has the id.
    #[error("no segment of this client has the id {id}; it may have been unmounted before")]
    NotFound { id: SegmentId },
    /// Its memory cannot be had.
    #[error("cannot take memory for the segment of {size}; contribute less")]
    Memory {
        /// The size asked for.
        size: ByteSize,
        source: MemoryError,
    },
    /// A GPU's memory cannot be had.
    #[error(
        "cannot take {size} of GPU {device}'s memory for a segment; contribute less, choose \
         another GPU (segment_device), or leave the medium vram out"
    )]
    Gpu {
        /// The size asked for.
        size: ByteSize,
        /// The number of the GPU.
        device: u32,
        source: CudaError,
    },
    /// There is no memory for its next life.
    #[error("cannot take fresh memory for a segment that is mounted anew; contribute less")]
    FreshMemory(#[source] MemoryError),
    /// The memory cannot be opened to peers.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The master refused it or could not be asked.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The system has no randomness for an identity.
    #[error("the system gave no random bytes for an identity")]
    NoRandomness(#[source] io::Error),
    /// No thread for the heartbeat.
    #[error("cannot start the heartbeat's thread")]
    Thread(#[source] io::Error),
    /// The client was shut down.
    #[error("the client has been shut down; start another one")]
    Closed,
}

impl SegmentError {
    /// The cause's number.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotListening
            | Self::Empty
            | Self::Medium { .. }
            | Self::KeptAlone
            | Self::TooMany => ErrorCode::InvalidParams,
            Self::NameTaken { .. } => ErrorCode::SegmentAlreadyExists,
            Self::NotFound { .. } => ErrorCode::SegmentNotFound,
            Self::Rpc(error) => error.code(),
            Self::Closed => ErrorCode::UnavailableInCurrentStatus,
            Self::Memory { .. }
            | Self::Gpu { .. }
            | Self::FreshMemory(_)
            | Self::Register(_)
            | Self::NoRandomness(_)
            | Self::Record { .. }
            | Self::Thread(_) => ErrorCode::Internal,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Rpc(error) => error.is_retryable(),
            Self::Memory { .. } | Self::FreshMemory(_) | Self::Record { .. } | Self::Thread(_) => {
                true
            }
            Self::Gpu { source, .. } => {
                source.is_retryable() || matches!(source, CudaError::Failed { .. })
            }
            _ => false,
        }
    }
}
