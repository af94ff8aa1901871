//! A transport over a network, short of the network: what is the same for all of them.

use std::future::Future;
use std::sync::Arc;

use mc_memory::{Access, Memory, MemoryError};
use mc_types::{Endpoint, RemoteKey};
use tokio::runtime::Handle;

use super::counters::Counters;
use super::tasks::Tasks;
use crate::error::{ConnectError, RegisterError};
use crate::region::{Region, RegionTable, Tickets};
use crate::staged::Staging;
use crate::transport::{Link, PeerConnections, Transport};

/// The regions of a transport, its tasks and counters, and where peers reach it.
pub struct Shell {
    /// Where peers reach it; `None` when it does not accept them.
    pub endpoint: Option<Endpoint>,
    /// The regions that peers reach.
    pub regions: RegionTable,
    /// Whether the regions end with this transport.
    owns_regions: bool,
    /// Everything that runs for it.
    pub tasks: Arc<Tasks>,
    /// Its connections and links.
    pub counters: Arc<Counters>,
}

impl Shell {
    /// The shell of a transport whose tasks run on `runtime`. It serves the regions of `regions`, which
    /// other transports may serve, too, or regions of its own, which end with it.
    #[must_use]
    pub fn new(runtime: Handle, regions: Option<RegionTable>) -> Self {
        Self {
            endpoint: None,
            owns_regions: regions.is_none(),
            regions: regions.unwrap_or_default(),
            tasks: Arc::new(Tasks::new(runtime)),
            counters: Arc::default(),
        }
    }

    /// Withdraws the regions that are the transport's own.
    pub fn withdraw(&self) {
        if self.owns_regions {
            self.regions.clear();
        }
    }

    fn check_open(&self) -> Result<(), RegisterError> {
        if self.tasks.is_ended() { Err(RegisterError::Closed) } else { Ok(()) }
    }
}

/// Returns an error unless `endpoint` is one of `scheme`, the transport's own.
///
/// # Errors
/// [`ConnectError::WrongScheme`].
pub fn check_scheme(scheme: &'static str, endpoint: &Endpoint) -> Result<(), ConnectError> {
    if endpoint.scheme() == scheme {
        return Ok(());
    }
    Err(ConnectError::WrongScheme { scheme, endpoint: endpoint.clone() })
}

/// A transport with a [`Shell`]: it is a [`Transport`] by what its network adds to that.
pub trait Networked: Send + Sync + Sized + 'static {
    /// The link to a peer.
    type Link: Link;

    /// The rest that is waited for after the end, such as sockets that say farewell.
    type Closed: Send;

    /// The scheme of the endpoints that it connects to.
    const SCHEME: &'static str;

    /// Whether peers reach staged memory over it.
    const STAGED: bool = false;

    /// The parts that this transport shares with all others.
    fn shell(&self) -> &Shell;

    /// As [`Transport::connect`], for an endpoint of this scheme.
    ///
    /// # Errors
    /// As there.
    fn link(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = Result<Arc<Self::Link>, ConnectError>> + Send;

    /// As [`Transport::connect_apart`], for an endpoint of this scheme.
    ///
    /// # Errors
    /// As there.
    fn link_apart(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = Result<Arc<Self::Link>, ConnectError>> + Send {
        self.link(endpoint)
    }

    /// As [`Transport::allocate`].
    ///
    /// # Errors
    /// As there.
    fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        Memory::allocate(len)
    }

    /// Prepares a region of the host's memory that was just opened. Does nothing by default.
    ///
    /// # Errors
    /// [`RegisterError`], which withdraws it.
    fn opened(&self, region: Region) -> Result<Region, RegisterError> {
        Ok(region)
    }

    /// As [`Transport::forgive`].
    fn forgive(&self, endpoint: &Endpoint) {
        let _ = endpoint;
    }

    /// Ends every link, and [withdraws](Shell::withdraw) the regions. May be called again.
    fn close(&self) -> Self::Closed;

    /// Waits for what is left after the tasks have ended.
    fn closed(&self, closed: Self::Closed) -> impl Future<Output = ()> + Send;
}

impl<T: Networked> Transport for T {
    type Link = <T as Networked>::Link;

    fn scheme(&self) -> &'static str {
        T::SCHEME
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        self.shell().endpoint.as_ref()
    }

    fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        Networked::allocate(self, len)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        self.shell().check_open()?;
        self.opened(self.shell().regions.register(memory, access)?)
    }

    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        self.shell().check_open()?;
        self.opened(self.shell().regions.register_with_tickets(memory, access, tickets)?)
    }

    fn register_again(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Option<Tickets>,
        key: RemoteKey,
    ) -> Result<Region, RegisterError> {
        self.shell().check_open()?;
        self.opened(self.shell().regions.register_again(memory, access, tickets, key)?)
    }

    fn register_staged(
        &self,
        memory: &Staging,
        access: Access,
        tickets: Option<Tickets>,
    ) -> Result<Region, RegisterError> {
        if !T::STAGED {
            return Err(RegisterError::NoStaging);
        }
        self.shell().check_open()?;
        self.shell().regions.register_staged(memory, access, tickets)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<Self::Link>, ConnectError> {
        check_scheme(T::SCHEME, endpoint)?;
        self.link(endpoint).await
    }

    async fn connect_apart(&self, endpoint: &Endpoint) -> Result<Arc<Self::Link>, ConnectError> {
        check_scheme(T::SCHEME, endpoint)?;
        self.link_apart(endpoint).await
    }

    fn forgive(&self, endpoint: &Endpoint) {
        Networked::forgive(self, endpoint);
    }

    fn peer_connections(&self) -> PeerConnections {
        self.shell().counters.of_peers()
    }

    async fn shutdown(&self) {
        let closed = self.close();
        self.shell().tasks.end().await;
        self.closed(closed).await;
    }
}
