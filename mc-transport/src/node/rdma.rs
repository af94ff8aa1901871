//! RDMA as a shortcut: bytes go over the peer's endpoint until queue pairs are set up, and whenever
//! they fail.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use mc_types::Endpoint;
use tracing::{info, warn};

use super::config::NodeConfig;
use crate::description::{Description, Shortcut};
use crate::proof::NodeSecret;
use crate::rdma::{RdmaTransport, SCHEME};
use crate::region::RegionTable;
use crate::transport::{Link, Transport};

pub(super) struct Rdma(RdmaTransport);

impl Rdma {
    /// Starts RDMA, if `config` names it. A host without a device that can be used is reached
    /// without it, which is logged.
    pub(super) async fn start(config: &NodeConfig, regions: &RegionTable) -> Option<Self> {
        let mut rdma = config.rdma.clone()?;
        // Peers have the secret from the connection that they were admitted to.
        rdma.require_proof = true;
        if config.listens() && rdma.listen.is_none() {
            // The address of the transport over which they are told, with a port of its own.
            let address = config.tcp.listen;
            #[cfg(feature = "quic")]
            let address = config.quic.as_ref().and_then(|quic| quic.listen).or(address);
            rdma.listen = address.map(|address| SocketAddr::new(address.ip(), 0));
        }
        if rdma.advertise_host.is_none() {
            rdma.advertise_host = config.tcp.advertise_hosts.first().cloned();
            #[cfg(feature = "quic")]
            if let Some(host) = config.quic.as_ref().and_then(|quic| quic.advertise_hosts.first()) {
                rdma.advertise_host = Some(host.clone());
            }
        }
        match RdmaTransport::start_with(rdma, regions.clone()).await {
            Ok(transport) => {
                info!(ports = transport.ports().join(","), "RDMA is on");
                Some(Self(transport))
            }
            Err(error) => {
                warn!(
                    error = &error as &dyn Error,
                    "RDMA is off; bytes travel over the other transports"
                );
                None
            }
        }
    }

    /// Returns what peers are told of this side.
    pub(super) fn shortcut(&self) -> Option<Shortcut> {
        let endpoint = Transport::endpoint(&self.0)?.clone();
        Some(Shortcut { endpoint, secret: self.0.secret().to_bytes() })
    }

    pub(super) fn transport(&self) -> &RdmaTransport {
        &self.0
    }

    /// Returns the link to `peer`, if there is one. `link` leads to the same node, at `endpoint`.
    pub(super) async fn link(
        &self,
        endpoint: &Endpoint,
        peer: &Description,
        link: &Arc<dyn Link>,
    ) -> Option<Arc<dyn Link>> {
        let shortcut = peer.shortcuts.iter().find(|way| way.endpoint.scheme() == SCHEME)?;
        let secret = NodeSecret::from_bytes(shortcut.secret);
        let short = self.0.shortcut(&shortcut.endpoint, secret, link, endpoint).await?;
        Some(short as Arc<dyn Link>)
    }
}
