//! Faster ways to peers than the transport of their endpoint: shared memory and RDMA.
//!
//! A peer tells of them over its connection, each with a secret that proves that the node found
//! there is the same.

use std::sync::Arc;

use mc_types::Endpoint;

use super::config::NodeConfig;
use super::error::NodeError;
#[cfg(all(feature = "rdma", target_os = "linux"))]
use super::rdma::Rdma;
#[cfg(target_os = "linux")]
use super::same_host::SameHost;
use crate::description::Describes;
use crate::description::Shortcut;
use crate::region::{Region, RegionTable};
use crate::transport::{DynTransport, Link};

/// The transports that are shortcuts of one node.
#[derive(Default)]
pub(super) struct Shortcuts {
    /// The transports over which peers describe themselves, by scheme.
    told_by: Vec<(&'static str, Arc<dyn Describes>)>,
    #[cfg(target_os = "linux")]
    same_host: Option<SameHost>,
    #[cfg(all(feature = "rdma", target_os = "linux"))]
    rdma: Option<Rdma>,
}

/// A link over a shortcut.
pub(super) struct ShortLink {
    pub(super) scheme: &'static str,
    pub(super) link: Arc<dyn Link>,
}

#[cfg_attr(
    not(target_os = "linux"),
    allow(clippy::unused_self, clippy::unused_async, reason = "there are no shortcuts")
)]
impl Shortcuts {
    /// Starts those that `config` names.
    pub(super) async fn start(
        config: &NodeConfig,
        regions: &RegionTable,
    ) -> Result<Self, NodeError> {
        let _ = (config, regions);
        Ok(Self {
            told_by: Vec::new(),
            #[cfg(target_os = "linux")]
            same_host: SameHost::start(config, regions).await?,
            #[cfg(all(feature = "rdma", target_os = "linux"))]
            rdma: Rdma::start(config, regions).await,
        })
    }

    /// Returns what peers are told of this side.
    pub(super) fn told(&self) -> Vec<Shortcut> {
        #[allow(unused_mut, reason = "nothing is added without the features")]
        let mut told = Vec::new();
        #[cfg(target_os = "linux")]
        told.extend(self.same_host.as_ref().and_then(SameHost::shortcut));
        #[cfg(all(feature = "rdma", target_os = "linux"))]
        told.extend(self.rdma.as_ref().and_then(Rdma::shortcut));
        told
    }

    /// Adds a transport over which peers describe themselves.
    pub(super) fn told_by<T: crate::Transport + Describes>(&mut self, transport: &Arc<T>) {
        let scheme = crate::Transport::scheme(&**transport);
        self.told_by.push((scheme, Arc::clone(transport) as Arc<dyn Describes>));
    }

    /// Returns the fastest link to the node that `link` leads to, at `endpoint`, if there is one
    /// that is faster.
    pub(super) async fn link(
        &self,
        endpoint: &Endpoint,
        link: &Arc<dyn Link>,
    ) -> Option<ShortLink> {
        let _ = (endpoint, link);
        {
            let scheme = endpoint.scheme();
            let (_, transport) = self.told_by.iter().find(|(known, _)| *known == scheme)?;
            let peer = transport.description(endpoint)?;
            #[cfg(target_os = "linux")]
            if let Some(same_host) = &self.same_host
                && let Some(link) = same_host.link(endpoint, &peer).await
            {
                return Some(ShortLink { scheme: same_host.transport().scheme(), link });
            }
            #[cfg(all(feature = "rdma", target_os = "linux"))]
            if let Some(rdma) = &self.rdma
                && let Some(link) = rdma.link(endpoint, &peer, link).await
            {
                return Some(ShortLink { scheme: crate::rdma::SCHEME, link });
            }
        }
        None
    }

    /// Returns the transport that allocates memory which processes of this host can map.
    pub(super) fn shared_memory(&self) -> Option<&dyn DynTransport> {
        #[cfg(target_os = "linux")]
        return self.same_host.as_ref().map(SameHost::transport);
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// Returns all of the transports.
    pub(super) fn transports(&self) -> impl Iterator<Item = &dyn DynTransport> {
        #[cfg(all(feature = "rdma", target_os = "linux"))]
        let rdma = self.rdma.as_ref().map(|rdma| rdma.transport() as &dyn DynTransport);
        #[cfg(not(all(feature = "rdma", target_os = "linux")))]
        let rdma = None;
        self.shared_memory().into_iter().chain(rdma)
    }

    /// Has devices register a region that was just opened.
    pub(super) fn prepare(&self, region: &Region) {
        let _ = region;
        #[cfg(all(feature = "rdma", target_os = "linux"))]
        if let Some(rdma) = &self.rdma {
            rdma.transport().prepare(region);
        }
    }

    /// Returns the RDMA transport, if it is on.
    #[cfg(all(feature = "rdma", target_os = "linux"))]
    pub(super) fn rdma(&self) -> Option<&crate::RdmaTransport> {
        self.rdma.as_ref().map(Rdma::transport)
    }

    pub(super) async fn shutdown(&self) {
        for transport in self.transports() {
            transport.shutdown().await;
        }
    }
}
