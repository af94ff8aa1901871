//! The server's settings.

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::Arc;

use super::lanes::default_bulk_threads;
use crate::access::Authenticate;
use crate::error::BindError;
use crate::frame::{DEFAULT_MAX_PAYLOAD, MIN_MAX_PAYLOAD};
#[cfg(feature = "tls")]
use crate::tls::ServerTls;

/// Settings of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Who knows the callers. Without one, everybody who connects may do everything.
    /// Default none.
    pub authenticator: Option<Arc<dyn Authenticate>>,
    /// Makes TCP connections speak TLS, and none without. Unix sockets never do. Default
    /// none.
    #[cfg(feature = "tls")]
    pub tls: Option<Arc<ServerTls>>,
    /// Whether TCP clients of this host that speak no TLS are offered a Unix socket, over
    /// which their calls take half the time. It is open to whom the TCP port is open. Only
    /// on Linux. Default yes.
    pub local_socket: bool,
    /// Most connections at a time; more are refused as `Overloaded`. Default
    /// 10,000.
    pub max_connections: usize,
    /// Largest request accepted, in bytes; at least 64 KiB. Default 16 MiB.
    pub max_payload: u32,
    /// Most calls that a client is told to have open at a time. A client that
    /// does not keep to it gains nothing: the server reads on only when it has
    /// answered. Default 4096.
    pub max_in_flight: u32,
    /// Large batches that are executed at a time; more wait, each connection taking its
    /// turns. Default: half of the CPUs.
    pub bulk_threads: usize,
    /// Bytes of answers that one connection may have waiting before its next
    /// call is looked at. Default 1 MiB.
    pub max_unsent: usize,
    /// Bytes that requests and answers may hold in memory over all connections
    /// that hold more than 256 KiB each; a connection that would need more is
    /// refused as `Overloaded` and closed. Default 1 GiB.
    pub max_buffered: usize,
    /// How long the handshake of a new connection may take. Default 5 s.
    pub handshake_timeout: Duration,
    /// How long one request may take to arrive, from its first byte to its
    /// last, and how long answers may wait for the client to take them. Default
    /// 30 s.
    pub stall_timeout: Duration,
    /// How long a shutdown waits for connections to end. Default 5 s.
    pub drain_timeout: Duration,
    /// After how much silence the system asks whether the other host still
    /// lives. Default 60 s.
    pub keepalive: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            authenticator: None,
            #[cfg(feature = "tls")]
            tls: None,
            local_socket: true,
            max_connections: 10_000,
            max_payload: DEFAULT_MAX_PAYLOAD,
            max_in_flight: 4096,
            bulk_threads: default_bulk_threads(),
            max_unsent: 1 << 20,
            max_buffered: 1 << 30,
            handshake_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(60),
        }
    }
}

impl ServerConfig {
    /// Warns of a listener that anybody can use, or listen to, from other hosts.
    pub(super) fn warn_of_exposure(&self, local_addr: SocketAddr) {
        if local_addr.ip().is_loopback() {
            return;
        }
        let (encrypted, certified) = self.encryption();
        if self.authenticator.is_none() && !certified {
            tracing::warn!(
                %local_addr,
                encrypted,
                "listening beyond this host without credentials; whoever reaches the port can \
                 read and remove every object: give an access list, or require client \
                 certificates"
            );
        } else if !encrypted {
            tracing::warn!(
                %local_addr,
                "listening beyond this host without TLS; tokens and the keys that open \
                 segments travel in clear text"
            );
        }
    }

    /// Whether clients are to hear of a socket of this host.
    pub(super) fn offers_local_socket(&self) -> bool {
        self.local_socket && !self.encryption().0
    }

    /// Whether TCP connections are encrypted, and whether every client shows a certificate.
    fn encryption(&self) -> (bool, bool) {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return (true, tls.requires_certificates());
        }
        (false, false)
    }

    /// Reads credentials again that have changed. Blocks.
    pub(super) fn refresh(&self) {
        if let Some(authenticator) = &self.authenticator {
            authenticator.refresh();
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            // What came of it has been logged.
            let _ = tls.check();
        }
    }

    pub(super) fn validate(&self) -> Result<(), BindError> {
        for (name, value, least, advice) in [
            ("max_connections", self.max_connections as u64, 1, "allow at least one"),
            (
                "max_payload",
                self.max_payload.into(),
                MIN_MAX_PAYLOAD.into(),
                "accept requests of at least 64 KiB",
            ),
            ("max_in_flight", self.max_in_flight.into(), 1, "allow at least one"),
            ("bulk_threads", self.bulk_threads as u64, 1, "allow at least one"),
            ("max_unsent", self.max_unsent as u64, 1, "allow at least one byte"),
        ] {
            if value < least {
                return Err(BindError::Config { name, value, advice });
            }
        }
        Ok(())
    }
}
