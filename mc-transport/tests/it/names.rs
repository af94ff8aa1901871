//! Peers by a name that has several addresses.

use std::time::{Duration, Instant};

use mc_testkit::{Input, Program, SilentAddress, role, where_a_name_has_two_addresses};
use mc_transport::{
    Access, ConnectError, Link, LinkId, Memory, Node, NodeConfig, Operation, RemoteSpan, TcpConfig,
    TcpTransport, Transport,
};
use mc_types::{Endpoint, Extent};

const DEADLINE: Duration = Duration::from_secs(30);

/// After which a further address is tried.
const NEXT_AFTER: Duration = Duration::from_millis(250);

#[test]
fn a_peer_is_reached_though_the_first_address_of_its_name_swallows_packets() {
    const PLAYER: &str =
        "names::a_peer_is_reached_though_the_first_address_of_its_name_swallows_packets";
    if role::role().is_some() {
        tokio::runtime::Runtime::new().unwrap().block_on(read_by_name());
        return role::say("read");
    }
    let Some(mut command) = where_a_name_has_two_addresses(PLAYER, "reader") else {
        eprintln!("NOT RUN: a name with two addresses, because nothing can be mounted here");
        return;
    };
    let mut program = Program::start(DEADLINE, &mut command, Input::None);
    assert_eq!(program.hear(), "read");
}

async fn read_by_name() {
    let silent = SilentAddress::take();
    let node = TcpTransport::start(TcpConfig::listening(silent.other())).await.unwrap();
    let memory = Memory::allocate(5).unwrap();
    memory.whole().copy_from(0, b"bytes").unwrap();
    let region = node.register(&memory, Access::Read).unwrap();
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let endpoint = Endpoint::new("tcp", &silent.name()).unwrap();
    let link = client.connect(&endpoint).await.unwrap();
    let target = Memory::allocate(5).unwrap();
    let span = RemoteSpan::new(region.key(), Extent::new(0, 5).unwrap());
    link.submit(vec![Operation::read(span, target.whole())]).await.remove(0).unwrap();
    assert_eq!(target.whole().to_vec(), b"bytes");
}

#[test]
fn a_node_is_reached_at_its_next_address_and_from_then_on_at_once() {
    const PLAYER: &str = "names::a_node_is_reached_at_its_next_address_and_from_then_on_at_once";
    if role::role().is_some() {
        tokio::runtime::Runtime::new().unwrap().block_on(read_at_the_next_address());
        return role::say("read");
    }
    let Some(mut command) = where_a_name_has_two_addresses(PLAYER, "reader") else {
        eprintln!("NOT RUN: a node with two addresses, because nothing can be mounted here");
        return;
    };
    let mut program = Program::start(DEADLINE, &mut command, Input::None);
    assert_eq!(program.hear(), "read");
}

async fn read_at_the_next_address() {
    let silent = SilentAddress::take();
    let mut tcp = TcpConfig::listening(silent.other());
    tcp.advertise_hosts =
        vec![silent.address().ip().to_string(), silent.other().ip().to_string(), "no.test".into()];
    let owner = Node::start(NodeConfig::new(tcp)).await.unwrap();
    let endpoint = owner.endpoint().unwrap().clone();
    assert_eq!(endpoint.address(), silent.address().to_string());
    let others: Vec<_> = endpoint.others().iter().map(Endpoint::address).collect();
    let port = silent.other().port();
    assert_eq!(others, [silent.other().to_string(), format!("no.test:{port}")]);
    let memory = owner.allocate(5).unwrap();
    memory.whole().copy_from(0, b"bytes").unwrap();
    let region = owner.register(&memory, Access::Read).unwrap();
    let span = RemoteSpan::new(region.key(), Extent::new(0, 5).unwrap());

    let peer = Node::start(NodeConfig::new(TcpConfig::default())).await.unwrap();
    let read = async || {
        let begun = Instant::now();
        let link = peer.connect(&endpoint).await.unwrap();
        let target = Memory::allocate(5).unwrap();
        link.submit(vec![Operation::read(span, target.whole())]).await.remove(0).unwrap();
        assert_eq!(target.whole().to_vec(), b"bytes");
        begun.elapsed()
    };
    assert!(read().await >= NEXT_AFTER, "the first address swallows packets");
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        fastest = fastest.min(read().await);
    }
    assert!(fastest < NEXT_AFTER, "the address that answered is tried first: {fastest:?}");

    // Another node may answer by the name: what it says of lost links is not believed.
    let by_name = endpoint.clone().with_others([Endpoint::new("tcp", &silent.name()).unwrap()]);
    let named = Node::start(NodeConfig::new(TcpConfig::default())).await.unwrap();
    for (peer, endpoint, fences) in [(&peer, &endpoint, true), (&named, &by_name, false)] {
        let link = peer.connect(endpoint).await.unwrap();
        let fenced = link.fence(LinkId::from_bytes([7; 16])).await.remove(0);
        assert_eq!(fenced.is_ok(), fences, "{fenced:?}");
    }

    // The error is that of the address that the peer likes best, although others fail sooner.
    owner.shutdown().await;
    let mut tcp = TcpConfig::default();
    tcp.connect_timeout = 4 * NEXT_AFTER;
    let late = Node::start(NodeConfig::new(tcp)).await.unwrap();
    let error = late.connect(&endpoint).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    assert!(error.to_string().contains(&silent.address().to_string()), "{error}");
}
