//! The pages of the metrics port.

mod alerts;
mod api;
mod changes;
mod failure;
mod gate;
mod objects;
mod query;
mod segments;
mod shown;

use std::sync::Arc;
use std::time::Instant;

use mc_http::{HeaderValue, Page, Request, header};
use mc_rpc::{Caller, HaRole, HaStatus, Role};
use mc_types::{Epoch, ErrorCode};
use parking_lot::RwLock;

use self::api::Feed;
pub(crate) use self::changes::{MAX_BODY, changed};
use self::failure::Failure;
pub(crate) use self::gate::Gate;
use self::query::Query;
use self::shown::Asked;
pub(crate) use self::shown::{Shown, ShownMaster};
use crate::{figures, ha};

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
    /// A page that goes on telling about the master, for administrators.
    Live(fn(&Arc<Feed>) -> Result<Page, Failure>),
}

/// Every page. Calls give the same role the same information about objects and segments;
/// `/metrics` names segments to all callers.
const ROUTES: &[Route] = {
    use Answer::{Live, Master, Process};
    const fn at(path: &'static str, answer: Answer) -> Route {
        Route { path, answer }
    }
    &[
        at("/", Process(dashboard)),
        at("/openapi.json", Process(openapi)),
        at("/metrics", Process(metrics)),
        at("/metrics/summary", Process(summary)),
        at("/health", Process(health)),
        at("/live", Process(live)),
        at("/ready", Process(ready)),
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
        at("/kv_events/status", Process(kv_events)),
        at("/api/v1/live", Live(api::live)),
        at("/api/v1/cluster", Master(Some(Role::Admin), api::cluster)),
        at("/api/v1/segments", Master(Some(Role::Admin), api::segments)),
        at("/api/v1/nodes", Master(Some(Role::Admin), api::nodes)),
        at("/api/v1/history", Master(Some(Role::Admin), api::history)),
        at("/api/v1/clients", Master(Some(Role::Admin), api::clients)),
        at("/api/v1/tiers", Master(Some(Role::Admin), api::tiers)),
        at("/api/v1/tenants", Master(Some(Role::Admin), api::tenants)),
        at("/api/v1/drain_jobs", Master(Some(Role::Admin), api::drain_jobs)),
        at("/api/v1/drain_jobs/query", Master(Some(Role::Admin), changes::drain_job)),
        at("/api/v1/tenant_quotas", Master(Some(Role::Admin), changes::tenant_quotas)),
        at("/api/v1/object", Master(Some(Role::Reader), api::object)),
    ]
};

/// The answer to each request.
pub(crate) fn pages(
    shown: Arc<RwLock<Shown>>,
    gate: Gate,
) -> impl Fn(&Request<()>) -> Option<Page> {
    let started = Instant::now();
    let feed = Arc::new(Feed { shown: Arc::clone(&shown), started });
    move |request| {
        let path = request.uri().path();
        let Some(route) = ROUTES.iter().find(|route| route.path == path) else {
            return changes::wrong_method(path);
        };
        let now = shown.read().clone();
        let asks = Asking { shown: &now, gate: &gate, request, started };
        let page = match route.answer {
            Answer::Process(page) => Ok(page(&now, started)),
            Answer::Master(role, answer) => asks.answered(role, answer),
            Answer::Live(page) => asks.answered(Some(Role::Admin), |_| page(&feed)),
        };
        Some(page.unwrap_or_else(|failure| failure.page()))
    }
}

/// Whether there is something to read at this path.
fn has_page(path: &str) -> bool {
    ROUTES.iter().any(|route| route.path == path)
}

/// A request about what the master keeps.
struct Asking<'a> {
    shown: &'a Shown,
    gate: &'a Gate,
    request: &'a Request<()>,
    started: Instant,
}

impl Asking<'_> {
    /// Answers it, if its caller may know that.
    fn answered(
        &self,
        role: Option<Role>,
        answer: impl FnOnce(&Asked<'_>) -> Result<Page, Failure>,
    ) -> Result<Page, Failure> {
        let Self { shown, gate, request, started } = *self;
        let query = Query::of(request.uri().query());
        let caller = match role {
            None => Caller::ANYBODY,
            Some(role) => {
                let caller = gate.admit(request, query)?;
                require(&caller, role)?;
                caller
            }
        };
        let master = shown.master.as_ref().ok_or_else(|| not_leading(shown))?;
        answer(&Asked { shown, master, tenant: caller.tenant(), query, started })
    }
}

/// Refuses a caller of a lower role.
fn require(caller: &Caller, role: Role) -> Result<(), Failure> {
    if caller.role() >= role {
        return Ok(());
    }
    let text = format!("{} is {}; this page needs {role}", caller.name(), caller.role());
    Err(Failure::new(ErrorCode::PermissionDenied, text))
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
    text.process(env!("CARGO_PKG_VERSION"));
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

/// The dashboard: one page that asks for the others.
fn dashboard(_: &Shown, _: Instant) -> Page {
    const POLICY: HeaderValue = HeaderValue::from_static(
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
         img-src data:; frame-ancestors 'none'",
    );
    Page::html(include_str!("http/dashboard.html"))
        .header(header::CONTENT_SECURITY_POLICY, POLICY)
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))
}

/// The description of these pages, for programs.
fn openapi(_: &Shown, _: Instant) -> Page {
    Page::json(include_str!("http/openapi.json"))
}

/// Whether the process is there.
fn live(_: &Shown, _: Instant) -> Page {
    Page::text("live\n")
}

/// Whether to send it requests, or to go on with the next one of an upgrade: a leader that serves, and a
/// standby that could take over without loss.
fn ready(shown: &Shown, _: Instant) -> Page {
    let status = shown.ha_status();
    let waits = match (&shown.master, &status) {
        (Some(master), _) => master.problem(),
        (None, Some(status)) if status.role == HaRole::Standby && is_in_sync(status) => None,
        (None, Some(status)) => Some(
            status.waits_because.as_deref().unwrap_or("it is not in sync with the leader").into(),
        ),
        (None, None) => Some("it reads its journal".into()),
    };
    match waits {
        None => Page::text("ready\n"),
        Some(cause) => Page::text(format!("not ready: {cause}\n")).unavailable(),
    }
}

/// Whether a standby has all that its leader acknowledged.
fn is_in_sync(status: &HaStatus) -> bool {
    !status.member.is_empty() && status.in_sync.contains(&status.member)
}

/// Mooncake's page about the events that routers follow.
fn kv_events(shown: &Shown, _: Instant) -> Page {
    let events = shown.master.as_ref().and_then(|master| master.events.as_ref());
    let stats = events.map(|events| events.stats());
    let body = serde_json::json!({
        "enabled": stats.is_some(),
        "published_batches": stats.as_ref().map_or(0, |stats| stats.batches),
        "published_events": stats.as_ref().map_or(0, |stats| stats.published),
        "dropped_events": stats.as_ref().map_or(0, |stats| stats.dropped),
    });
    Page::json(body.to_string())
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

    #[test]
    fn the_description_has_every_page() {
        let description = include_str!("http/openapi.json");
        let description: serde_json::Value = serde_json::from_str(description).unwrap();
        let described = description["paths"].as_object().unwrap();
        let mut described: Vec<(String, &str)> = described
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(|method| (method.to_uppercase(), path.as_str()))
            })
            .collect();
        let mut there: Vec<(String, &str)> =
            ROUTES.iter().map(|route| ("GET".to_owned(), route.path)).collect();
        there.extend(changes::all().map(|(method, path)| (method.to_string(), path)));
        described.sort_unstable();
        there.sort_unstable();
        assert_eq!(described, there);
    }

    #[tokio::test]
    async fn the_document_lists_every_metric() {
        let config =
            PublisherConfig { endpoint: "tcp://127.0.0.1:0".into(), ..PublisherConfig::default() };
        let mut settings = mc_meta::MasterConfig::default();
        settings.multi_tenant = true;
        let master = mc_server::Master::builder()
            .config(settings)
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
