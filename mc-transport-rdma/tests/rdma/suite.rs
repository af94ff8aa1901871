//! The public suite of transports.

use std::num::NonZeroUsize;
use std::sync::Arc;

use mc_transport::conformance::{CASES, Pair, run};
use mc_transport_rdma::RdmaTransport;

use crate::rig::{alone, owning, reaching};

async fn pair(queue_pairs: usize) -> (RdmaTransport, RdmaTransport) {
    let owner = RdmaTransport::start(owning()).await.unwrap();
    let mut config = reaching();
    config.queue_pairs_per_path = NonZeroUsize::new(queue_pairs).unwrap();
    (owner, RdmaTransport::start(config).await.unwrap())
}

/// Runs every case, and after each waits until both sides have closed and ended everything.
async fn suite(queue_pairs: usize) {
    let Some(_alone) = alone() else { return };
    for case in CASES {
        let begun = std::time::Instant::now();
        let (owner, peer) = pair(queue_pairs).await;
        let (owner, peer) = (Arc::new(owner), Arc::new(peer));
        let watch = (Arc::downgrade(&owner), Arc::clone(&peer));
        run(case, Pair { owner, peer }).await;
        watch.1.shutdown().await;
        assert!(watch.0.upgrade().is_none(), "{}: the case dropped its owner", case.name);
        let stats = watch.1.stats();
        let left = (stats.links, stats.queue_pairs, stats.tasks);
        assert_eq!(left, (0, 0, 0), "{}", case.name);
        println!("{} in {:?}", case.name, begun.elapsed());
    }
}

#[tokio::test]
async fn on_one_thread() {
    suite(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_two_threads() {
    suite(3).await;
}
