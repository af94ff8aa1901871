//! Errors.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::config::MAX_TOPIC;

/// The publisher cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The text is not an endpoint.
    #[error(
        "{endpoint:?} is not an endpoint: {problem}; write tcp://HOST:PORT, tcp://*:PORT or \
         ipc://PATH"
    )]
    Endpoint {
        /// The text.
        endpoint: String,
        /// The problem.
        problem: &'static str,
    },
    /// The topic cannot be used.
    #[error(
        "the topic {topic:?} has control characters or more than {MAX_TOPIC} bytes; choose another"
    )]
    Topic {
        /// The topic.
        topic: String,
    },
    /// A setting is zero.
    #[error("{setting} is 0; it must be at least 1")]
    Zero {
        /// The setting.
        setting: &'static str,
    },
    /// Another process listens there.
    #[error("{endpoint} is in use by another process; choose another endpoint or set auto_port")]
    InUse {
        /// The endpoint.
        endpoint: String,
        /// The system's error.
        source: io::Error,
    },
    /// The path of an `ipc://` endpoint is a file that is not a socket.
    #[error("{} is not a socket; remove the file or choose another path", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The endpoint cannot be opened for another reason.
    #[error(
        "cannot listen on {endpoint}: {source}; choose an address of this host, a port that is \
         allowed, or a folder that exists"
    )]
    Listen {
        /// The endpoint.
        endpoint: String,
        /// The system's error.
        source: io::Error,
    },
    /// The system has no random numbers for the incarnation.
    #[error("the system gives no random number; check that /dev/urandom can be read")]
    Random(#[source] getrandom::Error),
}

/// A socket does not take a message now; the publisher tries again a few times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the socket does not take messages now; try again")]
pub struct SocketBusy;
