//! The memory that encrypted connections without a proof cost a node. The node is this program in
//! a process of its own, whose memory is counted.

#![cfg(all(feature = "tls", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

#[path = "it/certificates.rs"]
mod certificates;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use certificates::Authority;
use mc_tls::{ClientAuth, ClientTls, Protocol, ServerTls, TlsFiles};
use mc_transport::{TcpConfig, TcpTls, TcpTransport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const DEADLINE: Duration = Duration::from_secs(60);

/// Connections of each kind.
const COUNT: usize = 2_000;

/// The most memory that one takes of a node: in the middle of the handshake, and behind it. Most of
/// it is the library's.
const HALF: usize = 16 << 10;
const SHAKEN: usize = 24 << 10;

/// The beginning of a client's first message, which announces more.
const HALF_A_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03only the beginning";

/// The protocol inside of TLS, and what a peer says first there.
const ALPN: Protocol = Protocol::new(&[b"mc-transport/3"]).tls13_only();
const PREFACE: &[u8; 16] = b"MCT1\x03\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00";

/// Names the directory of the certificates to the process that is the node.
const NODE: &str = "MC_TRANSPORT_TEST_TLS_NODE";

#[test]
fn an_encrypted_socket_that_has_shown_no_key_costs_a_node_little_memory() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    raise_descriptors();
    if let Some(dir) = std::env::var_os(NODE) {
        return runtime.block_on(serve_until_told(Path::new(&dir)));
    }
    let authority = Authority::new();
    authority.issue("server", &["127.0.0.1", "localhost"]);
    let (cert, key) = authority.issue("client", &["node.example"]);
    let client = ClientTls::new(authority.ca()).identity(cert, key);
    let settings = client.connect_config(ALPN).unwrap();
    let (mut process, address) = start_node(authority.ca().parent().unwrap());
    let resident = || -> usize {
        let file = format!("/proc/{}/status", process.id());
        let status = std::fs::read_to_string(file).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
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
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success());
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

/// This test in a process of its own, as the node.
fn start_node(certificates: &Path) -> (Child, SocketAddr) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["an_encrypted_socket", "--nocapture"])
        .env(NODE, certificates)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| line.unwrap().strip_prefix("at ").map(String::from));
    let address = line.expect("the node says where it is").parse().unwrap();
    // Its further lines are read, so that it never waits, and dropped.
    std::thread::spawn(move || lines.count());
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
    println!("\nat {}", node.local_address().unwrap());
    std::io::stdout().flush().unwrap();
    let told = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
    told.await.unwrap();
    let stats = node.stats();
    assert_eq!((stats.refused_connections, stats.yielded_connections), (0, 0));
    node.shutdown().await;
}
