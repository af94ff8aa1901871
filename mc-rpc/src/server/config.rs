//! The server's settings.

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::Arc;

use mc_environment::Environment;

use super::executor::default_bulk_threads;
use super::term::Term;
use super::upgrade::TakeStream;
use crate::access::Authenticate;
use crate::error::BindError;
use crate::frame::{DEFAULT_MAX_PAYLOAD, MIN_MAX_PAYLOAD};
#[cfg(feature = "tls")]
use crate::tls::ServerTls;

#[cfg(unix)]
const FEW_DESCRIPTORS: &str = "fewer connections than configured, for want of file descriptors; \
                               raise the limit (ulimit -n, LimitNOFILE=)";

/// Tells whether what a server answers for is well. The gRPC health service asks it.
pub trait Liveness: core::fmt::Debug + Send + Sync + 'static {
    /// Returns whether it is well now. Must not wait.
    fn is_well(&self) -> bool;
}

/// Settings of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Authenticates callers. Without one, every client that can connect has full access.
    /// Default none.
    pub authenticator: Option<Arc<dyn Authenticate>>,
    /// Makes the gRPC health service say `NOT_SERVING` while this is not well, also to those who
    /// watch. Default none: it serves until it shuts down.
    pub liveness: Option<Arc<dyn Liveness>>,
    /// The term in which this master leads. Once it is over no byte of an answer leaves: a
    /// connection to which one was to be written is closed, new ones are refused as
    /// `UnavailableInCurrentStatus`, and the gRPC health service says `NOT_SERVING`. Default none:
    /// a master that is alone.
    pub term: Option<Term>,
    /// Takes the streams over which standbys ask for the journal. Default none: they are refused.
    pub upgrade: Option<Arc<dyn TakeStream>>,
    /// Makes TCP connections speak TLS, and none without. Unix sockets never do. Default
    /// none.
    #[cfg(feature = "tls")]
    pub tls: Option<Arc<ServerTls>>,
    /// Whether TCP clients of this host that speak no TLS are offered a Unix socket, over
    /// which their calls take half the time. It is open to whom the TCP port is open. Only
    /// on Linux. Default yes.
    pub local_socket: bool,
    /// Most connections at a time. When there are as many, one that idles is told to go away
    /// for each new one: first those that have made no call yet, then those that have been
    /// silent for longest, from the address that has most. Only while all of them have
    /// calls under way is a new one refused as `Overloaded`. Less than the process may have
    /// file descriptors, see [`Server::bind`](crate::Server::bind). Default 16,384.
    pub max_connections: usize,
    /// Most connections of one address at a time (of IPv6 one /64, and of the Unix sockets
    /// one process); beyond it the address's own yield as said above. Default 12,288: ten
    /// thousand clients behind one address have room, and others beside them.
    pub max_connections_per_address: usize,
    /// Largest request accepted, in bytes; at least 64 KiB. Default 16 MiB.
    pub max_payload: u32,
    /// Most calls that a client is told to have open at a time. A client that
    /// does not keep to it gains nothing: the server reads on only when it has
    /// answered. Default 4096.
    pub max_in_flight: u32,
    /// Large batches that are executed at a time; more wait, each connection taking its
    /// turns. Default: half of the CPUs.
    pub bulk_threads: usize,
    /// Runs calls that take long, for a simulation with one thread. Default none: the blocking threads of Tokio do.
    pub environment: Option<Arc<dyn Environment>>,
    /// Bytes of answers that one connection may have waiting before its next
    /// call is looked at. Default 1 MiB.
    pub max_unsent: usize,
    /// Bytes that requests and answers may hold in memory over all connections
    /// that hold more than 256 KiB each; a connection that would need more is
    /// refused as `Overloaded` and closed. Default 1 GiB.
    pub max_buffered: usize,
    /// How long the handshake of a new connection may take. Default 5 s.
    pub handshake_timeout: Duration,
    /// How long a connection may be silent before it is told to go away, one that has made
    /// no call yet a minute at most; a client connects again when it has something to ask.
    /// Default 5 minutes.
    pub idle_timeout: Duration,
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
            liveness: None,
            term: None,
            upgrade: None,
            #[cfg(feature = "tls")]
            tls: None,
            local_socket: true,
            max_connections: 16_384,
            max_connections_per_address: 12_288,
            max_payload: DEFAULT_MAX_PAYLOAD,
            max_in_flight: 4096,
            bulk_threads: default_bulk_threads(),
            environment: None,
            max_unsent: 1 << 20,
            max_buffered: 1 << 30,
            handshake_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(300),
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(60),
        }
    }
}

impl ServerConfig {
    /// Warns of a listener that other hosts can use without a credential or can eavesdrop on.
    pub(super) fn warn_of_exposure(&self, local_addr: SocketAddr) {
        if local_addr.ip().is_loopback() {
            return;
        }
        let (encrypted, certified) = self.encryption();
        if self.authenticator.is_none() && !certified {
            tracing::warn!(
                %local_addr,
                encrypted,
                "listening beyond this host without credentials; every client that reaches the port \
                 can read and remove every object: give an access list, or require client \
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

    /// Returns whether clients are to hear of a socket of this host.
    pub(super) fn offers_local_socket(&self) -> bool {
        self.local_socket && !self.encryption().0
    }

    /// Returns whether TCP connections are encrypted, and whether every client shows a certificate.
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

    /// The same with no more connections than the process may have file descriptors: an
    /// eighth of those stays for everything else, such as the port that tells the health.
    pub(super) fn within_descriptors(mut self) -> Self {
        #[cfg(unix)]
        if let Some(descriptors) =
            rustix::process::getrlimit(rustix::process::Resource::Nofile).current
        {
            // Some are about to go while others come.
            let most = usize::try_from(descriptors / 8 * 6).unwrap_or(usize::MAX).max(1);
            if self.max_connections > most {
                let wanted = self.max_connections;
                // The default is more than many systems give a process: no reason to warn.
                if wanted == Self::default().max_connections {
                    tracing::debug!(wanted, allowed = most, descriptors, "{FEW_DESCRIPTORS}");
                } else {
                    tracing::warn!(wanted, allowed = most, descriptors, "{FEW_DESCRIPTORS}");
                }
                self.max_connections = most;
            }
        }
        self
    }

    pub(super) fn validate(&self) -> Result<(), BindError> {
        for (name, value, least, advice) in [
            ("max_connections", self.max_connections as u64, 1, "allow at least one"),
            (
                "max_connections_per_address",
                self.max_connections_per_address as u64,
                1,
                "allow at least one",
            ),
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

/// A connection that holds no more than this does not count towards
/// [`ServerConfig::max_buffered`].
pub(super) const SMALL_BUFFERS: usize = 256 << 10;
