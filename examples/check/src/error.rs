//! Checks that failed.

use std::io;

use mc_cli::{MemberError, Signal};
use mc_store::{CallError, GetError, MemoryError, PutError, StartError};

/// A check failed or could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CheckError {
    #[error("cannot start the worker threads")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for SIGINT and SIGTERM")]
    Signals(#[source] io::Error),
    #[error("ended by {0} before the checks were done")]
    Interrupted(Signal),
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error("cannot join the cluster with memory")]
    Join(#[source] StartError),
    #[error("cannot join the cluster to read over {carrier}")]
    JoinReader { carrier: &'static str, source: StartError },
    #[error("cannot take memory to read into")]
    Memory(#[from] MemoryError),
    #[error("{what} failed")]
    Put { what: &'static str, source: PutError },
    #[error("{what} failed")]
    Get { what: &'static str, source: GetError },
    #[error("{what} failed")]
    Call { what: &'static str, source: CallError },
    #[error("{what}: {found}")]
    Unexpected { what: &'static str, found: String },
    #[error("cannot print the result")]
    Print(#[source] io::Error),
}

impl CheckError {
    pub(crate) fn put(what: &'static str) -> impl FnOnce(PutError) -> Self {
        move |source| Self::Put { what, source }
    }

    pub(crate) fn get(what: &'static str) -> impl FnOnce(GetError) -> Self {
        move |source| Self::Get { what, source }
    }

    pub(crate) fn call(what: &'static str) -> impl FnOnce(CallError) -> Self {
        move |source| Self::Call { what, source }
    }

    /// The operation `what` had an unexpected outcome.
    pub(crate) fn unexpected(what: &'static str, found: impl Into<String>) -> Self {
        Self::Unexpected { what, found: found.into() }
    }
}
