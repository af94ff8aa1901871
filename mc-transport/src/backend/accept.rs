//! Accepts peers, and has each of them served by a task.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_places::{Places, Seat, Source};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tracing::{debug, warn};

use crate::backend::counters::Counters;
use crate::backend::tasks::{Counted, Tasks};

/// The pause when the process has no descriptors left for a connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// A socket at which peers arrive.
pub trait Listener: Send + Sync + 'static {
    /// The connection of a peer.
    type Stream: Send + 'static;

    /// The peer in a log.
    type Peer: fmt::Display + Send + 'static;

    /// Waits for the next peer.
    ///
    /// # Errors
    /// The system's, as when the process has no more descriptors. The listener is sound.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;

    /// The source of a connection, as places know it.
    fn source(stream: &Self::Stream, peer: &Self::Peer) -> Source;

    /// Sends what there is room for at once.
    ///
    /// # Errors
    /// The system's.
    fn try_write(stream: &Self::Stream, bytes: &[u8]) -> io::Result<usize>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }

    fn source(_: &TcpStream, peer: &SocketAddr) -> Source {
        Source::of(*peer)
    }

    fn try_write(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        stream.try_write(bytes)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    type Peer = &'static str;

    async fn next(&self) -> io::Result<(UnixStream, &'static str)> {
        self.accept().await.map(|(stream, _)| (stream, "a process of this host"))
    }

    fn source(stream: &UnixStream, _: &&'static str) -> Source {
        Source::process(stream)
    }

    fn try_write(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
        stream.try_write(bytes)
    }
}

/// Accepts peers: the state of a server that this needs.
pub struct Door {
    /// The places that peers may have.
    pub places: Arc<Places>,
    /// Counts the connections.
    pub counters: Arc<Counters>,
    /// Where peers are served; accepting ends with them.
    pub tasks: Weak<Tasks>,
    /// The bytes that a peer is sent when there is no place for it.
    pub refusal: Vec<u8>,
}

impl Door {
    /// Accepts peers until the transport ends; `serve` serves one, or says why that ended.
    pub async fn accept<L, F, E>(self: Arc<Self>, listener: L, serve: impl Fn(L::Stream, Seat) -> F)
    where
        L: Listener,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send,
    {
        loop {
            let (stream, peer) = match listener.next().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The connection died while it waited, or descriptors ran out;
                    // either way the listener itself is sound.
                    let shed = self.places.shed() as u64;
                    self.counters.yielded.fetch_add(shed, Ordering::Relaxed);
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            let (seat, yielded) = self.places.take(L::source(&stream, &peer));
            self.counters.yielded.fetch_add(yielded as u64, Ordering::Relaxed);
            let Some(seat) = seat else {
                debug!(%peer, "refused: as many connections as allowed, and all at work");
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                // A new socket's buffer has room for these few bytes.
                let _ = L::try_write(&stream, &self.refusal);
                continue;
            };
            let Some(tasks) = self.tasks.upgrade() else { return };
            let place = Arc::clone(seat.place());
            let open = Counted::new(&self.counters.connections);
            // Each future around another one may hold it twice.
            let serving = Box::pin(serve(stream, seat));
            let task = tasks.spawn(async move {
                let _open = open;
                if let Err(end) = serving.await {
                    debug!(%peer, reason = %end, "connection ended");
                }
            });
            if let Some(task) = task {
                Seat::run_in(&place, task);
            }
        }
    }
}
