//! The connections that a server serves, so that one can be ended by another.
//!
//! A client that lost a connection cannot know what of its writes is still on the way:
//! bytes wait in the network, and in the server's receive buffer. Before it writes the
//! same place over another connection it asks the server there to end the lost one, and
//! waits until that is so. Otherwise old bytes could arrive on top of new ones.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::link_id::LinkId;

/// Those that are open.
#[derive(Clone, Default)]
pub(crate) struct Connections {
    open: Arc<Mutex<HashMap<LinkId, Arc<Open>>>>,
}

struct Open {
    /// Told once somebody wants it ended.
    end: Notify,
    /// Closed when it touches no memory any more.
    ended: Semaphore,
}

impl Connections {
    /// Enters a connection that begins. It is open for as long as the entry lives.
    pub(super) fn enter(&self, id: LinkId) -> Entry {
        let open = Arc::new(Open { end: Notify::new(), ended: Semaphore::new(0) });
        self.open.lock().insert(id, Arc::clone(&open));
        Entry { connections: self.clone(), id, open }
    }

    /// Ends a connection, and returns when it has ended; at once if it had before.
    pub(super) async fn end(&self, id: LinkId) {
        let open = self.open.lock().get(&id).cloned();
        if let Some(open) = open {
            open.end.notify_one();
            // It has no permits: this waits until it is closed.
            let _ = open.ended.acquire().await;
        }
    }
}

/// A connection that is open.
pub(super) struct Entry {
    connections: Connections,
    id: LinkId,
    open: Arc<Open>,
}

impl Entry {
    /// Waits until somebody wants the connection ended.
    pub(super) async fn asked_to_end(&self) {
        self.open.end.notified().await;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.id);
        self.open.ended.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_ends_a_connection_waits_for_its_end() {
        let connections = Connections::default();
        let id = LinkId::from_bytes([7; 16]);
        connections.end(id).await;
        let entry = connections.enter(id);
        let mut end = std::pin::pin!(connections.end(id));
        assert!(futures_now(end.as_mut()).is_none(), "it has not ended yet");
        entry.asked_to_end().await;
        assert!(futures_now(end.as_mut()).is_none(), "it is still open");
        drop(entry);
        end.await;
        assert!(connections.open.lock().is_empty());
    }

    /// What a future has now.
    fn futures_now<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }
}
