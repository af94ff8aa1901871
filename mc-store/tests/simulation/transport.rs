//! The data path: memory of this process behind delays, failures and cut-off hosts.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use mc_transport::{
    Access, Capabilities, Completions, ConnectError, Link, MemFabric, MemLink, MemTransport,
    Memory, Operation, Region, RegionTable, RegisterError, Tickets, TransferError, Transport,
};
use mc_types::{Endpoint, RemoteKey};
use tokio::time::sleep_until;

use crate::network::Network;
use crate::world::Random;

/// A node of a [`MemFabric`] that is named by the address of its host.
pub(crate) struct SimulatedTransport {
    inner: MemTransport,
    host: Ipv4Addr,
    network: Arc<Network>,
}

impl SimulatedTransport {
    pub(crate) fn new(
        fabric: &MemFabric,
        network: &Arc<Network>,
        host: Ipv4Addr,
        random: &Random,
    ) -> Self {
        let keys = random.fork();
        let regions = RegionTable::with_keys(move || RemoteKey::from_bytes(keys.bytes()));
        let inner = fabric.transport_with(&host.to_string(), regions).unwrap();
        Self { inner, host, network: Arc::clone(network) }
    }
}

impl Transport for SimulatedTransport {
    type Link = SimulatedLink;

    fn scheme(&self) -> &'static str {
        self.inner.scheme()
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        self.inner.endpoint()
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        self.inner.register(memory, access)
    }

    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        self.inner.register_with_tickets(memory, access, tickets)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<SimulatedLink>, ConnectError> {
        let peer: Ipv4Addr = endpoint.address().parse().unwrap();
        sleep_until(self.network.arrival(self.host).max(self.network.back_at(peer))).await;
        if self.network.breaks() {
            let source = Arc::new(io::ErrorKind::ConnectionRefused.into());
            return Err(ConnectError::Unreachable { endpoint: endpoint.clone(), source });
        }
        let inner = self.inner.connect(endpoint).await?;
        let ends = [self.host, peer];
        let network = Arc::clone(&self.network);
        Ok(Arc::new(SimulatedLink { inner, ends, network, is_lost: Arc::default() }))
    }
}

pub(crate) struct SimulatedLink {
    inner: Arc<MemLink>,
    ends: [Ipv4Addr; 2],
    network: Arc<Network>,
    is_lost: Arc<AtomicBool>,
}

impl Link for SimulatedLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let (to_complete, completions) = Completions::pending(batch.len());
        let (network, ends) = (Arc::clone(&self.network), self.ends);
        let (inner, is_lost) = (Arc::clone(&self.inner), Arc::clone(&self.is_lost));
        tokio::spawn(async move {
            for (completion, operation) in to_complete.zip(batch) {
                sleep_until(network.arrival(ends[0]).max(network.back_at(ends[1]))).await;
                // Lost on the way there, or with the answer.
                if network.breaks() {
                    is_lost.store(true, Relaxed);
                }
                let mut outcome = Err(lost());
                if !is_lost.load(Relaxed) {
                    outcome = inner.submit(vec![operation]).await.remove(0);
                }
                sleep_until(network.arrival(ends[1]).max(network.back_at(ends[0]))).await;
                if network.breaks() {
                    is_lost.store(true, Relaxed);
                    outcome = Err(lost());
                }
                completion.complete(outcome);
            }
        });
        completions
    }

    fn is_healthy(&self) -> bool {
        !self.is_lost.load(Relaxed) && self.inner.is_healthy()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(u64::MAX);
        (capabilities.tickets, capabilities.cancels) = (true, true);
        capabilities
    }
}

fn lost() -> TransferError {
    TransferError::LinkLost { source: Arc::new(io::ErrorKind::ConnectionReset.into()) }
}
