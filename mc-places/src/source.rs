//! The source of a connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The unit that connections are counted by: a host, or a process of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// A host: see [`host`].
    Ip(IpAddr),
    /// A process of this host, by a Unix socket. Zero where the system does not say.
    #[cfg(unix)]
    Local {
        /// The user.
        uid: u32,
        /// The process.
        pid: i32,
    },
}

impl Source {
    /// Returns the source of a connection from this address.
    #[must_use]
    pub fn of(address: SocketAddr) -> Self {
        Self::Ip(host(address))
    }

    /// Returns the source of a connection to a Unix socket.
    #[cfg(unix)]
    #[must_use]
    pub fn process(stream: &tokio::net::UnixStream) -> Self {
        let of = stream.peer_cred().ok();
        let pid = of.and_then(|of| of.pid()).unwrap_or(0);
        Self::Local { uid: of.map_or(0, |of| of.uid()), pid }
    }
}

/// Returns the host with this address: of IPv6 the first 64 bits, because a host chooses the others
/// itself.
#[must_use]
pub fn host(address: SocketAddr) -> IpAddr {
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
