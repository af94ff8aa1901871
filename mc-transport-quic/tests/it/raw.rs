//! Plain QUIC endpoints that speak the protocol by hand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_tls::Protocol;
use mc_transport_quic::QuicTransport;
use mc_types::RemoteKey;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, ServerConfig, TransportConfig};
use tokio::time::timeout;

use super::nodes::DEADLINE;
use super::pki::Authority;

pub(crate) const OURS: Protocol = Protocol::new(&[b"mc-transport/3"]).tls13_only();

/// The hello of a server that takes operations of up to 1 GiB.
pub(crate) const HELLO: &[u8; 32] = b"\x00\x00\x00\x40\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

pub(crate) fn server(authority: &Authority, protocol: Protocol) -> Endpoint {
    let crypto = QuicServerConfig::try_from(authority.server().current(protocol)).unwrap();
    let config = ServerConfig::with_crypto(Arc::new(crypto));
    Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap()
}

pub(crate) fn client_config(authority: &Authority, protocol: Protocol) -> ClientConfig {
    let settings = authority.client().connect_config(protocol).unwrap();
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(settings).unwrap()))
}

pub(crate) fn endpoint() -> Endpoint {
    Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap()
}

async fn connect_with(
    config: ClientConfig,
    address: SocketAddr,
) -> Result<Connection, ConnectionError> {
    let connecting = endpoint().connect_with(config, address, "127.0.0.1").unwrap();
    timeout(DEADLINE, connecting).await.expect("in time")
}

/// A connection that has not said hello. The error is also what the server made of it
/// after the handshake.
pub(crate) async fn connect(
    authority: &Authority,
    server: &QuicTransport,
    protocol: Protocol,
) -> Result<Connection, ConnectionError> {
    connect_with(client_config(authority, protocol), server.local_address().unwrap()).await
}

/// A connection that has, with its own limits.
pub(crate) async fn client_limited(
    authority: &Authority,
    server: &QuicTransport,
    limit: impl FnOnce(&mut TransportConfig),
) -> Connection {
    let mut config = client_config(authority, OURS);
    let mut transport = TransportConfig::default();
    limit(transport.keep_alive_interval(Some(Duration::from_secs(1))));
    config.transport_config(Arc::new(transport));
    let connection = connect_with(config, server.local_address().unwrap()).await.unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(HELLO).await.unwrap();
    send.finish().unwrap();
    let theirs = receive.read_to_end(8192).await.unwrap();
    let description_len = u64::from_le_bytes(theirs[8..16].try_into().unwrap());
    assert_eq!(theirs.len() as u64, HELLO.len() as u64 + description_len);
    connection
}

pub(crate) async fn client(authority: &Authority, server: &QuicTransport) -> Connection {
    client_limited(authority, server, |_| {}).await
}

/// Takes a connection, and says hello on it; also the id of the client's link.
pub(crate) async fn greet(server: &Endpoint) -> (Connection, [u8; 16]) {
    let connection = server.accept().await.unwrap().await.unwrap();
    let (mut send, mut receive) = connection.accept_bi().await.unwrap();
    let hello = receive.read_to_end(100).await.unwrap();
    assert_eq!(hello[..16], HELLO[..16]);
    send.write_all(HELLO).await.unwrap();
    send.finish().unwrap();
    (connection, hello[16..].try_into().unwrap())
}

pub(crate) fn request(op: u8, id: u32, key: RemoteKey, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![op, 0, 0, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend(key.to_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes
}

pub(crate) fn response(status: u8, id: u32, len: u64) -> Vec<u8> {
    let mut bytes = vec![status, 0, 0, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes
}
