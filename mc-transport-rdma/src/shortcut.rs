//! RDMA as a node's shortcut: bytes go over the peer's endpoint until queue pairs are set up, and
//! whenever they fail.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use mc_transport::backend::{Description, Reached, Shortcut, ShortcutConfig, ShortcutTransport};
use mc_transport::{Link, NodeSecret, Region, RegionTable, Transport as _};
use mc_types::{BoxFuture, Endpoint};
use tracing::{info, warn};

use super::{RdmaConfig, RdmaTransport, SCHEME};

impl ShortcutConfig for RdmaConfig {
    /// Starts RDMA. A host without a device that can be used is reached without it, which is logged.
    fn start(
        &self,
        node: &Reached,
        regions: RegionTable,
    ) -> BoxFuture<'static, Option<Arc<dyn ShortcutTransport>>> {
        let mut config = self.clone();
        // Peers have the secret from the connection that they were admitted to.
        config.require_proof = true;
        // The address of the transport over which they are told, with a port of its own.
        let beside = node.listen.map(|address| SocketAddr::new(address.ip(), 0));
        config.listen = config.listen.or(beside);
        config.advertise_host = config.advertise_host.or_else(|| node.host.clone());
        Box::pin(async {
            match RdmaTransport::start_with(config, regions).await {
                Ok(transport) => {
                    info!(ports = transport.ports().join(","), "RDMA is on");
                    Some(Arc::new(transport) as Arc<dyn ShortcutTransport>)
                }
                Err(error) => {
                    warn!(
                        error = &error as &dyn Error,
                        "RDMA is off; bytes travel over the other transports"
                    );
                    None
                }
            }
        })
    }
}

impl ShortcutTransport for RdmaTransport {
    fn told(&self) -> Option<Shortcut> {
        let endpoint = self.endpoint()?.clone();
        Some(Shortcut { endpoint, secret: self.secret().to_bytes() })
    }

    fn shorten<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        peer: &'a Description,
        over: &'a Arc<dyn Link>,
    ) -> BoxFuture<'a, Option<Arc<dyn Link>>> {
        Box::pin(async move {
            let told = peer.shortcuts.iter().find(|way| way.endpoint.scheme() == SCHEME)?;
            let secret = NodeSecret::from_bytes(told.secret);
            let link = self.pool.shortcut(&told.endpoint, secret, over, endpoint).await?;
            Some(link as Arc<dyn Link>)
        })
    }

    fn prepare(&self, region: &Region) {
        Self::prepare(self, region);
    }
}
