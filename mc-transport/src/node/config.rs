//! Settings of a node.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

#[cfg(feature = "quic")]
use crate::quic::QuicConfig;
#[cfg(all(feature = "rdma", target_os = "linux"))]
use crate::rdma::RdmaConfig;
#[cfg(target_os = "linux")]
use crate::shm::ShmConfig;
use crate::tcp::TcpConfig;
use crate::transport::DynTransport;

/// Settings of a [`Node`](super::Node): the transports that it consists of.
///
/// A node accepts peers over each of these that does, and tells them the endpoint of the first: the
/// transports added by [`with_transport`](Self::with_transport), QUIC, TCP. With that of QUIC it
/// names TCP's as another way; a transport of the application's own is the only one of its node.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NodeConfig {
    /// TCP: every node can reach peers over it.
    pub tcp: TcpConfig,
    /// QUIC, with certificates; `None`, the default, leaves it out. With the feature `quic`.
    #[cfg(feature = "quic")]
    pub quic: Option<QuicConfig>,
    /// Shared memory between processes of the same host; `None` leaves it out. Linux.
    #[cfg(target_os = "linux")]
    pub shm: Option<ShmConfig>,
    /// RDMA between hosts that have network cards for it; `None`, the default, leaves it out. A
    /// host without a device goes on without, which is logged. Peers are told of it over TCP or
    /// QUIC, which carry what RDMA does not. Linux, with the feature `rdma`.
    #[cfg(all(feature = "rdma", target_os = "linux"))]
    pub rdma: Option<RdmaConfig>,
    pub(super) others: Vec<Other>,
    /// Whether the node has no transport of this crate.
    pub(super) is_bare: bool,
}

/// A transport from outside this crate.
#[derive(Clone)]
pub(super) struct Other(pub(super) Arc<dyn DynTransport>);

impl fmt::Debug for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transport").field(&self.0.scheme()).finish()
    }
}

impl NodeConfig {
    /// TCP with these settings, and shared memory with its defaults.
    #[must_use]
    pub fn new(tcp: TcpConfig) -> Self {
        Self {
            tcp,
            #[cfg(target_os = "linux")]
            shm: Some(ShmConfig::default()),
            ..Self::default()
        }
    }

    /// One transport of the application's own and nothing beside it: no TCP, no shared memory. Such
    /// a node opens no socket and starts no task by itself, as a simulation needs.
    /// [`with_transport`](Self::with_transport) adds more of the kind; the settings of this crate's
    /// transports have no effect.
    #[must_use]
    pub fn only(transport: Arc<dyn DynTransport>) -> Self {
        Self { is_bare: true, ..Self::default() }.with_transport(transport)
    }

    /// Leaves shared memory out, so that processes of the same host are reached as others are.
    pub fn disable_shared_memory(&mut self) {
        #[cfg(target_os = "linux")]
        {
            self.shm = None;
        }
    }

    /// Adds a transport of the application's own, which reaches the endpoints of its scheme.
    ///
    /// If it has an endpoint, the node's memory is allocated by and registered with it, and it
    /// is how peers reach the node. Several may be added; the first with an endpoint counts.
    #[must_use]
    pub fn with_transport(mut self, transport: Arc<dyn DynTransport>) -> Self {
        self.others.push(Other(transport));
        self
    }

    /// Has the node accept peers at `address` and tells them `hosts`, names or addresses without a
    /// port, the best one first: over QUIC if that has a certificate to show, and over TCP if that has one,
    /// too; else over TCP; over neither if a transport of the application's own accepts them.
    pub fn accept_peers(&mut self, address: SocketAddr, hosts: Vec<String>) {
        if self.is_bare || self.primary_other().is_some() {
            return;
        }
        #[cfg(feature = "quic")]
        if let Some(quic) = self.quic.as_mut().filter(|quic| quic.server.is_some()) {
            (quic.listen, quic.advertise_hosts) = (Some(address), hosts.clone());
            if !self.tcp_is_encrypted() {
                return;
            }
        }
        (self.tcp.listen, self.tcp.advertise_hosts) = (Some(address), hosts);
    }

    /// Returns the settings of a node that reaches this one as other hosts do, over one
    /// connection; `None` if they do over a transport of the application's own.
    #[must_use]
    pub fn of_peer(&self) -> Option<Self> {
        if self.is_bare || self.primary_other().is_some() {
            return None;
        }
        let mut peer = Self { tcp: self.tcp.clone(), ..Self::default() };
        (peer.tcp.listen, peer.tcp.advertise_hosts) = (None, Vec::new());
        peer.tcp.rails = Vec::new();
        peer.tcp.links_per_peer = NonZeroUsize::MIN;
        #[cfg(feature = "quic")]
        if let Some(mut quic) = self.quic.clone() {
            (quic.listen, quic.advertise_hosts, quic.server) = (None, Vec::new(), None);
            quic.connections_per_peer = NonZeroUsize::MIN;
            peer.quic = Some(quic);
        }
        Some(peer)
    }

    /// Returns the certificates that are shown to peers. Call
    /// [`check`](mc_tls::ServerTls::check) on them now and then, so that renewed files are used.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn certificates(&self) -> Vec<Arc<mc_tls::ServerTls>> {
        let mut all: Vec<Arc<mc_tls::ServerTls>> = Vec::new();
        #[cfg(feature = "tls")]
        all.extend(self.tcp.tls.as_ref().and_then(|tls| tls.server.clone()));
        #[cfg(feature = "quic")]
        all.extend(self.quic.as_ref().and_then(|quic| quic.server.clone()));
        all
    }

    /// Returns whether peers that connect over TCP are shown a certificate.
    #[cfg(feature = "quic")]
    fn tcp_is_encrypted(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tcp.tls.as_ref().is_some_and(|tls| tls.server.is_some());
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Returns the first transport of the application's own that peers reach.
    fn primary_other(&self) -> Option<&Other> {
        self.others.iter().find(|other| other.0.endpoint().is_some())
    }

    /// Returns whether the node accepts peers over one of this crate's own transports.
    pub(super) fn listens(&self) -> bool {
        #[cfg(feature = "quic")]
        if self.quic.as_ref().is_some_and(|quic| quic.listen.is_some()) {
            return true;
        }
        self.tcp.listen.is_some()
    }
}
