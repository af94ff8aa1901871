//! The other end of a connection, as logs name it.

use core::fmt;
use std::net::SocketAddr;

pub(super) use mc_places::{Source, host};

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Ip(SocketAddr),
    /// A process of this host, by a Unix socket; its user, if the system says so.
    #[cfg(unix)]
    Local {
        uid: Option<u32>,
    },
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            #[cfg(unix)]
            Self::Local { uid: Some(uid) } => write!(f, "a local process of uid {uid}"),
            #[cfg(unix)]
            Self::Local { uid: None } => f.write_str("a local process"),
        }
    }
}
