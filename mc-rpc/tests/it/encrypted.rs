//! Both clients over TLS, against a real master.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use mc_rpc::tls::{ClientAuth, ClientTls, ServerTls, TlsFiles};
use mc_rpc::{
    ByteStream, ClientConfig, JournalStream, MasterClient, RpcError, ServerConfig, ServerHandle,
    TakeStream, Taking, blocking,
};
use mc_types::ErrorCode;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::common::leader::leader;
use crate::common::{DEADLINE, ME, key, master, segment, serve, spawn_with_grpc};

/// An authority, and what it certified.
struct Files {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn issue(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.dir.path().join(format!("{name}{end}"));
        fs::write(path(".pem"), certificate.pem()).unwrap();
        fs::write(path(".key"), key.serialize_pem()).unwrap();
        (path(".pem"), path(".key"))
    }

    fn tls(&self, clients_too: bool) -> Arc<ServerTls> {
        let (cert, key) = self.issue("localhost");
        let mut files = TlsFiles::new(cert, key);
        if clients_too {
            files = files.client_ca(self.ca(), ClientAuth::Required);
        }
        Arc::new(ServerTls::load(files).unwrap())
    }

    fn server(&self, runtime: &Runtime, clients_too: bool) -> ServerHandle {
        let mut config = ServerConfig::default();
        config.tls = Some(self.tls(clients_too));
        runtime.block_on(serve(&master(), config))
    }
}

fn with(tls: Option<ClientTls>) -> ClientConfig {
    let mut config = ClientConfig::default();
    config.call_timeout = DEADLINE;
    config.tls = tls;
    config
}

/// Returns the outcome of a first call with either client.
fn asked(runtime: &Runtime, addr: &str, config: &ClientConfig) -> [Result<bool, RpcError>; 2] {
    let blocking = blocking::MasterClient::connect(addr, config.clone());
    let asked = blocking.and_then(|client| client.exist(key("k")));
    let then = runtime.block_on(async {
        let client = MasterClient::connect(addr, config.clone()).await?;
        client.exist(key("k")).await
    });
    [asked, then]
}

#[test]
fn calls_go_encrypted() {
    let (runtime, files) = (Runtime::new().unwrap(), Files::new());
    let server = files.server(&runtime, true);
    let addr = format!("localhost:{}", server.local_addr().port());
    let (cert, key_file) = files.issue("node-1");
    let config = with(Some(ClientTls::new(files.ca()).identity(cert, key_file)));
    for asked in asked(&runtime, &addr, &config) {
        assert!(!asked.unwrap());
    }
    // Requests and answers of many records, one after the other and together.
    let names: Vec<_> = (0..2000).map(|i| format!("{i}-{}", "k".repeat(100))).collect();
    let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
    let waits = blocking::MasterClient::lazy(&addr, config.clone());
    waits.mount_segment(ME, &segment(1, 1 << 20)).unwrap();
    for _ in 0..3 {
        assert_eq!(waits.batch_exist(&keys).unwrap().len(), keys.len());
    }
    assert_eq!(waits.metrics().connections_made, 1);
    runtime.block_on(async {
        let client = MasterClient::lazy(&addr, config);
        let (many, one) = tokio::join!(client.batch_exist(&keys), client.exist(keys[0]));
        assert_eq!((many.unwrap().len(), one.unwrap()), (keys.len(), false));
        server.shutdown().await;
    });
}

/// Sends one word and ends.
#[derive(Debug)]
struct Word;

impl TakeStream for Word {
    fn take<'a>(
        &'a self,
        mut stream: Box<dyn ByteStream>,
        _: Option<std::net::SocketAddr>,
    ) -> Taking<'a> {
        Box::pin(async move {
            stream.write_all(b"word").await.unwrap();
            stream.shutdown().await.unwrap();
        })
    }
}

#[test]
fn a_leader_keeps_to_its_term_and_hands_out_its_journal() {
    let (runtime, files) = (Runtime::new().unwrap(), Files::new());
    let (mut settings, switch) = leader(3);
    settings.tls = Some(files.tls(false));
    settings.upgrade = Some(Arc::new(Word));
    let server = runtime.block_on(serve(&master(), settings));
    let addr = format!("localhost:{}", server.local_addr().port());
    let config = with(Some(ClientTls::new(files.ca())));
    runtime.block_on(async {
        let mut journal = JournalStream::connect(&addr, config.clone()).await.unwrap();
        let mut words = String::new();
        journal.stream.read_to_string(&mut words).await.unwrap();
        assert_eq!((&*words, journal.epoch.map(|epoch| epoch.as_u64())), ("word", Some(3)));
    });
    let mut once = config;
    once.retry = false;
    let (waits, client) = (
        blocking::MasterClient::connect(&addr, once.clone()).unwrap(),
        runtime.block_on(MasterClient::connect(&addr, once)).unwrap(),
    );
    assert!(!waits.exist(key("k")).unwrap());
    assert!(!runtime.block_on(client.exist(key("k"))).unwrap());
    switch.end();
    for lost in [waits.exist(key("k")), runtime.block_on(client.exist(key("k")))] {
        let lost = lost.unwrap_err();
        assert!(matches!(lost, RpcError::ConnectionLost { .. }), "{lost}");
    }
    let refused = waits.exist(key("k")).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::UnavailableInCurrentStatus, "{refused}");
}

#[test]
fn whoever_is_not_trusted_is_told_so_at_once() {
    let (runtime, files, others) = (Runtime::new().unwrap(), Files::new(), Files::new());
    let server = files.server(&runtime, true);
    let port = server.local_addr().port();
    let (cert, key_file) = files.issue("node-1");
    let known = |ca| ClientTls::new(ca).identity(&cert, &key_file);
    let (named, numbered) = (format!("localhost:{port}"), format!("127.0.0.1:{port}"));
    for (addr, tls) in [
        (&named, known(others.ca())),
        (&numbered, known(files.ca())),
        (&named, known(files.ca()).server_name("another.example")),
        (&named, known(files.ca()).server_name("no name")),
        (&named, ClientTls::new(files.ca())),
    ] {
        for asked in asked(&runtime, addr, &with(Some(tls.clone()))) {
            let error = asked.unwrap_err();
            assert!(matches!(error, RpcError::TlsHandshake { .. }), "{tls:?}: {error}");
            assert_eq!(error.code(), ErrorCode::Unauthenticated);
            assert!(!error.is_retryable());
        }
    }
    let missing = with(Some(ClientTls::new("/nonexistent/ca.pem")));
    for asked in asked(&runtime, &named, &missing) {
        let error = asked.unwrap_err();
        assert!(matches!(error, RpcError::TlsSettings(_)), "{error}");
        assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
    }
    runtime.block_on(server.shutdown());
}

#[test]
fn both_sides_have_to_speak_it() {
    let (runtime, files) = (Runtime::new().unwrap(), Files::new());
    let encrypted = files.server(&runtime, false);
    let plain = runtime.block_on(serve(&master(), ServerConfig::default()));
    for (server, tls) in [(&encrypted, None), (&plain, Some(ClientTls::new(files.ca())))] {
        let addr = format!("localhost:{}", server.local_addr().port());
        for asked in asked(&runtime, &addr, &with(tls.clone())) {
            asked.unwrap_err();
        }
    }
    runtime.block_on(async {
        encrypted.shutdown().await;
        plain.shutdown().await;
    });
}

/// HTTP/2 inside TLS, told by the protocol that the client asks for; the certificate says
/// who calls.
#[tokio::test]
async fn calls_over_grpc_go_encrypted_too() {
    use bytes::{Buf, BufMut, Bytes, BytesMut};
    use http::header::CONTENT_TYPE;
    use mc_rpc::proto::{ClusterReportRequest, ExistKeyRequest};
    use mc_rpc::{Access, MasterService, Server, SystemClock};
    use prost::Message;

    let files = Files::new();
    let (cert, server_key) = files.issue("localhost");
    let tls = TlsFiles::new(cert, server_key).client_ca(files.ca(), ClientAuth::Required);
    let mut config = ServerConfig::default();
    config.tls = Some(Arc::new(ServerTls::load(tls).unwrap()));
    config.authenticator = Some(Arc::new(Access::parse("cert:engine-1 reader").unwrap()));
    let service = MasterService::new(master(), SystemClock::new());
    let server = spawn_with_grpc(Server::bind("127.0.0.1:0", service, config).await.unwrap());

    let (cert, client_key) = files.issue("engine-1");
    let client = ClientTls::new(files.ca()).identity(cert, client_key);
    let settings = client.connect_config(mc_rpc::tls::Protocol::new(&[b"h2"])).unwrap();
    let stream = tokio::net::TcpStream::connect(server.local_addr()).await.unwrap();
    let name = client.expected_name("localhost").unwrap();
    let connector = tokio_rustls::TlsConnector::from(settings);
    let stream = connector.connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));

    let (calls, connection) = h2::client::handshake(stream).await.unwrap();
    let driving = tokio::spawn(connection);
    let ask = |method: &str, message: Vec<u8>| {
        let uri = format!("https://localhost/mc.store.v1.MasterService/{method}");
        let request = http::Request::post(uri).header(CONTENT_TYPE, "application/grpc");
        let request = request.header("te", "trailers").body(()).unwrap();
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(message.len() as u32);
        body.put_slice(&message);
        let calls = calls.clone();
        async move {
            let (answer, mut sending) =
                calls.ready().await.unwrap().send_request(request, false)?;
            sending.send_data(Bytes::from(body), true)?;
            let (head, mut body) = answer.await?.into_parts();
            let mut message = BytesMut::new();
            while let Some(data) = body.data().await {
                message.extend_from_slice(&data?);
            }
            let trailers = body.trailers().await?.unwrap_or(head.headers);
            let status = trailers.get("grpc-status").unwrap().to_str().unwrap().to_owned();
            Ok::<_, h2::Error>((status, message))
        }
    };
    let exist = ExistKeyRequest { key: "k".into(), ..Default::default() }.encode_to_vec();
    let asked = tokio::time::timeout(DEADLINE, ask("ExistKey", exist)).await.unwrap();
    let (status, mut message) = asked.unwrap();
    message.advance(5);
    assert_eq!((&*status, &message[..]), ("0", &b""[..]));
    // A reader is no administrator (7 is PERMISSION_DENIED).
    let report = ClusterReportRequest {}.encode_to_vec();
    let asked = tokio::time::timeout(DEADLINE, ask("ClusterReport", report)).await.unwrap();
    assert_eq!(asked.unwrap().0, "7");
    driving.abort();
    server.shutdown().await;
}
