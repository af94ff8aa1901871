//! The metrics port: a few pages over HTTP, from few connections that cannot
//! stay for ever.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mc_meta::Master;
use mc_store::ServerWatch;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use crate::figures;

/// Connections at a time; more wait to be accepted. Scrapers and probes are few.
const MAX_CONNECTIONS: usize = 64;
/// How long a request may take to arrive, and a kept connection may idle.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection may stay. It ends after the answer under way.
const CONNECTION_LIFE: Duration = Duration::from_secs(300);
/// How long that last answer may take to be read.
const LAST_ANSWER: Duration = Duration::from_millis(500);
/// Bytes of a request's head that are looked at before it is refused.
const MAX_HEAD: usize = 16 << 10;
/// A pause after a failed accept, which is most often a want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Opens the port, but does not answer yet.
///
/// # Errors
/// What the system said; nothing stays open then.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { address, source },
        _ => BindError::Listen { address, source },
    })
}

/// Why the metrics port is not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BindError {
    #[error(
        "{address} is in use by another process; choose another --metrics_port (0 takes a free one)"
    )]
    InUse { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {address}; check --metrics_host and --metrics_port")]
    Listen { address: SocketAddr, source: io::Error },
}

/// Answers until `stop` changes or its sender is gone.
pub(crate) async fn serve(
    listener: TcpListener,
    master: Arc<Master>,
    rpc: ServerWatch,
    stop: watch::Receiver<()>,
) {
    let service = TowerToHyperService::new(router(master, rpc));
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut stopped = stop.clone();
    loop {
        let accept = async {
            let permit = Arc::clone(&connections).acquire_owned().await;
            (listener.accept().await, permit.expect("the semaphore is never closed"))
        };
        let (accepted, permit) = tokio::select! {
            biased;
            // It fails when the sender is gone, which means the same.
            _ = stopped.changed() => return,
            accepted = accept => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (service, stop) = (service.clone(), stop.clone());
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, service, stop).await {
                        debug!(%peer, %error, "metrics connection failed");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection on the metrics port");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One connection, from its first byte to its last.
async fn converse(
    stream: TcpStream,
    service: TowerToHyperService<Router>,
    mut stop: watch::Receiver<()>,
) -> Result<(), hyper::Error> {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_PATIENCE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        _ = stop.changed() => {}
        () = tokio::time::sleep(CONNECTION_LIFE) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::time::timeout(LAST_ANSWER, connection).await.unwrap_or(Ok(()))
}

#[derive(Clone)]
struct Page {
    master: Arc<Master>,
    rpc: ServerWatch,
    started: Instant,
}

fn router(master: Arc<Master>, rpc: ServerWatch) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/metrics/summary", get(summary))
        .route("/health", get(health))
        .with_state(Page { master, rpc, started: Instant::now() })
}

async fn metrics(State(page): State<Page>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let mut text = figures::prometheus(&page.master.report());
    figures::rpc(&mut text, &page.rpc.read());
    ([(CONTENT_TYPE, kind)], text)
}

async fn summary(State(page): State<Page>) -> String {
    figures::summary(&page.master.report()) + "\n"
}

async fn health(State(page): State<Page>) -> impl IntoResponse {
    let health = serde_json::json!({
        "status": "ok",
        "service_ready": true,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": page.started.elapsed().as_secs(),
    });
    ([(CONTENT_TYPE, "application/json")], health.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Longer than anything here takes, shorter than anybody waits.
    const DEADLINE: Duration = Duration::from_secs(20);

    async fn ask(address: SocketAddr, request: &str) -> String {
        let asked = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            // A reset after the answer is an end too.
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8(answer).unwrap()
        };
        tokio::time::timeout(DEADLINE, asked).await.expect("an answer in time")
    }

    fn page(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    }

    #[tokio::test]
    async fn pages_errors_and_the_end() {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let taken = bind(address).await.unwrap_err().to_string();
        assert!(taken.contains("in use") && taken.contains("--metrics_port"), "{taken}");

        let master = mc_store::Master::builder().start().await.unwrap();
        let (stop, stopped) = watch::channel(());
        let (state, rpc) = (Arc::clone(master.state()), master.rpc_watch());
        let server = tokio::spawn(serve(listener, state, rpc, stopped));

        let metrics = ask(address, &page("/metrics")).await;
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(metrics.contains("text/plain; version=0.0.4"), "{metrics}");
        assert!(metrics.contains("\nmaster_key_count 0\n"), "{metrics}");
        assert!(metrics.contains("\nmaster_rpc_connections 0\n"), "{metrics}");
        let health = ask(address, &page("/health")).await;
        assert!(health.contains(r#""service_ready":true"#), "{health}");
        let summary = ask(address, &page("/metrics/summary")).await;
        assert!(summary.contains("Mem Storage: 0 B / 0 B"), "{summary}");
        assert!(ask(address, &page("/other")).await.starts_with("HTTP/1.1 404"));
        let post = page("/metrics").replace("GET", "POST");
        assert!(ask(address, &post).await.starts_with("HTTP/1.1 405"));
        // Neither nonsense nor an endless head disturbs anybody else.
        assert!(!ask(address, "\0\u{1}nonsense\r\n\r\n").await.starts_with("HTTP/1.1 200"));
        let endless = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(4 * MAX_HEAD));
        assert!(!ask(address, &endless).await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, &page("/health")).await.starts_with("HTTP/1.1 200"));

        // A connection that says nothing does not hold the end up.
        let silent = TcpStream::connect(address).await.unwrap();
        drop(stop);
        tokio::time::timeout(DEADLINE, server).await.expect("an end in time").unwrap();
        drop(silent);
        master.shutdown().await;
    }
}
