//! Why a transport does not start.

use std::io;
use std::net::SocketAddr;

use mc_types::EndpointError;

/// Why a [`QuicTransport`](super::QuicTransport) did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address is in use.
    #[error(
        "{address} is in use; stop the other process or choose another port (0 takes a free one)"
    )]
    AddressInUse {
        /// The address asked for.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not let us listen there.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Peers cannot connect to the unspecified address.
    #[error("peers cannot reach {address}; set advertise_host to this node's name or address")]
    NoAdvertisedHost {
        /// The address listened at.
        address: SocketAddr,
    },
    /// The advertised host does not make an endpoint.
    #[error("{host:?} cannot be advertised to peers")]
    BadAdvertisedHost {
        /// Host and port.
        host: String,
        /// The problem.
        source: EndpointError,
    },
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
    /// Not called on a Tokio runtime.
    #[error("a QUIC transport needs a Tokio runtime with I/O and time enabled")]
    NoRuntime,
}

impl StartError {
    pub(super) fn listen(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::AddressInUse { address, source },
            _ => Self::Listen { address, source },
        }
    }
}
