//! `stat`: the cluster's figures, or one object's.

use std::process::ExitCode;

use mc_cli::{duration, table, visible};
use mc_meta::{BufferStatus, LocalDiskInfo, MetricUnit, ReplicaStatus, SegmentStatus};
use mc_rpc::{ClusterReport, ObjectDescription, ReplicaDescription, SegmentReport};
use mc_store::{Client, ErrorCode};
use mc_types::ByteSize;
use serde_json::{Map, Value, json};

use crate::args;
use crate::error::CtlError;
use crate::text::print;

pub(crate) async fn stat(client: &Client, stat: &args::Stat) -> Result<ExitCode, CtlError> {
    let text = match &stat.key {
        None => {
            let report = client.cluster_report().await?;
            let disks = disks(client).await?;
            if stat.json {
                cluster_json(&report, &disks).to_string() + "\n"
            } else if stat.totals {
                totals_text(&report)
            } else {
                cluster_text(&report, &disks)
            }
        }
        Some(key) => {
            let object = client.describe(key).await.map_err(|source| match source.code() {
                ErrorCode::ObjectNotFound => CtlError::NoObject { key: key.clone(), source },
                _ => CtlError::Call(source),
            })?;
            if stat.json {
                object_json(key, &object).to_string() + "\n"
            } else {
                object_text(key, &object)
            }
        }
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The nodes' local disks, all pages.
pub(crate) async fn disks(client: &Client) -> Result<Vec<LocalDiskInfo>, CtlError> {
    let (mut disks, mut after) = (Vec::new(), None);
    loop {
        let page = match client.master().local_disks(after, 0).await {
            Ok(page) => page,
            // A master without the function knows of none.
            Err(error) if error.code() == ErrorCode::NotSupported => return Ok(disks),
            Err(error) => return Err(error.into()),
        };
        disks.extend(page.disks);
        match page.next_after {
            // An id that does not advance would list for ever.
            Some(next) if after < Some(next) => after = Some(next),
            _ => return Ok(disks),
        }
    }
}

/// Bytes on all disks, and bytes that they can hold.
fn disk_totals(disks: &[LocalDiskInfo]) -> (u64, u64) {
    disks.iter().fold((0, 0), |(used, capacity), disk| {
        (used.saturating_add(disk.usage.used), capacity.saturating_add(disk.usage.capacity))
    })
}

fn disks_text(disks: &[LocalDiskInfo]) -> String {
    if disks.is_empty() {
        return String::new();
    }
    let size = |bytes| ByteSize::bytes(bytes).to_string();
    let rows: Vec<[String; 5]> = disks
        .iter()
        .map(|disk| {
            [
                disk.endpoint.to_string(),
                disk_state(disk).into(),
                // 0 before the node has said how much.
                if disk.usage.capacity == 0 { "unknown".into() } else { size(disk.usage.capacity) },
                size(disk.usage.used),
                disk.objects.to_string(),
            ]
        })
        .collect();
    "\n".to_owned() + &table(["DISK AT", "STATE", ">SIZE", ">USED", ">OBJECTS"], &rows)
}

pub(crate) const fn disk_state(disk: &LocalDiskInfo) -> &'static str {
    if disk.usage.enabled { "ok" } else { "takes no objects" }
}

pub(crate) fn disk_json(disk: &LocalDiskInfo) -> Value {
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

fn cluster_text(report: &ClusterReport, disks: &[LocalDiskInfo]) -> String {
    let (size, pool) = (ByteSize::bytes, Pool::of(report));
    let mut totals = vec![
        ("memory", format!("{} of {} used", size(pool.usable.used), size(pool.usable.size))),
        (
            "objects",
            format!(
                "{} ({} soft-pinned, {} unfinished)",
                report.totals.objects, report.totals.soft_pinned, report.totals.processing
            ),
        ),
        (
            "clients",
            format!(
                "{} with a segment, {} lost",
                report.totals.clients, report.totals.expired_clients
            ),
        ),
        (
            "puts",
            format!(
                "{} begun, {} ended, {} revoked, {} discarded, {} rejected: out of space \
                 (tried again {} times)",
                report.totals.put_starts,
                report.totals.put_ends,
                report.totals.put_revokes,
                report.totals.puts_discarded,
                report.totals.put_start_no_room,
                report.totals.put_start_retries
            ),
        ),
        ("gets", lookups(report.totals.get_hits, report.totals.get_misses)),
        ("exists", lookups(report.totals.exist_hits, report.totals.exist_misses)),
        (
            "gone",
            format!(
                "{} removed, {} evicted ({})",
                report.totals.removed_objects,
                report.totals.evicted_objects,
                size(report.totals.evicted_bytes)
            ),
        ),
    ];
    if pool.unusable.segments != 0 {
        let of = &pool.unusable;
        let told = format!(
            "{} of {} used, in {}",
            size(of.used),
            size(of.size),
            match of.segments {
                1 => "1 segment that takes no new objects".into(),
                more => format!("{more} segments that take no new objects"),
            }
        );
        totals.insert(1, ("beside", told));
    }
    if !disks.is_empty() {
        let (used, capacity) = disk_totals(disks);
        totals.insert(1, ("disks", format!("{} of {} used", size(used), size(capacity))));
    }
    let mut text: String =
        totals.iter().map(|(name, value)| format!("{name:<8} {value}\n")).collect();
    text.push('\n');
    text + &segments_text(report) + &disks_text(disks)
}

fn segments_text(report: &ClusterReport) -> String {
    let size = ByteSize::bytes;
    let mut segments: Vec<_> = report.segments.iter().collect();
    segments.sort_by(|a, b| a.name.cmp(&b.name));
    let rows: Vec<[String; 8]> = segments
        .iter()
        .map(|segment| {
            [
                visible(&segment.name),
                segment_state(segment).into(),
                segment.medium.to_string(),
                size(segment.size).to_string(),
                size(segment.used).to_string(),
                size(segment.largest_free).to_string(),
                segment.allocations.to_string(),
                segment.endpoint.to_string(),
            ]
        })
        .collect();
    let head =
        ["SEGMENT", "STATE", "MEDIUM", ">SIZE", ">USED", ">LARGEST FREE", ">REPLICAS", "ENDPOINT"];
    table(head, &rows)
}

/// Lookups that found their key, those that did not, and the rate.
fn lookups(hits: u64, misses: u64) -> String {
    let all = hits + misses;
    let rate = if all == 0 { 0.0 } else { 100.0 * hits as f64 / all as f64 };
    format!("{hits} found, {misses} not found ({rate:.1} %)")
}

/// Bytes of some segments.
#[derive(Default)]
pub(crate) struct Share {
    segments: u64,
    pub(crate) size: u64,
    pub(crate) used: u64,
}

impl Share {
    /// The part that is used.
    pub(crate) fn filled(&self) -> f64 {
        if self.size == 0 { 0.0 } else { self.used as f64 / self.size as f64 }
    }
}

/// The segments' bytes: where new objects are put, and elsewhere.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) usable: Share,
    unusable: Share,
}

impl Pool {
    pub(crate) fn of(report: &ClusterReport) -> Self {
        let mut pool = Self::default();
        for segment in &report.segments {
            let share = if segment.is_usable() { &mut pool.usable } else { &mut pool.unusable };
            share.segments += 1;
            share.size = share.size.saturating_add(segment.size);
            share.used = share.used.saturating_add(segment.used);
        }
        pool
    }
}

/// Where a segment is in its life, or that clients cannot reach it.
pub(crate) const fn segment_state(segment: &SegmentReport) -> &'static str {
    match segment.status {
        SegmentStatus::Ok if segment.is_suspect => "suspect",
        SegmentStatus::Suspended => "away",
        SegmentStatus::GracefullyUnmounting => "leaving",
        status => status.as_str(),
    }
}

fn cluster_json(report: &ClusterReport, disks: &[LocalDiskInfo]) -> Value {
    let segments: Vec<Value> = report
        .segments
        .iter()
        .map(|segment| {
            json!({
                "name": &*segment.name,
                "id": segment.id.to_string(),
                "client": segment.client.to_string(),
                "endpoint": segment.endpoint.as_str(),
                "state": segment_state(segment),
                "medium": segment.medium.as_str(),
                "size": segment.size,
                "used": segment.used,
                "largest_free": segment.largest_free,
                "replicas": segment.allocations,
            })
        })
        .collect();
    let (pool, (disk_used, disk_capacity)) = (Pool::of(report), disk_totals(disks));
    let disks: Vec<Value> = disks.iter().map(disk_json).collect();
    // By their names, but for those that mean the segments that take objects.
    let mut all: Map<String, Value> =
        report.totals.values().map(|(it, value)| (it.name.to_owned(), value.into())).collect();
    all.remove("processing");
    for (name, value) in [
        ("used", json!(pool.usable.used)),
        ("capacity", json!(pool.usable.size)),
        ("unusable_used", json!(pool.unusable.used)),
        ("unusable_capacity", json!(pool.unusable.size)),
        ("unusable_segments", json!(pool.unusable.segments)),
        ("unfinished", json!(report.totals.processing)),
        ("segments", json!(segments)),
        ("disk_used", json!(disk_used)),
        ("disk_capacity", json!(disk_capacity)),
        ("disks", json!(disks)),
    ] {
        all.insert(name.to_owned(), value);
    }
    Value::Object(all)
}

/// Every total with its meaning.
fn totals_text(report: &ClusterReport) -> String {
    let rows: Vec<[String; 3]> = report
        .totals
        .values()
        .map(|(it, value)| {
            let value = match it.unit {
                MetricUnit::Bytes => ByteSize::bytes(value).to_string(),
                _ => value.to_string(),
            };
            [it.name.to_owned(), value, it.help.to_owned()]
        })
        .collect();
    table(["TOTAL", ">VALUE", "MEANING"], &rows)
}

/// Where a replica is in its life, or that the node that holds it is silent.
const fn state(replica: &ReplicaDescription) -> &'static str {
    use ReplicaStatus::{Complete, Initialized, Processing};
    match (replica.status, replica.buffer) {
        (Complete | Initialized | Processing, BufferStatus::Unregistered) => "node away",
        (status, _) => name(status),
    }
}

const fn name(status: ReplicaStatus) -> &'static str {
    match status {
        ReplicaStatus::Undefined => "unknown",
        ReplicaStatus::Initialized => "reserved",
        ReplicaStatus::Processing => "being written",
        ReplicaStatus::Complete => "complete",
        ReplicaStatus::Removed => "segment gone",
        ReplicaStatus::Failed => "failed",
    }
}

fn object_text(key: &str, object: &ObjectDescription) -> String {
    let lease = if object.lease.is_zero() { "none".into() } else { duration(object.lease) };
    let disks: Vec<&str> = object.local_disks.iter().map(|disk| disk.endpoint.as_str()).collect();
    let facts = [
        ("key", visible(key)),
        ("size", ByteSize::bytes(object.slices.total_len()).to_string()),
        ("lease", lease),
        ("pinned", if object.soft_pinned { "softly".into() } else { "no".into() }),
        ("idle", duration(object.idle)),
        ("put by", format!("{} as generation {}", object.owner, object.generation)),
        ("file", object.file.map_or("none", name).into()),
        ("disks", if disks.is_empty() { "none".into() } else { disks.join(", ") }),
    ];
    let mut text: String =
        facts.iter().map(|(name, value)| format!("{name:<8} {value}\n")).collect();
    let replicas: Vec<[String; 5]> = object
        .replicas
        .iter()
        .map(|replica| {
            [
                visible(&replica.segment_name),
                state(replica).into(),
                replica.extent.offset().to_string(),
                replica.extent.len().to_string(),
                replica.endpoint.to_string(),
            ]
        })
        .collect();
    text.push('\n');
    text += &table(["REPLICA IN", "STATE", ">OFFSET", ">BYTES", "ENDPOINT"], &replicas);
    let slices: Vec<[String; 3]> = object
        .slices
        .as_slice()
        .iter()
        .enumerate()
        .map(|(number, slice)| {
            let sum = slice.checksum.map_or("none".into(), |sum| format!("{:08x}", sum.as_u32()));
            [number.to_string(), slice.len.to_string(), sum]
        })
        .collect();
    text.push('\n');
    text + &table([">SLICE", ">BYTES", "CHECKSUM"], &slices)
}

pub(crate) fn object_json(key: &str, object: &ObjectDescription) -> Value {
    let replicas: Vec<Value> = object
        .replicas
        .iter()
        .map(|replica| {
            json!({
                "segment": &*replica.segment_name,
                "segment_id": replica.segment_id.to_string(),
                "endpoint": replica.endpoint.as_str(),
                "status": state(replica),
                "offset": replica.extent.offset(),
                "bytes": replica.extent.len(),
            })
        })
        .collect();
    let slices: Vec<Value> = object
        .slices
        .as_slice()
        .iter()
        .map(|slice| json!({ "bytes": slice.len, "checksum": slice.checksum.map(|s| s.as_u32()) }))
        .collect();
    let disks: Vec<&str> = object.local_disks.iter().map(|disk| disk.endpoint.as_str()).collect();
    json!({
        "key": key,
        "bytes": object.slices.total_len(),
        "generation": object.generation.as_u64(),
        "owner": object.owner.to_string(),
        "lease_ms": object.lease.as_millis() as u64,
        "idle_ms": object.idle.as_millis() as u64,
        "soft_pinned": object.soft_pinned,
        "replicas": replicas,
        "slices": slices,
        "file": object.file.map(name),
        "local_disks": disks,
    })
}
