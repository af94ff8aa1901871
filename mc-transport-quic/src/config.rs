//! Settings of the transport.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use mc_tls::{ClientTls, ServerTls};
use mc_types::ByteSize;

/// Settings of a [`QuicTransport`](super::QuicTransport).
///
/// ```
/// use std::time::Duration;
/// use mc_tls::ClientTls;
/// use mc_transport_quic::QuicConfig;
/// let client = ClientTls::new("ca.pem").identity("node.pem", "node.key");
/// let mut config = QuicConfig::connecting(client);
/// config.stall_timeout = Duration::from_secs(10);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuicConfig {
    /// Where to accept peers; port 0 takes a free one. `None`, the default,
    /// accepts none: such a node can still reach others.
    pub listen: Option<SocketAddr>,
    /// The hosts that peers are told, names or addresses without a port: the first, and those that
    /// peers try when it does not answer ([`Endpoint::others`](mc_types::Endpoint::others), which
    /// bounds their number). By default the address of `listen`, which must then be a specific one.
    pub advertise_hosts: Vec<String>,
    /// The certificate of a node that accepts peers, and the authorities whose
    /// certificates they may show. It may be shared with other listeners. Files that
    /// are renewed count from the next [`ServerTls::check`] on, which its
    /// owner calls.
    pub server: Option<Arc<ServerTls>>,
    /// Whether peers without a certificate are accepted: then every peer that has a region's
    /// key may use it. Default `false`.
    pub allow_anonymous_clients: bool,
    /// The authorities that this node trusts in, and the certificate that it shows.
    /// `None`: it cannot reach others. The files are read anew for each link.
    pub client: Option<ClientTls>,
    /// Connections to each peer. Operations are spread over them, and large ones are
    /// cut. Default 1 on one or two CPUs and 4 on more: one connection keeps about one
    /// CPU busy.
    pub connections_per_peer: NonZeroUsize,
    /// Time limit for connecting and the handshake, on either side. Default
    /// 5 s.
    pub connect_timeout: Duration,
    /// Time that a stream of operations may go without 64 KiB of progress, or the end
    /// of an operation, before the link is closed. Default 5 s.
    pub stall_timeout: Duration,
    /// Time after which a connection that receives nothing from the peer is lost.
    /// Clients send a keep-alive three times as often. Default 15 s, less than a NAT remembers a
    /// mapping.
    pub idle_timeout: Duration,
    /// The largest operation, in bytes; the smaller limit of both sides counts.
    /// Default 1 GiB.
    pub max_operation: ByteSize,
    /// Most connections accepted at a time, handshakes included. When there are as many, one
    /// that idles is closed for each new one: first those that have known no key yet, then
    /// those that have been silent for longest, from the address that has most. Only while
    /// all of them are at work is a new one refused. From half of them on a client first has
    /// to show that its address is its own. Default 1024.
    pub max_connections: usize,
    /// Most connections of one address at a time (of IPv6 one /64), in the same way. At least
    /// sixteen times the connections that one peer makes, so that those of one link do not
    /// yield to each other. Default 256.
    pub max_connections_per_address: usize,
    /// Largest UDP payload, in bytes; what the path can carry is found out by probing.
    /// Up to 6500, the default, packets leave many at a time (segmentation offload);
    /// above that each is a system call. At least 1200, at most 65 000.
    pub max_mtu: u16,
    /// Bytes that one connection may have on the way in each direction, at least
    /// 64 KiB; with what a peer leaves untaken it is what the peer can make this node
    /// hold. Default 16 MiB, enough for 10 Gbit/s over 10 ms.
    pub window: ByteSize,
    /// Whether a peer may go on from another address, as happens behind NAT and when
    /// a host moves. Default `true`.
    pub allow_migration: bool,
}

impl QuicConfig {
    /// The defaults for a node that reaches others and accepts none.
    #[must_use]
    pub fn connecting(client: ClientTls) -> Self {
        Self { client: Some(client), ..Self::plain() }
    }

    /// The defaults for a node that accepts peers at `address`. To reach others, too,
    /// it needs [`client`](Self::client).
    #[must_use]
    pub fn listening(address: SocketAddr, server: Arc<ServerTls>) -> Self {
        Self { listen: Some(address), server: Some(server), ..Self::plain() }
    }

    fn plain() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let connections = if cpus <= 2 { 1 } else { 4 };
        Self {
            listen: None,
            advertise_hosts: Vec::new(),
            server: None,
            allow_anonymous_clients: false,
            client: None,
            connections_per_peer: NonZeroUsize::new(connections).unwrap_or(NonZeroUsize::MIN),
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(15),
            max_operation: ByteSize::gib(1),
            max_connections: 1024,
            max_connections_per_address: 256,
            max_mtu: super::tuning::MAX_OFFLOADED_MTU,
            window: ByteSize::mib(16),
            allow_migration: true,
        }
    }
}
