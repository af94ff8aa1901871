//! Encrypted connections leave no descriptor behind. A program of its own, because
//! descriptors are counted for the whole process.

#![cfg(all(feature = "tls", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

#[path = "it/certificates.rs"]
mod certificates;

use std::sync::Arc;
use std::time::Duration;

use certificates::Authority;
use mc_testkit::eventually;
use mc_tls::{ClientAuth, ClientTls, ServerTls, TlsFiles};
use mc_transport::{TcpConfig, TcpTls, TcpTransport, Transport};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_descriptor_stays_open() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (cert, key) = authority.issue("server", &["127.0.0.1"]);
    let files = TlsFiles::new(cert, key).client_ca(authority.ca(), ClientAuth::Required);
    let server = Arc::new(ServerTls::load(files).unwrap());
    let (cert, key) = authority.issue("client", &["node.example"]);
    let good = ClientTls::new(authority.ca()).identity(cert, key);
    let (nameless, stranger) = (ClientTls::new(authority.ca()), ClientTls::new(other.ca()));
    let before = descriptors();
    let mut config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    config.tls = Some(TcpTls::new(good.clone()).server(server));
    let owner = TcpTransport::start(config).await.unwrap();
    let listening = descriptors();
    for round in 0..10 {
        for (client, welcome) in [(&good, true), (&nameless, false), (&stranger, false)] {
            let mut config = TcpConfig::default();
            config.tls = Some(TcpTls::new(client.clone()));
            let peer = TcpTransport::start(config).await.unwrap();
            let link = peer.connect(owner.endpoint().unwrap()).await;
            assert_eq!(link.is_ok(), welcome, "round {round}: {link:?}");
            if round % 2 == 0 {
                peer.shutdown().await;
            }
        }
    }
    eventually(Duration::from_secs(30), "only the listener is open", || descriptors() == listening)
        .await;
    eventually(Duration::from_secs(30), "nobody is served", || owner.stats().connections == 0)
        .await;
    owner.shutdown().await;
    assert_eq!(owner.stats().tasks, 0);
    assert_eq!(descriptors(), before);
}
