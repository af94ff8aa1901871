//! A link that takes the fastest way to a peer.

use std::fmt;
use std::sync::Arc;

use crate::completion::Completions;
use crate::error::TransferError;
use crate::link_id::LinkId;
use crate::operation::{Operation, RemoteSpan};
use crate::transport::{Capabilities, Link, View};

/// A link of a [`Node`](super::Node): over shared memory while that works, else over the
/// transport of the peer's endpoint.
pub struct NodeLink {
    pub(super) scheme: &'static str,
    pub(super) link: Arc<dyn Link>,
    pub(super) shared: Option<Arc<dyn Link>>,
}

impl NodeLink {
    /// Returns the scheme of the transport that an operation submitted now would take: `shm` for
    /// shared memory.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.is_shared() { "shm" } else { self.scheme }
    }

    /// Returns whether both sides share memory.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_healthy())
    }

    fn best(&self) -> &dyn Link {
        match &self.shared {
            Some(shared) if shared.is_healthy() => &**shared,
            _ => &*self.link,
        }
    }
}

impl Link for NodeLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        self.best().submit(batch)
    }

    fn is_healthy(&self) -> bool {
        self.best().is_healthy()
    }

    fn capabilities(&self) -> Capabilities {
        self.best().capabilities()
    }

    fn id(&self) -> Option<LinkId> {
        self.best().id()
    }

    /// Of both ways: what was given to one may have gone another.
    fn ids(&self) -> Vec<LinkId> {
        let shared = self.shared.iter().flat_map(|shared| shared.ids());
        self.link.ids().into_iter().chain(shared).collect()
    }

    fn fence(&self, lost: LinkId) -> Completions {
        self.best().fence(lost)
    }

    fn view(&self, span: RemoteSpan) -> Result<View, TransferError> {
        self.best().view(span)
    }
}

impl fmt::Debug for NodeLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLink").field("scheme", &self.scheme()).finish_non_exhaustive()
    }
}
