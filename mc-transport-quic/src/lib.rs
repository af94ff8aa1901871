#![doc = include_str!("../README.md")]

mod carrier;
mod clock;
mod config;
mod error;
mod exchange;
mod fault;
mod flow;
mod hello;
mod link;
mod parts;
mod pool;
mod server;
mod sockets;
mod tuning;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_transport::backend::{
    Carrier, Description, Networked, Shell, Shortcut, advertise, sweeping,
};
use mc_transport::{ConnectError, ListenError, RegionTable, Transport};
use mc_types::{BoxFuture, Endpoint};
use parking_lot::Mutex;
use tokio::runtime::Handle;

pub use self::config::QuicConfig;
pub use self::error::StartError;
pub use self::link::QuicLink;
use self::pool::Pool;
use self::server::Server;
pub use self::sockets::RebindError;
use self::sockets::Sockets;

const SCHEME: &str = "quic";

/// How long a node that ends waits for its peers to receive the end of their connections, which
/// is sent once; the others notice by their idle timeout.
const FAREWELL: Duration = Duration::from_secs(1);

/// A node that moves bytes over QUIC.
///
/// Its tasks run on the runtime that [`start`](Self::start) was called on, and
/// end when it is dropped or [`shutdown`](Self::shutdown). Links may be used from
/// any executor.
///
pub struct QuicTransport {
    shell: Shell,
    local_address: Option<SocketAddr>,
    pool: Pool,
    sockets: Arc<Sockets>,
    /// `None` when no peers are accepted, and after the end.
    listener: Mutex<Option<quinn::Endpoint>>,
}

impl QuicTransport {
    /// Starts a node, and accepts peers when `config` says where.
    ///
    /// # Errors
    /// [`StartError`] when a setting cannot be, when peers could come without a
    /// certificate and that was not allowed, when the address cannot be listened at or
    /// told to peers, or when this is not called on a Tokio runtime.
    ///
    /// # Panics
    /// When the runtime was built without its I/O or time driver.
    pub fn start(config: QuicConfig) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::start_described(config, None, Vec::new()))
    }

    /// Starts a node whose regions are those of `regions`: several transports that share
    /// a table reach the same regions by the same keys. They stay open when this one
    /// ends.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn start_with(
        config: QuicConfig,
        regions: RegionTable,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::start_described(config, Some(regions), Vec::new()))
    }

    /// Starts a node that tells its peers of `shortcuts`.
    pub(crate) async fn start_described(
        config: QuicConfig,
        regions: Option<RegionTable>,
        shortcuts: Vec<Shortcut>,
    ) -> Result<Self, StartError> {
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        tuning::check(&config)?;
        let mut shell = Shell::new(runtime.clone(), regions);
        let (mut local_address, mut listener) = (None, None);
        if let Some(address) = config.listen {
            let tls = config.server.clone().ok_or(StartError::NoServerCertificate)?;
            if !tls.requires_certificates() && !config.allow_anonymous_clients {
                return Err(StartError::AnonymousClients);
            }
            let (regions, counters) = (shell.regions.clone(), Arc::clone(&shell.counters));
            let mut node = [0; 16];
            getrandom::fill(&mut node)
                .map_err(|error| StartError::NoRandomness { source: error.into() })?;
            let description =
                Description { node, connection: None, rails: Vec::new(), shortcuts, traces: false };
            let server = Server::new(config.clone(), tls, regions, description, counters);
            let settings = (tuning::endpoint(&config), Some(server.settings()));
            let open = mc_net::bind_patiently(address.port(), || {
                let (endpoint, server) = settings.clone();
                sockets::open(&runtime, address, endpoint, server)
            });
            let open = open.await.map_err(|source| ListenError::new(address, source))?;
            let bound = open.local_addr().map_err(|source| ListenError::new(address, source))?;
            shell.endpoint = Some(advertise(SCHEME, &config.advertise_hosts, bound)?);
            local_address = Some(bound);
            let server = Arc::new(server);
            let places = Arc::clone(&server.places);
            let accept = server::accept(open.clone(), server, Arc::downgrade(&shell.tasks));
            shell.tasks.spawn(sweeping(places, accept));
            listener = Some(open);
        }
        let sockets = Arc::new(Sockets::new(runtime, config.clone()));
        let (tasks, counters) = (Arc::clone(&shell.tasks), Arc::clone(&shell.counters));
        let pool = Pool::new(config, Arc::clone(&sockets), tasks, counters);
        let listener = Mutex::new(listener);
        Ok(Self { shell, local_address, pool, sockets, listener })
    }

    /// The address that peers are accepted at; `None` when they are not.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// Moves the connections to peers that are reached over the version of IP of
    /// `local` to this address, and those to come; port 0 takes a free one. Operations
    /// under way continue from there, if the peers allow it. Returns the new address.
    ///
    /// # Errors
    /// [`RebindError`] when the system does not give the address; everything stays
    /// where it was then.
    pub fn rebind(&self, local: SocketAddr) -> Result<SocketAddr, RebindError> {
        self.sockets.rebind(local)
    }

    /// Ends every connection and task, and waits until they are gone. Operations
    /// under way fail; registering and connecting fail from now on.
    ///
    /// # Cancellation
    /// Dropping the future still ends everything, without waiting for it.
    pub fn shutdown<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(Transport::shutdown(self))
    }

    /// Counts of open connections and links, and of past events.
    #[must_use]
    pub fn stats(&self) -> QuicStats {
        let Shell { regions, tasks, counters, .. } = &self.shell;
        QuicStats {
            connections: counters.connections.load(Ordering::Relaxed),
            links: counters.links.load(Ordering::Relaxed),
            tasks: tasks.alive(),
            regions: regions.len(),
            refused_connections: counters.refused.load(Ordering::Relaxed),
            yielded_connections: counters.yielded.load(Ordering::Relaxed),
        }
    }
}

impl Networked for QuicTransport {
    type Link = QuicLink;
    type Closed = Vec<quinn::Endpoint>;

    const SCHEME: &'static str = SCHEME;
    const STAGED: bool = true;

    fn shell(&self) -> &Shell {
        &self.shell
    }

    async fn link(&self, endpoint: &Endpoint) -> Result<Arc<QuicLink>, ConnectError> {
        self.pool.link(endpoint).await
    }

    /// Tells every peer that this is the end; endpoints that do so.
    fn close(&self) -> Vec<quinn::Endpoint> {
        self.shell.withdraw();
        self.pool.close();
        let mut endpoints = self.sockets.close();
        if let Some(listener) = self.listener.lock().take() {
            listener.close(fault::CLOSED, b"");
            endpoints.push(listener);
        }
        endpoints
    }

    async fn closed(&self, endpoints: Vec<quinn::Endpoint>) {
        let idle = async {
            for endpoint in &endpoints {
                endpoint.wait_idle().await;
            }
        };
        // Peers that are gone do not confirm.
        let _ = tokio::time::timeout(FAREWELL, idle).await;
    }
}

impl Carrier for QuicTransport {
    fn description(&self, endpoint: &Endpoint) -> Option<Arc<Description>> {
        self.pool.description(endpoint)
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        self.close();
        self.shell.tasks.abort();
    }
}

impl fmt::Debug for QuicTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicTransport")
            .field("endpoint", &self.shell.endpoint)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Gauges and totals of one [`QuicTransport`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuicStats {
    /// Connections of peers, handshakes included.
    pub connections: usize,
    /// Links to peers, each of one connection or several.
    pub links: usize,
    /// Tasks that serve them, without those of the QUIC library.
    pub tasks: usize,
    /// Regions open to peers, those of others that share the table included.
    pub regions: usize,
    /// Connections refused because all places were taken by connections at work.
    pub refused_connections: u64,
    /// Idle connections that were closed because others needed their places, so far.
    pub yielded_connections: u64,
}
