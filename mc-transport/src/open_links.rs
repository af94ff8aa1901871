//! The links over which peers reach the regions of one table, whichever transport they came by, so
//! that a peer can have one ended over any other.
//!
//! A client that lost a link cannot know which of its writes are still on the way: bytes wait in
//! the network, and in the server's buffers. Before it writes the same place over another link it
//! asks the server there to end the lost one, and waits until that is so. Otherwise old bytes could
//! arrive on top of new ones.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::link_id::LinkId;

/// The table. Clones share it.
#[derive(Clone, Default)]
pub struct OpenLinks {
    /// The connections of each link.
    links: Arc<Mutex<HashMap<LinkId, Vec<Arc<Open>>>>>,
}

struct Open {
    end: Box<dyn Fn() + Send + Sync>,
    /// Closed when the connection touches no memory any more.
    ended: Semaphore,
}

/// A connection that is open for as long as this lives. Everything that touches memory for it
/// holds it.
pub struct OpenLink {
    table: OpenLinks,
    id: LinkId,
    open: Arc<Open>,
}

impl OpenLinks {
    /// Enters a connection of the link `id`, which `end` has end soon.
    pub fn enter(&self, id: LinkId, end: impl Fn() + Send + Sync + 'static) -> OpenLink {
        let open = Arc::new(Open { end: Box::new(end), ended: Semaphore::new(0) });
        self.links.lock().entry(id).or_default().push(Arc::clone(&open));
        OpenLink { table: self.clone(), id, open }
    }

    /// Ends a link, and returns when it has ended; at once if it had before.
    pub async fn end(&self, id: LinkId) {
        let open = self.links.lock().get(&id).cloned().unwrap_or_default();
        for open in &open {
            (open.end)();
        }
        for open in &open {
            // It has no permits: this waits until it is closed.
            let _ = open.ended.acquire().await;
        }
    }
}

impl OpenLink {
    /// The link that it belongs to.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        let mut links = self.table.links.lock();
        if let Some(open) = links.get_mut(&self.id) {
            open.retain(|open| !Arc::ptr_eq(open, &self.open));
            if open.is_empty() {
                links.remove(&self.id);
            }
        }
        drop(links);
        self.open.ended.close();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[tokio::test]
    async fn the_end_of_a_link_is_that_of_all_its_connections() {
        let links = OpenLinks::default();
        let id = LinkId::from_bytes([7; 16]);
        links.end(id).await;
        let asked = Arc::new(AtomicUsize::new(0));
        let enter = || {
            let asked = Arc::clone(&asked);
            links.enter(id, move || _ = asked.fetch_add(1, Ordering::Relaxed))
        };
        let (first, second) = (enter(), enter());
        let mut end = pin!(links.end(id));
        assert!(now(end.as_mut()).is_none(), "it has not ended yet");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        drop(first);
        assert!(now(end.as_mut()).is_none(), "one connection is still open");
        drop(second);
        end.await;
        assert!(links.links.lock().is_empty());
    }

    /// The value of a future that is ready.
    fn now<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}
