//! The figures of a client, put together.

use super::core::Core;
use super::hot_cache::HotCache;
use super::{Client, ClientMetrics, DataPath};

impl Client {
    /// Returns the counters of this client and its clones. Empty, but for the calls of the master,
    /// when the client was told [not to count](super::ClientBuilder::metrics).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use mc_store::{Client, ClientOperation, Master};
    /// let master = Master::builder().start().await?;
    /// let client = Client::builder().master(master.local_addr().to_string()).connect().await?;
    /// client.exist("block-0").await?;
    /// let metrics = client.metrics();
    /// let exist = metrics.operation(ClientOperation::Exist).ok_or("it was called")?;
    /// assert_eq!((exist.calls(), exist.failed()), (1, 0));
    /// # client.shutdown().await;
    /// # master.shutdown().await;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn metrics(&self) -> ClientMetrics {
        self.core.metrics()
    }
}

impl Core {
    pub(super) fn metrics(&self) -> ClientMetrics {
        let (peer_disk_timed_out_reads, peer_disk_skipped_reads) =
            self.tiers.peer_disk_reads.counts();
        ClientMetrics {
            peer_disk_timed_out_reads,
            peer_disk_skipped_reads,
            rpc: self.link.master.metrics(),
            reports: self.reports.metrics(),
            #[cfg(feature = "c2c")]
            c2c: self.c2c.as_ref().map(|conversions| conversions.metrics()),
            is_cut_off: self.segments.is_cut_off(),
            served: self.transfers.transport.served(),
            connections: self
                .transfers
                .transport
                .connections()
                .into_iter()
                .map(|(scheme, connections)| (DataPath::of(scheme), connections))
                .collect(),
            labels: self.settings.metrics_labels.clone(),
            shared_tier: self.tiers.shared.as_ref().map(|tier| {
                let mut metrics = tier.metrics();
                self.tiers.shared_reads.count(&mut metrics);
                metrics
            }),
            is_shared_tier_missing: (self.tiers.shared.as_ref())
                .is_some_and(|shared| shared.tier().is_none()),
            local_disk: self.tiers.local_disk.get().map(|disk| {
                let mut metrics = disk.metrics();
                self.tiers.local_disk_reads.count(&mut metrics);
                metrics
            }),
            is_local_disk_missing: self.tiers.local_disk.is_missing(),
            hot_cache: self.hot.as_ref().map(HotCache::counts).unwrap_or_default(),
            ..self.metrics.read()
        }
    }
}
