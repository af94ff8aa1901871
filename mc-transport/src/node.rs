//! A node on every way that leads to it.

#[cfg(all(feature = "shm", target_os = "linux"))]
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
#[cfg(all(feature = "shm", target_os = "linux"))]
use std::time::Instant;

use mc_types::Endpoint;
#[cfg(all(feature = "shm", target_os = "linux"))]
use parking_lot::Mutex;
#[cfg(all(feature = "shm", target_os = "linux"))]
use tracing::{debug, info};

use crate::access::Access;
#[cfg(all(feature = "shm", target_os = "linux"))]
use crate::breaker::{Breaker, BreakerConfig};
use crate::bundle::Bundle;
use crate::completion::{Completions, Outcome};
use crate::copy::copy;
use crate::error::{ConnectError, RegisterError, TransferError};
use crate::link_id::LinkId;
use crate::memory::{Memory, MemoryError};
use crate::operation::{Operation, RemoteSpan};
use crate::region::{Region, RegionTable, ServedTotals, Tickets};
#[cfg(all(feature = "shm", target_os = "linux"))]
use crate::shm::{self, ShmConfig, ShmListen, ShmSecret, ShmTransport};
#[cfg(all(feature = "shm", target_os = "linux"))]
use crate::stream::description::Shortcut;
use crate::tcp::{self, TcpConfig, TcpTransport};
use crate::transport::{Capabilities, Link, Transport, View};

#[cfg(all(feature = "shm", target_os = "linux"))]
/// Nodes whose shortcuts did not work, and are remembered.
const REMEMBERED_NODES: usize = 1024;

/// Settings of a [`Node`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NodeConfig {
    /// How other hosts are reached, and where the node itself is.
    pub tcp: TcpConfig,
    /// How processes of the same host share memory; `None` lets them use TCP. Linux,
    /// with the feature `shm`.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    pub shm: Option<ShmConfig>,
}

impl NodeConfig {
    /// TCP with these settings, and shared memory with its defaults.
    #[must_use]
    pub fn new(tcp: TcpConfig) -> Self {
        Self {
            tcp,
            #[cfg(all(feature = "shm", target_os = "linux"))]
            shm: Some(ShmConfig::default()),
        }
    }
}

/// The connections that peers made to a [`Node`] in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerConnections {
    /// Open now, handshakes included.
    pub open: usize,
    /// Refused so far, because all places were taken by connections at work.
    pub refused: u64,
    /// Idle ones that were closed so far because others needed their places.
    pub yielded: u64,
}

/// A node that other hosts reach over TCP and processes of the same host through shared
/// memory, by one endpoint and with one key for each region.
///
/// A peer of the same host is found by itself: over TCP a node says where its socket for
/// sharing memory is, and a secret. Who can connect to that socket, and proves over it to
/// know the secret, as the other side does, is on the same host; names of hosts prove
/// nothing. Where that does not work, as between containers that share no network, TCP
/// stays in use.
///
/// ```
/// use bytes::Bytes;
/// use mc_transport::{
///     Access, Link, Node, NodeConfig, Operation, RemoteSpan, TcpConfig, Transport,
/// };
/// use mc_types::Extent;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tcp = TcpConfig::listening("127.0.0.1:0".parse()?);
/// let owner = Node::start(NodeConfig::new(tcp)).await?;
/// let memory = owner.allocate(1 << 20)?;
/// let region = owner.register(&memory, Access::ReadWrite)?;
///
/// let peer = Node::start(NodeConfig::new(TcpConfig::default())).await?;
/// let link = peer.connect(owner.endpoint().ok_or("it listens")?).await?;
/// assert!(link.is_shared(), "both are on this host");
/// let to = RemoteSpan::new(region.key(), Extent::new(0, 5).ok_or("it fits")?);
/// link.submit(vec![Operation::write(Bytes::from_static(b"hello"), to)]).await.remove(0)?;
/// assert_eq!(link.view(to)?.bytes().to_vec(), b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Node {
    tcp: TcpTransport,
    #[cfg(all(feature = "shm", target_os = "linux"))]
    shm: Option<ShmTransport>,
    regions: RegionTable,
    #[cfg(all(feature = "shm", target_os = "linux"))]
    /// By node: shortcuts that do not work are tried less and less often.
    refused: Mutex<HashMap<[u8; 16], Breaker>>,
}

impl Node {
    /// Starts a node.
    ///
    /// # Errors
    /// [`NodeError`] when one of its transports does not start, or when this is not
    /// called on a Tokio runtime.
    ///
    /// # Panics
    /// When the runtime was built without its I/O or time driver.
    pub async fn start(config: NodeConfig) -> Result<Self, NodeError> {
        let regions = RegionTable::new();
        #[cfg(not(all(feature = "shm", target_os = "linux")))]
        let shortcuts = Vec::new();
        #[cfg(all(feature = "shm", target_os = "linux"))]
        let shm = match config.shm {
            Some(mut shm) => {
                if config.tcp.listen.is_none() && shm.listen == ShmListen::Random {
                    // Nobody is told of a node that accepts no peers.
                    shm.listen = ShmListen::Nowhere;
                }
                Some(ShmTransport::start_with(shm, regions.clone()).await?)
            }
            None => None,
        };
        #[cfg(all(feature = "shm", target_os = "linux"))]
        let shortcuts = shm.iter().filter_map(shortcut).collect();
        let tcp = TcpTransport::start_described(config.tcp, regions.clone(), shortcuts).await?;
        Ok(Self {
            tcp,
            #[cfg(all(feature = "shm", target_os = "linux"))]
            shm,
            regions,
            #[cfg(all(feature = "shm", target_os = "linux"))]
            refused: Mutex::default(),
        })
    }

    /// The TCP side.
    #[must_use]
    pub fn tcp(&self) -> &TcpTransport {
        &self.tcp
    }

    /// The side that shares memory; `None` when it was not asked for.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    #[must_use]
    pub fn shm(&self) -> Option<&ShmTransport> {
        self.shm.as_ref()
    }

    /// What peers were served, whichever way they asked. What processes of this host read
    /// and write by themselves is not in it; see [`ServedTotals`].
    #[must_use]
    pub fn served(&self) -> ServedTotals {
        self.regions.served()
    }

    /// Connections that peers made to this node over TCP.
    #[must_use]
    pub fn tcp_connections(&self) -> PeerConnections {
        let stats = self.tcp.stats();
        PeerConnections {
            open: stats.connections,
            refused: stats.refused_connections,
            yielded: stats.yielded_connections,
        }
    }

    /// Connections that processes of this host made to share memory with it.
    #[must_use]
    pub fn shm_connections(&self) -> PeerConnections {
        #[cfg(all(feature = "shm", target_os = "linux"))]
        if let Some(shm) = &self.shm {
            let stats = shm.stats();
            return PeerConnections {
                open: stats.connections,
                refused: stats.refused_connections,
                yielded: stats.yielded_connections,
            };
        }
        PeerConnections::default()
    }

    /// Forgets that attempts to reach the peer at `endpoint` failed; see
    /// [`TcpTransport::forgive`].
    pub fn forgive(&self, endpoint: &Endpoint) {
        self.tcp.forgive(endpoint);
    }

    /// Carries an operation out on memory that is registered with this node itself, by
    /// copying it here and now; `None` when its key is another node's. It needs no ticket:
    /// the memory is this process's own.
    #[must_use]
    pub fn copy_own(&self, operation: &Operation) -> Option<Outcome> {
        let span = operation.remote();
        let (offset, len) = (span.extent.offset(), span.extent.len());
        let admitted = self.regions.admit_owner(span.key, offset, len, operation.access());
        if matches!(admitted, Err(TransferError::KeyRefused)) {
            return None;
        }
        let copied = || {
            operation.validate()?;
            let admitted = admitted?;
            let may_go_on = || span.check_time().and_then(|()| admitted.check());
            copy(operation, admitted.memory(), may_go_on)
        };
        Some(copied())
    }

    /// Ends every connection and task, and waits until they are gone. Operations
    /// under way fail; registering and connecting fail from now on.
    ///
    /// # Cancellation
    /// Dropping the future still ends everything, without waiting for it.
    pub async fn shutdown(&self) {
        self.regions.clear();
        self.tcp.shutdown().await;
        #[cfg(all(feature = "shm", target_os = "linux"))]
        if let Some(shm) = &self.shm {
            shm.shutdown().await;
        }
    }

    /// The link over shared memory to the node at `endpoint`, if there can be one.
    #[cfg(not(all(feature = "shm", target_os = "linux")))]
    async fn shared(&self, _: &Endpoint) -> Option<Arc<dyn Link>> {
        None
    }

    /// The link over shared memory to the node at `endpoint`, if there can be one.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    async fn shared(&self, endpoint: &Endpoint) -> Option<Arc<dyn Link>> {
        let shm = self.shm.as_ref()?;
        let peer = self.tcp.description(endpoint)?;
        let ours = Transport::scheme(shm);
        let shortcut = peer.shortcuts.iter().find(|way| way.endpoint.scheme() == ours)?;
        {
            let mut refused = self.refused.lock();
            if let Some(breaker) = refused.get_mut(&peer.node) {
                breaker.admit(Instant::now()).ok()?;
            }
        }
        let secret = ShmSecret::from_bytes(shortcut.secret);
        match shm.connect_proven(&shortcut.endpoint, secret).await {
            Ok(link) => {
                if self.refused.lock().remove(&peer.node).is_some() {
                    info!(%endpoint, "memory is shared with this peer again");
                }
                Some(link)
            }
            Err(error) => {
                debug!(%endpoint, %error, "memory cannot be shared with this peer");
                let mut refused = self.refused.lock();
                if refused.len() >= REMEMBERED_NODES {
                    refused.clear();
                }
                let config = BreakerConfig { failures: 1, ..BreakerConfig::default() };
                let breaker = refused.entry(peer.node).or_insert_with(|| Breaker::new(config));
                breaker.failed(Instant::now());
                None
            }
        }
    }
}

impl Transport for Node {
    type Link = NodeLink;

    fn scheme(&self) -> &'static str {
        Transport::scheme(&self.tcp)
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        Transport::endpoint(&self.tcp)
    }

    fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        #[cfg(all(feature = "shm", target_os = "linux"))]
        if let Some(shm) = &self.shm {
            return Transport::allocate(shm, len);
        }
        Transport::allocate(&self.tcp, len)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        // The table is that of both sides.
        Transport::register(&self.tcp, memory, access)
    }

    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        Transport::register_with_tickets(&self.tcp, memory, access, tickets)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<NodeLink>, ConnectError> {
        let tcp = Transport::connect(&self.tcp, endpoint).await?;
        let shm = self.shared(endpoint).await;
        Ok(Arc::new(NodeLink { tcp, shm }))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

/// A link of a [`Node`], over whichever way is best.
pub struct NodeLink {
    tcp: Arc<Bundle>,
    shm: Option<Arc<dyn Link>>,
}

impl NodeLink {
    /// Whether both sides share memory.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shm.as_ref().is_some_and(|shm| shm.is_healthy())
    }

    fn best(&self) -> &dyn Link {
        match &self.shm {
            Some(shm) if shm.is_healthy() => &**shm,
            _ => &*self.tcp,
        }
    }
}

impl Link for NodeLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        self.best().submit(batch)
    }

    fn is_healthy(&self) -> bool {
        self.best().is_healthy()
    }

    fn capabilities(&self) -> Capabilities {
        self.best().capabilities()
    }

    fn id(&self) -> Option<LinkId> {
        self.best().id()
    }

    /// Of all ways: what was given to one may have gone another.
    fn ids(&self) -> Vec<LinkId> {
        let shm = self.shm.iter().flat_map(|shm| shm.ids());
        self.tcp.ids().into_iter().chain(shm).collect()
    }

    fn fence(&self, lost: LinkId) -> Completions {
        self.best().fence(lost)
    }

    fn view(&self, span: RemoteSpan) -> Result<View, TransferError> {
        self.best().view(span)
    }
}

impl fmt::Debug for NodeLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLink")
            .field("tcp", &self.tcp)
            .field("is_shared", &self.is_shared())
            .finish_non_exhaustive()
    }
}

/// What peers are told of the side that shares memory.
#[cfg(all(feature = "shm", target_os = "linux"))]
fn shortcut(shm: &ShmTransport) -> Option<Shortcut> {
    let endpoint = Transport::endpoint(shm)?.clone();
    Some(Shortcut { endpoint, secret: shm.secret().to_bytes() })
}

/// Why a [`Node`] did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Because of its TCP side.
    #[error(transparent)]
    Tcp(#[from] tcp::StartError),
    /// Because of the side that shares memory.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    #[error("memory cannot be shared with processes of this host; see NodeConfig::shm")]
    Shm(#[from] shm::StartError),
}
