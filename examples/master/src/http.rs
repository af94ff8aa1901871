//! The pages of the metrics port.

use std::sync::Arc;
use std::time::Instant;

use mc_events::EventSystem;
use mc_http::Page;
use mc_meta::Master;
use mc_store::{JournalWatch, ServerWatch, TickerWatch};

use crate::{figures, journal};

/// The answer for each path.
pub(crate) fn pages(
    master: Arc<Master>,
    rpc: ServerWatch,
    ticker: TickerWatch,
    events: Option<Arc<EventSystem>>,
    journal: Option<JournalWatch>,
) -> impl Fn(&str) -> Option<Page> {
    let started = Instant::now();
    move |path| match path {
        "/metrics" => {
            let mut text = figures::prometheus(&master.report());
            figures::rpc(&mut text, &rpc.read());
            figures::ticker(&mut text, &ticker.read());
            if let Some(events) = &events {
                figures::events(&mut text, &events.stats());
            }
            if let Some(journal) = &journal {
                journal::metrics(&mut text, &journal.read());
            }
            Some(Page::prometheus(text.into_string()))
        }
        "/metrics/summary" => Some(Page::text(figures::summary(&master.report()) + "\n")),
        "/health" => {
            let problem = ticker.read().problem.map(|problem| problem.to_string());
            let is_ready = problem.is_none();
            let health = serde_json::json!({
                "status": problem.as_deref().unwrap_or("ok"),
                "service_ready": is_ready,
                "version": env!("CARGO_PKG_VERSION"),
                "uptime_seconds": started.elapsed().as_secs(),
            });
            let page = Page::json(health.to_string());
            Some(if is_ready { page } else { page.unavailable() })
        }
        // SGLang waits for its first line before it connects.
        "/get_all_segments" => {
            let segments = master.report().segments;
            Some(Page::text(
                segments
                    .iter()
                    .map(|segment| format!("{}\n", segment.spec.name))
                    .collect::<String>(),
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use mc_http::HttpPort;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

    /// Longer than anything here takes, shorter than any test run waits.
    const DEADLINE: Duration = Duration::from_secs(20);

    async fn page(address: SocketAddr, path: &str) -> String {
        let asked = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::time::timeout(DEADLINE, asked).await.expect("an answer in time")
    }

    #[tokio::test]
    async fn every_page_is_there() {
        let port = HttpPort::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let address = port.local_addr();
        let master = mc_store::Master::builder().start().await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let pages = pages(
            Arc::clone(master.state()),
            master.rpc_watch(),
            master.ticker_watch(),
            None,
            None,
        );
        let server = tokio::spawn(port.serve(pages, async {
            // It fails when the sender is gone, which means the same.
            let _ = stopped.await;
        }));

        let metrics = page(address, "/metrics").await;
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(metrics.contains("text/plain; version=0.0.4"), "{metrics}");
        assert!(metrics.contains("\nmaster_key_count 0\n"), "{metrics}");
        assert!(metrics.contains("\nmaster_rpc_connections 0\n"), "{metrics}");
        let segments = page(address, "/get_all_segments").await;
        assert!(segments.starts_with("HTTP/1.1 200"), "{segments}");
        assert!(segments.ends_with("\r\n\r\n"), "there are none yet: {segments}");
        let health = page(address, "/health").await;
        assert!(health.contains(r#""service_ready":true"#), "{health}");
        let summary = page(address, "/metrics/summary").await;
        assert!(summary.contains("Mem Storage: 0 B / 0 B"), "{summary}");
        assert!(page(address, "/other").await.starts_with("HTTP/1.1 404"));
        assert!(metrics.contains("\nmaster_tick_panics_total 0\n"), "{metrics}");
        drop(stop);
        tokio::time::timeout(DEADLINE, server).await.expect("an end in time").unwrap();
        master.shutdown().await;
    }

    #[tokio::test]
    async fn a_master_for_which_time_stands_still_is_not_healthy() {
        let master = mc_store::Master::builder().start().await.unwrap();
        let broken = mc_store::Ticker::start(|| panic!("a broken tick")).unwrap();
        tokio::time::timeout(DEADLINE, broken.watch().failed()).await.expect("it gives up");
        let port = HttpPort::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let address = port.local_addr();
        let pages =
            pages(Arc::clone(master.state()), master.rpc_watch(), broken.watch(), None, None);
        let server = tokio::spawn(port.serve(pages, std::future::pending()));
        let health = page(address, "/health").await;
        assert!(health.starts_with("HTTP/1.1 503"), "{health}");
        assert!(health.contains("a broken tick"), "{health}");
        let metrics = page(address, "/metrics").await;
        assert!(metrics.contains("\nmaster_tick_panics_total 8\n"), "{metrics}");
        server.abort();
        master.shutdown().await;
    }
}
