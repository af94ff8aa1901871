//! The suite of elections, on both implementations.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use mc_ha::election::conformance::{self, Cluster, Joined};
use mc_ha::election::etcd::EtcdElection;
use mc_ha::election::memory::MemoryCluster;
use mc_ha::etcd::EtcdConfig;
use mc_testkit::{EtcdCluster, Relay};

const TTL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Memory(MemoryCluster);

#[async_trait]
impl Cluster for Memory {
    fn ttl(&self) -> Duration {
        TTL
    }

    async fn join(&self) -> Joined {
        let election = Arc::new(self.0.join());
        let cut = Arc::downgrade(&election);
        Joined {
            election,
            set_cut: Box::new(move |on| {
                if let Some(election) = cut.upgrade() {
                    election.set_cut(on);
                }
            }),
        }
    }
}

/// A cluster in an etcd that all cases share; a relay in front of each member's way to it.
#[derive(Debug)]
struct Etcd {
    server: SocketAddr,
    cluster_id: String,
}

#[async_trait]
impl Cluster for Etcd {
    fn ttl(&self) -> Duration {
        TTL
    }

    async fn join(&self) -> Joined {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let relay = Relay::between(any, self.server, 64).await.unwrap();
        let config = EtcdConfig::new(&relay.address().to_string()).unwrap();
        let config = config.with_cluster_id(&self.cluster_id).unwrap().with_lease_ttl(TTL).unwrap();
        let set_cut = move |on| if on { relay.pause() } else { relay.resume() };
        Joined {
            election: Arc::new(EtcdElection::start(&config).unwrap()),
            set_cut: Box::new(set_cut),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elections_in_memory_pass_the_suite() {
    conformance::run_all(async || Arc::new(Memory(MemoryCluster::start(TTL).unwrap())) as _).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elections_in_etcd_pass_the_suite() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let next = AtomicU32::new(0);
    conformance::run_all(async || {
        let cluster_id = format!("case-{}", next.fetch_add(1, Ordering::Relaxed));
        Arc::new(Etcd { server: etcd.address(0), cluster_id }) as _
    })
    .await;
}
