//! Addresses and memory of this host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use mc_types::ByteSize;

/// Where to listen and what to tell peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Where to listen.
    pub(crate) listen: SocketAddr,
    /// The host to advertise; `None` to find it from the route to the master.
    pub(crate) advertise: Option<IpAddr>,
}

/// A name or address without a usable address behind it.
#[derive(Debug, thiserror::Error)]
#[error("--host={host} has no address; write this host's name or IP address, or leave it out")]
pub(crate) struct UnknownHost {
    host: String,
    source: io::Error,
}

/// Resolves `--host` and a port. A loopback address is also the only one
/// listened on, since no other host could use it. Otherwise the listener takes
/// every address: the one that peers use may be another host's that forwards to
/// this one.
///
/// # Errors
/// [`UnknownHost`] when the name cannot be resolved.
pub(crate) fn reach(host: &str, port: u16) -> Result<Reach, UnknownHost> {
    let unknown = |source| UnknownHost { host: host.to_owned(), source };
    let address = (host.trim(), port)
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
    Ok(Reach { listen: SocketAddr::new(listen, port), advertise })
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
        let reached = |host| {
            let reach = reach(host, 7).unwrap();
            (reach.listen.to_string(), reach.advertise.map(|address| address.to_string()))
        };
        assert_eq!(reached("0.0.0.0"), ("0.0.0.0:7".into(), None));
        assert_eq!(reached("::"), ("[::]:7".into(), None));
        assert_eq!(reached("127.0.0.1"), ("127.0.0.1:7".into(), Some("127.0.0.1".into())));
        assert_eq!(reached("192.0.2.1"), ("0.0.0.0:7".into(), Some("192.0.2.1".into())));
        let unknown = reach("no such host", 7).unwrap_err().to_string();
        assert!(unknown.contains("--host=no such host"), "{unknown}");
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
