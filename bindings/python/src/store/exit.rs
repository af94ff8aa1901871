//! Leaves clusters, and ends transfers, when a program does not.

use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::fork::PerProcess;

/// Uses the program's memory, or other members of a cluster, until it is shut down.
pub(crate) trait ShutDown: Send + Sync + 'static {
    /// Leaves other processes, and the program's memory, alone from now on.
    fn shut_down(&self);
}

/// Time limit for all stores to leave their clusters when the interpreter exits.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The sessions to shut down when the interpreter exits.
static SESSIONS: PerProcess<Mutex<Vec<Weak<dyn ShutDown>>>> = PerProcess::new();

/// Adds a session to those that are shut down when the interpreter exits.
pub(crate) fn watched<T: ShutDown>(session: T) -> Arc<T> {
    let session = Arc::new(session);
    let weak = Arc::downgrade(&session);
    let mut sessions = SESSIONS.get().lock();
    sessions.retain(|session| session.strong_count() > 0);
    sessions.push(weak);
    drop(sessions);
    session
}

/// Shuts a session down on a thread that does not use Python. Returns a channel that reports the
/// end.
fn shut_down_on_thread(session: Arc<dyn ShutDown>) -> Option<mpsc::Receiver<()>> {
    let (done, is_done) = mpsc::sync_channel(1);
    let work = move || {
        session.shut_down();
        drop(session);
        let _ = done.send(());
    };
    thread::Builder::new().name("mc-shutdown".into()).spawn(work).ok().map(|_| is_done)
}

/// Shuts down the session of a dropped store, without waiting.
pub(super) fn shut_down_later(session: Arc<dyn ShutDown>) {
    let _ = shut_down_on_thread(session);
}

/// Makes every open store of this process leave its cluster, so that the master need not wait for
/// missing heartbeats, and ends every transfer engine. Waits a few seconds at most.
#[pyfunction]
#[pyo3(name = "_shut_down_stores")]
pub(crate) fn shut_down_stores(py: Python<'_>) {
    py.detach(|| {
        // Taken out, so that the lock is not held during the shutdown.
        let sessions = std::mem::take(&mut *SESSIONS.get().lock());
        let deadline = Instant::now() + EXIT_TIMEOUT;
        let open = sessions.into_iter().filter_map(|session| session.upgrade());
        let begun = open.filter_map(shut_down_on_thread);
        for is_done in begun.collect::<Vec<_>>() {
            let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
    });
}
