//! Errors.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::config::MAX_TOPIC;

/// The publisher cannot start.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum StartError {
    /// The text is not an endpoint.
    #[error(
        "{endpoint:?} is not an endpoint: {problem}; write tcp://HOST:PORT, tcp://*:PORT or \
         ipc://PATH"
    )]
    Endpoint { endpoint: String, problem: &'static str },
    /// The topic cannot be used.
    #[error(
        "the topic {topic:?} has control characters or more than {MAX_TOPIC} bytes; choose another"
    )]
    Topic { topic: String },
    /// The encoding has no place for the reasons of removals.
    #[error(
        "the encoding vllm-positional has no place for the reasons of removals; choose vllm, or publish \
         none"
    )]
    NoRemovalReasons,
    /// A setting is zero.
    #[error("{setting} is 0; it must be at least 1")]
    Zero { setting: &'static str },
    /// Another process listens there.
    #[error("{endpoint} is in use by another process; choose another endpoint or set auto_port")]
    InUse { endpoint: String, source: io::Error },
    /// The path of an `ipc://` endpoint is a file that is not a socket.
    #[error("{} is not a socket; remove the file or choose another path", path.display())]
    NotASocket { path: PathBuf },
    /// The endpoint cannot be opened for another reason.
    #[error(
        "cannot listen on {endpoint}: {source}; choose an address of this host, a port that is \
         allowed, or a folder that exists"
    )]
    Listen { endpoint: String, source: io::Error },
    /// The system has no random numbers for the incarnation.
    #[error("the system gives no random number; check that /dev/urandom can be read")]
    Random(#[source] getrandom::Error),
}

/// A socket does not take a message now; the publisher tries again a few times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the socket does not take messages now; try again")]
pub struct SocketBusy;

/// A subscriber cannot go on.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum SubscribeError {
    /// The text is not an endpoint to connect to.
    #[error(
        "{endpoint:?} is not an endpoint to connect to: {problem}; write tcp://HOST:PORT or ipc://PATH"
    )]
    Endpoint { endpoint: String, problem: &'static str },
    /// No publisher answers there.
    #[error(
        "cannot connect to {endpoint}: {source}; check that a publisher runs there and has a replay \
         endpoint, and which of its endpoints is which"
    )]
    Connect {
        endpoint: String,
        /// The system's error, or what the peer did.
        source: io::Error,
    },
    /// The connection ended.
    #[error("lost {endpoint}: {source}; check that the publisher runs, and connect again")]
    Lost {
        endpoint: String,
        /// The system's error.
        source: io::Error,
    },
    /// The endpoint has another encoding than `s4`.
    #[error(
        "the endpoint publishes the encoding {encoding:?}; subscribe to one with the encoding s4"
    )]
    Encoding { encoding: String },
    /// The publisher has no snapshots, so that objects from before cannot be known.
    #[error("the publisher serves no snapshots; start it with a Snapshot")]
    NoSnapshot,
    /// The publisher sent what the protocol does not have.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The publisher's ZeroMQ frames are wrong or too long.
    #[error("the publisher sent {source}; check what listens there, or raise max_message_bytes")]
    Protocol { source: io::Error },
    /// The subscriber ended with an error that was returned before.
    #[error("the subscriber has ended; connect again")]
    Ended,
}

/// A message is not as `docs/events.md` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the publisher sent {what}; check that it is mc-events of this version")]
pub struct Malformed {
    /// The wrong part.
    pub what: &'static str,
}
