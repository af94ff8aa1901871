//! Taking connections: at the TCP port, to say where the Unix socket is, and there.

use std::io::{self, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mc_places::{Seat, Source};
use tokio::net::{TcpListener, UnixListener};
use tracing::{debug, warn};

use super::connection::{serve, turn_away};
use super::core::Core;
use crate::wire::Verdict;

/// Connections that wait until they are taken; the system may have a lower limit.
const BACKLOG: i32 = 4096;

/// How long to wait when the process has no descriptors left for a connection.
const BACKOFF: Duration = Duration::from_millis(50);

/// Takes the abstract name, which is free again as soon as its owner is gone.
pub(super) fn bind_socket(name: &str) -> io::Result<UnixListener> {
    let address = SocketAddr::from_abstract_name(name)?;
    let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Tells each peer where to go on.
pub(super) async fn greet(listener: TcpListener, greeting: Vec<u8>) {
    loop {
        // What is said is shorter than a new socket's buffer, so it needs no task.
        let greeted = listener.accept().await.and_then(|(stream, _)| stream.into_std());
        match greeted {
            Ok(mut stream) => {
                if let Err(error) = stream.write_all(&greeting) {
                    debug!(%error, "a connection ended before it was greeted");
                }
            }
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(BACKOFF).await;
            }
        }
    }
}

/// Serves thin clients until the server ends.
pub(super) async fn accept(listener: UnixListener, core: Arc<Core>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // The connection died while it waited, or descriptors ran out;
                // either way the listener itself is sound.
                warn!(%error, "a thin client could not be accepted");
                tokio::time::sleep(BACKOFF).await;
                continue;
            }
        };
        // Before anything of a stranger is read, and before it takes a place.
        let user = match stream.peer_cred() {
            Ok(peer) => peer.uid(),
            Err(error) => {
                debug!(%error, "refused: the system does not say whose process it is");
                continue;
            }
        };
        if !core.limits.admits(user) {
            debug!(user, "refused: a process of a user who is not served");
            turn_away(stream, Verdict::WrongUser);
            continue;
        }
        // Those that have not been admitted make room.
        let Some(seat) = core.places.take(Source::process(&stream)).0 else {
            debug!("refused: as many thin clients as allowed");
            turn_away(stream, Verdict::Busy);
            continue;
        };
        let mut connections = core.connections.lock().await;
        while connections.try_join_next().is_some() {}
        let served = Arc::clone(&core);
        let place = Arc::clone(seat.place());
        let task = connections.spawn(async move {
            let _counted = CountedConnection::new(&served.figures.clients);
            let end = serve(&served, stream, user, &seat).await;
            debug!(reason = %end, "a thin client's connection ended");
        });
        Seat::run_in(&place, task);
    }
}

/// Counts a connection for as long as it lives.
struct CountedConnection<'a>(&'a AtomicUsize);

impl<'a> CountedConnection<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CountedConnection<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
