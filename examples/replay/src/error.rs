//! Why a replay ends early, or ends badly.

use std::io;
use std::time::Duration;

use mc_store::{CallError, GetError, MasterStartError, MemoryError, PutError, StartError};
use mc_types::ByteSize;

/// A replay that does not count.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ReplayError {
    /// The master of the own cluster.
    #[error("cannot start the master")]
    StartMaster(#[source] MasterStartError),
    /// A node of the own cluster.
    #[error("cannot start storage node {number} with {size}")]
    StartNode { number: u32, size: ByteSize, source: StartError },
    /// A worker or the probe.
    #[error("cannot join the cluster")]
    Join(#[source] StartError),
    /// A thread or its runtime.
    #[error("cannot start the thread of {name}")]
    Thread { name: String, source: io::Error },
    /// A defect, reported by the panic itself.
    #[error("{name} panicked; see above")]
    Panicked { name: String },
    /// The totals could not be asked for.
    #[error("cannot read the cluster's totals")]
    Totals(#[source] CallError),
    /// A prefix could not be asked for.
    #[error("cannot look up the prefix that begins with '{key}'")]
    Lookup { key: String, source: CallError },
    /// A block is there and cannot be read.
    #[error("cannot get '{key}'")]
    Get { key: String, source: GetError },
    /// A block cannot be stored, for another cause than lack of room.
    #[error("cannot put '{key}'")]
    Put { key: String, source: PutError },
    /// The files of blocks on the shared directory.
    #[error("the files of a worker's blocks were not written within {} s", wait.as_secs())]
    Files { wait: Duration },
    /// The disks of nodes.
    #[error("{mounted} of {nodes} nodes had their disk ready within {} s", wait.as_secs())]
    Disks { mounted: usize, nodes: u32, wait: Duration },
    /// The directory below memory.
    #[error("cannot remove {path}; remove it by hand")]
    RemoveTier { path: String, source: io::Error },
    /// The handlers of signals.
    #[error("cannot listen for Ctrl-C")]
    Signals(#[source] io::Error),
    /// Ctrl-C.
    #[error("interrupted; the blocks on the tier are removed")]
    Interrupted,
    /// No buffer for a worker.
    #[error("cannot take {size} for a worker's blocks; lower --block_bytes or --workers")]
    Buffer { size: ByteSize, source: MemoryError },
    /// The output is closed.
    #[error("cannot print the result")]
    Print(#[source] io::Error),
    /// The replay ran to its end and read bytes that were never put.
    #[error("{bytes} bytes read were not the bytes put")]
    WrongBytes { bytes: u64 },
}
