//! The links that a server serves, so that one can be ended by another.
//!
//! A client that lost a link cannot know what of its writes is still on the way, or waits
//! here for its turn. Before it writes the same place over another link it asks there for
//! the end of the lost one, and waits for it. Otherwise old bytes could arrive on top of
//! new ones.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use quinn::Connection;
use tokio::sync::Semaphore;

use super::fault::CLOSED;
use crate::link_id::LinkId;

/// The connections that are open, by link.
#[derive(Default)]
pub(super) struct Served {
    open: Mutex<HashMap<LinkId, Vec<Arc<Open>>>>,
}

struct Open {
    connection: Connection,
    /// Closed when it touches no memory any more.
    ended: Semaphore,
}

/// A connection that is open for as long as this lives. Whoever touches memory for it
/// holds it.
pub(super) struct Entry {
    served: Arc<Served>,
    link: LinkId,
    open: Arc<Open>,
}

impl Served {
    pub(super) fn enter(self: &Arc<Self>, link: LinkId, connection: &Connection) -> Arc<Entry> {
        let open = Open { connection: connection.clone(), ended: Semaphore::new(0) };
        let open = Arc::new(open);
        self.open.lock().entry(link).or_default().push(Arc::clone(&open));
        Arc::new(Entry { served: Arc::clone(self), link, open })
    }

    /// Ends a link, and returns when it has ended; at once if it had before.
    pub(super) async fn end(&self, link: LinkId) {
        let open = self.open.lock().get(&link).cloned().unwrap_or_default();
        for open in &open {
            open.connection.close(CLOSED, b"ended over another link");
        }
        for open in &open {
            // It has no permits: this waits until it is closed.
            let _ = open.ended.acquire().await;
        }
    }
}

impl Entry {
    pub(super) fn link(&self) -> LinkId {
        self.link
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut links = self.served.open.lock();
        if let Some(open) = links.get_mut(&self.link) {
            open.retain(|open| !Arc::ptr_eq(open, &self.open));
            if open.is_empty() {
                links.remove(&self.link);
            }
        }
        drop(links);
        self.open.ended.close();
    }
}
