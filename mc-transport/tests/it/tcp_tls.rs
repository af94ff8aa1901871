//! The transport over TLS: the whole suite, certificates that are right, wrong, late,
//! missing and renewed, and peers that die, stall, lie and attack.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::eventually;
use mc_tls::rustls::{AlertDescription, CertificateError, ClientConfig};
use mc_tls::{ClientAuth, ClientTls, Protocol, Reload, ServerTls, TlsFiles};
use mc_transport::TlsFailure;
use mc_transport::tcp::StartError;
use mc_transport::{
    Access, Bundle, ConnectError, Link, Memory, Operation, TcpConfig, TcpTls, TcpTransport,
    TransferError, Transport, checksum,
};
use mc_types::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificates::{Authority, Files};
use crate::tcp_wire::{DEADLINE, DESCRIPTION, KEY, WELCOME, request, response, span};

/// Timeouts of the nodes under test, where a test waits for one.
const SHORT: Duration = Duration::from_millis(300);

const PROTOCOL: Protocol = Protocol::new(&[b"mc-transport/3"]).tls13_only();

impl Authority {
    fn server_of(&self, files: Files, asks: bool) -> Arc<ServerTls> {
        let mut files = TlsFiles::new(files.0, files.1);
        if asks {
            files = files.client_ca(self.ca(), ClientAuth::Required);
        }
        Arc::new(ServerTls::load(files).unwrap())
    }

    /// For a node on loopback, which asks its peers for certificates.
    fn server(&self) -> Arc<ServerTls> {
        self.server_of(self.issue("server", &["localhost", "127.0.0.1"]), true)
    }

    fn client_without(&self) -> ClientTls {
        ClientTls::new(self.ca())
    }

    fn client(&self) -> ClientTls {
        let (cert, key) = self.issue("client", &["node.example"]);
        self.client_without().identity(cert, key)
    }

    /// A node that listens.
    async fn owner(&self) -> TcpTransport {
        self.owner_with(TcpConfig::default()).await
    }

    async fn owner_with(&self, mut config: TcpConfig) -> TcpTransport {
        config.listen = Some("127.0.0.1:0".parse().unwrap());
        config.tls = Some(TcpTls::new(self.client()).server(self.server()));
        TcpTransport::start(config).await.unwrap()
    }

    /// A node that connects.
    async fn peer(&self) -> TcpTransport {
        start(self.client(), TcpConfig::default()).await
    }

    /// A server played by hand, with TLS.
    async fn fake_server(&self) -> FakeServer {
        FakeServer { listener: TcpListener::bind("127.0.0.1:0").await.unwrap(), tls: self.server() }
    }

    /// A client played by hand, its handshake and preface done.
    async fn fake_client(&self, address: SocketAddr) -> tokio_rustls::client::TlsStream<TcpStream> {
        let settings = self.client().connect_config(PROTOCOL).unwrap();
        let mut stream = fake_handshake(settings, address).await.unwrap();
        stream.write_all(WELCOME).await.unwrap();
        let mut preface = [0; 16];
        stream.read_exact(&mut preface).await.unwrap();
        assert_eq!(preface[..8], WELCOME[..8]);
        let mut description = vec![0; stream.read_u32_le().await.unwrap() as usize];
        stream.read_exact(&mut description).await.unwrap();
        assert!(description.starts_with(b"node "));
        stream
    }
}

async fn start(client: ClientTls, mut config: TcpConfig) -> TcpTransport {
    config.tls = Some(TcpTls::new(client));
    TcpTransport::start(config).await.unwrap()
}

fn short() -> TcpConfig {
    let mut config = TcpConfig::default();
    config.stall_timeout = SHORT;
    config.connect_timeout = SHORT;
    config
}

async fn fake_handshake(
    settings: Arc<ClientConfig>,
    address: SocketAddr,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.unwrap();
    TlsConnector::from(settings).connect("localhost".try_into().unwrap(), stream).await
}

/// A listener that plays a server.
struct FakeServer {
    listener: TcpListener,
    tls: Arc<ServerTls>,
}

type ServerStream = tokio_rustls::server::TlsStream<TcpStream>;

impl FakeServer {
    fn endpoint(&self) -> Endpoint {
        let address = self.listener.local_addr().unwrap().to_string();
        Endpoint::new("tcp", &address).unwrap()
    }

    /// Takes a connection and greets it.
    async fn greet(&self) -> ServerStream {
        let (stream, _) = self.listener.accept().await.unwrap();
        let acceptor = TlsAcceptor::from(self.tls.current(PROTOCOL));
        let mut stream = acceptor.accept(stream).await.unwrap();
        let mut preface = [0; 16];
        stream.read_exact(&mut preface).await.unwrap();
        assert_eq!(&preface, WELCOME);
        stream.write_all(WELCOME).await.unwrap();
        stream.write_all(DESCRIPTION).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }

    async fn link(&self, client: &TcpTransport) -> (Arc<Bundle>, ServerStream) {
        let endpoint = self.endpoint();
        let (link, stream) = tokio::join!(client.connect(&endpoint), self.greet());
        (link.unwrap(), stream)
    }
}

/// A node has let go of every peer: what is left is the task that accepts them.
async fn alone(node: &TcpTransport) {
    eventually(DEADLINE, "nothing is left of its peers", || {
        let stats = node.stats();
        (stats.connections, stats.links) == (0, 0) && stats.tasks <= 1
    })
    .await;
}

/// Why there is no link between these.
async fn refused(peer: &TcpTransport, endpoint: &Endpoint) -> ConnectError {
    let connected = timeout(DEADLINE, peer.connect(endpoint)).await;
    connected.expect("refused in time").map(drop).unwrap_err()
}

async fn failure(peer: &TcpTransport, endpoint: &Endpoint) -> TlsFailure {
    match refused(peer, endpoint).await {
        ConnectError::Tls { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

/// Shows that a node still serves those whom it trusts.
async fn still_serves(authority: &Authority, owner: &TcpTransport) {
    let memory = Memory::allocate(4096).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let peer = authority.peer().await;
    let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
    let write = Operation::write(Bytes::from_static(b"fine"), span(region.key(), 0, 4));
    assert!(link.submit(vec![write]).await[0].is_ok());
    assert_eq!(memory.slice(0, 4).unwrap().to_vec(), b"fine");
    peer.shutdown().await;
}

mod suite {
    use mc_transport::conformance::{CASES, Pair, run};

    use super::*;

    async fn suite(links: usize) {
        let authority = Authority::new();
        for case in CASES {
            let mut config = TcpConfig::default();
            config.links_per_peer = links.try_into().unwrap();
            let owner = Arc::new(authority.owner().await);
            let peer = Arc::new(start(authority.client(), config).await);
            let (watched, peer_again) = (Arc::downgrade(&owner), Arc::clone(&peer));
            run(case, Pair { owner, peer }).await;
            peer_again.shutdown().await;
            assert!(watched.upgrade().is_none(), "{}: the case dropped its owner", case.name);
            let stats = peer_again.stats();
            assert_eq!((stats.links, stats.tasks), (0, 0), "{}", case.name);
        }
    }

    #[tokio::test]
    async fn on_one_thread() {
        suite(1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn on_two_threads() {
        suite(1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn with_three_links() {
        suite(3).await;
    }
}

#[tokio::test]
async fn a_server_that_is_not_to_be_trusted_is_not() {
    let (authority, other) = (Authority::new(), Authority::new());
    let endpoint = |owner: &TcpTransport| owner.endpoint().unwrap().clone();
    let with = async |files: Files| {
        let mut config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
        let server = authority.server_of(files, false);
        config.tls = Some(TcpTls::new(authority.client()).server(server));
        TcpTransport::start(config).await.unwrap()
    };
    let good = with(authority.issue("good", &["127.0.0.1"])).await;
    let stranger = start(other.client_without(), TcpConfig::default()).await;
    let error = failure(&stranger, &endpoint(&good)).await;
    assert!(matches!(error, TlsFailure::Untrusted(CertificateError::UnknownIssuer)), "{error:?}");

    let late = with(authority.issue_until("late", &["127.0.0.1"], 2021)).await;
    let peer = authority.peer().await;
    let error = failure(&peer, &endpoint(&late)).await;
    assert!(
        matches!(error, TlsFailure::Untrusted(CertificateError::ExpiredContext { .. })),
        "{error:?}"
    );

    let elsewhere = with(authority.issue("elsewhere", &["other.example", "10.0.0.1"])).await;
    let error = failure(&peer, &endpoint(&elsewhere)).await;
    assert!(
        matches!(error, TlsFailure::Untrusted(CertificateError::NotValidForNameContext { .. })),
        "{error:?}"
    );
    // The name may be told, for those who reach the server by an address.
    let told = start(authority.client().server_name("other.example"), TcpConfig::default()).await;
    told.connect(&endpoint(&elsewhere)).await.unwrap();
    // A name in the endpoint is looked up, and expected.
    let named = with(authority.issue("named", &["localhost"])).await;
    let port = named.local_address().unwrap().port();
    peer.connect(&Endpoint::new("tcp", &format!("localhost:{port}")).unwrap()).await.unwrap();
    assert!(matches!(failure(&peer, &endpoint(&named)).await, TlsFailure::Untrusted(_)));

    for owner in [&good, &late] {
        alone(owner).await;
    }
}

#[tokio::test]
async fn a_client_that_is_not_to_be_trusted_is_not() {
    let (authority, other) = (Authority::new(), Authority::new());
    let owner = authority.owner().await;
    let foreign = other.issue("client", &["node.example"]);
    let late = authority.issue_until("late", &["node.example"], 2021);
    let with = |(cert, key): Files| authority.client_without().identity(cert, key);
    let cases = [
        (authority.client_without(), AlertDescription::CertificateRequired),
        (with(foreign), AlertDescription::UnknownCA),
        (with(late), AlertDescription::CertificateExpired),
    ];
    for (client, expected) in cases {
        let peer = start(client, TcpConfig::default()).await;
        let error = failure(&peer, owner.endpoint().unwrap()).await;
        assert!(
            matches!(error, TlsFailure::Refused(alert) if alert == expected),
            "{expected:?}: {error:?}"
        );
        alone(&peer).await;
    }
    alone(&owner).await;
    still_serves(&authority, &owner).await;
}

#[tokio::test]
async fn with_and_without_tls_do_not_meet() {
    let authority = Authority::new();
    let encrypted = authority.owner().await;
    let plain = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    let plain = TcpTransport::start(plain).await.unwrap();
    let error = refused(&plain, encrypted.endpoint().unwrap()).await;
    assert!(matches!(error, ConnectError::TlsRequired { .. }), "{error:?}");
    assert!(error.to_string().contains("TLS"), "{error}");
    let error = failure(&encrypted, plain.endpoint().unwrap()).await;
    assert!(matches!(error, TlsFailure::NotSpoken), "{error:?}");
    alone(&encrypted).await;
    alone(&plain).await;
    still_serves(&authority, &encrypted).await;

    // Another server with TLS, which tells one without by an alert.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::new("tcp", &listener.local_addr().unwrap().to_string()).unwrap();
    let acceptor = TlsAcceptor::from(authority.server().current(PROTOCOL));
    let accept = async {
        let (stream, _) = listener.accept().await.unwrap();
        assert!(acceptor.accept(stream).await.is_err());
    };
    let (error, ()) = tokio::join!(refused(&plain, &endpoint), accept);
    assert!(matches!(error, ConnectError::NotAPeer { .. }), "{error:?}");
}

#[tokio::test]
async fn another_protocol_in_tls_is_refused() {
    const OTHER: Protocol = Protocol::new(&[b"h2"]);
    const NONE: Protocol = Protocol::new(&[]);
    let authority = Authority::new();
    let owner = authority.owner().await;
    let address = owner.local_address().unwrap();
    for protocol in [OTHER, NONE] {
        let settings = authority.client().connect_config(protocol).unwrap();
        if let Ok(mut stream) = fake_handshake(settings, address).await {
            let mut rest = Vec::new();
            // Whether the end is a clean one depends on what was still unread.
            let _ = timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("it ends");
            assert!(rest.is_empty());
        }
        alone(&owner).await;
        let fake = authority.fake_server().await;
        let peer = authority.peer().await;
        let endpoint = fake.endpoint();
        let accept = async {
            let (stream, _) = fake.listener.accept().await.unwrap();
            let acceptor = TlsAcceptor::from(fake.tls.current(protocol));
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.read_u8().await;
            }
        };
        let (error, ()) = tokio::join!(failure(&peer, &endpoint), accept);
        assert!(matches!(error, TlsFailure::OtherProtocol), "{error:?}");
    }
    still_serves(&authority, &owner).await;
}

#[tokio::test]
async fn a_node_that_lacks_its_files_says_so() {
    let authority = Authority::new();
    let mut config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    config.tls = Some(TcpTls::new(authority.client()));
    let error = TcpTransport::start(config).await.unwrap_err();
    assert!(matches!(error, StartError::NoServerCertificate), "{error:?}");

    let owner = authority.owner().await;
    let peer = start(ClientTls::new("/nonexistent/ca.pem"), TcpConfig::default()).await;
    let error = failure(&peer, owner.endpoint().unwrap()).await;
    let TlsFailure::Settings(cause) = error else { panic!("{error:?}") };
    assert!(cause.to_string().contains("/nonexistent/ca.pem"), "{cause}");
}

#[tokio::test]
async fn a_busy_server_says_so_without_tls() {
    let authority = Authority::new();
    let mut config = TcpConfig::default();
    config.max_connections = 0;
    let owner = authority.owner_with(config).await;
    let error = refused(&authority.peer().await, owner.endpoint().unwrap()).await;
    assert!(matches!(error, ConnectError::Busy { .. }), "{error:?}");
}

/// How a server by hand leaves in the middle of an answer.
enum Leaves {
    /// As one who says that this is all.
    Properly,
    /// As one who was killed, after whole records.
    AtARecord,
    /// As one who was killed, in the middle of a record.
    InARecord,
}

#[tokio::test]
async fn a_server_that_dies_mid_read_fails_all_that_is_under_way() {
    let authority = Authority::new();
    for leaves in [Leaves::Properly, Leaves::AtARecord, Leaves::InARecord] {
        let (fake, client) = (authority.fake_server().await, authority.peer().await);
        let (link, mut stream) = fake.link(&client).await;
        let memory = Memory::allocate(1 << 20).unwrap();
        let read = || Operation::read(span(KEY, 0, 1 << 20), memory.whole());
        let die = async {
            stream.read_exact(&mut [0; 80]).await.unwrap();
            stream.write_all(&response(0, 0, 1 << 20)).await.unwrap();
            stream.write_all(&[5; 300_000]).await.unwrap();
            stream.flush().await.unwrap();
            match leaves {
                Leaves::Properly => stream.shutdown().await.unwrap(),
                Leaves::AtARecord => {}
                Leaves::InARecord => {
                    // The beginning of a record of application data.
                    let raw = stream.get_mut().0;
                    raw.write_all(b"\x17\x03\x03\x40\x00half of it").await.unwrap();
                }
            }
            // Without the drop of the TLS stream nothing is said.
            drop(stream.into_inner().0);
        };
        let (results, ()) = tokio::join!(link.submit(vec![read(), read()]), die);
        for result in results {
            assert!(matches!(result, Err(TransferError::LinkLost { .. })), "{result:?}");
        }
        assert!(!link.is_healthy());
        drop(link);
        alone(&client).await;
    }
}

#[tokio::test]
async fn a_client_that_dies_mid_write_leaves_nothing_behind() {
    let authority = Authority::new();
    let owner = authority.owner().await;
    let memory = Memory::allocate(1 << 20).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    for proper in [true, false] {
        let mut stream = authority.fake_client(owner.local_address().unwrap()).await;
        stream.write_all(&request(2, 0, region.key(), 0, 1 << 20)).await.unwrap();
        stream.write_all(&[5; 300_000]).await.unwrap();
        stream.flush().await.unwrap();
        if proper {
            stream.shutdown().await.unwrap();
        }
        drop(stream.into_inner().0);
        alone(&owner).await;
    }
    still_serves(&authority, &owner).await;
}

#[tokio::test]
async fn bytes_that_were_changed_on_the_way_end_the_link() {
    let authority = Authority::new();
    let owner = authority.owner().await;
    let memory = Memory::allocate(1 << 20).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = Endpoint::new("tcp", &listener.local_addr().unwrap().to_string()).unwrap();
    let target = owner.local_address().unwrap();
    // Passes everything on, but for one bit far behind the handshake.
    let proxy = tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let server = TcpStream::connect(target).await.unwrap();
        let (mut from_server, mut to_server) = server.into_split();
        let up = tokio::spawn(async move {
            let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        });
        let (mut passed, mut buffer) = (0, vec![0; 10_000]);
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            if passed <= 500_000 && passed + read > 500_000 {
                buffer[500_000 - passed] ^= 1;
            }
            passed += read;
            if to_client.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
        drop(to_client);
        up.await.unwrap();
    });
    let peer = authority.peer().await;
    let link = peer.connect(&between).await.unwrap();
    let into = Memory::allocate(1 << 20).unwrap();
    let read = Operation::read(span(region.key(), 0, 1 << 20), into.whole());
    let results = timeout(DEADLINE, link.submit(vec![read])).await.unwrap();
    let Err(TransferError::LinkLost { source }) = &results[0] else { panic!("{results:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::InvalidData, "{source}");
    drop((link, peer));
    timeout(DEADLINE, proxy).await.unwrap().unwrap();
    alone(&owner).await;
}

#[tokio::test]
async fn garbage_instead_of_a_handshake_spoils_nothing() {
    let authority = Authority::new();
    let owner = authority.owner().await;
    let mut hello = vec![22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
    hello.resize(517, 0xaa);
    let mut endless = vec![22, 3, 3, 64, 0, 1, 255, 255, 255];
    endless.resize(16 * 1024 + 5, 0);
    let attacks: [&[u8]; 8] = [
        b"",
        b"M",
        b"MCT1",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 100_000],
        &[22; 100_000],
        &hello,
        &endless.repeat(10),
    ];
    for attack in attacks {
        let mut stream = TcpStream::connect(owner.local_address().unwrap()).await.unwrap();
        let (mut reading, mut writing) = stream.split();
        let mut answers = Vec::new();
        let send = async {
            let _ = writing.write_all(attack).await;
            let _ = writing.shutdown().await;
        };
        let (_, ended) = tokio::join!(send, timeout(DEADLINE, reading.read_to_end(&mut answers)));
        assert!(ended.is_ok(), "the connection ends");
        assert!(answers.len() < 100, "{answers:?}");
        alone(&owner).await;
    }
    still_serves(&authority, &owner).await;
}

#[tokio::test]
async fn garbage_instead_of_a_server_is_no_link() {
    let authority = Authority::new();
    let peer = authority.peer().await;
    let answers: [&[u8]; 4] =
        [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", &[21, 3, 3, 0, 2, 2, 40], &[0; 50_000]];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::new("tcp", &listener.local_addr().unwrap().to_string()).unwrap();
        let speak = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_u8().await.unwrap();
            stream.write_all(answer).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        };
        let (error, ()) = tokio::join!(failure(&peer, &endpoint), speak);
        let told = match answer.first() {
            None => matches!(error, TlsFailure::Ended(_)),
            Some(21) => matches!(error, TlsFailure::Refused(AlertDescription::HandshakeFailure)),
            Some(_) => matches!(error, TlsFailure::NotSpoken),
        };
        assert!(told, "{error:?}");
    }
    alone(&peer).await;
}

#[tokio::test]
async fn the_silent_are_not_waited_for() {
    let authority = Authority::new();
    let owner = authority.owner_with(short()).await;
    // One who says nothing, one who stops in the middle, one who stops after TLS.
    let address = owner.local_address().unwrap();
    let silent = TcpStream::connect(address).await.unwrap();
    let mut halting = TcpStream::connect(address).await.unwrap();
    halting.write_all(&[22, 3, 1, 2]).await.unwrap();
    let settings = authority.client().connect_config(PROTOCOL).unwrap();
    let greeted = fake_handshake(settings, address).await.unwrap();
    eventually(DEADLINE, "all are seen", || owner.stats().connections == 3).await;
    alone(&owner).await;
    drop((silent, halting, greeted));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::new("tcp", &listener.local_addr().unwrap().to_string()).unwrap();
    let peer = start(authority.client(), short()).await;
    let error = refused(&peer, &endpoint).await;
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    alone(&peer).await;
    still_serves(&authority, &owner).await;
}

#[tokio::test]
async fn a_client_that_takes_no_answers_is_given_up() {
    let authority = Authority::new();
    let owner = authority.owner_with(short()).await;
    let memory = Memory::allocate(16 << 20).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let mut stream = authority.fake_client(owner.local_address().unwrap()).await;
    let mut requests = Vec::new();
    for id in 0..100 {
        requests.extend(request(1, id, region.key(), 0, 16 << 20));
    }
    stream.write_all(&requests).await.unwrap();
    stream.flush().await.unwrap();
    alone(&owner).await;
    still_serves(&authority, &owner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_directions_may_be_full() {
    let authority = Authority::new();
    let (owner, peer) = (authority.owner().await, authority.peer().await);
    let memory = Memory::allocate(8 << 20).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
    let whole = span(region.key(), 0, 8 << 20);
    let local = Memory::allocate(8 << 20).unwrap();
    let batch = (0..32).map(|index| match index % 2 {
        0 => Operation::read(whole, local.whole()),
        _ => Operation::write(Bytes::from(vec![index; 8 << 20]), whole),
    });
    let results = timeout(DEADLINE, link.submit(batch.collect())).await.expect("no deadlock");
    assert!(results.iter().all(Result::is_ok));
    assert!(memory.whole().to_vec().iter().all(|&byte| byte == 31));
}

#[tokio::test]
async fn keys_may_be_renewed_on_the_way() {
    let authority = Authority::new();
    let owner = authority.owner().await;
    let memory = Memory::allocate(64 << 10).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let mut stream = authority.fake_client(owner.local_address().unwrap()).await;
    for id in 0..20_u8 {
        // Asks the other side for new keys too.
        stream.get_mut().1.refresh_traffic_keys().unwrap();
        stream.write_all(&request(2, id.into(), region.key(), 0, 64 << 10)).await.unwrap();
        stream.write_all(&[id; 64 << 10]).await.unwrap();
        stream.write_all(&request(1, id.into(), region.key(), 0, 64 << 10)).await.unwrap();
        stream.flush().await.unwrap();
        let mut answers = vec![0; 16 + 16 + (64 << 10)];
        timeout(DEADLINE, stream.read_exact(&mut answers)).await.unwrap().unwrap();
        assert!(answers[32..].iter().all(|&byte| byte == id));
    }
}

#[tokio::test]
async fn renewed_certificates_are_used_for_the_next_connection() {
    let authority = Authority::new();
    let server = authority.server();
    let mut config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    config.tls = Some(TcpTls::new(authority.client()).server(Arc::clone(&server)));
    let owner = TcpTransport::start(config).await.unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let write = |bytes: &'static [u8]| {
        let to = span(region.key(), 0, bytes.len() as u64);
        vec![Operation::write(Bytes::from_static(bytes), to)]
    };
    let first = authority.peer().await;
    let link = first.connect(owner.endpoint().unwrap()).await.unwrap();
    assert!(link.submit(write(b"before")).await[0].is_ok());

    // For another host, so that it shows which one is used.
    authority.issue("server", &["elsewhere.example"]);
    assert_eq!(server.check(), Reload::Taken);
    let second = authority.peer().await;
    let error = failure(&second, owner.endpoint().unwrap()).await;
    assert!(matches!(error, TlsFailure::Untrusted(_)), "{error:?}");
    let told = authority.client().server_name("elsewhere.example");
    let third = start(told, TcpConfig::default()).await;
    let renewed = third.connect(owner.endpoint().unwrap()).await.unwrap();
    assert!(renewed.submit(write(b"renewed")).await[0].is_ok());
    // Connections that are there stay.
    assert!(link.submit(write(b"still good")).await[0].is_ok());
    assert_eq!(memory.slice(0, 10).unwrap().checksum(), checksum(b"still good"));

    for peer in [first, second, third] {
        peer.shutdown().await;
        assert_eq!((peer.stats().links, peer.stats().tasks), (0, 0));
    }
    alone(&owner).await;
    owner.shutdown().await;
    assert_eq!(owner.stats().tasks, 0);
}
