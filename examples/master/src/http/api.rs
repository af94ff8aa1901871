//! The pages under `/api/v1`, in JSON: what the dashboard shows and scripts ask for. Their fields have the
//! names that `mc-ctl --json` gives them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_cli::{
    became, connection_json, kept_because, minute_json, node_load_json, slow_nodes, tenant_json,
};
use mc_http::Page;
use mc_meta::{BufferStatus, LocalDiskInfo, ObjectInfo, ReplicaInfo, ReplicaStatus, SegmentInfo};
use mc_rpc::{HaRole, MAX_LISTED_CONNECTIONS};
use mc_server::MasterReport;
use mc_types::{ClientId, ErrorCode, KeyRef};
use parking_lot::RwLock;
use serde_json::{Map, Value, json};

use super::alerts::{self, state};
use super::failure::Failure;
use super::shown::{Asked, Shown, ShownMaster};
use crate::figures::Pool;
use crate::ha;

/// The time between two events of `/api/v1/live`.
const PERIOD: Duration = Duration::from_secs(1);

/// Most that follow it at a time: each costs a report of the master a second.
const MAX_LIVE: usize = 32;

/// `/api/v1/cluster`: totals, the pool, the server, and alerts.
pub(super) fn cluster(asked: &Asked<'_>) -> Result<Page, Failure> {
    Ok(Page::json(overview(asked.shown, asked.master, asked.started).to_string()))
}

/// The source of `/api/v1/live`: the master that runs now, whichever that is.
pub(super) struct Feed {
    pub(super) shown: Arc<RwLock<Shown>>,
    pub(super) started: Instant,
}

/// `/api/v1/live`: `/api/v1/cluster` once a second, as server-sent events, for as long as this master leads.
pub(super) fn live(feed: &Arc<Feed>) -> Result<Page, Failure> {
    // Each page that goes on has the feed, too.
    if Arc::strong_count(feed) > MAX_LIVE {
        let text = format!(
            "{MAX_LIVE} pages follow this master already; close one, or ask for /api/v1/cluster"
        );
        return Err(Failure::new(ErrorCode::UnavailableInCurrentStatus, text));
    }
    let feed = Arc::clone(feed);
    Ok(Page::events(PERIOD, move || {
        let shown = feed.shown.read().clone();
        let master = shown.master.as_ref()?;
        Some(overview(&shown, master, feed.started).to_string())
    }))
}

fn overview(shown: &Shown, master: &ShownMaster, started: Instant) -> Value {
    let report = master.state.report();
    let (pool, server, ticker) = (Pool::of(&report), master.rpc.read(), master.ticker.read());
    let totals: Map<String, Value> =
        report.totals.values().map(|(it, value)| (it.name.to_owned(), value.into())).collect();
    let calls: Map<String, Value> = server
        .calls
        .iter()
        .map(|of| (of.method.to_string(), json!({ "calls": of.calls, "refused": of.refused })))
        .collect();
    let events = master.events.as_ref().map(|events| {
        let stats = events.stats();
        json!({
            "published": stats.published,
            "dropped": stats.dropped,
            "queued": stats.queued,
            "subscribers": stats.subscribers,
        })
    });
    let status = shown.ha_status();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": started.elapsed().as_secs(),
        "role": status.as_ref().map_or(HaRole::Leader, |status| status.role).as_str(),
        "problem": master.problem(),
        "alerts": alerts::of(&report, &ticker, master.problem(), status.as_ref()),
        "used": pool.usable.used,
        "capacity": pool.usable.size,
        "unusable_used": pool.unusable.used,
        "unusable_capacity": pool.unusable.size,
        "segments": report.segments.len(),
        "files_capacity": report.files_capacity,
        "disks": report.local_disks.len(),
        "totals": totals,
        "seconds_since_tick": ticker.since_last.as_secs_f64(),
        "rpc": {
            "connections": server.connections,
            "turned_away": server.turned_away,
            "expired": server.expired,
            "bytes_in": server.bytes_in,
            "bytes_out": server.bytes_out,
            "calls": calls,
        },
        "events": events,
        "ha": status.as_ref().map(ha::json),
    })
}

/// `/api/v1/segments`: every segment.
pub(super) fn segments(asked: &Asked<'_>) -> Result<Page, Failure> {
    let mut segments = asked.report().segments;
    segments.sort_by(|one, other| one.spec.name.cmp(&other.spec.name));
    Ok(list(segments.iter().map(segment)))
}

fn segment(segment: &SegmentInfo) -> Value {
    json!({
        "name": segment.spec.name,
        "id": segment.spec.id.to_string(),
        "client": segment.client.to_string(),
        "endpoint": segment.spec.endpoint.as_str(),
        "state": state(segment),
        "medium": segment.spec.medium.as_str(),
        "size": segment.spec.size,
        "used": segment.used,
        "largest_free": segment.largest_free,
        "replicas": segment.allocations,
    })
}

/// `/api/v1/nodes`: every client that contributes memory or a disk.
pub(super) fn nodes(asked: &Asked<'_>) -> Result<Page, Failure> {
    let report = asked.report();
    let mut nodes: BTreeMap<ClientId, Node<'_>> = BTreeMap::new();
    for segment in &report.segments {
        nodes.entry(segment.client).or_default().segments.push(segment);
    }
    for disk in &report.local_disks {
        nodes.entry(disk.client).or_default().disk = Some(disk);
    }
    let serves = report.segments.iter().map(|it| (it.client, &it.spec.endpoint));
    let loads = asked.master.loads.report(asked.master.clock.now(), serves);
    let slow = slow_nodes(&loads);
    let loads = loads.iter().zip(&slow);
    let loads: BTreeMap<ClientId, Value> =
        loads.map(|(load, slow)| (load.client, node_load_json(load, slow.as_deref()))).collect();
    Ok(list(nodes.iter().map(|(client, node)| node.json(*client, loads.get(client)))))
}

/// The memory and the disk of a client.
#[derive(Default)]
struct Node<'a> {
    segments: Vec<&'a SegmentInfo>,
    disk: Option<&'a LocalDiskInfo>,
}

impl Node<'_> {
    fn json(&self, client: ClientId, load: Option<&Value>) -> Value {
        let states = self.segments.iter().map(|segment| state(segment));
        let sum = |of: fn(&SegmentInfo) -> u64| {
            self.segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(of(segment)))
        };
        let endpoint = self.segments.first().map(|segment| &segment.spec.endpoint);
        let endpoint = endpoint.or(self.disk.map(|disk| &disk.endpoint));
        let mut names: Vec<_> = self.segments.iter().map(|segment| &segment.spec.name).collect();
        names.sort();
        json!({
            "client": client.to_string(),
            "endpoint": endpoint.map(|endpoint| endpoint.as_str()),
            "state": states.min_by_key(|state| rank(state)).unwrap_or("ok"),
            "segments": names,
            "used": sum(|segment| segment.used),
            "size": sum(|segment| segment.spec.size),
            "disk": self.disk.map(|disk| {
                json!({ "used": disk.usage.used, "size": disk.usage.capacity })
            }),
            "load": load,
        })
    }
}

/// `/api/v1/history`: what was counted in the last hour, minute by minute, the oldest first.
pub(super) fn history(asked: &Asked<'_>) -> Result<Page, Failure> {
    let totals = asked.report().totals;
    let minutes = asked.master.history.minutes(asked.master.clock.now(), &totals);
    Ok(list(minutes.iter().map(minute_json)))
}

/// `/api/v1/clients`: who is connected, with which software, the oldest connections first.
pub(super) fn clients(asked: &Asked<'_>) -> Result<Page, Failure> {
    let open = asked.master.rpc.connections().list(MAX_LISTED_CONNECTIONS);
    Ok(list(open.iter().map(connection_json)))
}

/// The worse the lower.
fn rank(state: &str) -> u8 {
    match state {
        "away" => 0,
        "suspect" => 1,
        "ok" => 3,
        _ => 2,
    }
}

/// `/api/v1/tiers`: what there is below memory.
pub(super) fn tiers(asked: &Asked<'_>) -> Result<Page, Failure> {
    let report = asked.report();
    let MasterReport { totals, files_capacity, local_disks, .. } = &report;
    let shared = json!({
        "used": totals.files_used,
        "capacity": files_capacity,
        "unfinished": totals.files_unfinished,
        "refused": totals.files_no_room,
    });
    let disks: Vec<Value> = local_disks.iter().map(disk).collect();
    let body = json!({
        "shared_tier": shared,
        "disk_only_objects": totals.tier_only_objects,
        "disks": disks,
    });
    Ok(Page::json(body.to_string()))
}

fn disk(disk: &LocalDiskInfo) -> Value {
    json!({
        "client": disk.client.to_string(),
        "endpoint": disk.endpoint.as_str(),
        "takes_objects": disk.usage.enabled,
        "size": disk.usage.capacity,
        "used": disk.usage.used,
        "objects": disk.objects,
        "queued": disk.usage.queued,
        "writing": disk.usage.writing,
    })
}

/// `/api/v1/tenants`: quotas and usage. A master without quotas has one tenant, and no list.
pub(super) fn tenants(asked: &Asked<'_>) -> Result<Page, Failure> {
    let report = asked.master.state.tenant_quotas();
    let tenants = report.map(|report| report.tenants).unwrap_or_default();
    Ok(list(tenants.iter().map(tenant_json)))
}

/// `/api/v1/drain_jobs`: drains that are at work, and those that have ended and are remembered.
pub(super) fn drain_jobs(asked: &Asked<'_>) -> Result<Page, Failure> {
    let now = asked.master.clock.now();
    let jobs = asked.master.state.list_drain_jobs();
    Ok(list(jobs.iter().map(|job| {
        json!({
            "id": job.id.to_string(),
            "status": job.status.as_str(),
            "segments": job.segments,
            "targets": job.targets,
            "moved": job.moved,
            "moved_bytes": job.moved_bytes,
            "active": job.active,
            "blocked": job.blocked,
            "failed": job.failed,
            "age_ms": (now - job.created_at).as_millis() as u64,
            "unchanged_ms": (now - job.last_updated_at).as_millis() as u64,
            "outcome": job.message,
        })
    })))
}

/// `/api/v1/object?key=`: where an object is and why it stays, or what became of it. Looking grants no lease.
pub(super) fn object(asked: &Asked<'_>) -> Result<Page, Failure> {
    let name = asked.query.required("key", "/api/v1/object?key=NAME")?;
    let invalid =
        |error: &dyn std::error::Error| Failure::new(ErrorCode::InvalidKey, error.to_string());
    let key = KeyRef::new(&name).map_err(|error| invalid(&error))?;
    let state = &asked.master.state;
    let stored = state.scoped(asked.tenant, key).map_err(|error| invalid(&error))?;
    let found = state.explain(asked.master.clock.now(), stored.as_ref());
    let history: Vec<Value> = found
        .history
        .iter()
        .map(
            |event| json!({ "ago_ms": event.ago.as_millis() as u64, "event": became(&event.kind) }),
        )
        .collect();
    let kept_by: Vec<String> = found.kept_by.iter().map(kept_because).collect();
    let body = json!({
        "key": name,
        "object": found.object.as_ref().map(described),
        "kept_by": kept_by,
        "history": history,
    });
    Ok(Page::json(body.to_string()))
}

fn described(object: &ObjectInfo) -> Value {
    let replica = |replica: &ReplicaInfo| {
        let (segment, extent) = (&replica.placement.segment, &replica.placement.extent);
        json!({
            "segment": segment.spec().name,
            "segment_id": segment.spec().id.to_string(),
            "endpoint": segment.spec().endpoint.as_str(),
            "status": replica_state(replica),
            "offset": extent.offset(),
            "bytes": extent.len(),
        })
    };
    let disks: Vec<&str> = object.local_disks.iter().map(|disk| disk.endpoint.as_str()).collect();
    json!({
        "bytes": object.slices.total_len(),
        "generation": object.generation.as_u64(),
        "owner": object.owner.to_string(),
        "lease_ms": object.lease.as_millis() as u64,
        "idle_ms": object.idle.as_millis() as u64,
        "soft_pinned": object.soft_pinned,
        "replicas": object.replicas.iter().map(replica).collect::<Vec<_>>(),
        "file": object.file == Some(ReplicaStatus::Complete),
        "local_disks": disks,
    })
}

/// Where a replica is in its life, or that the node that holds it is silent.
const fn replica_state(replica: &ReplicaInfo) -> &'static str {
    use ReplicaStatus::{Complete, Failed, Initialized, Processing, Removed, Undefined};
    match (replica.status, replica.buffer) {
        (Complete | Initialized | Processing, BufferStatus::Unregistered) => "node away",
        (Complete, _) => "complete",
        (Initialized, _) => "reserved",
        (Processing, _) => "being written",
        (Removed, _) => "segment gone",
        (Failed, _) => "failed",
        (Undefined, _) => "unknown",
    }
}

fn list(items: impl Iterator<Item = Value>) -> Page {
    Page::json(Value::Array(items.collect()).to_string())
}
