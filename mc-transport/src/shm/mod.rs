//! One-sided operations between processes of one host, over memory that they share.
//!
//! Memory that a transport of this kind [allocates](Transport::allocate) is known to
//! the system by a descriptor. A peer that has a region's key asks its owner for that
//! descriptor over a Unix socket, once, and maps the memory. From there on a read or a
//! write is one copy by the peer, and [`Link::view`](crate::Link::view) is none. Other
//! memory can be registered, too: it is reached by a stream, with the protocol of
//! [`tcp`](crate::tcp). `docs/shm-wire.md` defines what is said on the socket.
//!
//! The two of one node go together: a [`RegionTable`] shared between a
//! [`TcpTransport`](crate::TcpTransport) and a [`ShmTransport`] opens each region under
//! one key to peers near and far.
//!
//! # Withdrawn regions
//! The owner says on a page that all its peers map for reading which regions are open.
//! Peers look before, during and after each copy, every 128 KiB. A read that began after
//! [`Region::revoke`](crate::Region::revoke) was called fails, and so does one during which the region was
//! withdrawn, since its bytes may be foreign. A *write* that was under way ends within
//! 128 KiB. But nothing waits for it, not even [`Region::withdraw`](crate::Region::withdraw): a peer that is stopped
//! in the middle of its copy writes the rest of these 128 KiB whenever it continues. So
//! memory that [was lent](Memory::was_lent) must not have another use. Give the next life
//! fresh memory, and the old pages [back to the system](Memory::discard): what a late
//! peer writes then goes into pages that no other process has.
//!
//! # Tickets
//! A peer that has mapped a region copies by itself: its tickets are not verified. It
//! respects the end of its grant while it copies, as said above. One that does not
//! cooperate reaches all of the region. (Streams verify tickets as TCP does.)
//!
//! # Trust
//! A process that was given a region has its memory until it unmaps it, whatever the
//! page says: being withdrawn is something that our code respects and that the system
//! does not enforce. What holds against any process, hostile ones included:
//!
//! * A region that is open for reading cannot be written by processes of other users;
//!   those of the same user could open it again, as they could with a debugger.
//! * Nothing is shared without the region's key, and only with processes of the users
//!   who are admitted ([`ShmConfig::allow_users`]).
//! * A peer, on either side, can neither kill this process by taking memory away that it
//!   touches (memory that could shrink is not mapped), nor make it wait, or grow,
//!   without bound.
//! * With [`ShmTransport::connect_proven`] the peer is the one that a secret came from
//!   over another way. Without, it is the process that has the name.

mod config;
mod control;
pub(crate) mod frames;
mod hang_up;
mod link;
mod name;
mod page;
mod path_cache;
mod pool;
mod server;
mod shortcut;
mod watch;
mod wire;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_memory::{Memory, MemoryError};
use mc_places::Places;
use mc_types::{BoxFuture, Endpoint, EndpointError};
use tokio::net::UnixListener;
use tokio::runtime::Handle;

pub use self::config::{ShmConfig, ShmListen};
pub use self::link::ShmLink;
use self::name::{Bound, SCHEME, SocketName};
use self::page::Page;
use self::pool::Pool;
use self::server::Server;
use self::shortcut::Refused;
use self::wire::Verdict;
use crate::backend::accept::Door;
use crate::backend::description::Description;
use crate::backend::proof::{NodeSecret, nonce};
use crate::backend::shell::{Networked, Shell, check_scheme};
use crate::backend::sweep::sweeping;
use crate::error::ConnectError;
use crate::region::RegionTable;
use crate::stream::server::Service;
use crate::transport::Transport;

/// A node whose peers are processes of the same host.
///
/// Its tasks run on the runtime that [`start`](Self::start) was called on, and end
/// when it is dropped or [`shutdown`](Self::shutdown). Links may be used from any
/// executor.
///
/// ```
/// use bytes::Bytes;
/// use mc_transport::{
///     Access, Link, Memory, Operation, RemoteSpan, ShmConfig, ShmTransport, Transport,
/// };
/// use mc_types::Extent;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let owner = ShmTransport::start(ShmConfig::default()).await?;
/// let memory = owner.allocate(1 << 20)?;
/// let region = owner.register(&memory, Access::ReadWrite)?;
///
/// let peer = ShmTransport::start(ShmConfig::default()).await?;
/// let link = peer.connect(owner.endpoint().ok_or("it listens")?).await?;
/// let span = RemoteSpan::new(region.key(), Extent::new(0, 5).ok_or("it fits")?);
/// for result in link.submit(vec![Operation::write(Bytes::from_static(b"hello"), span)]).await {
///     result?;
/// }
/// let view = link.view(span)?;
/// assert_eq!(view.bytes().to_vec(), b"hello");
/// assert!(view.is_current());
/// # Ok(())
/// # }
/// ```
pub struct ShmTransport {
    shell: Shell,
    secret: NodeSecret,
    page: Arc<Page>,
    pool: Pool,
    refused: Refused,
}

impl ShmTransport {
    /// Starts a node with regions of its own.
    ///
    /// # Errors
    /// [`StartError`] when the name cannot be taken or told to peers, when the system
    /// shares no memory, and when this is not called on a Tokio runtime.
    ///
    /// # Panics
    /// When the runtime was built without its I/O or time driver.
    pub fn start(config: ShmConfig) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::new(config, None))
    }

    /// Starts a node that opens the regions of `regions`, which other transports may
    /// open, too: a region is registered once, with any of them, and has one key.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn start_with(
        config: ShmConfig,
        regions: RegionTable,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::new(config, Some(regions)))
    }

    async fn new(config: ShmConfig, regions: Option<RegionTable>) -> Result<Self, StartError> {
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let secret = NodeSecret::random().map_err(|source| StartError::NoRandomness { source })?;
        let page = Page::new().map_err(|source| StartError::NoSharedMemory { source })?;
        let mut shell = Shell::new(runtime, regions);
        if let Some((listener, bound, found_at)) = listen(&config).await? {
            shell.endpoint = Some(found_at);
            let node = nonce().map_err(|source| StartError::NoRandomness { source })?;
            let (rails, shortcuts) = (Vec::new(), Vec::new());
            let service = Service {
                description: Description { node, connection: None, rails, shortcuts, traces: true },
                regions: shell.regions.clone(),
                max_operation: config.max_operation.as_u64(),
                connect_timeout: config.connect_timeout,
                stall_timeout: config.stall_timeout,
            };
            // Peers that have mapped memory stay; the others prove something within a minute.
            let (max, idle) = (config.max_connections, Duration::MAX);
            let places = Places::new(max, max, idle);
            let swept = Arc::clone(&places);
            let (tasks, counters) = (Arc::downgrade(&shell.tasks), Arc::clone(&shell.counters));
            let server = Arc::new(Server {
                secret,
                page: Arc::clone(&page),
                service,
                counters: Arc::clone(&counters),
                places: Arc::clone(&places),
                tasks: tasks.clone(),
                config: config.clone(),
            });
            let refusal = server.refusal(Verdict::Busy).encode().to_vec();
            let door = Arc::new(Door { places, counters, tasks, refusal });
            let serve = move |stream, seat| Arc::clone(&server).serve(stream, seat);
            let accept = sweeping(swept, door.accept(listener, serve));
            shell.tasks.spawn(async move {
                // The name is given back together with the socket.
                let _bound = bound;
                accept.await;
            });
        }
        let pool = Pool::new(config, Arc::clone(&shell.tasks), Arc::clone(&shell.counters));
        Ok(Self { shell, secret, page, pool, refused: Refused::default() })
    }

    /// The proof that this node shows to peers that [ask for it](Self::connect_proven). Give it
    /// to the peers that are to find this node here, over a way that reaches only them.
    #[must_use]
    pub fn secret(&self) -> NodeSecret {
        self.secret
    }

    /// A link to the peer at `endpoint`, after it has shown that it knows `secret`,
    /// and this side, too.
    ///
    /// # Errors
    /// As [`Transport::connect`]; [`ConnectError::Impostor`] when the process that answers
    /// there does not know the secret.
    ///
    /// # Cancellation
    /// Dropping the future gives up the attempt and leaks nothing.
    pub fn connect_proven<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        secret: NodeSecret,
    ) -> BoxFuture<'a, Result<Arc<ShmLink>, ConnectError>> {
        Box::pin(async move {
            check_scheme(SCHEME, endpoint)?;
            self.pool.link(endpoint, Some(secret)).await
        })
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
    pub fn stats(&self) -> ShmStats {
        let Shell { regions, tasks, counters, .. } = &self.shell;
        ShmStats {
            connections: counters.connections.load(Ordering::Relaxed),
            links: counters.links.load(Ordering::Relaxed),
            streams: counters.streams.load(Ordering::Relaxed),
            mapped_regions: self.pool.mapped_regions(),
            tasks: tasks.alive(),
            regions: regions.len(),
            refused_connections: counters.refused.load(Ordering::Relaxed),
            yielded_connections: counters.yielded.load(Ordering::Relaxed),
        }
    }
}

impl Networked for ShmTransport {
    type Link = ShmLink;
    type Closed = ();

    const SCHEME: &'static str = SCHEME;

    fn shell(&self) -> &Shell {
        &self.shell
    }

    /// Takes memory that peers can map.
    fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        match len {
            0 => Memory::allocate(0),
            _ => Memory::options().shared().allocate(len),
        }
    }

    async fn link(&self, endpoint: &Endpoint) -> Result<Arc<ShmLink>, ConnectError> {
        self.pool.link(endpoint, None).await
    }

    fn close(&self) {
        self.page.close();
        self.shell.withdraw();
        self.pool.close();
    }

    async fn closed(&self, (): ()) {}
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.close();
        self.shell.tasks.abort();
    }
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmTransport")
            .field("endpoint", &self.shell.endpoint)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Gauges and totals of one [`ShmTransport`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmStats {
    /// Connections of peers, handshakes and streams included.
    pub connections: usize,
    /// Links to peers.
    pub links: usize,
    /// Streams to peers.
    pub streams: usize,
    /// Regions of peers that are mapped.
    pub mapped_regions: usize,
    /// Tasks that serve them.
    pub tasks: usize,
    /// Regions open to peers.
    pub regions: usize,
    /// Connections refused because there were too many.
    pub refused_connections: u64,
    /// Idle connections that were closed because others needed their places, so far.
    pub yielded_connections: u64,
}

/// Takes the name that `config` wants, if any.
async fn listen(config: &ShmConfig) -> Result<Option<(UnixListener, Bound, Endpoint)>, StartError> {
    let name = match &config.listen {
        ShmListen::Nowhere => return Ok(None),
        ShmListen::Random => {
            let bits = nonce().map_err(|source| StartError::NoRandomness { source })?;
            SocketName::Abstract(format!("mc-{:032x}", u128::from_le_bytes(bits)))
        }
        ShmListen::Abstract(name) => SocketName::Abstract(name.clone()),
        ShmListen::Path(path) => SocketName::Path(path.clone()),
    };
    let bad_name = |source| StartError::BadName { listen: config.listen.clone(), source };
    let endpoint = name.endpoint().map_err(bad_name)?;
    if SocketName::of(&endpoint).is_none() {
        return Err(bad_name(EndpointError::BadAddress));
    }
    let every_user = !config.allow_users.is_empty();
    let open = async {
        let (listener, bound) = Bound::listen(name, every_user, config.connect_timeout).await?;
        Ok((UnixListener::from_std(listener)?, bound))
    };
    match open.await {
        Ok((listener, bound)) => Ok(Some((listener, bound, endpoint))),
        Err(source) => Err(match io::Error::kind(&source) {
            io::ErrorKind::AddrInUse => StartError::NameInUse { endpoint, source },
            _ => StartError::Listen { endpoint, source },
        }),
    }
}

/// Why a [`ShmTransport`] did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name is taken.
    #[error("{endpoint} is in use; stop the other process or choose another name")]
    NameInUse {
        /// The endpoint wanted.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not let us listen there.
    #[error("cannot listen at {endpoint}")]
    Listen {
        /// The endpoint wanted.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// No socket can have the name, or no endpoint can tell it.
    #[error(
        "{listen:?} cannot be told to peers; choose at most 107 characters without spaces, an absolute path if a path"
    )]
    BadName {
        /// The name wanted.
        listen: ShmListen,
        /// The problem.
        source: EndpointError,
    },
    /// The system has no randomness for a name and a secret.
    #[error("the system gave no random bytes for a secret")]
    NoRandomness {
        /// The system's error.
        source: io::Error,
    },
    /// There is no memory to share with peers.
    #[error("no memory can be shared with peers")]
    NoSharedMemory {
        /// The system's error.
        source: MemoryError,
    },
    /// The call was not made on a Tokio runtime.
    #[error("a shared-memory transport needs a Tokio runtime with I/O and time enabled")]
    NoRuntime,
}
