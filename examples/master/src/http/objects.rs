//! Pages about objects. Unlike Mooncake's `/query_key` none of them grants a lease or counts as an
//! access.

use mc_http::{HeaderName, Page};
use mc_meta::{BufferStatus, GetError, ListCursor, ObjectInfo, ReplicaStatus};
use mc_types::{ErrorCode, KeyRef, Time};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::shown::Asked;

/// Most keys of one request.
const MAX_KEYS: usize = 4096;
/// Most keys of a page of all keys.
const MAX_PAGE: u64 = 10_000;
/// Bytes after which such a page ends.
const MAX_PAGE_BYTES: usize = 1 << 20;
/// Keys that are asked for at a time.
const CHUNK: usize = 512;
/// Listings with fewer keys than asked for, such as where most objects are another tenant's, after which a
/// page ends.
const MAX_SPARSE: usize = 4;
/// The header with the parameter `after` of the next page.
const NEXT: HeaderName = HeaderName::from_static("x-next-after");

/// `/query_key?key=`: where the object is in memory, a line for each replica.
pub(super) fn query_key(asked: &Asked<'_>) -> Result<Page, Failure> {
    let key = asked.query.required("key", "/query_key?key=NAME")?;
    let object = describe(asked, &key)?;
    let lines = buffers(&object).map(|buffer| format!("{buffer}\n"));
    Ok(Page::text(lines.collect::<String>()))
}

/// `/batch_query_keys?keys=a,b`: where the objects are. A parameter `key` is one key, whatever it contains.
pub(super) fn batch_query_keys(asked: &Asked<'_>) -> Result<Page, Failure> {
    let mut keys = Vec::new();
    for list in asked.query.all("keys") {
        let list = list?;
        keys.extend(list.split(',').filter(|key| !key.is_empty()).map(str::to_owned));
    }
    for key in asked.query.all("key") {
        keys.push(key?);
    }
    if keys.is_empty() {
        let text = "no keys provided; write /batch_query_keys?keys=a,b";
        return Err(Failure::new(ErrorCode::InvalidParams, text));
    }
    if keys.len() > MAX_KEYS {
        let text =
            format!("{} keys are asked for; ask for at most {MAX_KEYS} at a time", keys.len());
        return Err(Failure::new(ErrorCode::InvalidParams, text));
    }
    let mut data = Map::new();
    for key in keys {
        let found = describe(asked, &key).map_or_else(
            |failure| json!({ "ok": false, "error": failure.name() }),
            |object| replicas(&object),
        );
        data.insert(key, found);
    }
    Ok(Page::json(json!({ "success": true, "data": data }).to_string()))
}

/// `/get_all_keys`: a page of keys, one per line, from `after` on.
pub(super) fn get_all_keys(asked: &Asked<'_>) -> Result<Page, Failure> {
    let limit = asked.query.number("limit")?.unwrap_or(MAX_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        let text = format!("the parameter limit is {limit}; choose 1 to {MAX_PAGE}");
        return Err(Failure::new(ErrorCode::InvalidParams, text));
    }
    let after = asked.query.number("after")?;
    let mut next = Some(after.map_or_else(ListCursor::default, ListCursor::from_u64));
    let (mut left, mut sparse, mut text) = (limit as usize, 0, String::new());
    while let Some(cursor) = next {
        if left == 0 || sparse == MAX_SPARSE || text.len() >= MAX_PAGE_BYTES {
            break;
        }
        let wanted = left.min(CHUNK);
        let page = asked.master.state.list_tenant_keys(asked.tenant, "", cursor, wanted);
        left -= page.keys.len();
        sparse += usize::from(page.keys.len() < wanted);
        for info in &page.keys {
            push_line(&mut text, info.key.as_str());
        }
        next = page.next;
    }
    let page = Page::text(text);
    Ok(match next {
        Some(cursor) => page.header(NEXT, cursor.to_u64().into()),
        None => page,
    })
}

/// Appends a key. One with line breaks stays on its line.
fn push_line(text: &mut String, key: &str) {
    for char in key.chars() {
        match char {
            '\n' => text.push_str("%0A"),
            '\r' => text.push_str("%0D"),
            char => text.push(char),
        }
    }
    text.push('\n');
}

/// The object, if it can be read.
fn describe(asked: &Asked<'_>, key: &str) -> Result<ObjectInfo, Failure> {
    let invalid = |error| Failure::new(ErrorCode::InvalidKey, format!("{error}"));
    let key = KeyRef::new(key).map_err(invalid)?;
    let stored = asked
        .master
        .state
        .scoped(asked.tenant, key)
        .map_err(|error| Failure::new(ErrorCode::InvalidKey, error.to_string()))?;
    // The times that it tells are not shown.
    let object =
        asked.master.state.describe(Time::ORIGIN, stored.as_ref()).map_err(
            |error| match error {
                GetError::NotFound => {
                    Failure::new(ErrorCode::ObjectNotFound, "no object of this tenant has the key")
                }
                error => Failure::new(ErrorCode::ReplicaIsNotReady, error.to_string()),
            },
        )?;
    let on_disk = object.file == Some(ReplicaStatus::Complete) || !object.local_disks.is_empty();
    if on_disk || buffers(&object).next().is_some() {
        return Ok(object);
    }
    let text = "the object is being written, or its segments are away";
    Err(Failure::new(ErrorCode::ReplicaIsNotReady, text))
}

/// The readable replicas in memory.
fn buffers(object: &ObjectInfo) -> impl Iterator<Item = Value> {
    let readable = object.replicas.iter().filter(|replica| {
        replica.status == ReplicaStatus::Complete && replica.buffer == BufferStatus::Complete
    });
    readable.map(|replica| {
        let (spec, extent) = (replica.placement.segment.spec(), &replica.placement.extent);
        json!({
            "size_": extent.len(),
            "buffer_address_": spec.base.wrapping_add(extent.offset()),
            "protocol_": spec.endpoint.scheme(),
            "transport_endpoint_": spec.endpoint.address(),
        })
    })
}

/// All readable replicas.
fn replicas(object: &ObjectInfo) -> Value {
    let mut found = json!({ "ok": true, "values": buffers(object).collect::<Vec<_>>() });
    let size = object.slices.total_len();
    if object.file == Some(ReplicaStatus::Complete) {
        // Clients know the path of a file; the master does not.
        found["disk_values"] = json!([{ "file_path": "", "object_size": size }]);
    }
    if !object.local_disks.is_empty() {
        let disks = object.local_disks.iter().map(|disk| {
            json!({
                "client_id": disk.client.to_string(),
                "object_size": size,
                "transport_endpoint": disk.endpoint.address(),
            })
        });
        found["local_disk_values"] = disks.collect();
    }
    found
}
