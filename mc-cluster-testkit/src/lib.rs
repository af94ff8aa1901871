#![doc = include_str!("../README.md")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot set up fails")]

mod doctest;
#[cfg(feature = "simulation")]
pub mod simulation;
mod stored_infos;

use mc_types::BoxFuture;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::time::Duration;

use mc_store::{ByteSize, Client, ClientBuilder, Master, MasterBuilder, MasterConfig};
use tokio::runtime::Runtime;

pub use doctest::{with_client, with_master};
pub use stored_infos::StoredInfos;

/// An address of this host with a free port.
pub const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Short, so that tests of what follows a heartbeat need not wait for it.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// Describes a client without a segment.
pub fn client(master: &impl ToString) -> ClientBuilder {
    Client::builder().master(master.to_string()).heartbeat_interval(HEARTBEAT)
}

/// Describes a client that peers can connect to, as a client with segments must be.
pub fn node(master: &impl ToString) -> ClientBuilder {
    client(master).listen(ANY_PORT)
}

/// A master, and nodes with one segment each: `node-0`, `node-1`, …
#[derive(Debug)]
pub struct Cluster {
    /// The master.
    pub master: Master,
    /// The nodes.
    pub nodes: Vec<Client>,
}

impl Cluster {
    /// Starts a master with the default settings, and a node for each of these segments.
    pub async fn start(segments: &[ByteSize]) -> Self {
        Self::start_with(MasterConfig::default(), segments).await
    }

    /// Starts a cluster as [`start`](Self::start) does, with these settings of the master.
    pub fn start_with<'a>(config: MasterConfig, segments: &'a [ByteSize]) -> BoxFuture<'a, Self> {
        Box::pin(async move { Self::of(Master::builder().config(config), segments).await })
    }

    /// Starts a cluster as [`start`](Self::start) does, with this master.
    pub fn of<'a>(master: MasterBuilder, segments: &'a [ByteSize]) -> BoxFuture<'a, Self> {
        Box::pin(async move {
            let master = Box::pin(master.seed(7).start());
            let mut cluster = Self { master: master.await.expect("a master"), nodes: Vec::new() };
            for (number, &size) in segments.iter().enumerate() {
                let node = cluster.node().segment_name(format!("node-{number}")).segment_size(size);
                cluster.nodes.push(node.connect().await.expect("a node"));
            }
            cluster
        })
    }

    /// Returns the master's address, as `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        self.master.local_addr().to_string()
    }

    /// Describes a [`client`] of this cluster.
    pub fn client(&self) -> ClientBuilder {
        client(&self.master.local_addr())
    }

    /// Describes a [`node`] of this cluster.
    pub fn node(&self) -> ClientBuilder {
        node(&self.master.local_addr())
    }

    /// Connects a client without a segment.
    pub fn app<'a>(&'a self) -> BoxFuture<'a, Client> {
        Box::pin(async move { self.client().connect().await.expect("a client") })
    }
}

/// A [`Cluster`] on threads of its own, for tests that block.
#[derive(Debug)]
pub struct BlockingCluster {
    runtime: Runtime,
    cluster: Cluster,
}

impl BlockingCluster {
    /// Starts a cluster as [`Cluster::start`] does.
    #[must_use]
    pub fn start(segments: &[ByteSize]) -> Self {
        Self::start_with(MasterConfig::default(), segments)
    }

    /// Starts a cluster as [`Cluster::start_with`] does.
    #[must_use]
    pub fn start_with(config: MasterConfig, segments: &[ByteSize]) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let cluster = runtime.block_on(Cluster::start_with(config, segments));
        Self { runtime, cluster }
    }

    /// Runs a future on the cluster's threads, and waits for its result.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

impl Deref for BlockingCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}
