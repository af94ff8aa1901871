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
use crate::description::{Describes, Description, Shortcut};
use crate::proof::NodeSecret;
use crate::region::RegionTable;
use crate::shm::{ShmListen, ShmTransport};
use crate::transport::{DynTransport, Link, Transport};

/// Nodes whose shortcuts did not work, and are remembered.
const REMEMBERED_NODES: usize = 1024;

#[derive(Default)]
pub(super) struct SameHost {
    shm: Option<ShmTransport>,
    /// The transports over which peers describe themselves, by scheme.
    told_by: Vec<(&'static str, Arc<dyn Describes>)>,
    /// By node: shortcuts that do not work are tried less and less often.
    refused: Mutex<HashMap<[u8; 16], Breaker>>,
}

impl SameHost {
    /// Starts sharing memory, if `config` says so.
    pub(super) async fn start(
        config: &NodeConfig,
        regions: &RegionTable,
    ) -> Result<Self, NodeError> {
        let Some(mut shm) = config.shm.clone() else { return Ok(Self::default()) };
        if !config.listens() && shm.listen == ShmListen::Random {
            // No peer is told of a node that accepts none.
            shm.listen = ShmListen::Nowhere;
        }
        let shm = ShmTransport::start_with(shm, regions.clone()).await?;
        Ok(Self { shm: Some(shm), ..Self::default() })
    }

    /// Returns what peers are told of this side.
    pub(super) fn shortcuts(&self) -> Vec<Shortcut> {
        let shortcut = self.shm.as_ref().and_then(|shm| {
            let endpoint = Transport::endpoint(shm)?.clone();
            Some(Shortcut { endpoint, secret: shm.secret().to_bytes() })
        });
        shortcut.into_iter().collect()
    }

    /// Adds a transport over which peers describe themselves.
    pub(super) fn told_by<T: Transport + Describes>(&mut self, transport: &Arc<T>) {
        let scheme = Transport::scheme(&**transport);
        self.told_by.push((scheme, Arc::clone(transport) as Arc<dyn Describes>));
    }

    /// Returns the link to the node at `endpoint`, if there can be one.
    pub(super) async fn link(&self, endpoint: &Endpoint) -> Option<Arc<dyn Link>> {
        let shm = self.shm.as_ref()?;
        let peer = self.description(endpoint)?;
        let ours = Transport::scheme(shm);
        let shortcut = peer.shortcuts.iter().find(|way| way.endpoint.scheme() == ours)?;
        if let Some(breaker) = self.refused.lock().get_mut(&peer.node) {
            breaker.admit(Instant::now()).ok()?;
        }
        let secret = NodeSecret::from_bytes(shortcut.secret);
        match shm.connect_proven(&shortcut.endpoint, secret).await {
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

    fn description(&self, endpoint: &Endpoint) -> Option<Arc<Description>> {
        let scheme = endpoint.scheme();
        let (_, transport) = self.told_by.iter().find(|(known, _)| *known == scheme)?;
        transport.description(endpoint)
    }

    /// Returns the transport for processes of this host.
    pub(super) fn transport(&self) -> Option<&dyn DynTransport> {
        self.shm.as_ref().map(|shm| shm as &dyn DynTransport)
    }

    pub(super) async fn shutdown(&self) {
        if let Some(shm) = &self.shm {
            shm.shutdown().await;
        }
    }
}
