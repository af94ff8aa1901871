//! Why a run ends early, or ends badly.

use std::io;

use mc_cli::Signal;
use mc_store::{CallError, GetError, MemoryError, PutError, StartError};
use mc_types::ByteSize;

/// A run that does not count.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StressError {
    #[error("cannot start the threads that work; choose a smaller --threads")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for SIGINT and SIGTERM")]
    Signals(#[source] io::Error),
    #[error("cannot join the cluster")]
    Join(#[source] StartError),
    #[error("ended by {0} before the work was done")]
    Interrupted(Signal),
    #[error("cannot take {size} for a value; lower --value_length or --threads")]
    Memory { size: ByteSize, source: MemoryError },
    #[error("cannot put '{key}'")]
    Put { key: String, source: PutError },
    #[error("cannot get '{key}'")]
    Get { key: String, source: GetError },
    #[error("cannot remove '{key}'")]
    Remove { key: String, source: CallError },
    #[error("cannot ask whether '{key}' is still there")]
    Look { key: String, source: CallError },
    /// A defect, reported by the panic itself.
    #[error("a task panicked; see above")]
    Panicked(#[source] tokio::task::JoinError),
    #[error("cannot print the result")]
    Print(#[source] io::Error),
    #[error(
        "{wrong} values were wrong and {missing} missing; a value goes missing when the pool is too small for all, or nobody puts it (--seed, --value_length and --max_requests must agree)"
    )]
    NotAllRight { wrong: u64, missing: u64 },
}
