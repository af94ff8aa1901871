//! The links of a transport that a node's peers connect to beside another one, by peer and by the
//! secret that the peer proved to know.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_types::Endpoint;
use parking_lot::Mutex;

use crate::backend::proof::NodeSecret;
use crate::error::{ConnectError, TransferError};
use crate::link_id::LinkId;
use crate::transport::Link;

/// Peers that are remembered though no link to them is left.
const MAX_REMEMBERED: usize = 1024;

/// A link that can be ended by its transport.
pub trait Close: Link {
    /// Fails what is under way and everything to come with `reason`.
    fn close(&self, reason: &TransferError);
}

/// Links to every peer that was asked for.
pub struct ProvenLinks<L> {
    peers: Mutex<HashMap<Who, Arc<ProvenPeer<L>>>>,
    closed: AtomicBool,
}

/// A link whose peer did not prove itself is not taken for one whose peer did.
type Who = (Endpoint, Option<[u8; 16]>);

/// A peer, and the link to it.
struct ProvenPeer<L> {
    link: Mutex<Option<Arc<L>>>,
    /// A lost link, which the peer may not have ended yet.
    lost: Mutex<Option<LinkId>>,
    /// Held while connecting, so that a crowd of callers makes one connection.
    connecting: tokio::sync::Mutex<()>,
}

impl<L: Close> ProvenPeer<L> {
    fn healthy(&self) -> Option<Arc<L>> {
        let mut link = self.link.lock();
        if let Some(gone) = link.take_if(|link| !link.is_healthy()) {
            let mut lost = self.lost.lock();
            *lost = gone.id().or(*lost);
        }
        link.clone()
    }

    /// Makes the owner end what a lost link had under way before `link` takes its place:
    /// what is tried again must not be overtaken by what was tried before.
    async fn fence(&self, link: &L) -> Result<(), TransferError> {
        let lost = *self.lost.lock();
        if let Some(lost) = lost {
            link.fence(lost).await.remove(0)?;
            self.lost.lock().take();
        }
        Ok(())
    }
}

impl<L> Default for ProvenLinks<L> {
    fn default() -> Self {
        Self { peers: Mutex::default(), closed: AtomicBool::new(false) }
    }
}

impl<L: Close> ProvenLinks<L> {
    /// Returns the link to the peer at `endpoint`, which knows `secret` if there is one; has
    /// `connect` make it when there is none that works.
    ///
    /// # Errors
    /// That of `connect`, and [`ConnectError::Closed`] after [`close`](Self::close).
    pub async fn link(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
        connect: impl Future<Output = Result<L, ConnectError>>,
    ) -> Result<Arc<L>, ConnectError> {
        let peer = self.peer(endpoint, secret)?;
        if let Some(link) = peer.healthy() {
            return Ok(link);
        }
        let _connecting = peer.connecting.lock().await;
        if let Some(link) = peer.healthy() {
            return Ok(link);
        }
        let link = connect.await?;
        peer.fence(&link).await.map_err(|error| {
            let source = Arc::new(io::Error::other(error));
            ConnectError::Unreachable { endpoint: endpoint.clone(), source }
        })?;
        let link = Arc::new(link);
        *peer.link.lock() = Some(Arc::clone(&link));
        // `close` may have passed this peer between our first check and now.
        if self.closed.load(Ordering::SeqCst) {
            link.close(&TransferError::Closed);
            return Err(ConnectError::Closed);
        }
        Ok(link)
    }

    /// Returns the link to the peer at `endpoint`, if there is one that works.
    pub fn healthy(&self, endpoint: &Endpoint, secret: NodeSecret) -> Option<Arc<L>> {
        let who = (endpoint.clone(), Some(secret.to_bytes()));
        let peer = self.peers.lock().get(&who).cloned();
        peer.and_then(|peer| peer.healthy())
    }

    /// Returns the peer at `endpoint`, which is remembered from now on.
    fn peer(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
    ) -> Result<Arc<ProvenPeer<L>>, ConnectError> {
        let mut peers = self.peers.lock();
        if self.closed.load(Ordering::SeqCst) {
            return Err(ConnectError::Closed);
        }
        let who = (endpoint.clone(), secret.map(NodeSecret::to_bytes));
        if let Some(peer) = peers.get(&who) {
            return Ok(Arc::clone(peer));
        }
        // A new peer is rare enough to look for those that are gone. Where something may
        // be under way still, that is remembered; as far as it goes, since owners with
        // random names do not come back.
        let room = peers.len() < MAX_REMEMBERED;
        peers.retain(|_, peer| {
            let used = Arc::strong_count(peer) > 1 || peer.healthy().is_some();
            used || (room && peer.lost.lock().is_some())
        });
        let peer = Arc::new(ProvenPeer {
            link: Mutex::new(None),
            lost: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
        });
        peers.insert(who, Arc::clone(&peer));
        Ok(peer)
    }

    /// Returns the links that there are.
    pub fn all(&self) -> Vec<Arc<L>> {
        self.peers.lock().values().filter_map(|peer| peer.link.lock().clone()).collect()
    }

    /// Fails every link, and every later call.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let peers = std::mem::take(&mut *self.peers.lock());
        for peer in peers.values() {
            let link = peer.link.lock().take();
            if let Some(link) = link {
                link.close(&TransferError::Closed);
            }
        }
    }
}
