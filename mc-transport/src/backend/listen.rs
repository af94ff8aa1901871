//! The address at which a transport accepts peers, and the endpoint that they are told.

use std::io;
use std::net::SocketAddr;

use mc_types::{Endpoint, EndpointError};

/// Why a transport cannot accept peers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
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
    /// The system does not allow it.
    #[error("cannot listen at {address}")]
    Refused {
        /// The address asked for.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Peers cannot connect to the unspecified address.
    #[error("peers cannot reach {address}; advertise this node's name or address")]
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
}

impl ListenError {
    /// The error of a system that does not let a transport listen at `address`.
    #[must_use]
    pub fn new(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::AddressInUse { address, source },
            _ => Self::Refused { address, source },
        }
    }
}

/// Returns the advertised endpoint of a transport that listens at `bound`: the first of
/// `hosts`, with the others as further ways, or `bound` itself without one.
///
/// # Errors
/// [`ListenError::NoAdvertisedHost`] and [`ListenError::BadAdvertisedHost`].
pub fn advertise(
    scheme: &str,
    hosts: &[String],
    bound: SocketAddr,
) -> Result<Endpoint, ListenError> {
    let endpoint = |address: String| {
        Endpoint::new(scheme, &address)
            .map_err(|source| ListenError::BadAdvertisedHost { host: address, source })
    };
    let [first, others @ ..] = hosts else {
        return match bound.ip().is_unspecified() {
            true => Err(ListenError::NoAdvertisedHost { address: bound }),
            false => endpoint(bound.to_string()),
        };
    };
    let at = |host: &String| match host.contains(':') && !host.starts_with('[') {
        true => endpoint(format!("[{host}]:{}", bound.port())),
        false => endpoint(format!("{host}:{}", bound.port())),
    };
    let others = others.iter().map(at).collect::<Result<Vec<_>, _>>()?;
    Ok(at(first)?.with_others(others))
}
