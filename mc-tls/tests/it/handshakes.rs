//! Handshakes with certificates that are right, wrong, late, missing and renewed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_tls::rustls::crypto::ring::default_provider;
use mc_tls::rustls::pki_types::pem::PemObject;
use mc_tls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use mc_tls::rustls::{ClientConfig, ProtocolVersion, RootCertStore, ServerConfig, version};
use mc_tls::{
    ClientAuth, ClientTls, PemProblem, Protocol, Reload, ServerTls, TlsError, TlsFiles,
    client_names,
};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_RSA_SHA256, SanType, date_time_ymd,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const SERVER: &str = "master.example";

const PROTOCOL: Protocol = Protocol::new(&[b"own/1", b"h2"]);

/// An authority whose certificates lie in a directory.
struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate that is asked for.
struct Wanted {
    params: CertificateParams,
}

fn server_certificate(name: &str) -> Wanted {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Wanted { params }
}

fn client_certificate(names: impl IntoIterator<Item = SanType>) -> Wanted {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names.into_iter().collect();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Wanted { params }
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

impl Authority {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Writes a certificate and its key; where they are.
    fn issue(&self, name: &str, wanted: &Wanted) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let files = self.issue_for(name, wanted, &key);
        fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }

    /// Writes a certificate for this key; where it is, and where the key is to be.
    fn issue_for(&self, name: &str, wanted: &Wanted, key: &KeyPair) -> (PathBuf, PathBuf) {
        let certificate = wanted.params.signed_by(key, &self.issuer).unwrap();
        let (cert, key) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        fs::write(&cert, certificate.pem()).unwrap();
        (cert, key)
    }

    fn server_files(&self) -> TlsFiles {
        let (cert, key) = self.issue("server", &server_certificate(SERVER));
        TlsFiles::new(cert, key)
    }

    fn server(&self) -> ServerTls {
        ServerTls::load(self.server_files()).unwrap()
    }

    fn server_asking(&self, auth: ClientAuth) -> ServerTls {
        ServerTls::load(self.server_files().client_ca(self.ca(), auth)).unwrap()
    }

    fn client(&self) -> ClientTls {
        ClientTls::new(self.ca())
    }

    fn client_as(&self, wanted: &Wanted) -> ClientTls {
        let (cert, key) = self.issue("client", wanted);
        self.client().identity(cert, key)
    }
}

/// The facts that a server learns of its client.
#[derive(Debug, PartialEq, Eq)]
struct Met {
    names: Vec<Box<str>>,
    alpn: Vec<u8>,
    version: Option<ProtocolVersion>,
}

/// A connection on which one byte goes each way.
async fn speak(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> (io::Result<Met>, io::Result<()>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (acceptor, connector) = (TlsAcceptor::from(server), TlsConnector::from(client));
    let accept = async {
        let mut stream = acceptor.accept(near).await?;
        let connection = stream.get_ref().1;
        let names = client_names(connection);
        let alpn = connection.alpn_protocol().unwrap_or_default().to_vec();
        let version = connection.protocol_version();
        stream.write_u8(1).await?;
        stream.flush().await?;
        stream.read_u8().await?;
        io::Result::Ok(Met { names, alpn, version })
    };
    let connect = async {
        let mut stream = connector.connect(name, far).await?;
        stream.write_u8(2).await?;
        stream.flush().await?;
        stream.read_u8().await?;
        io::Result::Ok(())
    };
    tokio::join!(accept, connect)
}

async fn meet_at(
    host: &str,
    server: &ServerTls,
    client: &ClientTls,
) -> (io::Result<Met>, io::Result<()>) {
    let name = client.expected_name(host).unwrap();
    speak(server.current(PROTOCOL), client.connect_config(PROTOCOL).unwrap(), name).await
}

async fn meet(server: &ServerTls, client: &ClientTls) -> (io::Result<Met>, io::Result<()>) {
    meet_at(SERVER, server, client).await
}

async fn names(server: &ServerTls, client: &ClientTls) -> Vec<Box<str>> {
    let (met, connected) = meet(server, client).await;
    connected.unwrap();
    met.unwrap().names
}

fn said(result: &io::Result<impl std::fmt::Debug>) -> String {
    result.as_ref().unwrap_err().to_string()
}

#[tokio::test]
async fn a_client_meets_a_server_that_it_trusts() {
    let authority = Authority::new();
    let (met, connected) = meet(&authority.server(), &authority.client()).await;
    connected.unwrap();
    let version = Some(ProtocolVersion::TLSv1_3);
    assert_eq!(met.unwrap(), Met { names: vec![], alpn: b"own/1".to_vec(), version });
}

#[tokio::test]
async fn protocols_share_files_and_nothing_else() {
    const OTHER: Protocol = Protocol::new(&[b"other/2"]).tls13_only();
    let authority = Authority::new();
    let (server, client) = (authority.server(), authority.client());
    let speak = async |served, config| {
        let name = client.expected_name(SERVER).unwrap();
        speak(server.current(served), config, name).await.0
    };
    let old = |protocol: Protocol| {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&version::TLS12])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = client.connect_config(protocol).unwrap().alpn_protocols.clone();
        Arc::new(config)
    };
    for (protocol, name) in [(PROTOCOL, &b"own/1"[..]), (OTHER, b"other/2")] {
        let met = speak(protocol, client.connect_config(protocol).unwrap()).await.unwrap();
        assert_eq!((&*met.alpn, met.version), (name, Some(ProtocolVersion::TLSv1_3)));
    }
    for (served, spoken) in [(PROTOCOL, OTHER), (OTHER, PROTOCOL)] {
        let met = speak(served, client.connect_config(spoken).unwrap()).await;
        assert!(said(&met).contains("any known protocol"), "{met:?}");
    }
    let met = speak(PROTOCOL, old(PROTOCOL)).await.unwrap();
    assert_eq!(met.version, Some(ProtocolVersion::TLSv1_2));
    let met = speak(OTHER, old(OTHER)).await;
    assert!(met.is_err(), "{met:?}");
}

#[tokio::test]
async fn a_server_of_another_authority_or_name_is_not_trusted() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.server();
    let (_, connected) = meet(&server, &other.client()).await;
    assert!(said(&connected).contains("invalid peer certificate"), "{connected:?}");
    let (_, connected) = meet_at("other.example", &server, &authority.client()).await;
    assert!(said(&connected).contains("not valid for name"), "{connected:?}");
    let (_, connected) = meet_at("10.0.0.1", &server, &authority.client()).await;
    assert!(connected.is_err());
    // The name can be given, for those who reach the server by an address.
    let (_, connected) =
        meet_at("10.0.0.1", &server, &authority.client().server_name(SERVER)).await;
    connected.unwrap();
    // A client's certificate is not a server's.
    let (cert, key) = authority.issue("wrong", &client_certificate([dns(SERVER)]));
    let server = ServerTls::load(TlsFiles::new(cert, key)).unwrap();
    let (_, connected) = meet(&server, &authority.client()).await;
    assert!(connected.is_err());
}

#[tokio::test]
async fn the_names_of_a_client_are_those_of_its_certificate() {
    let authority = Authority::new();
    let server = authority.server_asking(ClientAuth::Required);
    let found = names(
        &server,
        &authority.client_as(&client_certificate([
            dns("Node-7.Example"),
            uri("spiffe://example/prefill"),
            // Without a scheme it is no URI, and must not pass for a DNS name.
            uri("master.example"),
            SanType::IpAddress([10, 0, 0, 1].into()),
            SanType::Rfc822Name("root@example.com".try_into().unwrap()),
        ])),
    )
    .await;
    assert_eq!(found, ["spiffe://example/prefill".into(), "node-7.example".into()]);

    let long = format!("spiffe://example/{}", "x".repeat(300));
    let many = (0..100).map(|number| dns(&format!("n{number}.example")));
    let wanted = client_certificate([uri(&long)].into_iter().chain(many));
    let found = names(&server, &authority.client_as(&wanted)).await;
    assert_eq!((found.len(), &*found[0]), (32, "n0.example"));

    let nameless = names(&server, &authority.client_as(&client_certificate([]))).await;
    assert!(nameless.is_empty());
}

#[tokio::test]
async fn a_client_without_a_good_certificate_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let node = || client_certificate([dns("node.example")]);
    let mut expired = node();
    expired.params.not_before = date_time_ymd(2020, 1, 1);
    expired.params.not_after = date_time_ymd(2020, 1, 2);
    let mut early = node();
    early.params.not_before = date_time_ymd(2999, 1, 1);
    early.params.not_after = date_time_ymd(2999, 1, 2);
    let foreign = other.issue("client", &node());
    let mut server_only = node();
    server_only.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for auth in [ClientAuth::Required, ClientAuth::Optional] {
        let server = authority.server_asking(auth);
        let refused =
            [(&expired, "expired"), (&early, "not valid yet"), (&server_only, "not allow")];
        for (wanted, cause) in refused {
            let (met, connected) = meet(&server, &authority.client_as(wanted)).await;
            assert!(said(&met).contains(cause), "{cause}: {met:?}");
            assert!(connected.is_err());
        }
        let stranger = authority.client().identity(&foreign.0, &foreign.1);
        let (met, connected) = meet(&server, &stranger).await;
        assert!(met.is_err() && connected.is_err());
        assert_eq!(names(&server, &authority.client_as(&node())).await, ["node.example".into()]);
    }
    let (met, connected) =
        meet(&authority.server_asking(ClientAuth::Required), &authority.client()).await;
    assert!(said(&met).contains("no certificates"), "{met:?}");
    assert!(connected.is_err());
    let server = authority.server_asking(ClientAuth::Optional);
    assert!(names(&server, &authority.client()).await.is_empty());
    // A server that asks for none learns none.
    assert!(names(&authority.server(), &authority.client_as(&node())).await.is_empty());
}

#[tokio::test]
async fn an_expired_certificate_of_its_own_does_not_keep_a_server_from_starting() {
    let authority = Authority::new();
    let mut wanted = server_certificate(SERVER);
    wanted.params.not_before = date_time_ymd(2020, 1, 1);
    wanted.params.not_after = date_time_ymd(2020, 1, 2);
    let (cert, key) = authority.issue("server", &wanted);
    let server = ServerTls::load(TlsFiles::new(cert, key)).unwrap();
    let (_, connected) = meet(&server, &authority.client()).await;
    assert!(said(&connected).contains("expired"), "{connected:?}");
}

#[tokio::test]
async fn renewed_files_are_used_and_broken_ones_are_not() {
    let authority = Authority::new();
    let server = authority.server_asking(ClientAuth::Required);
    let node = client_certificate([dns("node.example")]);
    let client = authority.client_as(&node);
    assert_eq!(server.check(), Reload::Unchanged);
    assert_eq!(names(&server, &client).await, ["node.example".into()]);

    // The certificate is there before its key.
    let renewed = server_certificate("renewed.example");
    let key = KeyPair::generate().unwrap();
    let (cert, key_path) = authority.issue_for("server", &renewed, &key);
    assert_eq!(server.check(), Reload::Kept);
    assert_eq!(names(&server, &client).await, ["node.example".into()]);
    fs::write(key_path, key.serialize_pem()).unwrap();
    assert_eq!(server.check(), Reload::Taken);
    let (_, connected) = meet(&server, &client).await;
    assert!(said(&connected).contains("not valid for name"), "{connected:?}");
    meet_at("renewed.example", &server, &client).await.1.unwrap();

    fs::write(cert, "-----BEGIN CERTIFICATE-----\nMIIB").unwrap();
    assert_eq!(server.check(), Reload::Kept);
    assert_eq!(server.check(), Reload::Unchanged);
    meet_at("renewed.example", &server, &client).await.1.unwrap();

    // Back to the first name; the client shows a new certificate without a restart.
    authority.issue("server", &server_certificate(SERVER));
    assert_eq!(server.check(), Reload::Taken);
    authority.issue("client", &client_certificate([dns("node-2.example")]));
    assert_eq!(names(&server, &client).await, ["node-2.example".into()]);

    // The authority of clients is exchanged: those of the old one are out.
    let other = Authority::new();
    fs::copy(other.ca(), authority.ca()).unwrap();
    assert_eq!(server.check(), Reload::Taken);
    let client = authority.client_as(&node);
    assert!(meet(&server, &client).await.0.is_err());
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", base64(der))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(*group.get(at).unwrap_or(&0)));
        for at in 0..4 {
            let digit = char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63]);
            text.push(if at <= group.len() { digit } else { '=' });
        }
    }
    text
}

#[tokio::test]
async fn private_keys_of_every_kind_are_read() {
    let authority = Authority::new();
    let wanted = server_certificate(SERVER);
    let works = async |cert: &Path, key: &Path| {
        let server = ServerTls::load(TlsFiles::new(cert, key)).unwrap();
        meet(&server, &authority.client()).await.1.unwrap();
    };
    let (cert, key) = authority.issue("pkcs8", &wanted);
    assert!(fs::read_to_string(&key).unwrap().contains("BEGIN PRIVATE KEY"));
    works(&cert, &key).await;

    // In PKCS#8 the kind of the key stands before the key itself, in 29 bytes for a key on
    // the curve P-256 and in 26 for one of RSA with 2048 bits.
    let pair = KeyPair::generate().unwrap();
    let (cert, key) = authority.issue_for("sec1", &wanted, &pair);
    fs::write(&key, pem("EC PRIVATE KEY", &pair.serialized_der()[29..])).unwrap();
    works(&cert, &key).await;

    let der = include_bytes!("../data/rsa_key.pkcs8.der");
    let pair = KeyPair::from_pkcs8_der_and_sign_algo(
        &PrivatePkcs8KeyDer::from(&der[..]),
        &PKCS_RSA_SHA256,
    );
    let (cert, key) = authority.issue_for("pkcs1", &wanted, &pair.unwrap());
    fs::write(&key, pem("RSA PRIVATE KEY", &der[26..])).unwrap();
    works(&cert, &key).await;
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let authority = Authority::new();
    let (cert, key) = authority.issue("server", &server_certificate(SERVER));
    let (_, other_key) = authority.issue("other", &server_certificate(SERVER));
    let file = |name: &str, text: &str| {
        let path = authority.path(name);
        fs::write(&path, text).unwrap();
        path
    };
    let load = |cert: &Path, key: &Path| {
        let error = ServerTls::load(TlsFiles::new(cert, key)).unwrap_err();
        let client = authority.client().identity(cert, key).connect_config(PROTOCOL).unwrap_err();
        assert_eq!(error.to_string(), client.to_string());
        error
    };

    let missing = authority.path("missing.pem");
    let error = load(&missing, &key);
    assert!(matches!(error, TlsError::File(_)), "{error}");
    assert!(error.to_string().contains("missing.pem"), "{error}");
    assert!(matches!(load(&cert, &missing), TlsError::File(_)));
    assert!(matches!(load(authority.dir.path(), &key), TlsError::File(_)));

    assert!(matches!(load(&key, &key), TlsError::NoCertificate { .. }));
    assert!(matches!(load(&file("empty", ""), &key), TlsError::NoCertificate { .. }));
    assert!(matches!(load(&cert, &cert), TlsError::NoKey { .. }));
    assert!(matches!(load(&cert, &other_key), TlsError::KeyMismatch { .. }));
    let encrypted = file("encrypted", &pem("ENCRYPTED PRIVATE KEY", b"secret"));
    assert!(matches!(load(&cert, &encrypted), TlsError::NoKey { .. }));
    let odd = file("odd.key", &pem("PRIVATE KEY", b"secret"));
    assert!(matches!(load(&cert, &odd), TlsError::BadKey { .. }));
    let odd = file("odd.pem", &pem("CERTIFICATE", b"certificate"));
    assert!(matches!(load(&odd, &key), TlsError::BadCertificate { number: 1, .. }));
    let ca = TlsFiles::new(&cert, &key).client_ca(&odd, ClientAuth::Required);
    assert!(matches!(ServerTls::load(ca), Err(TlsError::BadCertificate { number: 1, .. })));
    let error = ClientTls::new(&missing).connect_config(PROTOCOL).unwrap_err();
    assert!(matches!(error, TlsError::File(_)), "{error}");

    for (text, expected) in [
        ("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n", PemProblem::Truncated),
        ("-----BEGIN PRIVATE KEY c2VjcmV0\n", PemProblem::Header),
        ("-----BEGIN PRIVATE KEY-----\nc2VjcmV0*\n-----END PRIVATE KEY-----\n", PemProblem::Base64),
    ] {
        let error = load(&cert, &file("broken.key", text));
        assert!(
            matches!(&error, TlsError::Pem { problem, .. } if *problem == expected),
            "{expected:?}: {error:?}"
        );
        assert!(!format!("{error} {error:?}").contains("c2VjcmV0"), "{error:?}");
    }

    for name in ["", "no name", "a..b", "host:1"] {
        let error = authority.client().expected_name(name).unwrap_err();
        assert!(matches!(error, TlsError::ServerName { .. }), "{name:?}: {error}");
    }
    assert!(authority.client().expected_name("[::1]").is_ok());
}
