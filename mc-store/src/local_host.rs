//! The name or address at which peers reach this host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use mc_types::MAX_OTHER_ENDPOINTS;
use thiserror::Error;

/// This host's name or address, as its user writes it, and the addresses that it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalHost {
    name: String,
    address: IpAddr,
    others: Vec<IpAddr>,
    port: Option<u16>,
}

/// A text that is no [`LocalHost`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The name has no address.
    #[error("it has no address; write this host's name or IP address, or leave it out")]
    Unknown(#[source] io::Error),
    /// The port is not one.
    #[error("a port is a number from 0 to 65535, with a colon before it")]
    Port,
}

impl LocalHost {
    /// Looks up a name or an IP address, with or without a port: `node-1`, `10.0.0.1:17000`, `::1`,
    /// `[::1]:17000`. Blocks.
    ///
    /// # Errors
    /// [`HostError`]
    ///
    /// ```
    /// let host = mc_store::LocalHost::resolve("127.0.0.1:17000")?;
    /// assert_eq!(host.port(), Some(17000));
    /// # Ok::<(), mc_store::HostError>(())
    /// ```
    pub fn resolve(host: &str) -> Result<Self, HostError> {
        let (name, port) = split_port(host.trim())?;
        let found = (name, 0).to_socket_addrs().map_err(HostError::Unknown)?;
        let (address, others) = usable(found.map(|found| found.ip()))
            .ok_or_else(|| HostError::Unknown(io::ErrorKind::NotFound.into()))?;
        let name = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
        Ok(Self { name, address, others, port })
    }

    /// The port, if one is written.
    #[must_use]
    pub const fn port(&self) -> Option<u16> {
        self.port
    }

    /// The address to listen on, for [`ClientBuilder::listen`](crate::ClientBuilder::listen): a
    /// loopback address itself, since no other host could use it; otherwise every address, since the
    /// one that peers use may be another host's that forwards to this one. If any address of the
    /// host is an IPv6 one, that is every address of both families.
    #[must_use]
    pub fn listen(&self, port: u16) -> SocketAddr {
        let address = match self.address {
            address if address.is_loopback() => address,
            IpAddr::V4(_) if self.others.iter().all(IpAddr::is_ipv4) => {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED)
            }
            _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        SocketAddr::new(address, port)
    }

    /// The first address, for [`ClientBuilder::advertise`](crate::ClientBuilder::advertise); `None` of
    /// `0.0.0.0` and `::`, which leave it to the route to the master.
    #[must_use]
    pub fn advertise(&self) -> Option<IpAddr> {
        (!self.address.is_unspecified()).then_some(self.address)
    }

    /// Returns the ways that peers try when [that address](Self::advertise) does not answer: the
    /// name's other addresses, at most two, and the name itself. Empty of an address, and of a name
    /// of this host's loopback.
    pub(crate) fn advertise_also(&self) -> impl Iterator<Item = String> + '_ {
        let is_no_name = self.address.is_loopback() || self.bare_name().parse::<IpAddr>().is_ok();
        let others = self.others.iter().map(ToString::to_string);
        others.chain((!is_no_name).then(|| self.name.clone()))
    }

    fn bare_name(&self) -> &str {
        self.name.trim_matches(['[', ']'])
    }

    /// The name for [`ClientBuilder::host_name`](crate::ClientBuilder::host_name), as it is written,
    /// with brackets around an IPv6 address; `None` as for [`advertise`](Self::advertise).
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.advertise().map(|_| &*self.name)
    }
}

/// The first address and the others to tell peers of it, each once: no loopback address if there is
/// one of a network, and no other one if there is none.
fn usable(found: impl Iterator<Item = IpAddr>) -> Option<(IpAddr, Vec<IpAddr>)> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    match addresses.iter().any(|address| !address.is_loopback()) {
        true => addresses.retain(|address| !address.is_loopback()),
        false => addresses.truncate(1),
    }
    let mut addresses = addresses.into_iter();
    let first = addresses.next()?;
    // One place is the name's.
    Some((first, addresses.take(MAX_OTHER_ENDPOINTS - 1).collect()))
}

/// The host, without brackets, and the port behind it. An IPv6 address without brackets has no port.
fn split_port(host: &str) -> Result<(&str, Option<u16>), HostError> {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, None),
        Some((name, after)) => (name, Some(after.strip_prefix(':').ok_or(HostError::Port)?)),
        None => match host.split_once(':') {
            Some((name, port)) if !port.contains(':') => (name, Some(port)),
            _ => (host, None),
        },
    };
    let is_number = |port: &&str| port.bytes().all(|byte| byte.is_ascii_digit());
    let number = |port: &str| Some(port).filter(is_number).and_then(|port| port.parse().ok());
    Ok((name, port.map(|port| number(port).ok_or(HostError::Port)).transpose()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_to_listen_on_and_to_advertise() {
        for (host, listen, advertise, name) in [
            ("127.0.0.1", "127.0.0.1:0", "127.0.0.1", "127.0.0.1"),
            ("127.0.0.1:7", "127.0.0.1:7", "127.0.0.1", "127.0.0.1"),
            (" 192.0.2.1 ", "0.0.0.0:0", "192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:7", "0.0.0.0:7", "192.0.2.1", "192.0.2.1"),
            ("2001:db8::7", "[::]:0", "2001:db8::7", "[2001:db8::7]"),
            ("[2001:db8::7]:7", "[::]:7", "2001:db8::7", "[2001:db8::7]"),
            ("[::1]", "[::1]:0", "::1", "[::1]"),
            ("[::1]:7", "[::1]:7", "::1", "[::1]"),
            ("::1", "[::1]:0", "::1", "[::1]"),
        ] {
            let resolved = LocalHost::resolve(host).unwrap();
            let port = resolved.port().unwrap_or(0);
            assert_eq!(resolved.listen(port), listen.parse().unwrap(), "{host}");
            assert_eq!(resolved.advertise(), Some(advertise.parse().unwrap()), "{host}");
            assert_eq!(resolved.name(), Some(name), "{host}");
        }
        for (host, listen) in
            [("0.0.0.0", "0.0.0.0:9"), ("::", "[::]:9"), ("0.0.0.0:7", "0.0.0.0:9")]
        {
            let resolved = LocalHost::resolve(host).unwrap();
            assert_eq!(resolved.listen(9), listen.parse().unwrap(), "{host}");
            assert_eq!((resolved.advertise(), resolved.name()), (None, None), "{host}");
        }
        let local = LocalHost::resolve("localhost:7").unwrap();
        assert_eq!((local.port(), local.name()), (Some(7), Some("localhost")));
        assert_eq!(local.advertise_also().count(), 0);
    }

    #[test]
    fn peers_are_told_all_addresses_of_a_name_and_the_name() {
        for (found, listen, advertise, also) in [
            (&["192.0.2.1"][..], "0.0.0.0:7", "192.0.2.1", &["node-a"][..]),
            (&["192.0.2.1", "192.0.2.1"], "0.0.0.0:7", "192.0.2.1", &["node-a"]),
            (&["127.0.1.1", "192.0.2.1"], "0.0.0.0:7", "192.0.2.1", &["node-a"]),
            (&["2001:db8::7", "192.0.2.1"], "[::]:7", "2001:db8::7", &["192.0.2.1", "node-a"]),
            (
                &["192.0.2.1", "2001:db8::7", "192.0.2.2", "192.0.2.3"],
                "[::]:7",
                "192.0.2.1",
                &["2001:db8::7", "192.0.2.2", "node-a"],
            ),
            (&["::1", "127.0.0.1"], "[::1]:7", "::1", &[]),
        ] {
            let addresses = found.iter().map(|address| address.parse().unwrap());
            let (address, others) = usable(addresses).unwrap();
            let host = LocalHost { name: "node-a".into(), address, others, port: None };
            assert_eq!(host.listen(7), listen.parse().unwrap(), "{found:?}");
            assert_eq!(host.advertise(), Some(advertise.parse().unwrap()), "{found:?}");
            assert_eq!(host.advertise_also().collect::<Vec<_>>(), also, "{found:?}");
        }
        assert_eq!(usable(std::iter::empty()), None);
    }

    #[test]
    fn hosts_that_are_none_are_refused() {
        for host in ["no such host", "", ":7", "[::1", "::1:x"] {
            let refused = LocalHost::resolve(host);
            assert!(matches!(refused, Err(HostError::Unknown(_))), "{host}: {refused:?}");
        }
        for host in [
            "localhost:",
            "localhost:x",
            "localhost:+0",
            "127.0.0.1:65536",
            "[::1]:-1",
            "[::1]:",
            "[::1]17000",
        ] {
            let refused = LocalHost::resolve(host);
            assert!(matches!(refused, Err(HostError::Port)), "{host}: {refused:?}");
        }
    }
}
