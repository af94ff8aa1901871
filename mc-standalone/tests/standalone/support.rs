//! A cluster with a real client that serves dummy clients.

use std::time::{Duration, Instant};

use mc_standalone::{DummyClient, DummyClientBuilder, Server, ServerBuilder};
use mc_store::{ByteSize, Client, Master, MasterConfig};

/// Long enough for a loaded machine; a test that needs it has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A master, and a real client that has the only segment and serves dummy clients.
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
        let master = Master::builder().config(config).seed(7).start().await.unwrap();
        let real = Client::builder()
            .master(master.local_addr().to_string())
            .listen("127.0.0.1:0".parse().unwrap())
            .segment_size(segment)
            .connect()
            .await
            .unwrap();
        let server = Server::builder(real.clone()).listen("127.0.0.1:0".parse().unwrap());
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

/// Bytes that differ from key to key and along the value.
pub(crate) fn content(key: &str, len: usize) -> Vec<u8> {
    let seed = key.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31) ^ u64::from(byte));
    (0..len as u64).map(|n| ((seed ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

pub(crate) async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(begun.elapsed() < DEADLINE, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
