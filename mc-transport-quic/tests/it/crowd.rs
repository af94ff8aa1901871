//! Connections that prove nothing, and peers that idle.

use std::net::SocketAddr;
use std::num::NonZeroUsize;

use bytes::Bytes;
use mc_testkit::eventually;
use mc_transport::{Access, ConnectError, Link, Memory, Operation, Region, Transport};
use mc_transport_quic::QuicTransport;
use mc_types::RemoteKey;
use quinn::{Connection, RecvStream, SendStream};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::nodes::{DEADLINE, connecting, listening, one, span, start};
use super::pki::Authority;
use super::raw::{self, OURS, request};

/// Places of the node under attack; several times as many connections come.
const PLACES: usize = 32;

struct Node {
    authority: Authority,
    server: QuicTransport,
    region: Region,
}

impl Node {
    async fn new(places: usize) -> Self {
        let authority = Authority::new();
        let mut config = listening(&authority);
        config.max_connections = places;
        config.max_connections_per_address = places;
        let server = start(config).await;
        let region = server.register(&Memory::allocate(64).unwrap(), Access::ReadWrite).unwrap();
        Self { authority, server, region }
    }

    fn address(&self) -> SocketAddr {
        self.server.local_address().unwrap()
    }

    fn key(&self) -> RemoteKey {
        self.region.key()
    }

    /// A client that makes one connection, whatever the machine.
    async fn client(&self) -> QuicTransport {
        let mut config = connecting(&self.authority);
        config.connections_per_peer = NonZeroUsize::MIN;
        start(config).await
    }

    fn write(&self) -> Operation {
        Operation::write(Bytes::from_static(b"x"), span(self.key(), 0, 1))
    }

    /// Shows that a new client is served.
    async fn serves(&self) {
        let client = self.client().await;
        let link = timeout(DEADLINE, client.connect(self.server.endpoint().unwrap())).await;
        one(&*link.expect("in time").unwrap(), self.write()).await.unwrap();
    }

    /// Shows that an old client and a new one are served.
    async fn is_open(&self, old: &dyn Link) {
        self.serves().await;
        one(old, self.write()).await.unwrap();
    }

    fn refused_and_yielded(&self) -> (u64, u64) {
        let stats = self.server.stats();
        (stats.refused_connections, stats.yielded_connections)
    }
}

/// How much silent connections say before.
#[derive(Clone, Copy, Debug)]
enum Says {
    /// The handshake, and no hello.
    Handshake,
    /// The hello, too.
    Hello,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_keep_nobody_out() {
    let node = Node::new(PLACES).await;
    let old = node.client().await;
    let old = old.connect(node.server.endpoint().unwrap()).await.unwrap();
    node.is_open(&*old).await;
    let mut crowd = Vec::new();
    for says in [Says::Handshake, Says::Hello] {
        for _ in 0..3 {
            for _ in 0..50 {
                crowd.push(match says {
                    Says::Handshake => {
                        raw::connect(&node.authority, &node.server, OURS).await.unwrap()
                    }
                    Says::Hello => raw::client(&node.authority, &node.server).await,
                });
            }
            node.is_open(&*old).await;
        }
    }
    let (refused, yielded) = node.refused_and_yielded();
    assert_eq!(refused, 0);
    assert!(yielded as usize >= crowd.len() - PLACES, "{yielded} of {}", crowd.len());
    assert!(node.server.stats().connections <= PLACES);
}

/// Hands first packets and demands for proof of address on between clients and a server, and
/// keeps everything else of the server back: no handshake ends.
async fn relay(socket: UdpSocket, server: SocketAddr) {
    // RFC 9000, section 17.2: a long header, and its type in two bits.
    const RETRY: u8 = 0xf0;
    let mut packet = vec![0; 65_536];
    let mut client = None;
    loop {
        let Ok((len, from)) = socket.recv_from(&mut packet).await else { continue };
        let to = match from == server {
            true if packet[0] & RETRY == RETRY => client,
            true => None,
            false => {
                client = Some(from);
                Some(server)
            }
        };
        if let Some(to) = to {
            let _ = socket.send_to(&packet[..len], to).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_do_not_end_keep_nobody_out() {
    let node = Node::new(PLACES).await;
    let old = node.client().await;
    let old = old.connect(node.server.endpoint().unwrap()).await.unwrap();
    node.is_open(&*old).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let between = socket.local_addr().unwrap();
    let relay: JoinHandle<()> = tokio::spawn(relay(socket, node.address()));
    let endpoint = raw::endpoint();
    let mut crowd = Vec::new();
    for round in 1..=3 {
        for _ in 0..50 {
            let config = raw::client_config(&node.authority, OURS);
            crowd.push(endpoint.connect_with(config, between, "127.0.0.1").unwrap());
        }
        // Also those of which it is asked whether their address is theirs.
        eventually(DEADLINE, "they are taken", || {
            node.server.stats().yielded_connections as usize + PLACES >= round * 50
        })
        .await;
        node.is_open(&*old).await;
    }
    assert_eq!(node.refused_and_yielded().0, 0);
    relay.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_idle_make_room_and_come_back() {
    let node = Node::new(4).await;
    let endpoint = node.server.endpoint().unwrap();
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(node.client().await);
    }
    for _ in 0..3 {
        for client in &clients {
            // A link that ends just now is found out by the operation; the next is another one.
            let mut served = false;
            for _ in 0..10 {
                let link = timeout(DEADLINE, client.connect(endpoint)).await.expect("in time");
                served = match link {
                    Ok(link) => one(&*link, node.write()).await.is_ok(),
                    Err(error) => {
                        assert!(error.is_retryable(), "{error}");
                        false
                    }
                };
                if served {
                    break;
                }
            }
            assert!(served);
        }
    }
    let (refused, yielded) = node.refused_and_yielded();
    assert_eq!(refused, 0);
    assert!(yielded >= 6, "{yielded}");
}

/// A connection at work: it has read, and its stream is open.
async fn working(node: &Node) -> (Connection, SendStream, RecvStream) {
    let connection = raw::client(&node.authority, &node.server).await;
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(&request(1, 0, node.key(), 0, 1)).await.unwrap();
    let mut answer = [0; 17];
    timeout(DEADLINE, receive.read_exact(&mut answer)).await.expect("in time").unwrap();
    (connection, send, receive)
}

#[tokio::test]
async fn connections_at_work_keep_their_places() {
    let node = Node::new(4).await;
    let mut at_work = Vec::new();
    for _ in 0..4 {
        at_work.push(working(&node).await);
    }
    let client = node.client().await;
    let error = client.connect(node.server.endpoint().unwrap()).await.err().unwrap();
    assert!(matches!(error, ConnectError::Busy { .. }) && error.is_retryable(), "{error:?}");
    let stats = node.server.stats();
    assert_eq!((stats.connections, stats.refused_connections), (4, 1));
    for (connection, ..) in &at_work {
        assert!(connection.close_reason().is_none());
    }
    // Work that is over makes room.
    at_work.truncate(3);
    eventually(DEADLINE, "there is room again", || node.server.stats().connections == 3).await;
    let (_, send, _) = &mut at_work[0];
    send.finish().unwrap();
    for _ in 0..2 {
        node.serves().await;
    }
}
