//! Addresses and memory of this host.

use std::net::SocketAddr;

use mc_store::{HostError, LocalHost};
use mc_types::ByteSize;

/// A `--host` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadHost {
    #[error("--host={host}")]
    Unusable { host: String, source: HostError },
    #[error("--host={host} and --data_port={port} name different ports; leave one of them out")]
    Ports { host: String, port: u16 },
}

/// Resolves `--host`, with or without a port, and `--data_port`. Returns the address to listen on, too.
///
/// # Errors
/// [`BadHost`] when the host cannot be resolved, or both say different ports.
pub(crate) fn local_host(
    host: &str,
    data_port: Option<u16>,
) -> Result<(LocalHost, SocketAddr), BadHost> {
    let host = host.trim().to_owned();
    let resolved = match LocalHost::resolve(&host) {
        Ok(resolved) => resolved,
        Err(source) => return Err(BadHost::Unusable { host, source }),
    };
    let port = match (resolved.port(), data_port) {
        (Some(port), Some(other)) if port != other => {
            return Err(BadHost::Ports { host, port: other });
        }
        (port, data_port) => port.or(data_port).unwrap_or(0),
    };
    let listen = resolved.listen(port);
    Ok((resolved, listen))
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
    fn the_port_is_said_once_or_twice_the_same() {
        for (host, data_port, listen) in [
            ("127.0.0.1", None, "127.0.0.1:0"),
            ("127.0.0.1", Some(7), "127.0.0.1:7"),
            (" 127.0.0.1:7 ", Some(7), "127.0.0.1:7"),
            ("[::1]:7", None, "[::1]:7"),
            ("0.0.0.0:9", None, "0.0.0.0:9"),
        ] {
            let (_, found) = local_host(host, data_port).unwrap();
            assert_eq!(found, listen.parse().unwrap(), "{host}");
        }
        assert_eq!(
            local_host("127.0.0.1:7", Some(8)).unwrap_err().to_string(),
            "--host=127.0.0.1:7 and --data_port=8 name different ports; leave one of them out"
        );
    }

    #[test]
    fn hosts_that_are_none_are_refused() {
        let refused = |host| mc_cli::cause_chain(&local_host(host, None).unwrap_err());
        assert!(refused("no such host").starts_with("--host=no such host: it has no address"));
        assert!(refused("").contains("has no address"));
        for host in ["localhost:x", "localhost:+0", "[::1]17000"] {
            assert!(refused(host).contains("from 0 to 65535"), "{host}");
        }
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
