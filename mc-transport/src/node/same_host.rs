//! The shared memory of a node, and how processes of its host find it.
//!
//! A peer of the same host is found by itself: over another transport it says where its socket
//! for sharing memory is, and a secret. A peer that can connect to that socket, and proves over
//! it that it knows the secret, is on the same host; names of hosts prove nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use mc_types::Endpoint;
use parking_lot::Mutex;
use tracing::{debug, info};

use super::config::NodeConfig;
use super::error::NodeError;
use crate::breaker::{Breaker, BreakerConfig};
use crate::description::{Description, Shortcut};
use crate::proof::NodeSecret;
use crate::region::RegionTable;
use crate::shm::{ShmListen, ShmTransport};
use crate::transport::{DynTransport, Link, Transport};

/// Nodes whose shortcuts did not work, and are remembered.
const REMEMBERED_NODES: usize = 1024;

pub(super) struct SameHost {
    shm: ShmTransport,
    /// By node: shortcuts that do not work are tried less and less often.
    refused: Mutex<HashMap<[u8; 16], Breaker>>,
}

impl SameHost {
    /// Starts sharing memory, if `config` says so.
    pub(super) async fn start(
        config: &NodeConfig,
        regions: &RegionTable,
    ) -> Result<Option<Self>, NodeError> {
        let Some(mut shm) = config.shm.clone() else { return Ok(None) };
        if !config.listens() && shm.listen == ShmListen::Random {
            // No peer is told of a node that accepts none.
            shm.listen = ShmListen::Nowhere;
        }
        let shm = ShmTransport::start_with(shm, regions.clone()).await?;
        Ok(Some(Self { shm, refused: Mutex::default() }))
    }

    /// Returns what peers are told of this side.
    pub(super) fn shortcut(&self) -> Option<Shortcut> {
        let endpoint = Transport::endpoint(&self.shm)?.clone();
        Some(Shortcut { endpoint, secret: self.shm.secret().to_bytes() })
    }

    /// Returns the link to `peer`, if there can be one. `endpoint` is where else it is reached.
    pub(super) async fn link(
        &self,
        endpoint: &Endpoint,
        peer: &Description,
    ) -> Option<Arc<dyn Link>> {
        let ours = Transport::scheme(&self.shm);
        let shortcut = peer.shortcuts.iter().find(|way| way.endpoint.scheme() == ours)?;
        if let Some(breaker) = self.refused.lock().get_mut(&peer.node) {
            breaker.admit(Instant::now()).ok()?;
        }
        let secret = NodeSecret::from_bytes(shortcut.secret);
        match self.shm.connect_proven(&shortcut.endpoint, secret).await {
            Ok(link) => {
                if self.refused.lock().remove(&peer.node).is_some() {
                    info!(%endpoint, "memory is shared with this peer again");
                }
                Some(link)
            }
            Err(error) => {
                debug!(%endpoint, %error, "memory cannot be shared with this peer");
                let mut refused = self.refused.lock();
                if refused.len() >= REMEMBERED_NODES {
                    refused.clear();
                }
                let config = BreakerConfig { failures: 1, ..BreakerConfig::default() };
                let breaker = refused.entry(peer.node).or_insert_with(|| Breaker::new(config));
                breaker.failed(Instant::now());
                None
            }
        }
    }

    /// Returns the transport for processes of this host.
    pub(super) fn transport(&self) -> &dyn DynTransport {
        &self.shm
    }
}
