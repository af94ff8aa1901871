//! A cluster with a node agent that serves thin clients.

use std::time::Duration;

use mc_cluster_testkit::{ANY_PORT, Cluster};
use mc_standalone::{DummyClient, DummyClientBuilder, Server, ServerBuilder};
use mc_store::{ByteSize, Client, Master, MasterBuilder, MasterConfig};
use mc_testkit::eventually_async;

/// Long enough for a loaded machine; a test that needs it has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A master, and a node agent that has the only segment and serves thin clients.
pub(crate) struct Host {
    pub(crate) master: Master,
    pub(crate) real: Client,
    pub(crate) server: Server,
}

impl Host {
    pub(crate) async fn start() -> Self {
        Self::with(ByteSize::mib(64), |server| server).await
    }

    pub(crate) async fn with(
        segment: ByteSize,
        configure: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        // A tick of the master would evict what lies above the usual watermark.
        let mut config = MasterConfig::default();
        config.eviction_high_watermark_ratio = 1.0;
        let master = Master::builder().config(config);
        Self::of(master, segment, configure).await
    }

    pub(crate) async fn of(
        master: MasterBuilder,
        segment: ByteSize,
        configure: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let Cluster { master, mut nodes } = Box::pin(Cluster::of(master, &[segment])).await;
        let real = nodes.remove(0);
        let server = Server::builder(real.clone()).listen(ANY_PORT);
        let server = configure(server).start().await.unwrap();
        Self { master, real, server }
    }

    pub(crate) fn address(&self) -> String {
        self.server.local_addr().to_string()
    }

    pub(crate) fn dummy(&self) -> DummyClientBuilder {
        DummyClient::builder().server(self.address()).local_buffer(ByteSize::mib(16))
    }

    pub(crate) async fn app(&self) -> DummyClient {
        self.dummy().connect().await.unwrap()
    }

    /// Waits until the server has nothing in use any more.
    pub(crate) async fn until_idle(&self) {
        until("an idle server", async || {
            let report = self.server.report();
            let used = (report.clients, report.memories, report.shared.as_u64(), report.calls);
            (used == (0, 0, 0, 0)).then_some(())
        })
        .await;
    }
}

pub(crate) async fn until<T>(what: &str, condition: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_async(DEADLINE, what, condition).await
}
