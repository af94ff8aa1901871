//! Bytes between hosts under certificates: over QUIC, and over TCP with TLS.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use mc_store::{Client, ClientBuilder, DataPath, GetError, Master, PeerError};
use mc_testkit::eventually;
use mc_transport::ConnectError;

use crate::certificates::{certificates, client_under};

const DEADLINE: Duration = Duration::from_secs(20);

/// A client of this protocol, which has its bytes sent also within this host.
fn client(master: &Master, protocol: &str, files: Option<&Path>, segment: &str) -> ClientBuilder {
    let settings = format!(
        "local_hostname = '127.0.0.1'\nshared_memory = false\n\
         global_segment_size = '{segment}'\nprotocol = '{protocol}'\n"
    );
    client_under(master, &settings, files)
}

fn moved(client: &Client, path: DataPath) -> (u64, u64) {
    let paths = client.metrics().paths;
    let of = paths.iter().find(|of| of.path == path).unwrap();
    (of.read, of.written)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_move_under_certificates() {
    let master = Master::builder().start().await.unwrap();
    let files = certificates("ours");
    let theirs = certificates("theirs");
    let value: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
    for (protocol, path) in [("quic", DataPath::Quic), ("tcp", DataPath::Tcp)] {
        let of = |files, segment| client(&master, protocol, files, segment).connect();
        let owner = of(Some(files.path()), "16MB").await.unwrap();
        assert_eq!(owner.endpoint().unwrap().scheme(), protocol);
        let reader = of(Some(files.path()), "0").await.unwrap();
        reader.put(protocol, value.clone()).await.unwrap();
        assert_eq!(reader.get(protocol).await.unwrap()[..], value[..]);
        let len = value.len() as u64;
        assert_eq!(moved(&reader, path), (len, len));

        // The node reaches itself as its peers do.
        let reads = || owner.metrics().served.reads >= 3;
        eventually(DEADLINE, "its own check reads, too", reads).await;
        assert!(!owner.metrics().is_cut_off);

        // A client without certificates, or with those of others, is refused.
        let plain = client(&master, "tcp", None, "0").connect().await.unwrap();
        let other = of(Some(theirs.path()), "0").await.unwrap();
        for stranger in [plain, other] {
            let refused = stranger.get(protocol).await.unwrap_err();
            let GetError::Peer(PeerError::Connect(error)) = &refused else { panic!("{refused}") };
            let is_said = matches!(
                error,
                ConnectError::Tls { .. }
                    | ConnectError::TlsRequired { .. }
                    | ConnectError::WrongScheme { .. }
            );
            assert!(is_said, "{refused}");
            stranger.shutdown().await;
        }
        reader.shutdown().await;
        owner.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_both_protocols_are_one_cluster() {
    let master = Master::builder().start().await.unwrap();
    let files = certificates("ours");
    let of = |protocol, segment| client(&master, protocol, Some(files.path()), segment).connect();
    let nodes = [of("quic", "4MB").await.unwrap(), of("tcp", "4MB").await.unwrap()];
    let reader = of("tcp", "0").await.unwrap();
    for n in 0..40 {
        reader.put(&format!("block/{n}"), vec![n; 64 << 10]).await.unwrap();
    }
    for reader in [&nodes[0], &nodes[1], &reader] {
        for n in 0..40 {
            assert_eq!(reader.get(&format!("block/{n}")).await.unwrap()[..], vec![n; 64 << 10]);
        }
    }
    assert!(moved(&reader, DataPath::Quic).0 > 0 && moved(&reader, DataPath::Tcp).0 > 0);
}
