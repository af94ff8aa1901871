//! The node agent's side: admits thin clients and does what they ask.

mod accept;
mod budget;
mod connection;
mod core;
mod limits;
mod memories;
mod operations;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_places::Places;
use mc_store::Client;
use mc_transport::NodeSecret;
use mc_transport::backend::nonce;
use mc_types::{BoxFuture, ByteSize};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::task::JoinSet;

use self::accept::{accept, greet};
use self::core::Core;
use self::limits::Limits;
use super::error::ServeError;
use super::greeting::{Greeting, MAX_NAME};
use super::wire::VERSION;

/// The port where thin clients look for their node agent.
pub const DEFAULT_PORT: u16 = 50052;

/// Serves the thin clients of this host with a [`Client`], the real one.
///
/// A thin client connects to the TCP port, is told the name of a Unix socket and a
/// secret, and does everything else at that socket. Values never pass a socket: they lie
/// in memory that the thin client shares, where the node agent reads and writes them.
///
/// Dropping a server closes all connections as soon as their running calls have ended;
/// [`shutdown`](Self::shutdown) waits for that.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use mc_standalone::{DummyClient, Server};
/// use mc_store::{ByteSize, Client, Master, ObjectStore as _, ReplicateConfig};
///
/// # let master = Master::builder().start().await?;
/// # let address = master.local_addr().to_string();
/// // One process of a host; `mc-node` is such a program.
/// let real = Client::builder()
///     .master(&address)
///     .listen("127.0.0.1:0".parse()?)
///     .segment_size(ByteSize::mib(16))
///     .connect()
///     .await?;
/// let server = Server::builder(real.clone()).listen("127.0.0.1:0".parse()?).start().await?;
///
/// // Any number of others.
/// let app = DummyClient::connect(&server.local_addr().to_string()).await?;
/// let block = app.allocate(4096)?; // both processes see it
/// block.whole().copy_from(0, b"keys and values")?;
/// app.put_from("block-0", &block.whole(), &ReplicateConfig::default()).await?;
/// let target = app.allocate(4096)?;
/// assert_eq!(app.get_into("block-0", &target.whole()).await?, 4096);
/// assert_eq!(target.slice(0, 4).unwrap().to_vec(), b"keys");
/// # drop(app);
/// # server.shutdown().await;
/// # real.shutdown().await;
/// # master.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    core: Arc<Core>,
    address: SocketAddr,
    name: String,
    stop: watch::Sender<bool>,
    accepting: JoinSet<()>,
}

/// The resources that a [`Server`] has in use at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// Thin clients that are connected, or whose last calls are running.
    pub clients: usize,
    /// Memories of thin clients that are mapped. One is unmapped when no client has it
    /// registered any more and the last call that touches it has ended.
    pub memories: usize,
    /// Bytes of those memories.
    pub shared: ByteSize,
    /// Calls that are running.
    pub calls: usize,
}

/// Describes a [`Server`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerBuilder {
    client: Client,
    listen: SocketAddr,
    limits: Limits,
}

impl ServerBuilder {
    /// Where thin clients connect; port 0 takes a free one. The default is port
    /// [`DEFAULT_PORT`] of every address. Only processes of this host (and of its network
    /// namespace) can be served, whatever the address.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Serves processes of these users, by number, beside those of our own user and of
    /// root. The system says 65534 of every user that is unknown in this process's user
    /// namespace. Default none.
    pub fn allow_users(mut self, users: impl IntoIterator<Item = u32>) -> Self {
        self.limits.allow_users = users.into_iter().collect();
        self
    }

    /// Thin clients at the same time; further ones are told to come back later. A connection
    /// that has not been admitted makes room for a new one. Default
    /// 256.
    pub fn max_clients(mut self, clients: usize) -> Self {
        self.limits.clients = clients.min(Semaphore::MAX_PERMITS);
        self
    }

    /// Calls of one thin client at the same time; it keeps further ones back. Default
    /// 256.
    pub fn max_calls(mut self, calls: u32) -> Self {
        self.limits.calls = calls.clamp(1, Limits::MOST_CALLS);
        self
    }

    /// Memories that one thin client may register. Default 256.
    pub fn max_memories(mut self, memories: usize) -> Self {
        self.limits.memories = memories;
        self
    }

    /// Bytes that the memories of all thin clients may have together. They take address
    /// space, not memory: that is the thin clients'. Default 4 TiB.
    pub fn max_shared(mut self, size: ByteSize) -> Self {
        self.limits.shared = size.as_u64();
        self
    }

    /// How long the handshake may take, and how long a thin client may take no answers,
    /// before it is disconnected. Default 10 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// Serves. Must be called in a tokio runtime, whose tasks then do the work.
    ///
    /// # Errors
    /// [`ServeError`]; nothing is left running then.
    pub fn start(self) -> BoxFuture<'static, Result<Server, ServeError>> {
        Box::pin(self.serve())
    }

    async fn serve(self) -> Result<Server, ServeError> {
        let secret = NodeSecret::random().map_err(ServeError::NoRandomness)?;
        // Random, so that sessions of a server before this one are not mistaken for ours.
        let first_session = u128::from_ne_bytes(nonce().map_err(ServeError::NoRandomness)?) as u64;
        let bind = |source| ServeError::Bind { address: self.listen, source };
        let greeter = mc_net::listen(self.listen).await.map_err(bind)?;
        let address = greeter.local_addr().map_err(bind)?;
        let name = format!("mc_store_client_{}.sock", address.port());
        debug_assert!(name.len() <= MAX_NAME);
        let listener = accept::bind_socket(&name)
            .map_err(|source| ServeError::Socket { name: name.clone(), source })?;

        let (stop, stopping) = watch::channel(false);
        let core = Arc::new(Core {
            client: self.client,
            secret,
            places: Places::new(self.limits.clients, self.limits.clients, Duration::MAX),
            budget: self.limits.budget(),
            limits: self.limits,
            figures: Arc::default(),
            sessions: Mutex::default(),
            next_session: AtomicU64::new(first_session),
            stopping,
            connections: AsyncMutex::default(),
        });
        let greeting = Greeting { version: VERSION, secret, name: name.clone() }.encode();
        let mut accepting = JoinSet::new();
        accepting.spawn(greet(greeter, greeting));
        accepting.spawn(accept(listener, Arc::clone(&core)));
        Ok(Server { core, address, name, stop, accepting })
    }
}

impl Server {
    /// Begins to describe a server for `client`.
    pub fn builder(client: Client) -> ServerBuilder {
        ServerBuilder {
            client,
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)),
            limits: Limits::default(),
        }
    }

    /// Where thin clients connect.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The name of the abstract Unix socket that does the work, without the `@` with which
    /// tools show it.
    #[must_use]
    pub fn socket_name(&self) -> &str {
        &self.name
    }

    /// Returns the resources in use now.
    #[must_use]
    pub fn report(&self) -> ServerReport {
        let figures = &self.core.figures;
        ServerReport {
            clients: figures.clients.load(Ordering::Relaxed),
            memories: figures.memories.load(Ordering::Relaxed),
            shared: ByteSize::bytes(figures.shared_bytes.load(Ordering::Relaxed)),
            calls: figures.calls.load(Ordering::Relaxed),
        }
    }

    /// Takes no more calls, lets those that are running end, and closes all connections.
    /// The client keeps running.
    ///
    /// Calls end when the client ends them: after its time-outs at the latest.
    pub fn shutdown(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // There is no receiver when every connection is closed.
            let _ = self.stop.send(true);
            self.accepting.shutdown().await;
            let mut connections = std::mem::take(&mut *self.core.connections.lock().await);
            while connections.join_next().await.is_some() {}
        })
    }
}
