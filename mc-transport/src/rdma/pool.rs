//! The links of a node, by peer.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mc_types::Endpoint;
use parking_lot::Mutex;

use super::connect::Shared;
use super::link::RdmaLink;
use crate::breaker::{Breaker, BreakerConfig};
use crate::error::{ConnectError, TransferError};
use crate::link_id::LinkId;
use crate::proof::NodeSecret;
use crate::transport::Link;

/// Peers that are remembered though no link to them is left.
const MAX_REMEMBERED: usize = 1024;

/// How long a shortcut that is being made is waited for. Usually it takes milliseconds; a network
/// that loses its packets takes seconds to show.
const SOON: Duration = Duration::from_millis(250);

/// Links to every peer that was asked for.
pub(super) struct Pool {
    shared: Arc<Shared>,
    peers: Mutex<HashMap<Who, Arc<Peer>>>,
    closed: AtomicBool,
}

/// A link whose peer did not prove itself is not taken for one whose peer did.
type Who = (Endpoint, Option<[u8; 16]>);

#[derive(Default)]
struct Peer {
    link: Mutex<Option<Arc<RdmaLink>>>,
    /// A lost link, whose queue pairs at the peer may not be destroyed yet.
    lost: Mutex<Option<LinkId>>,
    /// Held while connecting, so that a crowd of callers makes one connection.
    connecting: tokio::sync::Mutex<()>,
    /// Set while a task connects a shortcut.
    is_tried: AtomicBool,
    /// Refuses attempts to connect a shortcut that failed just now.
    refused: Mutex<Option<Breaker>>,
}

impl Peer {
    fn may_try(&self) -> bool {
        let mut refused = self.refused.lock();
        refused.as_mut().is_none_or(|breaker| breaker.admit(Instant::now()).is_ok())
    }

    /// Takes note of how an attempt to connect a shortcut to the peer at `endpoint` ended.
    fn tried(&self, endpoint: &Endpoint, error: Option<&ConnectError>) {
        let mut refused = self.refused.lock();
        match (error, refused.as_mut()) {
            (None, Some(_)) => {
                tracing::info!(%endpoint, "bytes go to this peer by RDMA again");
                *refused = None;
            }
            (None, None) => {}
            (Some(error), None) => {
                let error = error as &dyn std::error::Error;
                tracing::warn!(%endpoint, error, "no RDMA to this peer; bytes go over another way");
                let config = BreakerConfig { failures: 1, ..BreakerConfig::default() };
                refused.insert(Breaker::new(config)).failed(Instant::now());
            }
            (Some(_), Some(breaker)) => breaker.failed(Instant::now()),
        }
    }

    fn healthy(&self) -> Option<Arc<RdmaLink>> {
        let mut link = self.link.lock();
        if let Some(gone) = link.take_if(|link| !link.is_healthy()) {
            *self.lost.lock() = gone.id();
        }
        link.clone()
    }

    /// Makes the peer end what a lost link had under way before `link` takes its place.
    async fn fence(&self, link: &RdmaLink) -> Result<(), TransferError> {
        let lost = *self.lost.lock();
        if let Some(lost) = lost {
            link.fence(lost).await.remove(0)?;
            self.lost.lock().take();
        }
        Ok(())
    }
}

impl Pool {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, peers: Mutex::default(), closed: AtomicBool::new(false) }
    }

    /// The link to the peer at `endpoint`, which knows `secret` if there is one. A new one uses
    /// `fallback` for what cannot be reached by RDMA.
    pub(super) async fn link(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
        fallback: Option<Arc<dyn Link>>,
    ) -> Result<Arc<RdmaLink>, ConnectError> {
        let peer = self.peer(endpoint, secret)?;
        if let Some(link) = peer.healthy() {
            return Ok(link);
        }
        let _connecting = peer.connecting.lock().await;
        if let Some(link) = peer.healthy() {
            return Ok(link);
        }
        let link = self.shared.connect(endpoint, secret, fallback).await?;
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

    /// The link to the node at `endpoint`, if there is one or one is made soon. `over` is a link to
    /// the same node, whose endpoint is `peer`.
    pub(super) async fn shortcut(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        secret: NodeSecret,
        over: &Arc<dyn Link>,
        peer: &Endpoint,
    ) -> Option<Arc<RdmaLink>> {
        let known = self.peer(endpoint, Some(secret)).ok()?;
        if let Some(link) = known.healthy() {
            link.set_fallback(over);
            return Some(link);
        }
        if !known.may_try() || known.is_tried.swap(true, Ordering::SeqCst) {
            return None;
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (pool, endpoint, over) = (Arc::clone(self), endpoint.clone(), Arc::clone(over));
        let peer = peer.clone();
        self.shared.tasks.spawn(async move {
            let tried = pool.link(&endpoint, Some(secret), Some(over)).await;
            known.tried(&peer, tried.as_ref().err());
            known.is_tried.store(false, Ordering::SeqCst);
            let _ = sender.send(tried.ok());
        });
        tokio::time::timeout(SOON, receiver).await.ok()?.ok()?
    }

    /// Fails every link, and every later call.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let peers = std::mem::take(&mut *self.peers.lock());
        for peer in peers.values() {
            let link = peer.link.lock().take();
            if let Some(link) = link {
                link.close(&TransferError::Closed);
            }
        }
    }

    /// Queue pairs of all links.
    pub(super) fn queue_pairs(&self) -> usize {
        let peers = self.peers.lock();
        peers.values().filter_map(|peer| Some(peer.link.lock().as_ref()?.queue_pairs())).sum()
    }

    fn peer(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
    ) -> Result<Arc<Peer>, ConnectError> {
        let mut peers = self.peers.lock();
        if self.closed.load(Ordering::SeqCst) {
            return Err(ConnectError::Closed);
        }
        let who = (endpoint.clone(), secret.map(NodeSecret::to_bytes));
        if let Some(peer) = peers.get(&who) {
            return Ok(Arc::clone(peer));
        }
        // A new peer is rare enough to look for those that are gone. Where something may be under
        // way still, that is remembered.
        let room = peers.len() < MAX_REMEMBERED;
        peers.retain(|_, peer| {
            let used = Arc::strong_count(peer) > 1 || peer.healthy().is_some();
            used || (room && peer.lost.lock().is_some())
        });
        let peer = Arc::<Peer>::default();
        peers.insert(who, Arc::clone(&peer));
        Ok(peer)
    }
}
