//! Nodes that are reached over TCP and through shared memory: the public suite, and how
//! peers of one host find each other.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::{eventually, eventually_async};
use mc_transport::conformance::{Pair, run_all};
use mc_transport::{
    Access, ConnectError, Link, MemFabric, Memory, Node, NodeConfig, Operation, RemoteSpan,
    ShmConfig, ShmTransport, TcpConfig, TransferError, Transport,
};
use mc_types::{Endpoint, Extent, RemoteKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const DEADLINE: Duration = Duration::from_secs(30);

fn config(listen: bool, shares: bool) -> NodeConfig {
    let mut tcp = TcpConfig::default();
    tcp.listen = listen.then(|| "127.0.0.1:0".parse().unwrap());
    let mut config = NodeConfig::new(tcp);
    config.shm = config.shm.filter(|_| shares);
    config
}

async fn node(listen: bool, shares: bool) -> Node {
    Node::start(config(listen, shares)).await.unwrap()
}

fn span(key: RemoteKey, offset: u64, len: u64) -> RemoteSpan {
    RemoteSpan::new(key, Extent::new(offset, len).unwrap())
}

/// The connections of this scheme that peers made to `node`.
fn open(node: &Node, scheme: &str) -> usize {
    let all = node.connections();
    all.iter().find(|(of, _)| *of == scheme).map(|(_, of)| of.open).unwrap()
}

async fn suite(owner_shares: bool, peer_shares: bool) {
    run_all(async || Pair {
        owner: Arc::new(node(true, owner_shares).await),
        peer: Arc::new(node(false, peer_shares).await),
    })
    .await;
}

#[tokio::test]
async fn nodes_that_share_keep_the_contract() {
    suite(true, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn also_on_two_threads() {
    suite(true, true).await;
}

#[tokio::test]
async fn nodes_that_do_not_share_keep_the_contract() {
    suite(true, false).await;
    suite(false, true).await;
}

#[tokio::test]
async fn peers_of_one_host_find_each_other() {
    let owner = node(true, true).await;
    let at = owner.endpoint().unwrap();
    let shared = owner.allocate(4096).unwrap();
    let private = Memory::allocate(4096).unwrap();
    let regions = [&shared, &private].map(|m| owner.register(m, Access::ReadWrite).unwrap());
    for peer_shares in [true, false] {
        let peer = node(false, peer_shares).await;
        let link = peer.connect(at).await.unwrap();
        assert_eq!(link.is_shared(), peer_shares);
        for region in &regions {
            let to = span(region.key(), 5, 3);
            let write = Operation::write(Bytes::from_static(b"abc"), to);
            link.submit(vec![write]).await.remove(0).unwrap();
            assert_eq!(region.memory().slice(5, 3).unwrap().to_vec(), b"abc");
        }
        let view = link.view(span(regions[0].key(), 5, 3));
        assert_eq!(view.is_ok(), peer_shares);
        let unshareable = link.view(span(regions[1].key(), 5, 3)).map(|_| ());
        assert!(matches!(unshareable, Err(TransferError::Unsupported { .. })), "{unshareable:?}");
        let again = peer.connect(at).await.unwrap();
        assert_eq!(again.is_shared(), peer_shares);
        eventually(DEADLINE, "one connection does", || open(&owner, "tcp") == 1).await;
        peer.shutdown().await;
    }
    owner.shutdown().await;
    assert_eq!((open(&owner, "tcp"), open(&owner, "shm")), (0, 0));
    assert!(owner.register(&shared, Access::Read).is_err());
}

#[tokio::test]
async fn a_node_that_comes_back_is_found_again() {
    let owner = node(true, true).await;
    let at = owner.endpoint().unwrap().clone();
    let port = at.address().parse().unwrap();
    let peer = node(false, true).await;
    let link = peer.connect(&at).await.unwrap();
    assert!(link.is_shared());
    drop(owner);
    eventually(DEADLINE, "its end is noticed", || !link.is_healthy()).await;
    let mut config = config(true, true);
    config.tcp.listen = Some(port);
    let owner = Node::start(config).await.unwrap();
    let memory = owner.allocate(100).unwrap();
    let region = owner.register(&memory, Access::Read).unwrap();
    let link = eventually_async(DEADLINE, "memory is shared again", async || {
        let link = peer.connect(&at).await;
        link.inspect_err(|error| assert!(error.is_retryable(), "{error}"))
            .ok()
            .filter(|link| link.is_shared())
    })
    .await;
    let target = Memory::allocate(100).unwrap();
    let read = Operation::read(span(region.key(), 0, 100), target.whole());
    link.submit(vec![read]).await.remove(0).unwrap();
}

#[tokio::test]
async fn a_socket_of_somebody_else_is_not_believed() {
    // A node on this host whose socket another node names as its own, as one on another
    // host would whose socket happens to have the same name.
    let stranger = ShmTransport::start(ShmConfig::default()).await.unwrap();
    let socket = stranger.endpoint().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = Endpoint::new("tcp", &address.to_string()).unwrap();
    let peer = node(false, true).await;
    let text = format!("node {:032x}\nshortcut {socket} {:032x}\n", 7, 8);
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut preface = [0; 16];
        stream.read_exact(&mut preface).await.unwrap();
        let len = u32::try_from(text.len()).unwrap().to_le_bytes();
        stream.write_all(&[&preface[..], &len, text.as_bytes()].concat()).await.unwrap();
        stream
    };
    let (link, _stream) = tokio::join!(peer.connect(&endpoint), serve);
    let link = link.unwrap();
    assert!(!link.is_shared() && link.is_healthy(), "TCP stays in use");
    for _ in 0..20 {
        assert!(!peer.connect(&endpoint).await.unwrap().is_shared());
    }
}

#[tokio::test]
async fn a_transport_of_the_application_s_own_carries_a_node() {
    let fabric = MemFabric::new();
    let with =
        |name: &str| config(true, true).with_transport(Arc::new(fabric.transport(name).unwrap()));
    let mut config = with("owner");
    config.accept_peers("127.0.0.1:0".parse().unwrap(), vec!["nowhere".to_owned()]);
    assert!(config.of_peer().is_none());
    let owner = Node::start(config).await.unwrap();
    assert_eq!(owner.endpoint().unwrap().as_str(), "mem://owner");
    let memory = owner.allocate(4096).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let peer = Node::start(with("peer")).await.unwrap();
    let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
    assert_eq!((link.scheme(), link.is_shared()), ("mem", false));
    let write = Operation::write(Bytes::from_static(b"abc"), span(region.key(), 5, 3));
    link.submit(vec![write]).await.remove(0).unwrap();
    assert_eq!(memory.slice(5, 3).unwrap().to_vec(), b"abc");
    // Peers that have no such transport are still reached over TCP.
    let other = node(true, false).await;
    assert_eq!(peer.connect(other.endpoint().unwrap()).await.unwrap().scheme(), "tcp");
    let unknown = Endpoint::new("rdma", "10.0.0.1:7").unwrap();
    let refused = peer.connect(&unknown).await.unwrap_err();
    assert!(matches!(refused, ConnectError::WrongScheme { .. }), "{refused}");
}
