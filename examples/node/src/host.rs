//! Addresses and memory of this host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use mc_types::ByteSize;

/// Where to listen and what to tell peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Where to listen.
    pub(crate) listen: SocketAddr,
    /// The host to advertise; `None` to find it from the route to the master.
    pub(crate) advertise: Option<IpAddr>,
    /// The host as it is written, for the names of segments; `None` with `advertise`.
    pub(crate) name: Option<String>,
}

/// A `--host` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadHost {
    #[error("--host={host} has no address; write this host's name or IP address, or leave it out")]
    Unknown { host: String, source: io::Error },
    #[error("--host={host}: a port is a number from 0 to 65535")]
    Port { host: String },
    #[error("--host={host} and --data_port={port} name different ports; leave one of them out")]
    Ports { host: String, port: u16 },
}

/// Resolves `--host`, with or without a port, and `--data_port`. A loopback address is also the only
/// one listened on, since no other host could use it. Otherwise the listener takes every address: the
/// one that peers use may be another host's that forwards to this one.
///
/// # Errors
/// [`BadHost`] when the name cannot be resolved, or both say different ports.
pub(crate) fn reach(host: &str, data_port: Option<u16>) -> Result<Reach, BadHost> {
    let host = host.trim();
    let (name, port) = split_port(host)?;
    let port = match (port, data_port) {
        (Some(port), Some(other)) if port != other => {
            return Err(BadHost::Ports { host: host.to_owned(), port: other });
        }
        (port, data_port) => port.or(data_port).unwrap_or(0),
    };
    let unknown = |source| BadHost::Unknown { host: host.to_owned(), source };
    let address = (name, port)
        .to_socket_addrs()
        .and_then(|mut addresses| addresses.next().ok_or(io::ErrorKind::NotFound.into()))
        .map_err(unknown)?
        .ip();
    let everywhere = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let listen = if address.is_loopback() { address } else { everywhere };
    let advertise = (!address.is_unspecified()).then_some(address);
    let name = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
    let name = advertise.map(|_| name);
    Ok(Reach { listen: SocketAddr::new(listen, port), advertise, name })
}

/// The host and the port behind its last colon, if there is one. An IPv6 address with a port has
/// brackets, which are left out.
fn split_port(host: &str) -> Result<(&str, Option<u16>), BadHost> {
    let bad_port = |_| BadHost::Port { host: host.to_owned() };
    if let Some(rest) = host.strip_prefix('[')
        && let Some((name, after)) = rest.split_once(']')
    {
        return match after.strip_prefix(':') {
            Some(port) => Ok((name, Some(port.parse().map_err(bad_port)?))),
            None => Ok((name, None)),
        };
    }
    match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => {
            Ok((name, Some(port.parse().map_err(bad_port)?)))
        }
        _ => Ok((host, None)),
    }
}

/// Memory and swap of this host; `None` where the system does not say.
pub(crate) fn total_memory() -> Option<ByteSize> {
    sum_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// `MemTotal` and `SwapTotal` of Linux' `/proc/meminfo`, which counts in KiB.
fn sum_meminfo(text: &str) -> Option<ByteSize> {
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let kib = field("MemTotal")?.saturating_add(field("SwapTotal").unwrap_or(0));
    Some(ByteSize::kib(kib))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_to_listen_on_and_to_tell() {
        for (host, listen, advertise, name) in [
            ("127.0.0.1", "127.0.0.1:7", "127.0.0.1", "127.0.0.1"),
            ("127.0.0.1:7", "127.0.0.1:7", "127.0.0.1", "127.0.0.1"),
            (" 192.0.2.1 ", "0.0.0.0:7", "192.0.2.1", "192.0.2.1"),
            ("2001:db8::7", "[::]:7", "2001:db8::7", "[2001:db8::7]"),
            ("[2001:db8::7]:7", "[::]:7", "2001:db8::7", "[2001:db8::7]"),
            ("[::1]", "[::1]:7", "::1", "[::1]"),
        ] {
            let expected = Reach {
                listen: listen.parse().unwrap(),
                advertise: Some(advertise.parse().unwrap()),
                name: Some(name.into()),
            };
            assert_eq!(reach(host, Some(7)).unwrap(), expected, "{host}");
        }
        for (host, listen) in
            [("0.0.0.0", "0.0.0.0:0"), ("::", "[::]:0"), ("0.0.0.0:9", "0.0.0.0:9")]
        {
            let expected = Reach { listen: listen.parse().unwrap(), advertise: None, name: None };
            assert_eq!(reach(host, None).unwrap(), expected, "{host}");
        }
        let local = reach("localhost:7", None).unwrap();
        assert_eq!((local.listen.port(), local.name.as_deref()), (7, Some("localhost")));
    }

    #[test]
    fn hosts_that_are_none_are_refused() {
        let refused = |host, port| reach(host, port).unwrap_err().to_string();
        assert!(refused("no such host", None).contains("--host=no such host has no address"));
        assert!(refused("", None).contains("has no address"));
        for host in ["localhost:", "localhost:x", "127.0.0.1:65536", "[::1]:-1"] {
            assert!(refused(host, None).contains("from 0 to 65535"), "{host}");
        }
        let ports = refused("127.0.0.1:7", Some(8));
        assert_eq!(
            ports,
            "--host=127.0.0.1:7 and --data_port=8 name different ports; leave one of them out"
        );
    }

    #[test]
    fn meminfo_is_summed() {
        let text = "MemTotal:       2048 kB\nMemFree: 1 kB\nSwapTotal:      1024 kB\n";
        assert_eq!(sum_meminfo(text), Some(ByteSize::mib(3)));
        assert_eq!(sum_meminfo("MemTotal: 2048 kB"), Some(ByteSize::mib(2)));
        for text in ["", "MemTotal", "MemTotal: x kB", "MemTotal: 5"] {
            assert_eq!(sum_meminfo(text), None, "{text}");
        }
    }
}
