//! The memory that encrypted connections without a proof cost a node. The node is this program in
//! a process of its own, whose memory is counted.

#![cfg(all(feature = "tls", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

#[path = "it/certificates.rs"]
mod certificates;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use certificates::Authority;
use mc_testkit::{Input, Program, role};
use mc_tls::{ClientAuth, ClientTls, Protocol, ServerTls, TlsFiles};
use mc_transport::{TcpConfig, TcpTls, TcpTransport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const DEADLINE: Duration = Duration::from_secs(60);

/// Connections of each kind.
const COUNT: u64 = 2_000;

/// The most memory that one takes of a node: in the middle of the handshake, and behind it. Most of
/// it is the library's.
const HALF: u64 = 16 << 10;
const SHAKEN: u64 = 24 << 10;

/// The beginning of a client's first message, which announces more.
const HALF_A_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03only the beginning";

/// The protocol inside of TLS, and what a peer says first there.
const ALPN: Protocol = Protocol::new(&[b"mc-transport/3"]).tls13_only();
const PREFACE: &[u8; 16] = b"MCT1\x03\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00";

#[test]
fn an_encrypted_socket_that_has_shown_no_key_costs_a_node_little_memory() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    raise_descriptors();
    if let Some(dir) = role::role() {
        return runtime.block_on(serve_until_told(Path::new(&dir)));
    }
    let authority = Authority::new();
    authority.issue("server", &["127.0.0.1", "localhost"]);
    let (cert, key) = authority.issue("client", &["node.example"]);
    let client = ClientTls::new(authority.ca()).identity(cert, key);
    let settings = client.connect_config(ALPN).unwrap();
    let (mut process, address) = start_node(authority.ca().parent().unwrap());
    let resident = || process.resident_memory();
    let (half, shaken) = runtime.block_on(async {
        let connector = TlsConnector::from(settings);
        let mut strangers = Vec::new();
        for _ in 0..64 {
            strangers.push(shaking(address, &connector).await);
        }
        let before = resident();
        for _ in 0..COUNT {
            strangers.push(shaking(address, &connector).await);
        }
        let shaken = resident().saturating_sub(before);
        let mut halves = Vec::new();
        let before = resident();
        for _ in 0..COUNT {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(HALF_A_HELLO).await.unwrap();
            halves.push(stream);
        }
        // The node has accepted all that came before this one.
        strangers.push(shaking(address, &connector).await);
        (resident().saturating_sub(before), shaken)
    });
    process.close_input();
    assert_eq!(process.finish().code, Some(0));
    let (half, shaken) = (half / COUNT, shaken / COUNT);
    println!("bytes of the node: {half} in the middle of a handshake, {shaken} behind it");
    assert!(half <= HALF && shaken <= SHAKEN, "{half}, {shaken} bytes each");
}

/// A connection that shakes hands, greets, and then says nothing.
async fn shaking(
    address: SocketAddr,
    connector: &TlsConnector,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let connected = connector.connect("localhost".try_into().unwrap(), stream);
    let mut stream = timeout(DEADLINE, connected).await.expect("in time").unwrap();
    stream.write_all(PREFACE).await.unwrap();
    // The node has answered.
    let read = timeout(DEADLINE, stream.read(&mut [0; 16])).await;
    assert!(read.expect("in time").unwrap() > 0);
    stream
}

fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

/// This test in a process of its own, as the node with the certificates of a directory.
fn start_node(certificates: &Path) -> (Program, SocketAddr) {
    let directory = certificates.to_str().unwrap();
    let test = "an_encrypted_socket_that_has_shown_no_key_costs_a_node_little_memory";
    let mut process = Program::start(DEADLINE, &mut role::command(test, directory), Input::Open);
    let address = process.hear().parse().unwrap();
    (process, address)
}

async fn serve_until_told(certificates: &Path) {
    let at = |file: &str| certificates.join(file);
    let files = TlsFiles::new(at("server.pem"), at("server.key"))
        .client_ca(at("ca.pem"), ClientAuth::Required);
    let server = Arc::new(ServerTls::load(files).unwrap());
    let mut config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    // Half a handshake stays as long as the test.
    config.connect_timeout = Duration::from_secs(600);
    config.tls = Some(TcpTls::new(ClientTls::new(at("ca.pem"))).server(server));
    let node = TcpTransport::start(config).await.unwrap();
    role::say(node.local_address().unwrap());
    assert_eq!(tokio::task::spawn_blocking(role::hear).await.unwrap(), None);
    let stats = node.stats();
    assert_eq!((stats.refused_connections, stats.yielded_connections), (0, 0));
    node.shutdown().await;
}
