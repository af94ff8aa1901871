//! A node that consists of several transports.
//!
//! [`config`]: which ones. [`shortcuts`]: faster ways to some peers, and how they are found. [`known_links`]: those
//! that were found before. [`link`]: a link that takes the fastest way.

mod config;
mod detours;
mod error;
mod known_links;
mod link;
mod shortcuts;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use mc_memory::{Access, Memory, MemoryError};
use mc_types::{BoxFuture, Endpoint, RemoteKey};
use parking_lot::Mutex;

pub use self::config::NodeConfig;
use self::config::Other;
use self::detours::{Detours, is_certain};
pub use self::error::NodeError;
use self::known_links::KnownLinks;
pub use self::link::NodeLink;
use self::shortcuts::Shortcuts;
use crate::backend::carrier::{Carrier, ShortcutTransport};
use crate::completion::Outcome;
use crate::copiers::Copiers;
use crate::copy::AdmittedSpan;
use crate::error::{ConnectError, RegisterError, TransferError};
use crate::operation::Operation;
use crate::region::{Region, RegionTable, ServedTotals, Tickets};
use crate::staged::Staging;
use crate::tcp::TcpTransport;
use crate::transport::{DynTransport, Link, PeerConnections, Transport};

/// A node that peers reach over several transports, by one endpoint and with one key for each
/// region.
///
/// It reaches each peer over the transport of its endpoint's scheme, or of those that the endpoint
/// names besides ([`Endpoint::others`]) where that does not reach it, and over shared memory where
/// the peer turns out to be on the same host. Where that does not work, as between containers that
/// share no network, the other transport stays in use.
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
    regions: RegionTable,
    /// In the order of preference.
    transports: Vec<Arc<dyn DynTransport>>,
    /// The index of the transport that peers reach.
    primary: usize,
    /// Where peers reach it.
    endpoint: Option<Endpoint>,
    /// Whether regions are opened by all of this crate's transports.
    shares_regions: bool,
    shortcuts: Shortcuts,
    known_links: KnownLinks,
    detours: Detours,
    copiers: Copiers,
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
    pub fn start(config: NodeConfig) -> BoxFuture<'static, Result<Self, NodeError>> {
        Box::pin(Self::start_all(config))
    }

    async fn start_all(config: NodeConfig) -> Result<Self, NodeError> {
        let regions = RegionTable::new();
        if config.is_bare {
            let transports: Vec<_> = config.others.into_iter().map(|Other(one)| one).collect();
            let others = transports.len();
            let alone = Copiers::new(NonZeroUsize::MIN);
            return Ok(Self::of(transports, others, regions, Shortcuts::default(), alone));
        }
        let mut shortcuts = Shortcuts::start(&config, &regions).await?;
        let told = shortcuts.told();
        let mut transports: Vec<_> = config.others.into_iter().map(|Other(one)| one).collect();
        let others = transports.len();
        for carrier in config.carriers {
            let started = carrier.start(regions.clone(), told.clone()).await;
            let carrier = started.map_err(NodeError::Carrier)?;
            shortcuts.told_by(&carrier);
            transports.push(carrier);
        }
        let tcp = TcpTransport::start_described(config.tcp, Some(regions.clone()), told).await?;
        let tcp: Arc<dyn Carrier> = Arc::new(tcp);
        shortcuts.told_by(&tcp);
        transports.push(tcp);
        Ok(Self::of(transports, others, regions, shortcuts, config.copiers))
    }

    /// A node of these transports, the first `others` of which are from outside this crate.
    fn of(
        transports: Vec<Arc<dyn DynTransport>>,
        others: usize,
        regions: RegionTable,
        shortcuts: Shortcuts,
        copiers: Copiers,
    ) -> Self {
        let listens = transports.iter().position(|transport| transport.endpoint().is_some());
        let primary = listens.unwrap_or(transports.len() - 1);
        let shares_regions = primary >= others;
        // Those that open other regions are no ways to these.
        let ours =
            if shares_regions { &transports[others..] } else { &transports[primary..=primary] };
        let endpoints = ours.iter().filter_map(|one| one.endpoint());
        // Each transport is named before any is named at a second address.
        let further = endpoints.clone().flat_map(Endpoint::others);
        let mut ways = endpoints.clone().chain(further).cloned();
        let endpoint = ways.next().map(|first| first.with_others(ways));
        let (known_links, detours) = (KnownLinks::default(), Detours::default());
        Self {
            regions,
            transports,
            primary,
            endpoint,
            shares_regions,
            shortcuts,
            known_links,
            detours,
            copiers,
        }
    }

    fn primary(&self) -> &dyn DynTransport {
        &*self.transports[self.primary]
    }

    /// Returns what peers were served over this crate's transports. What processes of this host
    /// read and write by themselves is not in it; see [`ServedTotals`].
    #[must_use]
    pub fn served(&self) -> ServedTotals {
        self.regions.served()
    }

    /// Returns the connections that peers made to this node, by the scheme of the transport.
    #[must_use]
    pub fn connections(&self) -> Vec<(&'static str, PeerConnections)> {
        let all = self.transports.iter().map(|transport| &**transport);
        let all = all.chain(self.shortcuts.transports());
        all.map(|transport| (transport.scheme(), transport.peer_connections())).collect()
    }

    /// Returns the node's shortcut of the type `T`, such as its RDMA transport; `None` when it has
    /// none, or none could be started.
    #[must_use]
    pub fn shortcut<T: ShortcutTransport>(&self) -> Option<&T> {
        self.shortcuts.get()
    }

    /// Carries an operation out on memory that is registered with this node itself, by
    /// copying it here and now; `None` when its key is another node's, or that of
    /// [staged](Staging) memory. It needs no ticket: the memory is this process's own.
    #[must_use]
    pub fn copy_own(&self, operation: &Operation) -> Option<Outcome> {
        let span = operation.remote();
        let (offset, len) = (span.extent.offset(), span.extent.len());
        let admitted = self.regions.admit_owner(span.key, offset, len, operation.access());
        // Copies of staged memory block: they are left to the transports.
        let is_elsewhere = |error: &TransferError| {
            matches!(error, TransferError::KeyRefused | TransferError::Unsupported { .. })
        };
        if admitted.as_ref().is_err_and(is_elsewhere) {
            return None;
        }
        let copied = || {
            operation.validate()?;
            let permit = AdmittedSpan { span, admitted: admitted? };
            self.copiers.copy(operation, permit.admitted.memory(), &permit)
        };
        Some(copied())
    }

    /// Ends every connection and task, and waits until they are gone. Operations
    /// under way fail; registering and connecting fail from now on.
    ///
    /// # Cancellation
    /// Dropping the future still ends everything, without waiting for it.
    pub fn shutdown<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.regions.clear();
            for transport in &self.transports {
                transport.shutdown().await;
            }
            self.shortcuts.shutdown().await;
        })
    }
}

impl Transport for Node {
    type Link = NodeLink;

    fn scheme(&self) -> &'static str {
        self.primary().scheme()
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        match self.shortcuts.shared_memory() {
            Some(shared) if self.shares_regions => shared.allocate(len),
            _ => self.primary().allocate(len),
        }
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        let region = self.primary().register(memory, access)?;
        self.shortcuts.prepare(&region);
        Ok(region)
    }

    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        let region = self.primary().register_with_tickets(memory, access, tickets)?;
        self.shortcuts.prepare(&region);
        Ok(region)
    }

    fn register_again(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Option<Tickets>,
        key: RemoteKey,
    ) -> Result<Region, RegisterError> {
        let region = self.primary().register_again(memory, access, tickets, key)?;
        self.shortcuts.prepare(&region);
        Ok(region)
    }

    /// Peers on this host read and write it over a stream, too.
    fn register_staged(
        &self,
        memory: &Staging,
        access: Access,
        tickets: Option<Tickets>,
    ) -> Result<Region, RegisterError> {
        self.primary().register_staged(memory, access, tickets)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<NodeLink>, ConnectError> {
        self.connect_for(endpoint, Use::Memory).await
    }

    /// Over the transport of the endpoint's scheme: no shortcut leads to staged memory.
    async fn connect_apart(&self, endpoint: &Endpoint) -> Result<Arc<NodeLink>, ConnectError> {
        self.connect_for(endpoint, Use::Staged).await
    }

    fn forgive(&self, endpoint: &Endpoint) {
        for (transport, way) in self.ways(endpoint) {
            transport.forgive(way);
        }
    }

    async fn shutdown(&self) {
        Self::shutdown(self).await;
    }
}

/// The kind of memory that a link serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Memory,
    Staged,
}

impl Use {
    async fn connect(
        self,
        transport: &dyn DynTransport,
        endpoint: &Endpoint,
    ) -> Result<Arc<dyn Link>, ConnectError> {
        match self {
            Self::Memory => transport.connect(endpoint).await,
            Self::Staged => transport.connect_apart(endpoint).await,
        }
    }
}

impl Node {
    async fn connect_for(
        &self,
        endpoint: &Endpoint,
        used: Use,
    ) -> Result<Arc<NodeLink>, ConnectError> {
        if used == Use::Memory
            && let Some(link) = self.known_links.of(endpoint)
        {
            return Ok(Arc::new(link));
        }
        if let Some(way) = self.detours.of(endpoint) {
            let found = self.transports.iter().find(|one| one.scheme() == way.scheme());
            if let Some(transport) = found
                && let Ok(link) = used.connect(&**transport, &way).await
            {
                return Ok(self.shorten(&**transport, endpoint, &way, link, used).await);
            }
            self.detours.forget(endpoint);
        }
        let mut refused = None;
        for (at, (transport, first)) in self.ways(endpoint).enumerate() {
            let is_same = |(_, way): (_, &Endpoint)| way.scheme() == first.scheme();
            if self.ways(endpoint).take(at).any(is_same) {
                continue;
            }
            let connected = match self.ways(endpoint).skip(at + 1).any(is_same) {
                true => self.race(transport, endpoint, used).await,
                false => used.connect(transport, first).await.map(|link| (first, link)),
            };
            match connected {
                Ok((way, link)) => {
                    if way != first {
                        self.detours.found(endpoint, way);
                    }
                    return Ok(self.shorten(transport, endpoint, way, link, used).await);
                }
                Err(error) => {
                    tracing::debug!(endpoint = %first, %error, "no way to the peer");
                    // That of the way that the peer prefers says most.
                    refused.get_or_insert(error);
                }
            }
        }
        Err(refused.unwrap_or_else(|| ConnectError::WrongScheme {
            scheme: self.primary().scheme(),
            endpoint: endpoint.clone(),
        }))
    }

    /// Returns the transports that may reach `endpoint`, each with the endpoint of its own, in
    /// the order that the peer prefers.
    fn ways<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> impl Iterator<Item = (&'a dyn DynTransport, &'a Endpoint)> {
        std::iter::once(endpoint).chain(endpoint.others()).filter_map(|way| {
            let found = self.transports.iter().find(|one| one.scheme() == way.scheme());
            found.map(|transport| (&**transport, way))
        })
    }

    /// Connects over `transport` at the first of a peer's addresses that answers. The error is that of
    /// the address that the peer prefers, which says most.
    async fn race<'a>(
        &'a self,
        transport: &'a dyn DynTransport,
        endpoint: &'a Endpoint,
        used: Use,
    ) -> Result<(&'a Endpoint, Arc<dyn Link>), ConnectError> {
        let ways = self.ways(endpoint).map(|(_, way)| way);
        let ways: Vec<_> = ways.filter(|way| way.scheme() == transport.scheme()).collect();
        let (preferred, failures) = (ways[0], Mutex::new(Vec::new()));
        let attempt = |way: &'a Endpoint| {
            let failures = &failures;
            async move {
                let connected = used.connect(transport, way).await.map(|link| (way, link));
                connected.map_err(|error| failures.lock().push((way != preferred, error)))
            }
        };
        if let Some(Ok(connected)) = mc_net::race(ways, attempt).await {
            return Ok(connected);
        }
        let failures = failures.into_inner().into_iter();
        let (_, error) = failures.min_by_key(|(is_other, _)| *is_other).expect("one for each way");
        Err(error)
    }

    /// Returns the fastest link to the node that `link` leads to, for the peer of `endpoint`.
    async fn shorten(
        &self,
        transport: &dyn DynTransport,
        endpoint: &Endpoint,
        way: &Endpoint,
        link: Arc<dyn Link>,
        used: Use,
    ) -> Arc<NodeLink> {
        let shortcut = match used {
            Use::Memory => self.shortcuts.link(way, &link).await,
            Use::Staged => None,
        };
        let (scheme, is_certain) = (transport.scheme(), is_certain(endpoint, way));
        let link = NodeLink { scheme, link, shortcut, is_certain };
        // Behind a detour the way that the peer likes best is tried again soon.
        if way == endpoint {
            self.known_links.remember(endpoint, &link);
        }
        Arc::new(link)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schemes: Vec<_> = self.transports.iter().map(|one| one.scheme()).collect();
        f.debug_struct("Node").field("transports", &schemes).finish_non_exhaustive()
    }
}
