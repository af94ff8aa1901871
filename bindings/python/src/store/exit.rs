//! Leaving the cluster when nobody calls `close`.

use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;

use super::session::Session;
use crate::fork::PerProcess;

/// How long the end of the interpreter waits for stores to leave their clusters.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sessions of this process that may have to be shut down.
static SESSIONS: PerProcess<Mutex<Vec<Weak<Session>>>> = PerProcess::new();

/// Remembers a session for the end of the interpreter.
pub(super) fn watched(session: Session) -> Arc<Session> {
    let session = Arc::new(session);
    let mut sessions = SESSIONS.get().lock();
    sessions.retain(|session| session.strong_count() > 0);
    sessions.push(Arc::downgrade(&session));
    drop(sessions);
    session
}

/// Shuts a session down in a thread that knows nothing of Python. Returns what tells when that
/// is done.
fn shut_down_elsewhere(session: Arc<Session>) -> Option<mpsc::Receiver<()>> {
    let (done, is_done) = mpsc::sync_channel(1);
    let work = move || {
        session.shut_down();
        drop(session);
        let _ = done.send(());
    };
    thread::Builder::new().name("mc-shutdown".into()).spawn(work).ok().map(|_| is_done)
}

/// Shuts a session down that its store was dropped with, without waiting for that.
pub(super) fn shut_down_later(session: Arc<Session>) {
    let _ = shut_down_elsewhere(session);
}

/// Has every store of this process that is still open leave its cluster, so that its objects are
/// given up at once and not when the master misses it. Waits for that, a few seconds at most.
#[pyfunction]
#[pyo3(name = "_shut_down_stores")]
pub(crate) fn shut_down_stores(py: Python<'_>) {
    py.detach(|| {
        // Taken out: who is shut down must not wait for the lock.
        let sessions = std::mem::take(&mut *SESSIONS.get().lock());
        let deadline = Instant::now() + PATIENCE;
        let open = sessions.into_iter().filter_map(|session| session.upgrade());
        let begun = open.filter_map(shut_down_elsewhere);
        for is_done in begun.collect::<Vec<_>>() {
            let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
    });
}
