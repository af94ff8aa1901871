//! Why a transport does not start.

use std::io;

use mc_transport::ListenError;

/// Why a [`QuicTransport`](super::QuicTransport) did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address cannot be listened at or told to peers.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Peers are to be accepted, and there is no certificate to show them.
    #[error("a node that accepts peers needs a certificate; set server")]
    NoServerCertificate,
    /// Peers would be accepted without authentication.
    #[error(
        "the server's TLS does not require certificates of clients; give it their authority, \
         or set allow_anonymous_clients"
    )]
    AnonymousClients,
    /// A setting is out of its range.
    #[error("{setting} must be {expected}")]
    BadSetting {
        /// The field of [`QuicConfig`](super::QuicConfig).
        setting: &'static str,
        /// The accepted values.
        expected: &'static str,
    },
    /// The system has no randomness for the node's id.
    #[error("the system gave no random bytes for the node's id")]
    NoRandomness {
        /// The system's error.
        source: io::Error,
    },
    /// The call was not made on a Tokio runtime.
    #[error("a QUIC transport needs a Tokio runtime with I/O and time enabled")]
    NoRuntime,
}
