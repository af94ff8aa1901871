//! The public suite.

use std::sync::Arc;

use mc_transport::conformance::{CASES, Pair, run};
use mc_transport::{QuicConfig, QuicTransport};

use crate::nodes::{connecting, start};
use crate::pki::Authority;

async fn pair(authority: &Authority, listen: &str, connections: usize) -> [QuicTransport; 2] {
    let owner = QuicConfig::listening(listen.parse().unwrap(), authority.server());
    let mut peer = connecting(authority);
    peer.connections_per_peer = connections.try_into().unwrap();
    [start(owner).await, start(peer).await]
}

/// Runs every case, and after each waits until both sides have closed and ended
/// everything.
async fn suite(listen: &str, connections: usize) {
    let authority = Authority::new();
    for case in CASES {
        let [owner, peer] = pair(&authority, listen, connections).await;
        let (owner, peer) = (Arc::new(owner), Arc::new(peer));
        let watch = (Arc::downgrade(&owner), Arc::clone(&peer));
        run(case, Pair { owner, peer }).await;
        watch.1.shutdown().await;
        assert!(watch.0.upgrade().is_none(), "{}: the case dropped its owner", case.name);
        assert_eq!((watch.1.stats().links, watch.1.stats().tasks), (0, 0), "{}", case.name);
    }
}

#[tokio::test]
async fn on_one_thread() {
    suite("127.0.0.1:0", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_two_threads() {
    suite("127.0.0.1:0", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_three_connections() {
    suite("127.0.0.1:0", 3).await;
}

#[tokio::test]
async fn over_ipv6() {
    suite("[::1]:0", 1).await;
}
