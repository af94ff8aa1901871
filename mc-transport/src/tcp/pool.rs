//! The links of a node, by peer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_types::Endpoint;
use parking_lot::Mutex;

use super::config::TcpConfig;
use super::peer::{Context, Peer};
use crate::backend::counters::Counters;
use crate::backend::description::Description;
use crate::backend::tasks::Tasks;
use crate::bundle::Bundle;
use crate::error::ConnectError;

/// Peers with links of a class, or with failures that are too fresh to forget.
const REMEMBERED_PEERS: usize = 1024;

/// The kind of memory that a link serves. A server carries the requests of a connection out in
/// their order: those on memory do not wait for a device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Class {
    /// Memory of the host.
    Memory,
    /// Memory that is staged, such as a disk.
    Staged,
}

/// Links to every peer that was asked for.
pub(super) struct Pool {
    context: Arc<Context>,
    /// For each class.
    peers: Mutex<[HashMap<Endpoint, Arc<Peer>>; 2]>,
    closed: AtomicBool,
}

impl Pool {
    pub(super) fn new(config: TcpConfig, tasks: Arc<Tasks>, counters: Arc<Counters>) -> Self {
        let context = Arc::new(Context { config, tasks, counters });
        Self { context, peers: Mutex::default(), closed: AtomicBool::new(false) }
    }

    /// The links to `endpoint`, as one.
    pub(super) async fn link(
        &self,
        endpoint: &Endpoint,
        class: Class,
    ) -> Result<Arc<Bundle>, ConnectError> {
        let peer = self.peer(endpoint, class)?;
        peer.link(&self.context).await
    }

    /// The description of the peer at `endpoint`; `None` before there was a link.
    pub(super) fn description(&self, endpoint: &Endpoint) -> Option<Arc<Description>> {
        let peer = self.peers.lock()[Class::Memory as usize].get(endpoint).cloned();
        peer.and_then(|peer| peer.description())
    }

    /// Forgets that attempts to reach `endpoint` failed.
    pub(super) fn forgive(&self, endpoint: &Endpoint) {
        for peers in &*self.peers.lock() {
            if let Some(peer) = peers.get(endpoint) {
                peer.forgive();
            }
        }
    }

    /// Fails every link, and every later call.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let peers = std::mem::take(&mut *self.peers.lock());
        for peer in peers.iter().flat_map(HashMap::values) {
            peer.close();
        }
    }

    fn peer(&self, endpoint: &Endpoint, class: Class) -> Result<Arc<Peer>, ConnectError> {
        let mut peers = self.peers.lock();
        if self.closed.load(Ordering::SeqCst) {
            return Err(ConnectError::Closed);
        }
        let peers = &mut peers[class as usize];
        if let Some(peer) = peers.get(endpoint) {
            return Ok(Arc::clone(peer));
        }
        if peers.len() >= REMEMBERED_PEERS {
            peers.retain(|_, peer| Arc::strong_count(peer) > 1 || peer.is_linked());
        }
        let peer = Arc::new(Peer::new(endpoint.clone(), &self.context.config));
        peers.insert(endpoint.clone(), Arc::clone(&peer));
        Ok(peer)
    }
}
