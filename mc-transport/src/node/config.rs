//! Settings of a node.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::backend::carrier::{CarrierConfig, Reached, ShortcutConfig};
use crate::copiers::Copiers;
#[cfg(target_os = "linux")]
use crate::shm::{ShmConfig, ShmListen};
use crate::tcp::TcpConfig;
use crate::transport::DynTransport;

/// Settings of a [`Node`](super::Node): the transports that it consists of.
///
/// A node accepts peers over each of these that does, and tells them the endpoint of the first: the
/// transports added by [`with_transport`](Self::with_transport), those added by
/// [`add_carrier`](Self::add_carrier), TCP. With that of the second it names TCP's as another way; a
/// transport of the application's own is the only one of its node.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NodeConfig {
    /// TCP: every node can reach peers over it.
    pub tcp: TcpConfig,
    /// Shared memory between processes of the same host; `None` leaves it out. Linux.
    #[cfg(target_os = "linux")]
    pub shm: Option<ShmConfig>,
    /// The threads that share copies within this host, those of shared memory among them; its settings
    /// have no say. Default two where there are two CPUs.
    pub copiers: Copiers,
    pub(super) carriers: Vec<Arc<dyn CarrierConfig>>,
    pub(super) shortcuts: Vec<Arc<dyn ShortcutConfig>>,
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

    /// Adds a transport between hosts, such as QUIC, which is preferred to TCP and serves the same
    /// regions. `settings` are those of the transport; several may be added, the best first.
    pub fn add_carrier(&mut self, settings: impl CarrierConfig) {
        self.carriers.push(Arc::new(settings));
    }

    /// Adds a faster way to some peers, such as RDMA, beside shared memory. It is advertised over
    /// TCP and the [carriers](Self::add_carrier), which carry what it does not. A host that has
    /// nothing for it starts without.
    pub fn add_shortcut(&mut self, settings: impl ShortcutConfig) {
        self.shortcuts.push(Arc::new(settings));
    }

    /// Returns whether there are [shortcuts](Self::add_shortcut) beside shared memory, whose devices may
    /// still write memory while the process ends.
    #[must_use]
    pub fn has_shortcuts(&self) -> bool {
        !self.shortcuts.is_empty()
    }

    /// Has the node accept peers at `address` and tells them `hosts`, names or addresses without a
    /// port, the best one first: over the carriers that can, as QUIC with a certificate to show, and over
    /// TCP if that has one, too; without such over TCP; over none if a transport of the application's own
    /// accepts them.
    pub fn accept_peers(&mut self, address: SocketAddr, hosts: Vec<String>) {
        if self.is_bare || self.primary_other().is_some() {
            return;
        }
        let mut is_carried = false;
        for carrier in &mut self.carriers {
            if let Some(accepting) = carrier.accepting(address, &hosts) {
                (*carrier, is_carried) = (accepting, true);
            }
        }
        if is_carried && !self.tcp.shows_certificate() {
            return;
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
        peer.carriers = self.carriers.iter().map(|carrier| carrier.of_peer()).collect();
        Some(peer)
    }

    /// Returns the certificates that are shown to peers. Call
    /// [`check`](mc_tls::ServerTls::check) on them now and then, so that renewed files are used.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn certificates(&self) -> Vec<Arc<mc_tls::ServerTls>> {
        let tcp = self.tcp.tls.as_ref().and_then(|tls| tls.server.clone());
        tcp.into_iter().chain(self.carriers.iter().filter_map(|one| one.certificate())).collect()
    }

    /// Returns the first transport of the application's own that peers reach.
    fn primary_other(&self) -> Option<&Other> {
        self.others.iter().find(|other| other.0.endpoint().is_some())
    }

    /// Returns where the node is reached over the transports between hosts that share its regions.
    pub(super) fn reached(&self) -> Reached {
        let listen = self.carriers.iter().find_map(|one| one.listens_at()).or(self.tcp.listen);
        let carried = self.carriers.iter().find_map(|one| one.advertised_hosts().first());
        Reached { listen, host: carried.or(self.tcp.advertise_hosts.first()).cloned() }
    }

    /// Returns the settings of shared memory, if it is on. It has no listener when the node has none.
    #[cfg(target_os = "linux")]
    pub(super) fn sharing(&self) -> Option<ShmConfig> {
        let mut shm = self.shm.clone()?;
        shm.copiers = self.copiers.clone();
        if self.reached().listen.is_none() && shm.listen == ShmListen::Random {
            shm.listen = ShmListen::Nowhere;
        }
        Some(shm)
    }
}
