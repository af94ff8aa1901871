//! The server itself: listens, takes connections, and stops in good order.

use core::future::Future;
use core::pin::Pin;
use mc_types::BoxFuture;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mc_places::Seat;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::Instant;

use super::config::ServerConfig;
use super::greet;
use super::guest::GuestProtocol;
use super::listener::{self, Accepted, HandedIn, Listener};
use super::metrics::{ServerMetrics, add};
use super::open_connections::OpenConnections;
use super::shared::Shared;
use crate::error::BindError;
use crate::service::Service;
use crate::stream::ByteStream;

/// Connections beyond the limit that are told so at a time; more are closed
/// without a word.
const MAX_REFUSING: usize = 64;

/// A pause after a failed accept, which is most often a want of file
/// descriptors and does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often credentials are looked at again, and what is kept for a time.
const SWEEP: Duration = Duration::from_secs(5);

/// Answers calls over TCP and Unix sockets.
///
/// A connection costs one task and, while nothing is under way on it, no
/// buffers. Short calls are answered on the thread that reads them, in the order in which
/// they come. Calls that take long (large batches, and what looks at every object) run on
/// the runtime's blocking threads, a bounded number at a time, and hold up no other call; their
/// answers come when they are there.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    local_addr: SocketAddr,
    shared: Arc<Shared>,
    guest: Option<Arc<dyn GuestProtocol>>,
    streams: Streams,
}

impl Server {
    /// Listens at `addr` (`host:port`; port 0 lets the system choose). Needs a
    /// tokio runtime with its I/O and time drivers.
    ///
    /// # Errors
    /// [`BindError`] when something else listens there, the system does not
    /// allow it, or `config` makes no sense.
    ///
    /// # Panics
    /// When the operating system gives no random numbers.
    pub fn bind(
        addr: &str,
        service: impl Service,
        config: ServerConfig,
    ) -> BoxFuture<'_, Result<Self, BindError>> {
        Box::pin(Self::listen(addr, Arc::new(service), config))
    }

    async fn listen(
        addr: &str,
        service: Arc<dyn Service>,
        config: ServerConfig,
    ) -> Result<Self, BindError> {
        config.validate()?;
        let config = config.within_descriptors();
        let (listener, local_addr) = Listener::tcp(addr).await?;
        config.warn_of_exposure(local_addr);
        let (sender, handed) = Listener::handed();
        let mut listeners = vec![listener, handed];
        let local_socket = offer(&config, &mut listeners);
        let shared = Arc::new(Shared::new(service, config, local_socket));
        Ok(Self { listeners, local_addr, shared, guest: None, streams: Streams { sender } })
    }

    /// A server that listens at no socket: its connections are streams that are
    /// [handed in](Streams::hand_in), for a simulated network or one of the application's own. Its
    /// [`local_addr`](Self::local_addr) is the unspecified one, without a port.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use mc_meta::{Master, MasterConfig};
    /// use mc_rpc::{MasterService, Server, ServerConfig, SystemClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let master = Arc::new(Master::new(MasterConfig::default(), 1)?);
    /// let service = MasterService::new(master, SystemClock::new());
    /// let (server, streams) = Server::over_streams(service, ServerConfig::default())?;
    /// let server = server.spawn();
    /// let (_client, stream) = tokio::io::duplex(64 << 10);
    /// streams.hand_in(stream, "10.0.0.7:40000".parse()?)?;
    /// server.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BindError`] when `config` makes no sense.
    ///
    /// # Panics
    /// When the operating system gives no random numbers.
    pub fn over_streams(
        service: impl Service,
        config: ServerConfig,
    ) -> Result<(Self, Streams), BindError> {
        config.validate()?;
        let (sender, listener) = Listener::handed();
        let local_addr = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let shared = Arc::new(Shared::new(Arc::new(service), config, None));
        let (listeners, streams) = (vec![listener], Streams { sender });
        let handed = streams.clone();
        Ok((Self { listeners, local_addr, shared, guest: None, streams }, handed))
    }

    /// Listens at the Unix socket `path` too, which only this process's user may connect
    /// to. A socket that is left from a process that has ended is replaced; the file is
    /// removed when the server ends.
    ///
    /// # Errors
    /// [`BindError`] when a process listens there, something else is there, or the system
    /// does not allow it.
    #[cfg(unix)]
    pub fn listen_unix(mut self, path: &Path) -> Result<Self, BindError> {
        self.listeners.push(Listener::unix(path)?);
        Ok(self)
    }

    /// Serves connections of this protocol, too. Without one they are closed, as those of any other.
    #[must_use]
    pub fn with_guest(mut self, guest: Arc<dyn GuestProtocol>) -> Self {
        self.guest = Some(guest);
        self
    }

    /// Returns the address that it listens at, with the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns a handle that reads the server's figures at any time.
    #[must_use]
    pub fn watch(&self) -> ServerWatch {
        let shared = Arc::clone(&self.shared);
        ServerWatch { shared }
    }

    /// Serves until `shutdown` resolves, then stops listening, tells every connection that
    /// no new calls are taken, answers what has arrived, and closes them; at the latest
    /// after [`ServerConfig::drain_timeout`].
    ///
    /// Dropping the future closes every connection at once.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let (stop, stopped) = oneshot::channel();
        let mut serving = self.run(stopped);
        tokio::select! {
            biased;
            () = shutdown => {}
            () = &mut serving => return,
        }
        drop(stop);
        serving.await;
    }

    /// [`serve`](Self::serve)s until `stopped` resolves. In a box, so that this is compiled here and
    /// not once in each program.
    fn run(self, stopped: oneshot::Receiver<()>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.serve_until(stopped))
    }

    async fn serve_until(self, mut stopped: oneshot::Receiver<()>) {
        let Self { listeners, local_addr, shared, guest, .. } = self;
        let (drain, draining) = watch::channel(false);
        let mut connections = JoinSet::new();
        let interval = SWEEP.min(shared.config.idle_timeout / 4).max(Duration::from_millis(1));
        let mut sweep = tokio::time::interval(interval);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                // Either way it is time to stop: on request, or because its handle is gone.
                _ = &mut stopped => break,
                Some(ended) = connections.join_next() => log_panic(&ended),
                accepted = listener::accept_any(&listeners) => match accepted {
                    Ok(accepted) => accept(accepted, (&shared, &guest), &draining, &mut connections),
                    Err(error) => {
                        let yielded = shared.places.shed();
                        add(&shared.counters.yielded, yielded as u64);
                        tracing::warn!(%local_addr, %error, yielded, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                _ = sweep.tick() => {
                    let config = Arc::clone(&shared.config);
                    shared.executor.run_detached(move || config.refresh());
                    shared.sessions.sweep(Instant::now());
                    let idle = shared.places.sweep(interval);
                    add(&shared.counters.yielded, idle as u64);
                }
            }
        }
        drop(listeners);
        drain.send_replace(true);
        let drained = async {
            while let Some(ended) = connections.join_next().await {
                log_panic(&ended);
            }
        };
        if tokio::time::timeout(shared.config.drain_timeout, drained).await.is_err() {
            tracing::warn!(%local_addr, open = connections.len(), "closing connections that did not end in time");
            connections.shutdown().await;
        }
    }

    /// Serves in a task of its own.
    #[must_use = "dropping the handle shuts the server down"]
    pub fn spawn(self) -> ServerHandle {
        let (local_addr, watch, streams) = (self.local_addr, self.watch(), self.streams.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(self.run(stopped));
        ServerHandle { local_addr, watch, streams, stop, task }
    }
}

/// Listens where TCP clients of this host are sent, if they are; says where that is.
#[cfg(target_os = "linux")]
fn offer(config: &ServerConfig, listeners: &mut Vec<Listener>) -> Option<Box<str>> {
    if !config.offers_local_socket() {
        return None;
    }
    let offered = Listener::offered();
    let (listener, name) = offered
        .inspect_err(|error| tracing::warn!(%error, "cannot offer a Unix socket; clients of this host use TCP"))
        .ok()?;
    listeners.push(listener);
    Some(name)
}

#[cfg(not(target_os = "linux"))]
fn offer(_: &ServerConfig, _: &mut Vec<Listener>) -> Option<Box<str>> {
    None
}

fn accept(
    (stream, peer, source): Accepted,
    (shared, guest): (&Arc<Shared>, &Option<Arc<dyn GuestProtocol>>),
    draining: &watch::Receiver<bool>,
    connections: &mut JoinSet<()>,
) {
    let (seat, yielded) = shared.places.take(source);
    if yielded > 0 {
        add(&shared.counters.yielded, yielded as u64);
        shared.log_limiter.about(&peer, &"all places were taken; others that idled made room");
    }
    if let Some(seat) = seat {
        let place = Arc::clone(seat.place());
        let (served_by, draining) = ((Arc::clone(shared), guest.clone()), draining.clone());
        let task = greet::serve(stream, (peer, source), served_by, seat, draining);
        Seat::run_in(&place, connections.spawn(task));
        return;
    }
    add(&shared.counters.turned_away, 1);
    shared.log_limiter.about(&peer, &"too many connections with calls under way");
    if connections.len() < shared.places.bound() + MAX_REFUSING {
        connections.spawn(greet::turn_away(stream, shared.config.handshake_timeout));
    }
}

fn log_panic(ended: &Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a call panicked; its connection is closed");
    }
}

/// Where connections of a server are handed in that it does not accept at a socket: those of
/// [`Server::over_streams`], and further ones of any server. Clones lead to the same server.
#[derive(Clone, Debug)]
pub struct Streams {
    sender: HandedIn,
}

impl Streams {
    /// Gives the server a new connection, which comes from the host and port `from`. The server
    /// flushes it where answers are to leave, and drops it when it ends.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] when the server listens no more.
    pub fn hand_in(&self, stream: impl ByteStream, from: SocketAddr) -> io::Result<()> {
        let handed = self.sender.send((Box::new(stream), from));
        handed.map_err(|_| io::ErrorKind::ConnectionRefused.into())
    }
}

/// Reads what a server counts.
#[derive(Clone)]
pub struct ServerWatch {
    shared: Arc<Shared>,
}

impl core::fmt::Debug for ServerWatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.read().fmt(f)
    }
}

impl ServerWatch {
    /// Returns the figures until now.
    #[must_use]
    pub fn read(&self) -> ServerMetrics {
        self.shared.counters.read()
    }

    /// The connections that are open.
    #[must_use]
    pub fn connections(&self) -> &OpenConnections {
        &self.shared.open
    }
}

/// A server that runs in a task of its own. Dropping it shuts the server down
/// as [`shutdown`](Self::shutdown) does, without waiting.
#[derive(Debug)]
pub struct ServerHandle {
    local_addr: SocketAddr,
    watch: ServerWatch,
    streams: Streams,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl ServerHandle {
    /// Returns the address that the server listens at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns the server's figures until now.
    #[must_use]
    pub fn metrics(&self) -> ServerMetrics {
        self.watch.read()
    }

    /// Takes connections of this process itself, such as those of its other ports. They show the same
    /// credentials as others.
    #[must_use]
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Reads [`metrics`](Self::metrics) when the handle is elsewhere.
    #[must_use]
    pub fn watch(&self) -> ServerWatch {
        self.watch.clone()
    }

    /// Closes every connection at once, without answering what has arrived, and returns when the
    /// port is free for another server: of a leader whose term is over, or of a standby that is to
    /// lead.
    pub fn close(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.task.abort();
            match self.task.await {
                Err(error) if error.is_panic() => {
                    tracing::error!(%error, "the task of the server failed");
                }
                _ => {}
            }
        })
    }

    /// Stops listening, answers what has arrived, closes every connection, and
    /// returns when that is done.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            drop(self.stop);
            if let Err(error) = self.task.await {
                tracing::error!(%error, "the task of the server failed");
            }
        })
    }
}
