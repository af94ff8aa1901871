#![doc = include_str!("../README.md")]
#![cfg(all(feature = "rdma", target_os = "linux"))]

mod config;
mod connect;
mod control;
mod cut;
mod flow;
mod frames;
mod lanes;
mod link;
mod local;
mod pairing;
mod poller;
mod pool;
mod ports;
mod served;
mod server;
mod shared;
mod shortcut;
mod summed;
mod transfer;
mod verbs;
mod wire;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_places::Places;
use mc_transport::backend::{Door, Networked, Shell, advertise, check_scheme, sweeping};
use mc_transport::{
    ConnectError, Link, ListenError, NodeSecret, Region, RegionTable, RegisterError, Transport,
};
use mc_types::{BoxFuture, Endpoint};
use tokio::net::TcpListener;
use tokio::runtime::Handle;

pub use self::config::RdmaConfig;
pub use self::link::RdmaLink;
use self::local::LocalMemory;
use self::poller::Poller;
use self::pool::Pool;
use self::ports::Ports;
pub use self::ports::PortsError;
use self::served::Serving;
use self::server::Server;
use self::shared::Shared;
pub use self::verbs::{VerbsError, WorkError, WorkStatus};
pub use self::wire::SCHEME;
use self::wire::Verdict;

/// Regions of up to this size are registered by the call, so that it says what is wrong.
const REGISTERED_AT_ONCE: usize = 64 << 20;

/// A node whose network cards read and write the memory of others.
///
/// Its tasks run on the runtime that [`start`](Self::start) was called on, beside one thread that
/// takes completions. They end when it is dropped or [`shutdown`](Self::shutdown). Links may be
/// used from any executor.
///
pub struct RdmaTransport {
    shell: Shell,
    secret: NodeSecret,
    serving: Serving,
    shared: Arc<Shared>,
    pool: Arc<Pool>,
}

impl RdmaTransport {
    /// Starts a node with regions of its own.
    ///
    /// # Errors
    /// [`StartError`] when libibverbs or the devices are missing, when the address cannot be
    /// listened at, and when this is not called on a Tokio runtime.
    ///
    /// # Panics
    /// When the runtime was built without its I/O or time driver.
    pub fn start(config: RdmaConfig) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::new(config, None))
    }

    /// Starts a node that opens the regions of `regions`, which other transports may open, too: a
    /// region is registered once, with any of them, and has one key.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn start_with(
        config: RdmaConfig,
        regions: RegionTable,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::new(config, Some(regions)))
    }

    async fn new(config: RdmaConfig, regions: Option<RegionTable>) -> Result<Self, StartError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let secret = NodeSecret::random().map_err(|source| StartError::NoRandomness { source })?;
        let ports = Arc::new(Ports::open(&config)?);
        let poller = Poller::start(Arc::clone(&ports), config.spin);
        let poller = poller.map_err(|source| StartError::NoThread { source })?;
        let local = LocalMemory::new(Arc::clone(&ports), config.staging.as_u64());
        let shell = Shell::new(runtime, regions);
        let serving = Serving {
            transport: NEXT.fetch_add(1, Ordering::Relaxed),
            regions: shell.regions.clone(),
            ports: Arc::clone(&ports),
            chunk: config.registration_chunk.as_u64(),
        };
        let (tasks, counters) = (Arc::clone(&shell.tasks), Arc::clone(&shell.counters));
        let shared = Arc::new(Shared {
            config: config.clone(),
            ports: Arc::clone(&ports),
            local,
            poller,
            tasks: Arc::clone(&tasks),
            counters: Arc::clone(&counters),
        });
        let pool = Arc::new(Pool::new(Arc::clone(&shared)));
        let mut transport = Self { shell, secret, serving, shared, pool };
        if let Some(address) = config.listen {
            let refused = |source| ListenError::new(address, source);
            let listener = TcpListener::bind(address).await.map_err(refused)?;
            let bound = listener.local_addr().map_err(refused)?;
            let endpoint = advertise(SCHEME, config.advertise_host.as_slice(), bound)?;
            transport.shell.endpoint = Some(endpoint);
            let max = config.max_connections;
            // Peers that have queue pairs stay; the others prove something within a minute.
            let places = Places::new(max, max, Duration::MAX);
            let swept = Arc::clone(&places);
            let serving = transport.serving.clone();
            let server = Arc::new(Server::new(config, secret, ports, serving));
            let refusal = server.refusal(Verdict::Busy).encode();
            let door = Arc::new(Door { places, counters, tasks: Arc::downgrade(&tasks), refusal });
            let serve = move |stream, seat| Arc::clone(&server).serve(stream, seat);
            tasks.spawn(sweeping(swept, door.accept(listener, serve)));
        }
        Ok(transport)
    }

    /// The proof that this node shows to peers that [ask for it](Self::connect_proven). Give it to
    /// the peers that are to find this node here, over a way that reaches only them.
    #[must_use]
    pub fn secret(&self) -> NodeSecret {
        self.secret
    }

    /// A link to the peer at `endpoint`, after it has shown that it knows `secret`, and this side,
    /// too. Regions that cannot be reached by RDMA are reached over `fallback`, a link to the same
    /// peer.
    ///
    /// # Errors
    /// As [`Transport::connect`]; [`ConnectError::Impostor`] when the process that answers there
    /// does not know the secret.
    ///
    /// # Cancellation
    /// Dropping the future gives up the attempt and leaks nothing.
    pub fn connect_proven<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        secret: NodeSecret,
        fallback: Option<Arc<dyn Link>>,
    ) -> BoxFuture<'a, Result<Arc<RdmaLink>, ConnectError>> {
        Box::pin(async move {
            check_scheme(SCHEME, endpoint)?;
            self.pool.link(endpoint, Some(secret), fallback).await
        })
    }

    /// Begins to register a region of the table that this transport
    /// [shares](Self::start_with), so that the first peer need not wait for it.
    pub fn prepare(&self, region: &Region) {
        self.serving.prepare(region.key());
    }

    /// The names and numbers of the ports that are used, the best first: `mlx5_0:1`.
    #[must_use]
    pub fn ports(&self) -> Vec<String> {
        let ports = &self.shared.ports;
        let name =
            |port: &ports::Port| format!("{}:{}", ports.device_of(port).device.name(), port.number);
        ports.ports.iter().map(name).collect()
    }

    /// Ends every connection and task, and waits until they are gone. Operations under way fail;
    /// registering and connecting fail from now on.
    ///
    /// # Cancellation
    /// Dropping the future still ends everything, without waiting for it.
    pub fn shutdown<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(Transport::shutdown(self))
    }

    /// Counts of open connections, links and queue pairs.
    #[must_use]
    pub fn stats(&self) -> RdmaStats {
        let Shell { regions, tasks, counters, .. } = &self.shell;
        RdmaStats {
            connections: counters.connections.load(Ordering::Relaxed),
            links: counters.links.load(Ordering::Relaxed),
            queue_pairs: self.pool.queue_pairs(),
            tasks: tasks.alive(),
            regions: regions.len(),
            refused_connections: counters.refused.load(Ordering::Relaxed),
        }
    }

    fn end(&self) {
        self.shared.poller.end();
        self.shared.local.close();
    }
}

impl Networked for RdmaTransport {
    type Link = RdmaLink;
    type Closed = ();

    const SCHEME: &'static str = SCHEME;

    fn shell(&self) -> &Shell {
        &self.shell
    }

    async fn link(&self, endpoint: &Endpoint) -> Result<Arc<RdmaLink>, ConnectError> {
        self.pool.link(endpoint, None, None).await
    }

    /// Registers a region: small ones now, so that a limit is told to the caller, large ones in the
    /// background.
    fn opened(&self, region: Region) -> Result<Region, RegisterError> {
        if region.memory().len() <= REGISTERED_AT_ONCE {
            let registered = self.serving.register(region.key());
            registered.map_err(|source| RegisterError::Device { source })?;
        } else {
            self.prepare(&region);
        }
        Ok(region)
    }

    fn close(&self) {
        self.shell.withdraw();
        self.pool.close();
    }

    async fn closed(&self, (): ()) {
        self.end();
    }
}

impl Drop for RdmaTransport {
    fn drop(&mut self) {
        self.close();
        self.shell.tasks.abort();
        self.end();
    }
}

impl fmt::Debug for RdmaTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaTransport")
            .field("endpoint", &self.shell.endpoint)
            .field("ports", &self.shared.ports)
            .finish_non_exhaustive()
    }
}

/// Gauges and totals of one [`RdmaTransport`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaStats {
    /// Connections of peers, handshakes included.
    pub connections: usize,
    /// Links to peers.
    pub links: usize,
    /// Queue pairs of these links.
    pub queue_pairs: usize,
    /// Tasks that serve them.
    pub tasks: usize,
    /// Regions open to peers.
    pub regions: usize,
    /// Connections refused because there were too many.
    pub refused_connections: u64,
}

/// Why an [`RdmaTransport`] did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No device can be used.
    #[error("RDMA cannot be used")]
    Ports(#[from] PortsError),
    /// The address cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system has no randomness for a secret.
    #[error("the system gave no random bytes for a secret")]
    NoRandomness {
        /// The system's error.
        source: io::Error,
    },
    /// The system gave no thread or descriptor.
    #[error("the system gave no thread to take completions")]
    NoThread {
        /// The system's error.
        source: io::Error,
    },
    /// This was not called on a Tokio runtime.
    #[error("RDMA needs a Tokio runtime; start it on one")]
    NoRuntime,
}
