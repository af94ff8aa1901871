//! Accepts peers over TCP, and has each of them served by a task.

use std::fmt;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_places::{Places, Seat, Source};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use crate::backend::counters::Counters;
use crate::backend::tasks::{Counted, Tasks};

/// The pause when the process has no descriptors left for a connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Accepts peers over TCP: the state of a server that this needs.
pub struct Door {
    /// The places that peers may have.
    pub places: Arc<Places>,
    /// Counts the connections.
    pub counters: Arc<Counters>,
    /// Where peers are served; accepting ends with them.
    pub tasks: Weak<Tasks>,
    /// What a peer is told for whom there is no place.
    pub refusal: Vec<u8>,
}

impl Door {
    /// Accepts peers until the transport ends; `serve` serves one, or says why that ended.
    pub async fn accept<F, E>(
        self: Arc<Self>,
        listener: TcpListener,
        serve: impl Fn(TcpStream, Seat) -> F,
    ) where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send,
    {
        loop {
            let (stream, peer) = match listener.accept().await {
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
            let (seat, yielded) = self.places.take(Source::of(peer));
            self.counters.yielded.fetch_add(yielded as u64, Ordering::Relaxed);
            let Some(seat) = seat else {
                debug!(%peer, "refused: as many connections as allowed, and all at work");
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                // A new socket's buffer has room for these few bytes.
                let _ = stream.try_write(&self.refusal);
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
