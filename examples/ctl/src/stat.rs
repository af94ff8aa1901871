//! `stat`: the cluster's figures, or one object's.

use std::process::ExitCode;

use mc_meta::{BufferStatus, ReplicaStatus};
use mc_rpc::{ClusterReport, ObjectDescription, ReplicaDescription};
use mc_store::{Client, ErrorCode};
use mc_types::ByteSize;
use serde_json::{Value, json};

use crate::args;
use crate::error::CtlError;
use crate::text::{duration, print, table, visible};

pub(crate) async fn stat(client: &Client, stat: &args::Stat) -> Result<ExitCode, CtlError> {
    let text = match &stat.key {
        None => {
            let report = client.cluster_report().await?;
            if stat.json { cluster_json(&report).to_string() + "\n" } else { cluster_text(&report) }
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

fn cluster_text(report: &ClusterReport) -> String {
    let size = ByteSize::bytes;
    let totals = [
        ("memory", format!("{} of {} used", size(report.used), size(report.capacity))),
        (
            "objects",
            format!(
                "{} ({} soft-pinned, {} unfinished)",
                report.objects, report.soft_pinned, report.processing
            ),
        ),
        ("clients", format!("{} with a segment, {} lost", report.clients, report.expired_clients)),
        (
            "puts",
            format!(
                "{} begun, {} ended, {} revoked, {} discarded, {} refused for want of room",
                report.put_starts,
                report.put_ends,
                report.put_revokes,
                report.puts_discarded,
                report.put_start_no_room
            ),
        ),
        ("gets", format!("{} found, {} not found", report.get_hits, report.get_misses)),
        (
            "gone",
            format!(
                "{} removed, {} evicted ({})",
                report.removed_objects,
                report.evicted_objects,
                size(report.evicted_bytes)
            ),
        ),
    ];
    let mut text: String =
        totals.iter().map(|(name, value)| format!("{name:<8} {value}\n")).collect();
    let mut segments: Vec<_> = report.segments.iter().collect();
    segments.sort_by(|a, b| a.name.cmp(&b.name));
    let rows: Vec<[String; 6]> = segments
        .iter()
        .map(|segment| {
            [
                visible(&segment.name),
                size(segment.size).to_string(),
                size(segment.used).to_string(),
                size(segment.largest_free).to_string(),
                segment.allocations.to_string(),
                segment.endpoint.to_string(),
            ]
        })
        .collect();
    text.push('\n');
    text + &table(["SEGMENT", ">SIZE", ">USED", ">LARGEST FREE", ">REPLICAS", "ENDPOINT"], &rows)
}

fn cluster_json(report: &ClusterReport) -> Value {
    let segments: Vec<Value> = report
        .segments
        .iter()
        .map(|segment| {
            json!({
                "name": &*segment.name,
                "id": segment.id.to_string(),
                "client": segment.client.to_string(),
                "endpoint": segment.endpoint.as_str(),
                "size": segment.size,
                "used": segment.used,
                "largest_free": segment.largest_free,
                "replicas": segment.allocations,
            })
        })
        .collect();
    json!({
        "used": report.used,
        "capacity": report.capacity,
        "objects": report.objects,
        "soft_pinned": report.soft_pinned,
        "unfinished": report.processing,
        "clients": report.clients,
        "expired_clients": report.expired_clients,
        "put_starts": report.put_starts,
        "put_ends": report.put_ends,
        "put_revokes": report.put_revokes,
        "puts_discarded": report.puts_discarded,
        "put_start_no_room": report.put_start_no_room,
        "get_hits": report.get_hits,
        "get_misses": report.get_misses,
        "removed_objects": report.removed_objects,
        "evicted_objects": report.evicted_objects,
        "evicted_bytes": report.evicted_bytes,
        "segments": segments,
    })
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
    let facts = [
        ("key", visible(key)),
        ("size", ByteSize::bytes(object.slices.total_len()).to_string()),
        ("lease", lease),
        ("pinned", if object.soft_pinned { "softly".into() } else { "no".into() }),
        ("idle", duration(object.idle)),
        ("put by", format!("{} as generation {}", object.owner, object.generation)),
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

fn object_json(key: &str, object: &ObjectDescription) -> Value {
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
    })
}
