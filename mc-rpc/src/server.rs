//! The server's side: listens, takes connections, ends them in good order.

mod config;
mod connection;

use core::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};

use crate::error::BindError;
use crate::service::Service;

pub use config::ServerConfig;
use connection::{Connection, refuse};

/// Connections beyond the limit that are told so at a time; more are closed
/// without a word.
const MAX_REFUSING: usize = 64;

/// A pause after a failed accept, which is most often a want of file
/// descriptors and does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers calls over TCP.
///
/// A connection costs one task and, while nothing is under way on it, no
/// buffers. Calls of one connection are answered in the order in which they
/// come; calls that take long run on the runtime's blocking threads and hold up
/// their own connection only.
#[derive(Debug)]
pub struct Server<S> {
    listener: TcpListener,
    local_addr: SocketAddr,
    shared: Arc<Shared<S>>,
}

/// What the connections of a server share.
#[derive(Debug)]
struct Shared<S> {
    service: S,
    config: ServerConfig,
    /// Bytes in the buffers of connections that hold many.
    buffered: AtomicUsize,
}

impl<S: Service> Server<S> {
    /// Listens at `addr` (`host:port`; port 0 lets the system choose). Needs a
    /// tokio runtime with its I/O and time drivers.
    ///
    /// # Errors
    /// [`BindError`] when something else listens there, the system does not
    /// allow it, or `config` makes no sense.
    pub async fn bind(addr: &str, service: S, config: ServerConfig) -> Result<Self, BindError> {
        config.validate()?;
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::AddressInUse { addr: addr.into(), source },
            _ => BindError::Listen { addr: addr.into(), source },
        };
        let listener = TcpListener::bind(addr).await.map_err(failed)?;
        let local_addr = listener.local_addr().map_err(failed)?;
        if !local_addr.ip().is_loopback() {
            tracing::warn!(
                %local_addr,
                "listening beyond this host without encryption or credentials; \
                 whoever reaches the port can read and remove every object"
            );
        }
        let shared = Arc::new(Shared { service, config, buffered: AtomicUsize::new(0) });
        Ok(Self { listener, local_addr, shared })
    }

    /// Where it listens, with the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown` resolves, then stops listening, answers what has
    /// arrived on every connection, and closes them; at the latest after
    /// [`ServerConfig::drain_timeout`].
    ///
    /// Dropping the future closes every connection at once.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let Self { listener, local_addr, shared } = self;
        let (drain, draining) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut shutdown = core::pin::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(ended) = connections.join_next() => log_panic(&ended),
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        accept(stream, peer, &shared, &draining, &mut connections);
                    }
                    Err(error) => {
                        tracing::warn!(%local_addr, %error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        drain.send_replace(true);
        let drained = async {
            while let Some(ended) = connections.join_next().await {
                log_panic(&ended);
            }
        };
        if tokio::time::timeout(shared.config.drain_timeout, drained).await.is_err() {
            tracing::warn!(%local_addr, open = connections.len(), "closing connections that do not end");
            connections.shutdown().await;
        }
    }

    /// Serves in a task of its own.
    #[must_use = "dropping the handle shuts the server down"]
    pub fn spawn(self) -> ServerHandle {
        let local_addr = self.local_addr;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(self.serve(async {
            // Either way it is time to stop: asked for, or the handle is gone.
            drop(stopped.await);
        }));
        ServerHandle { local_addr, stop, task }
    }
}

fn accept<S: Service>(
    stream: TcpStream,
    peer: SocketAddr,
    shared: &Arc<Shared<S>>,
    draining: &watch::Receiver<bool>,
    connections: &mut JoinSet<()>,
) {
    let (open, limit) = (connections.len(), shared.config.max_connections);
    if open < limit {
        let connection = Connection::new(stream, peer, Arc::clone(shared));
        connections.spawn(connection.run(draining.clone()));
    } else if open < limit + MAX_REFUSING {
        tracing::warn!(%peer, limit, "refused: too many connections");
        connections.spawn(refuse(stream, shared.config.handshake_timeout));
    }
}

fn log_panic(ended: &Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a call panicked; its connection is closed");
    }
}

/// A server that runs in a task of its own. Dropping it shuts the server down
/// as [`shutdown`](Self::shutdown) does, without waiting.
#[derive(Debug)]
pub struct ServerHandle {
    local_addr: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl ServerHandle {
    /// Where the server listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops listening, answers what has arrived, closes every connection, and
    /// returns when that is done.
    pub async fn shutdown(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the server ended badly");
        }
    }
}
