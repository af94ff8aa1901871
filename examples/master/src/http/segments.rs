//! Pages about segments.

use mc_http::Page;
use mc_meta::{SegmentInfo, SegmentStatus};
use mc_types::{ByteSize, ErrorCode};
use serde_json::{Value, json};

use super::failure::Failure;
use super::shown::Asked;

/// `/get_all_segments`: the names, one per line. SGLang waits for the first one before it connects.
pub(super) fn get_all_segments(asked: &Asked<'_>) -> Result<Page, Failure> {
    let name = |segment: &SegmentInfo| format!("{}\n", segment.spec.name);
    Ok(Page::text(asked.report().segments.iter().map(name).collect::<String>()))
}

/// `/query_segment?segment=`: the bytes of a segment.
pub(super) fn query_segment(asked: &Asked<'_>) -> Result<Page, Failure> {
    let segment = named(asked, "/query_segment?segment=NAME")?;
    let (used, size) = (segment.used, segment.spec.size);
    let name = &segment.spec.name;
    Ok(Page::text(format!("{name}\nUsed(bytes): {used}\nCapacity(bytes) : {size}\n")))
}

/// `/api/v1/segments/status?segment=`: the status of a segment.
pub(super) fn status(asked: &Asked<'_>) -> Result<Page, Failure> {
    let segment = named(asked, "/api/v1/segments/status?segment=NAME")?;
    let body = json!({
        "success": true,
        "segment": segment.spec.name,
        "status": segment.status as u8,
        "status_name": status_name(segment.status),
        "error_code": 0,
        "error_message": "",
    });
    Ok(Page::json(body.to_string()))
}

/// `/get_segments_detail`: all of all segments.
pub(super) fn get_segments_detail(asked: &Asked<'_>) -> Result<Page, Failure> {
    let segments: Vec<Value> = asked.report().segments.iter().map(detail).collect();
    let body = json!({ "total_segments": segments.len(), "segments": segments });
    Ok(Page::json(body.to_string()))
}

fn detail(segment: &SegmentInfo) -> Value {
    let (used, size) = (segment.used, segment.spec.size);
    let percent = if size == 0 { 0.0 } else { used as f64 / size as f64 * 100.0 };
    json!({
        "segment_name": segment.spec.name,
        "segment_id": segment.spec.id.to_string(),
        "client_id": segment.client.to_string(),
        "base_address": format!("{:#x}", segment.spec.base),
        "size_bytes": size,
        "size_human": ByteSize::bytes(size).to_string(),
        "te_endpoint": segment.spec.endpoint.address(),
        "protocol": segment.spec.endpoint.scheme(),
        "status": status_name(segment.status),
        "allocator_used_bytes": used,
        "allocator_capacity_bytes": size,
        "allocator_usage_percent": percent,
    })
}

fn named(asked: &Asked<'_>, example: &str) -> Result<SegmentInfo, Failure> {
    let name = asked.query.required("segment", example)?;
    let mut segments = asked.report().segments.into_iter();
    segments.find(|segment| *segment.spec.name == *name).ok_or_else(|| {
        let text = "no segment has this name; /get_all_segments lists the names";
        Failure::new(ErrorCode::SegmentNotFound, text)
    })
}

/// Mooncake's names. It has no status for a segment whose node is silent.
const fn status_name(status: SegmentStatus) -> &'static str {
    match status {
        SegmentStatus::Ok => "OK",
        SegmentStatus::Draining => "DRAINING",
        SegmentStatus::Drained => "DRAINED",
        SegmentStatus::GracefullyUnmounting => "GRACEFULLY_UNMOUNTING",
        SegmentStatus::Unmounted => "UNMOUNTING",
        SegmentStatus::Suspended => "SUSPENDED",
    }
}
