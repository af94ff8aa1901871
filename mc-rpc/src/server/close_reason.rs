//! Why a connection ends.

use core::time::Duration;
use std::io;

use thiserror::Error;

use super::executor::Panicked;
use crate::frame::FrameError;
use crate::frame::preface::HandshakeError;
use crate::handshake::PrefaceError;
use crate::refusal::Refusal;

/// Why this side ends a connection.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum CloseReason {
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    #[cfg(feature = "tls")]
    #[error("no TLS: {0}")]
    Tls(io::Error),
    #[error("refused: {0}")]
    Refused(Refusal),
    #[error("the handshake did not end within {0:?}")]
    SlowHandshake(Duration),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("a request has not arrived completely within {0:?}")]
    SlowRequest(Duration),
    #[error("answers have not been taken within {0:?}")]
    SlowReader(Duration),
    #[error("the connections together hold more than {max} bytes")]
    OutOfBuffers { max: usize },
    #[error("a call panicked on a blocking thread")]
    Panicked,
    #[error("{0}")]
    Guest(Box<dyn std::error::Error + Send + Sync>),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<PrefaceError> for CloseReason {
    fn from(error: PrefaceError) -> Self {
        match error {
            PrefaceError::Io(error) => Self::Io(error),
            PrefaceError::Handshake(error) => Self::Handshake(error),
            PrefaceError::Refused(refusal) => Self::Refused(refusal),
        }
    }
}

impl From<Panicked> for CloseReason {
    fn from(_: Panicked) -> Self {
        Self::Panicked
    }
}
