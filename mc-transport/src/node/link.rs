//! A link that takes the fastest way to a peer.

use std::fmt;
use std::sync::Arc;

use super::shortcuts::ShortLink;
use crate::completion::Completions;
use crate::error::TransferError;
use crate::link_id::LinkId;
use crate::operation::{Operation, RemoteSpan};
use crate::transport::{Capabilities, Link, View};

/// A link of a [`Node`](super::Node): over shared memory or RDMA while that works, else over the
/// transport of the peer's endpoint.
pub struct NodeLink {
    pub(super) scheme: &'static str,
    pub(super) link: Arc<dyn Link>,
    pub(super) shortcut: Option<ShortLink>,
    /// Whether it is certain that the peer is the one that was meant, if there is one at all.
    pub(super) is_certain: bool,
}

impl NodeLink {
    /// Returns the scheme of the transport that an operation submitted now would take: `shm` for
    /// shared memory, `rdma` for RDMA.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        self.short().map_or(self.scheme, |short| short.scheme)
    }

    /// Returns whether both sides share memory.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.short().is_some_and(|short| short.scheme == "shm")
    }

    fn short(&self) -> Option<&ShortLink> {
        self.shortcut.as_ref().filter(|short| short.link.is_healthy())
    }

    fn best(&self) -> &dyn Link {
        self.short().map_or(&*self.link, |short| &*short.link)
    }
}

impl Link for NodeLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        self.best().submit(batch)
    }

    fn is_healthy(&self) -> bool {
        self.short().is_some() || self.link.is_healthy()
    }

    fn capabilities(&self) -> Capabilities {
        self.best().capabilities()
    }

    fn id(&self) -> Option<LinkId> {
        self.best().id()
    }

    /// Returns the ids of both ways: an operation that was given to one may have gone the other.
    fn ids(&self) -> Vec<LinkId> {
        let short = self.shortcut.iter().flat_map(|short| short.link.ids());
        self.link.ids().into_iter().chain(short).collect()
    }

    /// Refused by a peer that was found by a name when its addresses did not answer: another node would
    /// say of a link that it never had that it has ended.
    fn fence(&self, lost: LinkId) -> Completions {
        if self.is_certain {
            return self.best().fence(lost);
        }
        let what = "a fence by a node that was found by its name";
        Completions::ready(vec![Err(TransferError::Unsupported { what })])
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
