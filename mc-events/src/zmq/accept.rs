//! Accepting connections, of which there is a bounded number.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tracing::{debug, warn};

use super::endpoint::{Connection, Listener};

/// Time limit for the beginning of a connection.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A pause after a failed accept, which is most often a want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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

/// What is done with a connection.
pub(super) trait Serve: Send + Sync + 'static {
    /// Serves the connection to its end.
    fn serve(
        self: Arc<Self>,
        connection: Box<dyn Connection>,
    ) -> impl Future<Output = std::io::Result<()>> + Send;
}

/// Serves at most `max` connections at a time; further ones are closed at once.
pub(super) fn accept<S: Serve>(listener: Listener, max: usize, server: Arc<S>) -> Accepting {
    Accepting(tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(_) if connections.len() >= max => {
                    debug!(max, "a connection for events is closed: there are too many");
                }
                Ok(connection) => {
                    let server = Arc::clone(&server);
                    connections.spawn(async move {
                        if let Err(error) = server.serve(connection).await {
                            debug!(%error, "a connection for events ended");
                        }
                    });
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection for events");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }))
}
