//! The port of a client that is given none: one of the range that Mooncake's clients take theirs from, outside
//! the ports that Linux gives to outgoing connections.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;

use mc_store::{ByteSize, ClientConfig};

/// Mooncake's range, and the variables that set its ends.
const PORTS: RangeInclusive<u16> = 12_300..=14_300;
const LEAST: &str = "MC_STORE_CLIENT_MIN_PORT";
const MOST: &str = "MC_STORE_CLIENT_MAX_PORT";

/// Ports that are tried before the system chooses one.
const TRIES: usize = 20;

/// Adds a port to a `local_hostname` that has none, if the client has memory for others to reach and a
/// port of the range is free.
pub(super) fn with_port(mut config: ClientConfig) -> ClientConfig {
    let has_memory = config.global_segment_size.is_some_and(|size| size > ByteSize::bytes(0));
    let Some(host) = config.local_hostname.as_deref().filter(|_| has_memory) else { return config };
    let Some(host) = without_port(host) else { return config };
    let ports = range(std::env::var(LEAST).ok().as_deref(), std::env::var(MOST).ok().as_deref());
    let Some(port) = free_port(&ports) else { return config };
    config.local_hostname = Some(format!("{host}:{port}"));
    config
}

/// The host as it is written before a port; `None` when it has a port, or is none.
fn without_port(host: &str) -> Option<String> {
    let host = host.trim();
    match host.matches(':').count() {
        _ if host.is_empty() => None,
        _ if host.starts_with('[') => host.ends_with(']').then(|| host.to_owned()),
        0 => Some(host.to_owned()),
        1 => None,
        _ => Some(format!("[{host}]")),
    }
}

/// The range between the two ends, or Mooncake's when they are none.
fn range(least: Option<&str>, most: Option<&str>) -> RangeInclusive<u16> {
    let port = |text: Option<&str>, default: u16| match text {
        Some(text) => text.trim().parse().ok().filter(|port| *port > 0),
        None => Some(default),
    };
    match (port(least, *PORTS.start()), port(most, *PORTS.end())) {
        (Some(least), Some(most)) if least <= most => least..=most,
        _ => {
            tracing::warn!("{LEAST} and {MOST} are ignored: they are no range of ports");
            PORTS
        }
    }
}

/// A port without a listener. Processes that begin together look in different orders.
fn free_port(ports: &RangeInclusive<u16>) -> Option<u16> {
    let count = u64::from(ports.end() - ports.start()) + 1;
    let mut random = mc_types::SplitMix64::new(seed());
    (0..TRIES).find_map(|_| {
        let port = ports.start() + u16::try_from(random.next_u64() % count).ok()?;
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok().then_some(port)
    })
}

/// Different in each process and at each time.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.as_nanos() as u64);
    nanos ^ (u64::from(std::process::id()) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_port_get_one_of_the_range() {
        for (host, before) in [
            ("node-1", Some("node-1")),
            ("10.0.0.1", Some("10.0.0.1")),
            ("::1", Some("[::1]")),
            ("[::1]", Some("[::1]")),
            ("node-1:7", None),
            ("[::1]:7", None),
            ("", None),
        ] {
            assert_eq!(without_port(host).as_deref(), before, "{host}");
        }
        let port = free_port(&PORTS).expect("a free port of two thousand");
        assert!(PORTS.contains(&port), "{port}");
        let config = |host: &str, bytes| {
            let mut config = ClientConfig::default();
            config.local_hostname = Some(host.to_owned());
            config.global_segment_size = Some(ByteSize::bytes(bytes));
            config
        };
        let named = with_port(config("localhost", 1)).local_hostname.expect("a name");
        assert!(named.starts_with("localhost:1"), "{named}");
        for (host, bytes) in [("localhost:7", 1), ("localhost", 0)] {
            assert_eq!(with_port(config(host, bytes)).local_hostname.as_deref(), Some(host));
        }
    }

    #[test]
    fn the_ends_of_the_range_can_be_set() {
        assert_eq!(range(None, None), PORTS);
        assert_eq!(range(Some("20000"), Some("20001")), 20_000..=20_001);
        assert_eq!(range(Some("13000"), None), 13_000..=*PORTS.end());
        for (least, most) in [("2", "1"), ("x", "9"), ("0", "9"), ("1", "99999")] {
            assert_eq!(range(Some(least), Some(most)), PORTS, "{least} {most}");
        }
    }
}
