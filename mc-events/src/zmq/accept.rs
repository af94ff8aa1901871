//! Accepting connections, of which there is a bounded number.

use std::sync::Arc;
use std::time::Duration;

use mc_places::{Place, Places, Seat, Stage};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tracing::{debug, warn};

use super::endpoint::{Connection, Listener};

/// Time limit for the beginning of a connection.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A pause after a failed accept, which is most often a want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The interval at which connections that ask for nothing are looked for.
const SWEEP: Duration = Duration::from_secs(5);

/// A task that ends when it is dropped, with the connections that it accepted.
#[derive(Debug)]
pub(super) struct Accepting(JoinHandle<()>);

impl Accepting {
    /// Ends the task and waits until its port is free.
    pub(super) async fn end(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The place of a connection that is served. Nothing authenticates the peer, so that none keeps its
/// place by being at work.
pub(super) struct Visit {
    places: Arc<Places>,
    place: Arc<Place>,
}

impl Visit {
    /// Notes that the peer has begun as this protocol wants it.
    pub(super) fn greeted(&self) {
        self.place.reached(Stage::Shaken);
    }

    /// Notes that the peer has asked for something: it yields its place after those that have not.
    pub(super) fn asked(&self) {
        self.place.reached(Stage::Proved);
        self.places.saw(&self.place);
    }

    /// Notes that the peer has read something: it yields after those that have not read for longer.
    pub(super) fn read(&self) {
        self.places.saw(&self.place);
    }
}

/// A handler of accepted connections.
pub(super) trait Serve: Send + Sync + 'static {
    /// Serves the connection to its end.
    fn serve(
        self: Arc<Self>,
        connection: Box<dyn Connection>,
        visit: Visit,
    ) -> impl Future<Output = std::io::Result<()>> + Send;
}

/// Serves at most `max` connections at a time. A further one gets the place of a connection that
/// has asked for nothing, or else of the one that has not read for longest.
pub(super) fn accept<S: Serve>(listener: Listener, max: usize, server: Arc<S>) -> Accepting {
    Accepting(tokio::spawn(async move {
        let places = Places::new(max, max, Duration::MAX);
        let mut connections = JoinSet::new();
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                Some(_) = connections.join_next() => continue,
                _ = sweep.tick() => {
                    places.sweep(SWEEP);
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((connection, source)) => {
                    let (Some(seat), _) = places.take(source) else {
                        debug!(max, "a connection for events is closed: there are too many");
                        continue;
                    };
                    let place = Arc::clone(seat.place());
                    let visit = Visit { places: Arc::clone(&places), place: Arc::clone(&place) };
                    let served = Arc::clone(&server).serve(connection, visit);
                    Seat::run_in(&place, connections.spawn(end_when_told(seat, served)));
                }
                Err(error) => {
                    places.shed();
                    warn!(%error, "cannot accept a connection for events");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }))
}

/// Serves a connection until it ends, or its place is needed.
async fn end_when_told(mut seat: Seat, served: impl Future<Output = std::io::Result<()>>) {
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                debug!(%error, "a connection for events ended");
            }
        }
        _ = &mut seat.go => debug!("a connection for events is closed: another needs its place"),
    }
}
