//! The public suite.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::eventually;
use mc_transport::{
    Access, ConnectError, Link, Node, NodeConfig, Operation, ShmConfig, Transport,
    conformance::{CASES, Pair, run},
};
use mc_transport_quic::{QuicConfig, QuicTransport};
use mc_types::Endpoint;

use tokio::time::timeout;

use super::nodes::{DEADLINE, connecting, one, span, start};
use super::pki::Authority;

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

/// A node that peers reach over QUIC, and through shared memory if both sides share.
async fn node(authority: &Authority, listens: bool, shares: bool) -> Node {
    let mut config = NodeConfig::default();
    let mut quic = connecting(authority);
    quic.server = listens.then(|| authority.server());
    config.add_carrier(quic);
    config.shm = shares.then(ShmConfig::default);
    if listens {
        config.accept_peers("127.0.0.1:0".parse().unwrap(), vec!["127.0.0.1".to_owned()]);
    }
    Node::start(config).await.unwrap()
}

#[tokio::test]
async fn nodes_over_quic_keep_the_contract() {
    let authority = Authority::new();
    for case in CASES {
        let owner = Arc::new(node(&authority, true, false).await);
        run(case, Pair { owner, peer: Arc::new(node(&authority, false, false).await) }).await;
    }
}

#[tokio::test]
async fn nodes_over_quic_find_shared_memory() {
    let authority = Authority::new();
    let owner = node(&authority, true, true).await;
    let at = owner.endpoint().unwrap();
    assert_eq!(at.scheme(), "quic");
    let memory = owner.allocate(4096).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    for (shares, scheme) in [(true, "shm"), (false, "quic")] {
        let peer = node(&authority, false, shares).await;
        let link = peer.connect(at).await.unwrap();
        assert_eq!(link.scheme(), scheme);
        let write = Operation::write(Bytes::from_static(b"abc"), span(region.key(), 5, 3));
        one(&*link, write).await.unwrap();
        assert_eq!(memory.slice(5, 3).unwrap().to_vec(), b"abc");
        peer.shutdown().await;
    }
}

/// A node that peers reach over QUIC and over TCP.
async fn node_with_two_ways(authority: &Authority) -> Node {
    let mut config = NodeConfig::default();
    let mut quic = connecting(authority);
    quic.server = Some(authority.server());
    config.add_carrier(quic);
    config.accept_peers("127.0.0.1:0".parse().unwrap(), vec!["127.0.0.1".to_owned()]);
    assert_eq!(config.tcp.listen, None, "without certificates it is not open to all");
    config.tcp.listen = Some("127.0.0.1:0".parse().unwrap());
    Node::start(config).await.unwrap()
}

#[tokio::test]
async fn a_peer_takes_the_first_way_that_works() {
    let authority = Authority::new();
    let owner = node_with_two_ways(&authority).await;
    let endpoint = owner.endpoint().unwrap();
    let [tcp] = endpoint.others() else { panic!("{:?}", endpoint.others()) };
    assert_eq!((endpoint.scheme(), tcp.scheme()), ("quic", "tcp"));
    let memory = owner.allocate(4096).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();

    // No node is there: as where a firewall drops the packets.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = Endpoint::new("quic", &silent.local_addr().unwrap().to_string()).unwrap();
    let blocked = silent.clone().with_others([tcp.clone()]);
    let foreign = Endpoint::new("pigeon", "7").unwrap();
    let newer = foreign.clone().with_others([endpoint.clone(), tcp.clone()]);
    let mut with_quic = NodeConfig::default();
    let mut quic = connecting(&authority);
    quic.connect_timeout = Duration::from_millis(200);
    with_quic.add_carrier(quic);
    let without = NodeConfig::default();
    let ways = [
        (&with_quic, endpoint, "quic"),
        (&without, endpoint, "tcp"),
        (&with_quic, &blocked, "tcp"),
        (&with_quic, &newer, "quic"),
        (&without, &newer, "tcp"),
    ];
    for (nth, (config, way, scheme)) in ways.into_iter().enumerate() {
        let peer = Node::start(config.clone()).await.unwrap();
        let link = timeout(DEADLINE, peer.connect(way)).await.expect("in time").unwrap();
        assert_eq!(link.scheme(), scheme, "{nth}");
        let write = Operation::write(Bytes::from(vec![nth as u8; 3]), span(region.key(), 5, 3));
        one(&*link, write).await.unwrap();
        assert_eq!(memory.slice(5, 3).unwrap().to_vec(), [nth as u8; 3]);
        peer.shutdown().await;
    }
    let peer = Node::start(with_quic).await.unwrap();
    let refused = peer.connect(&foreign).await.unwrap_err();
    assert!(matches!(refused, ConnectError::WrongScheme { .. }), "{refused}");
    let refused = peer.connect(&silent.with_others([foreign])).await.unwrap_err();
    assert!(!matches!(refused, ConnectError::WrongScheme { .. }), "{refused}");
}

#[tokio::test]
async fn a_link_of_one_transport_is_ended_over_another() {
    let authority = Authority::new();
    let owner = node_with_two_ways(&authority).await;
    let over_quic = owner.endpoint().unwrap();
    let over_tcp = &over_quic.others()[0];
    for (lost, kept) in [(over_quic, over_tcp), (over_tcp, over_quic)] {
        let [first, second] =
            [node(&authority, false, false).await, node(&authority, false, false).await];
        let lost = first.connect(lost).await.unwrap();
        let kept = second.connect(kept).await.unwrap();
        let ids = lost.ids();
        assert_eq!(ids.len(), 1);
        timeout(DEADLINE, kept.fence(ids[0])).await.expect("in time").remove(0).unwrap();
        eventually(DEADLINE, "the other link was ended", || !lost.is_healthy()).await;
        assert!(kept.is_healthy());
    }
}
