//! The pages of the metrics port.

use std::sync::Arc;
use std::time::Instant;

use mc_events::EventSystem;
use mc_http::{MetricsText, Page};
use mc_meta::{Master, SegmentInfo};
use mc_rpc::{HaReport, HaRole, HaStatus};
use mc_store::{JournalWatch, ServerWatch, TickerWatch};
use mc_types::Epoch;
use parking_lot::RwLock;

use crate::{figures, ha, journal};

/// What the pages are about: the master that runs now, if any, and its part among others.
#[derive(Clone, Default)]
pub(crate) struct Shown {
    pub(crate) master: Option<ShownMaster>,
    pub(crate) cluster: Option<Arc<dyn HaReport>>,
}

/// A master that runs.
#[derive(Clone)]
pub(crate) struct ShownMaster {
    state: Arc<Master>,
    rpc: ServerWatch,
    ticker: TickerWatch,
    events: Option<Arc<EventSystem>>,
    journal: Option<JournalWatch>,
}

impl ShownMaster {
    pub(crate) fn of(master: &mc_store::Master) -> Self {
        Self {
            state: Arc::clone(master.state()),
            rpc: master.rpc_watch(),
            ticker: master.ticker_watch(),
            events: master.events().map(Arc::clone),
            journal: master.journal_watch(),
        }
    }

    fn metrics(&self) -> MetricsText {
        let mut text = figures::prometheus(&self.state.report());
        figures::rpc(&mut text, &self.rpc.read());
        figures::ticker(&mut text, &self.ticker.read());
        if let Some(events) = &self.events {
            figures::events(&mut text, &events.stats());
        }
        if let Some(journal) = &self.journal {
            journal::metrics(&mut text, &journal.read());
        }
        text
    }
}

/// The answer for each path.
pub(crate) fn pages(shown: Arc<RwLock<Shown>>) -> impl Fn(&str) -> Option<Page> {
    let started = Instant::now();
    move |path| {
        let Shown { master, cluster } = shown.read().clone();
        let report = || master.as_ref().map(|master| master.state.report()).unwrap_or_default();
        match path {
            "/metrics" => {
                let mut text = master.as_ref().map(ShownMaster::metrics).unwrap_or_default();
                if let Some(cluster) = &cluster {
                    ha::metrics(&mut text, &cluster.ha_status());
                }
                Some(Page::prometheus(text.into_string()))
            }
            "/metrics/summary" => Some(Page::text(figures::summary(&report()) + "\n")),
            "/health" => {
                let problem = master.as_ref().and_then(|master| master.ticker.read().problem);
                let problem = problem.map(|problem| problem.to_string());
                let status = cluster.as_ref().map(|cluster| cluster.ha_status());
                let mut health = serde_json::json!({
                    "status": problem.as_deref().unwrap_or("ok"),
                    "service_ready": problem.is_none() && master.is_some(),
                    "version": env!("CARGO_PKG_VERSION"),
                    "uptime_seconds": started.elapsed().as_secs(),
                });
                if let Some(status) = status {
                    health["role"] = status.role.as_str().into();
                    health["epoch"] = status.epoch.map(Epoch::as_u64).into();
                    health["leader"] = status.leader.as_deref().into();
                }
                let page = Page::json(health.to_string());
                // A standby is well, and says that it does not serve.
                Some(if problem.is_none() { page } else { page.unavailable() })
            }
            "/role" => Some(Page::text(format!("{}\n", role(cluster.as_deref())))),
            "/leader" => {
                let status = cluster.as_ref().map(|cluster| cluster.ha_status());
                let leader = status.and_then(|status| status.leader).unwrap_or_default();
                Some(Page::text(format!("{leader}\n")))
            }
            "/ha_status" => {
                let status = cluster.map_or_else(HaStatus::default, |cluster| cluster.ha_status());
                Some(Page::json(ha::json(&status).to_string()))
            }
            // SGLang waits for its first line before it connects.
            "/get_all_segments" => {
                let name = |segment: &SegmentInfo| format!("{}\n", segment.spec.name);
                Some(Page::text(report().segments.iter().map(name).collect::<String>()))
            }
            _ => None,
        }
    }
}

fn role(cluster: Option<&dyn HaReport>) -> HaRole {
    cluster.map_or(HaRole::Alone, |cluster| cluster.ha_status().role)
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

    fn shown(master: ShownMaster) -> Arc<RwLock<Shown>> {
        Arc::new(RwLock::new(Shown { master: Some(master), cluster: None }))
    }

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
        let pages = pages(shown(ShownMaster::of(&master)));
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
        let broken = ShownMaster { ticker: broken.watch(), ..ShownMaster::of(&master) };
        let pages = pages(shown(broken));
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
