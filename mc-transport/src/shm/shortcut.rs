//! Shared memory as a node's shortcut, and how processes of its host find it.
//!
//! A peer of the same host is found by itself: over another transport it says where its socket
//! for sharing memory is, and a secret. A peer that can connect to that socket, and proves over
//! it that it knows the secret, is on the same host; names of hosts prove nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use mc_types::{BoxFuture, Endpoint};
use parking_lot::Mutex;
use tracing::{debug, info};

use super::name::SCHEME;
use super::{ShmLink, ShmTransport};
use crate::backend::carrier::ShortcutTransport;
use crate::backend::description::{Description, Shortcut};
use crate::backend::proof::NodeSecret;
use crate::breaker::{Breaker, BreakerConfig};
use crate::transport::{Link, Transport as _};

/// Nodes whose shortcuts did not work, and are remembered.
const REMEMBERED_NODES: usize = 1024;

/// Breakers by node: shortcuts that do not work are tried less and less often.
#[derive(Default)]
pub(super) struct Refused(Mutex<HashMap<[u8; 16], Breaker>>);

impl ShortcutTransport for ShmTransport {
    fn told(&self) -> Option<Shortcut> {
        let endpoint = self.endpoint()?.clone();
        Some(Shortcut { endpoint, secret: self.secret().to_bytes() })
    }

    fn shorten<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        peer: &'a Description,
        _: &'a Arc<dyn Link>,
    ) -> BoxFuture<'a, Option<Arc<dyn Link>>> {
        Box::pin(async move {
            let link = self.link_to_neighbour(endpoint, peer).await;
            link.map(|link| link as Arc<dyn Link>)
        })
    }
}

impl ShmTransport {
    /// Returns the link to `peer`, if there can be one. `endpoint` is where else it is reached.
    async fn link_to_neighbour(
        &self,
        endpoint: &Endpoint,
        peer: &Description,
    ) -> Option<Arc<ShmLink>> {
        let shortcut = peer.shortcuts.iter().find(|way| way.endpoint.scheme() == SCHEME)?;
        let Refused(refused) = &self.refused;
        if let Some(breaker) = refused.lock().get_mut(&peer.node) {
            breaker.admit(Instant::now()).ok()?;
        }
        let secret = NodeSecret::from_bytes(shortcut.secret);
        match self.connect_proven(&shortcut.endpoint, secret).await {
            Ok(link) => {
                if refused.lock().remove(&peer.node).is_some() {
                    info!(%endpoint, "memory is shared with this peer again");
                }
                Some(link)
            }
            Err(error) => {
                debug!(%endpoint, %error, "memory cannot be shared with this peer");
                let mut refused = refused.lock();
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
}
