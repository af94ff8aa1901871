//! QUIC as a transport of a node.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use mc_tls::ServerTls;
use mc_transport::RegionTable;
use mc_transport::backend::{Carrier, CarrierConfig, CarrierError, Shortcut};
use mc_types::BoxFuture;

use super::{QuicConfig, QuicTransport};

impl CarrierConfig for QuicConfig {
    fn listens_at(&self) -> Option<SocketAddr> {
        self.listen
    }

    fn advertised_hosts(&self) -> &[String] {
        &self.advertise_hosts
    }

    fn accepting(&self, address: SocketAddr, hosts: &[String]) -> Option<Arc<dyn CarrierConfig>> {
        self.server.as_ref()?;
        let mut config = self.clone();
        (config.listen, config.advertise_hosts) = (Some(address), hosts.to_vec());
        Some(Arc::new(config))
    }

    fn of_peer(&self) -> Arc<dyn CarrierConfig> {
        let mut config = self.clone();
        (config.listen, config.advertise_hosts, config.server) = (None, Vec::new(), None);
        config.connections_per_peer = NonZeroUsize::MIN;
        Arc::new(config)
    }

    fn certificate(&self) -> Option<Arc<ServerTls>> {
        self.server.clone()
    }

    fn start(
        &self,
        regions: RegionTable,
        shortcuts: Vec<Shortcut>,
    ) -> BoxFuture<'static, Result<Arc<dyn Carrier>, CarrierError>> {
        let config = self.clone();
        Box::pin(async {
            let started = QuicTransport::start_described(config, Some(regions), shortcuts).await;
            Ok(Arc::new(started?) as Arc<dyn Carrier>)
        })
    }
}
