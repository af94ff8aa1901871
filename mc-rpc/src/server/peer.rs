//! The other end of a connection, as logs name it.

use core::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

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

/// What connections are counted by: a host, or a process of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Source {
    Ip(IpAddr),
    /// Zero where the system does not say.
    #[cfg(unix)]
    Local {
        uid: u32,
        pid: i32,
    },
}

impl Source {
    pub(super) fn of(address: SocketAddr) -> Self {
        Self::Ip(host(address))
    }

    #[cfg(unix)]
    pub(super) fn process(stream: &tokio::net::UnixStream) -> Self {
        let of = stream.peer_cred().ok();
        let pid = of.and_then(|of| of.pid()).unwrap_or(0);
        Self::Local { uid: of.map_or(0, |of| of.uid()), pid }
    }
}

/// The host with this address: of IPv6 the first 64 bits, because a host chooses the others
/// itself.
pub(super) fn host(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_source() {
        let of = |address: &str| Source::of(address.parse().unwrap());
        assert_eq!(of("10.0.0.1:1"), of("10.0.0.1:2"));
        assert_eq!(of("10.0.0.1:1"), of("[::ffff:10.0.0.1]:2"));
        assert_ne!(of("10.0.0.1:1"), of("10.0.0.2:1"));
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:0:0:1]:1"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
    }
}
