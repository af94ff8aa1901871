//! Accepts peers, and has each of them served.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_places::{Places, Seat, Source};
use tokio::net::{TcpListener, TcpStream};
#[cfg(feature = "tls")]
use tokio::time::Instant;
use tracing::{debug, warn};

use super::config::TcpConfig;
#[cfg(feature = "tls")]
use super::tls::admit;
use super::tune::tune;
use crate::counters::Counters;
use crate::stream::server::{End, Service, preface, serve_stream};
use crate::stream::wire::Verdict;
use crate::tasks::{Counted, Tasks};

/// The pause when the process has no descriptors left for a connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// State that all connections of a server share.
pub(super) struct Server {
    pub(super) places: Arc<Places>,
    pub(super) config: TcpConfig,
    pub(super) service: Service,
    pub(super) counters: Arc<Counters>,
}

/// Accepts peers until the transport ends.
pub(super) async fn accept(
    listener: TcpListener,
    server: Arc<Server>,
    tasks: std::sync::Weak<Tasks>,
) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // The connection died while it waited, or descriptors ran out;
                // either way the listener itself is sound.
                server.counters.yielded.fetch_add(server.places.shed() as u64, Ordering::Relaxed);
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let (seat, yielded) = server.places.take(Source::of(peer));
        server.counters.yielded.fetch_add(yielded as u64, Ordering::Relaxed);
        let Some(seat) = seat else {
            debug!(%peer, "refused: as many connections as allowed, and all at work");
            server.counters.refused.fetch_add(1, Ordering::Relaxed);
            // A new socket's buffer has room for these few bytes.
            let _ = stream.try_write(&preface(server.service.max_operation, Verdict::Busy));
            continue;
        };
        let Some(tasks) = tasks.upgrade() else { return };
        let server = Arc::clone(&server);
        let place = Arc::clone(seat.place());
        let task = tasks.spawn(async move {
            let _open = Counted::new(&server.counters.connections);
            tune(&stream, &server.config);
            if let Err(end) = server.serve(stream, seat).await {
                debug!(%peer, reason = %end, "connection ended");
            }
        });
        if let Some(task) = task {
            Seat::run_in(&place, task);
        }
    }
}

impl Server {
    /// Serves one peer that has just connected.
    async fn serve(&self, stream: TcpStream, seat: Seat) -> Result<(), End> {
        #[cfg(feature = "tls")]
        if let Some(tls) = self.config.tls.as_ref().and_then(|tls| tls.server.as_ref()) {
            let begun = Instant::now();
            let stream = admit(stream.into(), tls, &self.service).await?;
            let mut service = self.service.clone();
            service.connect_timeout = service.connect_timeout.saturating_sub(begun.elapsed());
            return serve_stream(stream, &service, seat).await;
        }
        serve_stream(stream.into(), &self.service, seat).await
    }
}
