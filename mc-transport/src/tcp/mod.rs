//! One-sided operations over TCP, the default between hosts.
//!
//! The owner of the memory serves requests without its application's help;
//! payloads go between socket and registered memory without a buffer between.
//! The protocol is defined in `docs/tcp-wire.md`. Without the feature `tls` and
//! certificates (`TcpConfig::tls`) it is neither encrypted nor authenticated beyond the
//! remote keys: run it inside a trusted network then.

mod config;
mod peer;
mod pool;
mod route;
mod server;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_places::Places;
use mc_types::{BoxFuture, Endpoint};
use tokio::net::TcpListener;
use tokio::runtime::Handle;

pub use self::config::TcpConfig;
#[cfg(feature = "tls")]
pub use self::config::TcpTls;
use self::pool::{Class, Pool};
use self::server::Server;
use crate::backend::accept::Door;
use crate::backend::carrier::Carrier;
use crate::backend::description::{Description, MAX_WAYS, Shortcut};
use crate::backend::listen::{ListenError, advertise};
use crate::backend::shell::{Networked, Shell};
use crate::backend::sweep::sweeping;
use crate::bundle::Bundle;
use crate::error::ConnectError;
use crate::region::RegionTable;
use crate::stream::server::{Service, preface};
use crate::stream::wire::Verdict;
use crate::transport::Transport;

const SCHEME: &str = "tcp";

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A node that moves bytes over TCP.
///
/// Its tasks run on the runtime that [`start`](Self::start) was called on, and
/// end when it is dropped or [`shutdown`](Self::shutdown). Links may be used from
/// any executor.
///
/// ```
/// use bytes::Bytes;
/// use mc_transport::{
///     Access, Link, Memory, Operation, RemoteSpan, TcpConfig, TcpTransport, Transport,
/// };
/// use mc_types::Extent;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let owner = TcpTransport::start(TcpConfig::listening("127.0.0.1:0".parse()?)).await?;
/// let memory = Memory::allocate(1 << 20)?;
/// let region = owner.register(&memory, Access::Write)?;
///
/// let peer = TcpTransport::start(TcpConfig::default()).await?;
/// let link = peer.connect(owner.endpoint().ok_or("it listens")?).await?;
/// let to = RemoteSpan::new(region.key(), Extent::new(0, 5).ok_or("it fits")?);
/// for result in link.submit(vec![Operation::write(Bytes::from_static(b"hello"), to)]).await {
///     result?;
/// }
/// assert_eq!(memory.slice(0, 5).ok_or("it fits")?.to_vec(), b"hello");
/// # Ok(())
/// # }
/// ```
pub struct TcpTransport {
    shell: Shell,
    local_address: Option<SocketAddr>,
    pool: Pool,
}

impl TcpTransport {
    /// Starts a node, and accepts peers when `config` says where.
    ///
    /// # Errors
    /// [`StartError`] when the address cannot be listened at or told to peers, or
    /// when this is not called on a Tokio runtime.
    ///
    /// # Panics
    /// When the runtime was built without its I/O or time driver.
    pub fn start(config: TcpConfig) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::start_described(config, None, Vec::new()))
    }

    /// Starts a node whose peers are served the regions of `regions`, which other
    /// transports may serve, too: a region registered with one of them has one key for
    /// all.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// As there.
    pub fn start_with(
        config: TcpConfig,
        regions: RegionTable,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::start_described(config, Some(regions), Vec::new()))
    }

    /// Starts a node that tells its peers of `shortcuts`.
    pub(crate) async fn start_described(
        config: TcpConfig,
        regions: Option<RegionTable>,
        shortcuts: Vec<Shortcut>,
    ) -> Result<Self, StartError> {
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let mut shell = Shell::new(runtime, regions);
        let mut local_address = None;
        if let Some(address) = config.listen {
            #[cfg(feature = "tls")]
            if config.tls.as_ref().is_some_and(|tls| tls.server.is_none()) {
                return Err(StartError::NoServerCertificate);
            }
            let (listeners, rails) = listeners(address, &config.rails).await?;
            let bound = rails.0;
            shell.endpoint = Some(advertise(SCHEME, &config.advertise_hosts, bound)?);
            local_address = Some(bound);
            let (node, connection, rails) = (random()?, None, rails.1);
            let description = Description { node, connection, rails, shortcuts, traces: true };
            let service = Service {
                regions: shell.regions.clone(),
                max_operation: config.max_operation.as_u64(),
                description,
                connect_timeout: config.connect_timeout,
                stall_timeout: config.stall_timeout,
            };
            // Peers that have proved something may idle for as long as there are places.
            let idle = Duration::MAX;
            let max = config.max_connections.min(most_connections());
            // The default is more than many systems give a process: no reason to warn.
            if max < config.max_connections
                && config.max_connections != TcpConfig::default().max_connections
            {
                tracing::warn!(
                    wanted = config.max_connections,
                    allowed = max,
                    "fewer connections of peers than configured, for want of file descriptors; \
                     raise the limit (ulimit -n, LimitNOFILE=)"
                );
            }
            let places = Places::new(max, config.max_connections_per_address, idle);
            let (config, counters) = (config.clone(), Arc::clone(&shell.counters));
            let tasks = Arc::downgrade(&shell.tasks);
            let refusal = preface(service.max_operation, Verdict::Busy).to_vec();
            let mut swept = Some(Arc::clone(&places));
            let door = Arc::new(Door { places, counters, tasks, refusal });
            let server = Arc::new(Server { config, service });
            for listener in listeners {
                let server = Arc::clone(&server);
                let serve = move |stream, seat| Arc::clone(&server).serve(stream, seat);
                let accept = Arc::clone(&door).accept(listener, serve);
                // One task is enough for all places.
                drop(match swept.take() {
                    Some(places) => shell.tasks.spawn(sweeping(places, accept)),
                    None => shell.tasks.spawn(accept),
                });
            }
        }
        let pool = Pool::new(config, Arc::clone(&shell.tasks), Arc::clone(&shell.counters));
        Ok(Self { shell, local_address, pool })
    }

    /// The address that peers are accepted at; `None` when they are not.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// Forgets that attempts to reach the peer at `endpoint` failed: the next one is
    /// made at once, whatever its [`Breaker`](crate::Breaker) says. For callers that know
    /// from elsewhere that the peer is back.
    pub fn forgive(&self, endpoint: &Endpoint) {
        self.pool.forgive(endpoint);
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
    pub fn stats(&self) -> TcpStats {
        let Shell { regions, tasks, counters, .. } = &self.shell;
        TcpStats {
            connections: counters.connections.load(Ordering::Relaxed),
            links: counters.links.load(Ordering::Relaxed),
            tasks: tasks.alive(),
            regions: regions.len(),
            refused_connections: counters.refused.load(Ordering::Relaxed),
            yielded_connections: counters.yielded.load(Ordering::Relaxed),
        }
    }
}

impl Networked for TcpTransport {
    type Link = Bundle;
    type Closed = ();

    const SCHEME: &'static str = SCHEME;
    const STAGED: bool = true;

    fn shell(&self) -> &Shell {
        &self.shell
    }

    async fn link(&self, endpoint: &Endpoint) -> Result<Arc<Bundle>, ConnectError> {
        self.pool.link(endpoint, Class::Memory).await
    }

    async fn link_apart(&self, endpoint: &Endpoint) -> Result<Arc<Bundle>, ConnectError> {
        self.pool.link(endpoint, Class::Staged).await
    }

    fn forgive(&self, endpoint: &Endpoint) {
        self.pool.forgive(endpoint);
    }

    fn close(&self) {
        self.shell.withdraw();
        self.pool.close();
    }

    async fn closed(&self, (): ()) {}
}

impl Carrier for TcpTransport {
    fn description(&self, endpoint: &Endpoint) -> Option<Arc<Description>> {
        self.pool.description(endpoint)
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
        self.shell.tasks.abort();
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpTransport")
            .field("endpoint", &self.shell.endpoint)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Gauges and totals of one [`TcpTransport`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpStats {
    /// Connections of peers, handshakes included.
    pub connections: usize,
    /// Links to peers.
    pub links: usize,
    /// Tasks that serve them.
    pub tasks: usize,
    /// Regions open to peers.
    pub regions: usize,
    /// Connections refused because there were too many.
    pub refused_connections: u64,
    /// Idle connections that were closed because others needed their places, so far.
    pub yielded_connections: u64,
}

/// The most connections that leave the process descriptors for other ends; some are about to go
/// while others come.
fn most_connections() -> usize {
    #[cfg(unix)]
    if let Some(descriptors) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current
    {
        return usize::try_from(descriptors / 8 * 6).unwrap_or(usize::MAX).max(1);
    }
    usize::MAX
}

fn random() -> Result<[u8; 16], StartError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)
        .map_err(|error| StartError::NoRandomness { source: error.into() })?;
    Ok(bits)
}

/// Listens at `address`, and at each rail that this does not cover; the address that was
/// taken, and those of the rails.
type Listening = (Vec<TcpListener>, (SocketAddr, Vec<SocketAddr>));

async fn listeners(address: SocketAddr, rails: &[IpAddr]) -> Result<Listening, ListenError> {
    let bound_at = |listener: &TcpListener, address| {
        listener.local_addr().map_err(|source| ListenError::new(address, source))
    };
    let open_first = || open(address);
    let first = mc_net::bind_patiently(address.port(), open_first).await;
    let first = first.map_err(|source| ListenError::new(address, source))?;
    let bound = bound_at(&first, address)?;
    let (mut listeners, mut found) = (vec![first], Vec::new());
    for &rail in rails.iter().take(MAX_WAYS) {
        let at = SocketAddr::new(rail, bound.port());
        let everywhere = bound.ip().is_unspecified() && (bound.is_ipv6() || rail.is_ipv4());
        if everywhere || bound.ip() == rail {
            found.push(at);
            continue;
        }
        // The port of the first is what an operator would open, but may be taken there.
        let listener = open(at).or_else(|_| open(SocketAddr::new(rail, 0)));
        let listener = listener.map_err(|source| ListenError::new(at, source))?;
        found.push(bound_at(&listener, at)?);
        listeners.push(listener);
    }
    Ok((listeners, (bound, found)))
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    // A restarted node must get its address back while old connections of it
    // are still in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // Whatever the system's default: peers of both families are to reach it.
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Why a [`TcpTransport`] did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address cannot be listened at or told to peers.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// TLS is on, and there is no certificate for peers that connect.
    #[cfg(feature = "tls")]
    #[error("a node that listens with TLS needs a certificate; set TcpTls::server")]
    NoServerCertificate,
    /// The system has no randomness to name the node with.
    #[error("the system gave no random bytes for the node's name")]
    NoRandomness {
        /// The system's error.
        source: io::Error,
    },
    /// The call was not made on a Tokio runtime.
    #[error("a TCP transport needs a Tokio runtime with I/O and time enabled")]
    NoRuntime,
}
