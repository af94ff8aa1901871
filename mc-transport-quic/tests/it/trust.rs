//! Peers that are trusted, and the errors of those that are not.

use std::net::UdpSocket;

use bytes::Bytes;
use mc_tls::rustls::{AlertDescription, CertificateError};
use mc_tls::{ClientAuth, ClientTls, Protocol, Reload, ServerTls, TlsFiles};
use mc_transport::{
    Access, ConnectError, Link, ListenError, Memory, Operation, TlsFailure, TransferError,
    Transport,
};
use mc_transport_quic::StartError;
use mc_transport_quic::{QuicConfig, QuicTransport};
use mc_types::{ByteSize, Endpoint};

use super::nodes::{
    SHORT, connecting, listening, one, span, start, still_serves, with_short_timeouts,
};
use super::pki::Authority;
use super::raw;

/// Why `client` gets no link to `server`.
async fn refusal(server: &QuicTransport, client: ClientTls) -> ConnectError {
    let node = start(QuicConfig::connecting(client)).await;
    let refused = node.connect(server.endpoint().unwrap()).await.err().unwrap();
    assert_eq!((node.stats().links, node.stats().tasks), (0, 0));
    refused
}

fn untrusted(error: &ConnectError, expected: &CertificateError) -> bool {
    matches!(error, ConnectError::Tls { source: TlsFailure::Untrusted(fault), .. }
        if fault == expected)
}

fn not_admitted(error: &ConnectError, expected: AlertDescription) -> bool {
    matches!(error, ConnectError::Tls { source: TlsFailure::Refused(alert), .. }
        if *alert == expected)
}

#[tokio::test]
async fn a_server_that_is_not_trusted_gets_no_link() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = start(listening(&authority)).await;

    let (cert, key) = authority.issue("client", &["client.example"], false);
    let error = refusal(&server, ClientTls::new(other.ca()).identity(cert, key)).await;
    assert!(untrusted(&error, &CertificateError::UnknownIssuer), "{error:?}");
    assert!(!error.is_retryable());

    // One of the same name that has another key, as after an authority was made anew.
    let [old, new] = [(); 2].map(|()| Authority::named("authority"));
    let renewed = start(listening(&new)).await;
    let error = refusal(&renewed, old.client()).await;
    assert!(untrusted(&error, &CertificateError::BadSignature), "{error:?}");

    let misnamed = authority.client().server_name("other.example");
    let error = refusal(&server, misnamed).await;
    assert!(untrusted(&error, &CertificateError::NotValidForName), "{error:?}");

    let (cert, key) = authority.issue("old", &["127.0.0.1"], true);
    let files = TlsFiles::new(cert, key).client_ca(authority.ca(), ClientAuth::Required);
    let tls = ServerTls::load(files).unwrap().into();
    let old = start(QuicConfig::listening("127.0.0.1:0".parse().unwrap(), tls)).await;
    let error = refusal(&old, authority.client()).await;
    assert!(untrusted(&error, &CertificateError::Expired), "{error:?}");
}

#[tokio::test]
async fn a_client_that_is_not_trusted_gets_no_link() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = start(listening(&authority)).await;
    let region = server.register(&Memory::allocate(64).unwrap(), Access::ReadWrite).unwrap();

    let error = refusal(&server, ClientTls::new(authority.ca())).await;
    assert!(not_admitted(&error, AlertDescription::CertificateRequired), "{error:?}");

    let (cert, key) = other.issue("client", &["client.example"], false);
    let error = refusal(&server, ClientTls::new(authority.ca()).identity(cert, key)).await;
    assert!(not_admitted(&error, AlertDescription::UnknownCA), "{error:?}");

    let (cert, key) = authority.issue("old", &["client.example"], true);
    let error = refusal(&server, ClientTls::new(authority.ca()).identity(cert, key)).await;
    assert!(not_admitted(&error, AlertDescription::CertificateExpired), "{error:?}");
    still_serves(&server, &authority, &region).await;
}

#[test]
fn nothing_is_sent_early() {
    let authority = Authority::new();
    assert_eq!(authority.server().current(raw::OURS).max_early_data_size, 0);
    assert!(!authority.client().connect_config(raw::OURS).unwrap().enable_early_data);
}

#[tokio::test]
async fn anonymous_clients_have_to_be_allowed() {
    let authority = Authority::new();
    let (cert, key) = authority.issue("server", &["127.0.0.1"], false);
    let files = [
        TlsFiles::new(&cert, &key),
        TlsFiles::new(&cert, &key).client_ca(authority.ca(), ClientAuth::Optional),
    ];
    for files in files {
        let tls = ServerTls::load(files).unwrap().into();
        let mut config = QuicConfig::listening("127.0.0.1:0".parse().unwrap(), tls);
        let refused = QuicTransport::start(config.clone()).await;
        assert!(matches!(refused, Err(StartError::AnonymousClients)), "{refused:?}");
        config.allow_anonymous_clients = true;
        let server = start(config).await;
        let memory = Memory::allocate(8).unwrap();
        let region = server.register(&memory, Access::Write).unwrap();
        let client = start(QuicConfig::connecting(ClientTls::new(authority.ca()))).await;
        let link = client.connect(server.endpoint().unwrap()).await.unwrap();
        let write = Operation::write(Bytes::from_static(b"anybody"), span(region.key(), 0, 7));
        one(&*link, write).await.unwrap();
        assert!(link.capabilities().encrypted);
    }
}

#[tokio::test]
async fn another_protocol_is_no_peer() {
    const OTHER: Protocol = Protocol::new(&[b"other/1"]).tls13_only();
    let authority = Authority::new();
    let other = raw::server(&authority, OTHER);
    let address = other.local_addr().unwrap();
    let serve = tokio::spawn(async move {
        while let Some(incoming) = other.accept().await {
            let _ = incoming.await;
        }
    });
    let client = start(connecting(&authority)).await;
    let endpoint = Endpoint::new("quic", &address.to_string()).unwrap();
    let error = client.connect(&endpoint).await.err().unwrap();
    let other = matches!(error, ConnectError::Tls { source: TlsFailure::OtherProtocol, .. });
    assert!(other, "{error:?}");
    serve.abort();

    let server = start(listening(&authority)).await;
    let refused = raw::connect(&authority, &server, OTHER).await.err().unwrap();
    assert!(refused.to_string().contains("any known protocol"), "{refused}");
}

#[tokio::test]
async fn who_does_not_answer_times_out() {
    let authority = Authority::new();
    let client = start(with_short_timeouts(connecting(&authority))).await;
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let endpoint = Endpoint::new("quic", &address).unwrap();
    // A crowd waits once, not one after the other.
    let began = tokio::time::Instant::now();
    let [first, second, third] = [(); 3].map(|()| client.connect(&endpoint));
    let (first, second, third) = tokio::join!(first, second, third);
    for outcome in [first, second, third] {
        let error = outcome.err().unwrap();
        assert!(matches!(error, ConnectError::TimedOut { after: SHORT, .. }), "{error:?}");
        assert!(error.is_retryable());
    }
    assert!(began.elapsed() < SHORT * 2, "{:?}", began.elapsed());
    assert_eq!((client.stats().links, client.stats().tasks), (0, 0));
}

#[tokio::test]
async fn without_credentials_or_address_there_is_no_attempt() {
    let authority = Authority::new();
    let server = start(listening(&authority)).await;
    let endpoint = server.endpoint().unwrap();
    let error = server.connect(endpoint).await.err().unwrap();
    let none = matches!(error, ConnectError::Tls { source: TlsFailure::NoSettings, .. });
    assert!(none, "{error:?}");
    let missing = ClientTls::new(authority.ca().with_file_name("missing.pem"));
    let error = refusal(&server, missing).await;
    let ConnectError::Tls { source: TlsFailure::Settings(source), .. } = &error else {
        panic!("{error:?}")
    };
    assert!(source.to_string().contains("missing.pem"), "{source}");

    let client = start(connecting(&authority)).await;
    for bad in ["quic://localhost", "quic://:7", "quic://[::1]", "quic://host:port"] {
        let error = client.connect(&bad.parse().unwrap()).await.err().unwrap();
        assert!(matches!(error, ConnectError::BadAddress { .. }), "{bad}: {error:?}");
    }
    let error = client.connect(&"quic://127.0.0.1:0".parse().unwrap()).await.err().unwrap();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    let error = client.connect(&"tcp://127.0.0.1:1".parse().unwrap()).await.err().unwrap();
    assert!(matches!(error, ConnectError::WrongScheme { .. }), "{error:?}");
    client.shutdown().await;
    let error = client.connect(endpoint).await.err().unwrap();
    assert!(matches!(error, ConnectError::Closed), "{error:?}");
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let authority = Authority::new();
    let mut config = connecting(&authority);
    config.listen = Some("127.0.0.1:0".parse().unwrap());
    let refused = QuicTransport::start(config).await.err().unwrap();
    assert!(matches!(refused, StartError::NoServerCertificate), "{refused:?}");

    let everywhere = QuicConfig::listening("0.0.0.0:0".parse().unwrap(), authority.server());
    let refused = QuicTransport::start(everywhere.clone()).await.err().unwrap();
    assert!(
        matches!(refused, StartError::Listen(ListenError::NoAdvertisedHost { .. })),
        "{refused:?}"
    );
    let mut named = everywhere;
    named.advertise_hosts = vec!["localhost".to_owned()];
    let server = start(named.clone()).await;
    named.listen = server.local_address();
    let refused = QuicTransport::start(named).await.err().unwrap();
    assert!(matches!(refused, StartError::Listen(ListenError::AddressInUse { .. })), "{refused:?}");
    // The name is looked up, and is in the certificate.
    let client = start(connecting(&authority)).await;
    assert!(client.connect(server.endpoint().unwrap()).await.unwrap().is_healthy());

    type Change = fn(&mut QuicConfig);
    let changes: [Change; 4] = [
        |config| config.max_mtu = 1199,
        |config| config.window = ByteSize::kib(63),
        |config| config.idle_timeout = std::time::Duration::MAX,
        |config| config.stall_timeout = std::time::Duration::ZERO,
    ];
    for change in changes {
        let mut config = connecting(&authority);
        change(&mut config);
        let refused = QuicTransport::start(config).await.err().unwrap();
        assert!(matches!(refused, StartError::BadSetting { .. }), "{refused:?}");
    }
}

#[tokio::test]
async fn renewed_certificates_count_from_the_next_check_on() {
    let authority = Authority::new();
    let tls = authority.server();
    let config = QuicConfig::listening("127.0.0.1:0".parse().unwrap(), tls.clone());
    let server = start(config).await;
    let region = server.register(&Memory::allocate(64).unwrap(), Access::ReadWrite).unwrap();
    let client = start(connecting(&authority)).await;
    let link = client.connect(server.endpoint().unwrap()).await.unwrap();
    authority.issue("server", &["renewed.example"], false);
    still_serves(&server, &authority, &region).await;
    assert_eq!(tls.check(), Reload::Taken);
    let error = refusal(&server, authority.client()).await;
    assert!(untrusted(&error, &CertificateError::NotValidForName), "{error:?}");
    // Connections that are there stay.
    let write = Operation::write(Bytes::from_static(b"x"), span(region.key(), 0, 1));
    one(&*link, write).await.unwrap();
    drop(server);
    let write = Operation::write(Bytes::from_static(b"x"), span(region.key(), 0, 1));
    let lost = one(&*link, write).await.unwrap_err();
    assert!(matches!(lost, TransferError::LinkLost { .. }), "{lost:?}");
}
