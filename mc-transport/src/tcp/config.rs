//! Settings of the transport.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tls")]
use mc_tls::{ClientTls, ServerTls};
use mc_types::ByteSize;

use crate::breaker::BreakerConfig;
use crate::bundle::BundleConfig;

/// Settings of a [`TcpTransport`](super::TcpTransport).
///
/// ```
/// use std::time::Duration;
/// use mc_transport::TcpConfig;
/// let mut config = TcpConfig::listening("127.0.0.1:0".parse()?);
/// config.stall_timeout = Duration::from_secs(10);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TcpConfig {
    /// Where to accept peers; port 0 takes a free one. `None`, the default,
    /// accepts none: such a node can still reach others.
    pub listen: Option<SocketAddr>,
    /// The hosts that peers are told, names or addresses without a port: the first, and those that
    /// peers try when it does not answer ([`Endpoint::others`](mc_types::Endpoint::others), which
    /// bounds their number). By default the address of `listen`, which must then be a specific one.
    pub advertise_hosts: Vec<String>,
    /// Addresses of the network cards to use together, of each its own; peers are told
    /// them and connect to each, and connections of this node leave from each. A card
    /// that fails is routed around. By default none: the system chooses.
    pub rails: Vec<IpAddr>,
    /// Connections to each peer, used together by everyone who asks for a link to it;
    /// at least one for each rail. Default 1; more help where several cores serve a
    /// fast network.
    pub links_per_peer: NonZeroUsize,
    /// Spreads operations over several connections.
    pub bundle: BundleConfig,
    /// When a peer that cannot be reached is left alone.
    pub breaker: BreakerConfig,
    /// Replaces `stall_timeout` where there are several ways to a peer, so that those
    /// that work take over soon. Default 3 s.
    pub reroute_after: Duration,
    /// Time limit for connecting and the handshake, on either side. Default
    /// 5 s.
    pub connect_timeout: Duration,
    /// Time that a peer that owes something may go without 64 KiB of progress, or
    /// the end of an operation, before the connection is closed. Default 5 s: so long a
    /// read waits for a node that is frozen. A slow link is not silent: the default lets 13 kB/s
    /// pass.
    pub stall_timeout: Duration,
    /// The largest operation, in bytes; the smaller limit of both sides counts.
    /// Default 1 GiB.
    pub max_operation: ByteSize,
    /// Most connections accepted at a time. When there are as many, one that idles is closed for
    /// each new one: first those that have known no key yet, then those that have been silent for
    /// longest, from the address that has most. Only while all of them are at work is a new one
    /// told to come back later. Each costs a descriptor and about 40 KB. At most three quarters of
    /// the descriptors that the process may have. Default 16,384.
    pub max_connections: usize,
    /// Most connections of one address at a time (of IPv6 one /64); beyond it the address's own
    /// yield as said above. Default 16,384: no limit of its own.
    pub max_connections_per_address: usize,
    /// Congestion control of the data sockets, where the system lets us choose;
    /// `None` leaves the system's. Default `cubic`: on one host it moves two to
    /// three times as much as `bbr`, and inside a data centre it is the common
    /// choice.
    pub congestion_control: Option<String>,
    /// Certificates. With them every connection of this node is encrypted, in both
    /// directions, and peers that do not speak TLS are refused. `None`, the default:
    /// nothing is. A connection that speaks TLS costs about 150 KB, and as much again
    /// while it sends.
    #[cfg(feature = "tls")]
    pub tls: Option<TcpTls>,
}

/// TLS settings of a [`TcpTransport`](super::TcpTransport): version 1.3 and no other.
#[cfg(feature = "tls")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TcpTls {
    /// The certificate for peers that connect to this node, and whether they have to show
    /// certificates too. A node that listens needs it. Several transports and servers may
    /// share one; the application has to call [`check`](mc_tls::ServerTls::check) now and then,
    /// so that renewed files are used.
    pub server: Option<Arc<ServerTls>>,
    /// The authority that this node trusts when it connects, and its own certificate. A peer's
    /// certificate has to be for the host in its endpoint. The files are read anew for each
    /// connection.
    pub client: ClientTls,
}

#[cfg(feature = "tls")]
impl TcpTls {
    /// For a node that connects and does not listen.
    #[must_use]
    pub fn new(client: ClientTls) -> Self {
        Self { server: None, client }
    }

    /// For a node that listens too.
    #[must_use]
    pub fn server(mut self, server: Arc<ServerTls>) -> Self {
        self.server = Some(server);
        self
    }
}

impl TcpConfig {
    /// The defaults, accepting peers at `address`.
    #[must_use]
    pub fn listening(address: SocketAddr) -> Self {
        Self { listen: Some(address), ..Self::default() }
    }

    /// Returns whether peers that connect are shown a certificate.
    #[cfg(feature = "tls")]
    pub(crate) fn shows_certificate(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.server.is_some())
    }

    /// Returns whether peers that connect are shown a certificate.
    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_self, reason = "as with TLS")]
    pub(crate) const fn shows_certificate(&self) -> bool {
        false
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            listen: None,
            advertise_hosts: Vec::new(),
            rails: Vec::new(),
            links_per_peer: NonZeroUsize::MIN,
            bundle: BundleConfig::default(),
            breaker: BreakerConfig::default(),
            reroute_after: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(5),
            max_operation: ByteSize::gib(1),
            max_connections: 16_384,
            max_connections_per_address: 16_384,
            congestion_control: Some("cubic".to_owned()),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}
