//! The pages of a client.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use mc_cluster_testkit::{ANY_PORT, Cluster};
use mc_store::{ByteSize, StartError};
use mc_testkit::eventually_async;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything here takes, shorter than anybody waits.
const DEADLINE: Duration = Duration::from_secs(20);

async fn page(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    tokio::time::timeout(DEADLINE, asked).await.expect("an answer in time")
}

#[tokio::test]
async fn a_client_shows_its_figures_as_long_as_it_runs() {
    let cluster = Cluster::start(&[]).await;
    let client = cluster
        .node()
        .segment_size(ByteSize::mib(4))
        .metrics_label("cluster_id", "blue")
        .http(ANY_PORT)
        .connect()
        .await
        .unwrap();
    let address = client.http_addr().unwrap();
    client.put("k", vec![7; 1000]).await.unwrap();
    let metrics = page(address, "/metrics").await.unwrap();
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    let line = "\nmooncake_transfer_write_bytes{cluster_id=\"blue\"} 1000\n";
    assert!(metrics.contains(line), "{metrics}");
    let summary = page(address, "/metrics/summary").await.unwrap();
    assert!(summary.contains("; put 1 (1 objects, 1000 B)"), "{summary}");
    let health = page(address, "/health").await.unwrap();
    assert!(health.contains(r#""service_ready":true"#), "{health}");
    assert!(health.contains(&client.id().to_string()), "{health}");
    assert!(page(address, "/").await.unwrap().starts_with("HTTP/1.1 404"));

    let taken = cluster.client().http(address);
    let taken = taken.connect().await.unwrap_err();
    assert!(matches!(taken, StartError::Http(_)), "{taken}");
    client.shutdown().await;
    assert!(page(address, "/health").await.is_err(), "the port is closed");
    cluster.master.shutdown().await;
}

#[tokio::test]
async fn a_client_whose_master_is_gone_lives_and_is_not_ready() {
    let cluster = Cluster::start(&[]).await;
    let node = cluster.node().segment_size(ByteSize::mib(4)).http(ANY_PORT);
    let node = node.connect().await.unwrap();
    // One without a segment need not tell the master that it lives, and is asked all the same.
    let app = cluster.client().http(ANY_PORT).connect().await.unwrap();
    let clients = [&node, &app].map(|client| client.http_addr().unwrap());
    for address in clients {
        for path in ["/health", "/ready", "/live"] {
            let shown = page(address, path).await.unwrap();
            assert!(shown.starts_with("HTTP/1.1 200"), "{path}: {shown}");
        }
    }
    cluster.master.shutdown().await;
    for address in clients {
        let shown = eventually_async(DEADLINE, "it is not ready any more", async || {
            let shown = page(address, "/health").await.unwrap();
            if shown.starts_with("HTTP/1.1 503") { Ok(shown) } else { Err(shown) }
        })
        .await;
        assert!(shown.contains(r#""service_ready":false"#), "{shown}");
        assert!(shown.contains("has not answered for"), "{shown}");
        assert!(page(address, "/ready").await.unwrap().starts_with("HTTP/1.1 503"));
        let live = page(address, "/live").await.unwrap();
        assert!(live.starts_with("HTTP/1.1 200"), "a probe would end a sound process: {live}");
    }
    node.shutdown().await;
    app.shutdown().await;
}
