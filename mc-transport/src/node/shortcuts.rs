//! Faster ways to peers than the transport of their endpoint: shared memory, and those of other crates.
//!
//! A peer advertises them over its connection, each with a secret that proves that the node found
//! there is the same.

use std::any::Any;
use std::sync::Arc;

use mc_types::Endpoint;

use super::config::NodeConfig;
use super::error::NodeError;
use crate::backend::carrier::{Carrier, ShortcutTransport};
use crate::backend::description::Shortcut;
use crate::region::{Region, RegionTable};
#[cfg(target_os = "linux")]
use crate::shm::ShmTransport;
use crate::transport::{DynTransport, Link};

/// The transports that are shortcuts of one node.
#[derive(Default)]
pub(super) struct Shortcuts {
    /// The transports over which peers describe themselves.
    told_by: Vec<Arc<dyn Carrier>>,
    /// The fastest first.
    ways: Vec<Arc<dyn ShortcutTransport>>,
    /// Whether the first shares memory with processes of this host.
    shares_memory: bool,
}

/// A link over a shortcut.
pub(super) struct ShortLink {
    pub(super) scheme: &'static str,
    pub(super) link: Arc<dyn Link>,
}

impl Shortcuts {
    /// Starts those that `config` names.
    pub(super) async fn start(
        config: &NodeConfig,
        regions: &RegionTable,
    ) -> Result<Self, NodeError> {
        let mut shortcuts = Self::default();
        #[cfg(target_os = "linux")]
        if let Some(shm) = config.sharing() {
            shortcuts.ways.push(Arc::new(ShmTransport::start_with(shm, regions.clone()).await?));
            shortcuts.shares_memory = true;
        }
        let reached = config.reached();
        for shortcut in &config.shortcuts {
            shortcuts.ways.extend(shortcut.start(&reached, regions.clone()).await);
        }
        Ok(shortcuts)
    }

    /// Returns the advertisements of this side for peers.
    pub(super) fn told(&self) -> Vec<Shortcut> {
        self.ways.iter().filter_map(|way| way.told()).collect()
    }

    /// Adds a transport over which peers describe themselves.
    pub(super) fn told_by(&mut self, carrier: &Arc<dyn Carrier>) {
        self.told_by.push(Arc::clone(carrier));
    }

    /// Returns the fastest link to the node that `link` leads to, at `endpoint`, if there is one
    /// that is faster.
    pub(super) async fn link(
        &self,
        endpoint: &Endpoint,
        link: &Arc<dyn Link>,
    ) -> Option<ShortLink> {
        let carrier = self.told_by.iter().find(|one| one.scheme() == endpoint.scheme())?;
        let peer = carrier.description(endpoint)?;
        for way in &self.ways {
            if let Some(link) = way.shorten(endpoint, &peer, link).await {
                return Some(ShortLink { scheme: way.scheme(), link });
            }
        }
        None
    }

    /// Returns the transport that allocates memory which processes of this host can map.
    pub(super) fn shared_memory(&self) -> Option<&dyn DynTransport> {
        self.transports().next().filter(|_| self.shares_memory)
    }

    /// Returns all of the transports.
    pub(super) fn transports(&self) -> impl Iterator<Item = &dyn DynTransport> {
        self.ways.iter().map(|way| &**way as &dyn DynTransport)
    }

    /// Has devices register a region that was just opened.
    pub(super) fn prepare(&self, region: &Region) {
        self.ways.iter().for_each(|way| way.prepare(region));
    }

    /// Returns the shortcut of the type `T`, if it is on.
    pub(super) fn get<T: ShortcutTransport>(&self) -> Option<&T> {
        self.ways.iter().find_map(|way| (&**way as &dyn Any).downcast_ref())
    }

    pub(super) async fn shutdown(&self) {
        for transport in self.transports() {
            transport.shutdown().await;
        }
    }
}
