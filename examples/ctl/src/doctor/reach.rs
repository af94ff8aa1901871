//! Why a port does not answer: each cause by itself.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mc_cli::duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// How long a port may take to answer: the time of a first, a second and a third packet.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// Why there is no connection to a port.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreached {
    #[error("the name does not resolve: {0}")]
    Name(io::Error),
    #[error("nothing listens at this port: the host refuses the connection")]
    Refused,
    #[error("no answer within {}: packets to this port are lost", duration(PATIENCE))]
    Silent,
    #[error("{0}")]
    Other(io::Error),
}

impl Unreached {
    /// Returns the remedy where `program` is to be reached, whose address is set by `flag`.
    pub(super) fn advice(&self, program: &str, flag: &str) -> String {
        match self {
            Self::Name(_) => {
                format!("correct the name ({flag}), or this host's DNS and /etc/hosts")
            }
            Self::Refused => {
                format!("start {program} there, or correct the address or the port ({flag})")
            }
            Self::Silent => format!(
                "open the port in the firewalls between the hosts, or correct the address ({flag}); \
                 a host that is down is silent, too"
            ),
            Self::Other(_) => {
                format!(
                    "see `ip route get` and the interfaces of this host, or correct the address ({flag})"
                )
            }
        }
    }
}

/// Connects to `host:port`, and closes the connection again.
pub(super) async fn probe(address: &str) -> Result<(), Unreached> {
    let found = match timeout(PATIENCE, lookup_host(address)).await {
        Ok(Ok(found)) => found.collect::<Vec<SocketAddr>>(),
        Ok(Err(error)) => return Err(Unreached::Name(error)),
        Err(_) => return Err(Unreached::Name(io::ErrorKind::TimedOut.into())),
    };
    match timeout(PATIENCE, TcpStream::connect(&found[..])).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(Unreached::Refused)
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Err(Unreached::Silent),
        Ok(Err(error)) => Err(Unreached::Other(error)),
        Err(_) => Err(Unreached::Silent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_cause_is_told_by_itself() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        probe(&address).await.unwrap();
        drop(listener);
        let refused = probe(&address).await.unwrap_err();
        assert!(matches!(refused, Unreached::Refused), "{refused}");
        let unknown = probe("no-such-host.invalid:1").await.unwrap_err();
        assert!(matches!(unknown, Unreached::Name(_)), "{unknown}");
        assert!(unknown.advice("mc-node", "--host").contains("DNS"), "{unknown}");
    }
}
