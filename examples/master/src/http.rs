//! The pages of the metrics port.

mod failure;
mod gate;
mod objects;
mod query;
mod segments;

use std::sync::Arc;
use std::time::Instant;

use mc_events::EventSystem;
use mc_http::{MetricsText, Page, Request};
use mc_meta::{Master, TenantId};
use mc_rpc::{Caller, HaReport, HaRole, HaStatus, Role};
use mc_server::{JournalWatch, ServerWatch, TickerWatch};
use mc_types::{Epoch, ErrorCode};
use parking_lot::RwLock;

use self::failure::Failure;
pub(crate) use self::gate::Gate;
use self::query::Query;
use crate::{figures, ha, journal};

/// The subject of the pages: the master that runs now, if any, and its part among others.
#[derive(Clone, Default)]
pub(crate) struct Shown {
    pub(crate) master: Option<ShownMaster>,
    pub(crate) cluster: Option<Arc<dyn HaReport>>,
}

impl Shown {
    /// This master's part among others; `None` when it is the only one.
    fn ha_status(&self) -> Option<HaStatus> {
        self.cluster.as_ref().map(|cluster| cluster.ha_status())
    }
}

/// A master that runs.
#[derive(Clone)]
pub(crate) struct ShownMaster {
    state: Arc<Master>,
    rpc: ServerWatch,
    ticker: TickerWatch,
    events: Option<Arc<EventSystem>>,
    journal: Option<JournalWatch>,
    ha: Option<Arc<dyn HaReport>>,
}

impl ShownMaster {
    pub(crate) fn of(master: &mc_server::Master) -> Self {
        Self {
            state: Arc::clone(master.state()),
            rpc: master.rpc_watch(),
            ticker: master.ticker_watch(),
            events: master.events().map(Arc::clone),
            journal: master.journal_watch(),
            ha: master.ha_report(),
        }
    }

    /// Returns the problem that keeps the master from its work.
    fn problem(&self) -> Option<String> {
        let ticker = self.ticker.read().problem.map(|problem| problem.to_string());
        let journal = self.journal.as_ref().and_then(JournalWatch::trouble);
        ticker.or_else(|| journal.map(|trouble| trouble.to_string()))
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

/// A page of the port.
struct Route {
    path: &'static str,
    answer: Answer,
}

/// How a page is made.
enum Answer {
    /// A page about this process, whatever its role. Anyone who can connect may read it.
    Process(fn(&Shown, Instant) -> Page),
    /// A page about the master's metadata, for callers with this role; without one for all.
    Master(Option<Role>, fn(&Asked<'_>) -> Result<Page, Failure>),
}

/// Every page. Calls give the same role the same information about objects and segments;
/// `/metrics` names segments to all callers.
const ROUTES: &[Route] = {
    use Answer::{Master, Process};
    const fn at(path: &'static str, answer: Answer) -> Route {
        Route { path, answer }
    }
    &[
        at("/metrics", Process(metrics)),
        at("/metrics/summary", Process(summary)),
        at("/health", Process(health)),
        at("/role", Process(role)),
        at("/leader", Process(leader)),
        at("/ha_status", Process(ha_status)),
        at("/query_key", Master(Some(Role::Reader), objects::query_key)),
        at("/batch_query_keys", Master(Some(Role::Reader), objects::batch_query_keys)),
        at("/get_all_keys", Master(Some(Role::Reader), objects::get_all_keys)),
        at("/get_all_segments", Master(None, segments::get_all_segments)),
        at("/query_segment", Master(Some(Role::Reader), segments::query_segment)),
        at("/api/v1/segments/status", Master(Some(Role::Reader), segments::status)),
        at("/get_segments_detail", Master(Some(Role::Admin), segments::get_segments_detail)),
    ]
};

/// A request that may be answered.
struct Asked<'a> {
    master: &'a Master,
    tenant: &'a TenantId,
    query: Query<'a>,
}

/// The answer to each request.
pub(crate) fn pages(
    shown: Arc<RwLock<Shown>>,
    gate: Gate,
) -> impl Fn(&Request<()>) -> Option<Page> {
    let started = Instant::now();
    move |request| {
        let route = ROUTES.iter().find(|route| route.path == request.uri().path())?;
        let shown = shown.read().clone();
        Some(match route.answer {
            Answer::Process(page) => page(&shown, started),
            Answer::Master(role, answer) => {
                let answered = ask(&shown, &gate, request, role, answer);
                answered.unwrap_or_else(|failure| failure.page())
            }
        })
    }
}

/// Answers a request about what the master keeps, if its caller may know that.
fn ask(
    shown: &Shown,
    gate: &Gate,
    request: &Request<()>,
    role: Option<Role>,
    answer: fn(&Asked<'_>) -> Result<Page, Failure>,
) -> Result<Page, Failure> {
    let query = Query::of(request.uri().query());
    let caller = match role {
        None => Caller::ANYBODY,
        Some(role) => {
            let caller = gate.admit(request, query)?;
            if caller.role() < role {
                let text =
                    format!("{} is {}; this page needs {role}", caller.name(), caller.role());
                return Err(Failure::new(ErrorCode::PermissionDenied, text));
            }
            caller
        }
    };
    let master = shown.master.as_ref().ok_or_else(|| not_leading(shown))?;
    answer(&Asked { master: &master.state, tenant: caller.tenant(), query })
}

fn not_leading(shown: &Shown) -> Failure {
    let leader = shown.cluster.as_ref().and_then(|cluster| cluster.leader());
    let elsewhere = leader.map_or_else(String::new, |leader| format!("; the leader is {leader}"));
    let text = format!("service plane is not active{elsewhere}");
    Failure::new(ErrorCode::UnavailableInCurrentStatus, text)
}

fn metrics(shown: &Shown, _: Instant) -> Page {
    let mut text = shown.master.as_ref().map(ShownMaster::metrics).unwrap_or_default();
    if let Some(cluster) = &shown.cluster {
        ha::metrics(&mut text, &cluster.ha_status());
    }
    Page::prometheus(text.into_string())
}

fn summary(shown: &Shown, _: Instant) -> Page {
    let report = shown.master.as_ref().map(|master| master.state.report()).unwrap_or_default();
    Page::text(figures::summary(&report) + "\n")
}

fn health(shown: &Shown, started: Instant) -> Page {
    let problem = shown.master.as_ref().and_then(ShownMaster::problem);
    let mut health = serde_json::json!({
        "status": problem.as_deref().unwrap_or("ok"),
        "service_ready": problem.is_none() && shown.master.is_some(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": started.elapsed().as_secs(),
        // Mooncake's fields, which tools of its operators read.
        "role": HaRole::Leader.as_str(),
        "ha_state": ha_state(shown, HaRole::Leader),
    });
    if let Some(status) = shown.ha_status() {
        health["role"] = status.role.as_str().into();
        health["ha_state"] = ha_state(shown, status.role).into();
        if let Some(leader) = leader_view(shown) {
            health["leader_address"] = (*leader.address).into();
            health["view_version"] = leader.version.into();
        }
        health["epoch"] = status.epoch.map(Epoch::as_u64).into();
        health["leader"] = status.leader.as_deref().into();
        health["election_outage"] = ha::outage_json(&status);
        health["waits_because"] = status.waits_because.as_deref().into();
    }
    let page = Page::json(health.to_string());
    // A standby is well, and says that it does not serve.
    if problem.is_none() { page } else { page.unavailable() }
}

fn role(shown: &Shown, _: Instant) -> Page {
    // The only one leads, for those who look for the one that does.
    let role = shown.ha_status().map_or(HaRole::Leader, |status| status.role);
    Page::text(role.to_string())
}

fn leader(shown: &Shown, _: Instant) -> Page {
    let page = match leader_view(shown) {
        None => serde_json::json!({ "present": false }),
        Some(leader) => serde_json::json!({
            "present": true,
            "leader_address": leader.address,
            "view_version": leader.version,
        }),
    };
    Page::json(page.to_string())
}

/// The leader of several masters, as this one sees it.
struct LeaderView {
    address: Box<str>,
    /// The epoch of its term.
    version: u64,
}

/// The leader; `None` while none leads, and for the only master.
fn leader_view(shown: &Shown) -> Option<LeaderView> {
    let cluster = shown.cluster.as_ref()?;
    let address = cluster.leader()?;
    Some(LeaderView { address, version: cluster.ha_status().epoch.map_or(0, Epoch::as_u64) })
}

/// Mooncake's name of the state that a master with this role is in.
fn ha_state(shown: &Shown, role: HaRole) -> &'static str {
    match role {
        HaRole::Standby => "standby",
        HaRole::Recovering => "recovering",
        _ if shown.master.is_some() => "serving",
        _ => "leader_warmup",
    }
}

fn ha_status(shown: &Shown, _: Instant) -> Page {
    let alone = || shown.master.as_ref()?.ha.as_ref().map(|ha| ha.ha_status());
    Page::json(ha::json(&shown.ha_status().or_else(alone).unwrap_or_default()).to_string())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use mc_events::PublisherConfig;
    use mc_ha::MemoryJournal;
    use mc_http::HttpPort;
    use mc_server::{EventPublisher, JournalConfig};
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
        let master = mc_server::Master::builder().start().await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let pages = pages(shown(ShownMaster::of(&master)), Gate::Open);
        let server = tokio::spawn(port.serve_queries(pages, async {
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
    async fn the_document_lists_every_metric() {
        let config =
            PublisherConfig { endpoint: "tcp://127.0.0.1:0".into(), ..PublisherConfig::default() };
        let master = mc_server::Master::builder()
            .events(EventPublisher::start(config).await.unwrap())
            .journal(JournalConfig::new(Arc::new(MemoryJournal::new())))
            .start()
            .await
            .unwrap();
        let port = HttpPort::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let address = port.local_addr();
        let shown = Shown { cluster: master.ha_report(), master: Some(ShownMaster::of(&master)) };
        let pages = pages(Arc::new(RwLock::new(shown)), Gate::Open);
        let server = tokio::spawn(port.serve_queries(pages, std::future::pending()));
        let page = page(address, "/metrics").await;
        let document = include_str!("../../../docs/metrics.md");
        let differences = mc_testkit::metrics_differences(&page, document, "Master");
        assert_eq!(differences, Vec::<String>::new(), "\n{page}");
        server.abort();
        master.shutdown().await;
    }

    #[tokio::test]
    async fn a_master_for_which_time_stands_still_is_not_healthy() {
        let master = mc_server::Master::builder().start().await.unwrap();
        let broken = mc_server::Ticker::start(|| panic!("a broken tick")).unwrap();
        tokio::time::timeout(DEADLINE, broken.watch().failed()).await.expect("it gives up");
        let port = HttpPort::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let address = port.local_addr();
        let broken = ShownMaster { ticker: broken.watch(), ..ShownMaster::of(&master) };
        let pages = pages(shown(broken), Gate::Open);
        let server = tokio::spawn(port.serve_queries(pages, std::future::pending()));
        let health = page(address, "/health").await;
        assert!(health.starts_with("HTTP/1.1 503"), "{health}");
        assert!(health.contains("a broken tick"), "{health}");
        let metrics = page(address, "/metrics").await;
        assert!(metrics.contains("\nmaster_tick_panics_total 8\n"), "{metrics}");
        server.abort();
        master.shutdown().await;
    }
}
