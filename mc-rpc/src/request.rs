//! Requests: parsed once into checked types on the master's side, written
//! without copies on the client's. Each pair stands together, numbers as in the
//! `.proto`.

mod clear;
mod disks;
mod drains;
mod failures;
mod files;
mod heartbeat;
mod leases;
mod patterns;
mod promotion;
mod put;
mod query_ip;
mod reads;
mod tasks;
mod tenant_key;
mod tenants;
mod transfers;

use core::time::Duration;

use bytes::BytesMut;
use mc_meta::{ListCursor, MAX_SEGMENT_NAME_LEN, SegmentSpec};
use mc_ticket::TicketKey;
use mc_types::{ClientId, Endpoint, ErrorCode, KeyRef, MAX_KEY_LEN, RemoteKey, SegmentId};

use crate::error::Refusal;
use crate::wire::{Field, Fields, WireError, put_bytes, put_item_bytes, put_u64};

pub(crate) use clear::ClearRequest;
pub(crate) use disks::{
    BatchFoundRequest, BatchOutcomeRequest, parse_disk_page, parse_mount_disk,
    parse_offload_heartbeat, parse_ssd_capacity, write_disk_page, write_mount_disk,
    write_offload_heartbeat, write_ssd_capacity,
};
pub(crate) use drains::{CreateDrainJobRequest, parse_job, parse_reopen, write_job, write_reopen};
pub use failures::{Failure, MAX_FAILURES};
pub(crate) use failures::{ReportedFailure, parse_failures, write_failures};
pub(crate) use files::{BatchEvictRequest, EvictItem, EvictRequest};
pub use heartbeat::Heartbeat;
pub(crate) use heartbeat::{PingRequest, write_heartbeat};
pub(crate) use leases::{BatchRenewRequest, parse_renew, write_renew};
pub(crate) use patterns::{MatchRequest, parse_remove_by_regex, write_remove_by_regex};
pub(crate) use promotion::{PromotionFinishRequest, PromotionStartRequest};
pub(crate) use put::{
    BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartRequest,
};
pub(crate) use query_ip::{parse_client_ids, write_client_ids};
pub use reads::MAX_RANGES;
pub(crate) use reads::{BatchReadRequest, RangedReads, parse_read, write_reads};
pub(crate) use tasks::{
    CreateCopyTaskRequest, CreateMoveTaskRequest, MarkTaskRequest, parse_fetch_tasks,
    parse_query_task, task_status, task_status_number, write_fetch_tasks, write_query_task,
};
pub use tenant_key::TenantKey;
pub(crate) use tenants::{
    parse_quota, parse_quota_page, parse_quotas, parse_tenant, write_quota, write_quota_page,
    write_quotas, write_tenant,
};
pub(crate) use transfers::{TransferFinishRequest, TransferStartRequest};

/// Most items in one batch call.
pub const MAX_BATCH: usize = 65_536;

/// Most keys in one page of a listing.
pub const MAX_PAGE: usize = 8192;

const DEFAULT_PAGE: usize = 1000;

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        Self::invalid(format!("the request is malformed: {error}"))
    }
}

fn key<'a>(field: Field<'a>, name: &'static str) -> Result<KeyRef<'a>, Refusal> {
    let bytes = field.bytes()?;
    let text = core::str::from_utf8(bytes).map_err(|_| {
        Refusal::new(ErrorCode::InvalidKey, format!("{name}: the key is not UTF-8"))
    })?;
    KeyRef::new(text)
        .map_err(|error| Refusal::new(ErrorCode::InvalidKey, format!("{name}: {error}")))
}

fn missing_key() -> Refusal {
    Refusal::new(ErrorCode::InvalidKey, "key: the key is empty; a key has at least one byte")
}

fn sixteen(bytes: &[u8], name: &'static str) -> Result<[u8; 16], Refusal> {
    bytes
        .try_into()
        .map_err(|_| Refusal::invalid(format!("{name} has {} bytes, not 16", bytes.len())))
}

pub(crate) fn client(field: Field<'_>) -> Result<ClientId, Refusal> {
    sixteen(field.bytes()?, "client_id").map(ClientId::from_bytes)
}

fn no_client() -> Refusal {
    Refusal::invalid("client_id is missing; it says who calls")
}

fn segment_name<'a>(field: Field<'a>, name: &'static str) -> Result<&'a str, Refusal> {
    let text = field.text()?;
    if text.len() > MAX_SEGMENT_NAME_LEN {
        return Err(Refusal::invalid(format!(
            "{name} has {} bytes; the limit is {MAX_SEGMENT_NAME_LEN}",
            text.len()
        )));
    }
    Ok(text)
}

fn endpoint(field: Field<'_>) -> Result<Endpoint, Refusal> {
    let parsed = field.text()?.parse::<Endpoint>();
    parsed.map_err(|error| Refusal::invalid(format!("endpoint: {error}")))
}

/// A request that names one key and nothing else.
pub(crate) fn parse_key(payload: &[u8]) -> Result<KeyRef<'_>, Refusal> {
    let (mut fields, mut found) = (Fields::new(payload), None);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            found = Some(key(field, "key")?);
        }
    }
    found.ok_or_else(missing_key)
}

pub(crate) fn write_key(out: &mut BytesMut, key: KeyRef<'_>) {
    put_bytes(out, 1, key.as_str().as_bytes());
}

/// The items of a batch: embedded messages or keys of one field. Their number
/// is bounded and the message around them is sound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items<'a> {
    payload: &'a [u8],
    number: u32,
    count: usize,
}

impl<'a> Items<'a> {
    fn parse(
        payload: &'a [u8],
        number: u32,
        name: &'static str,
        mut other: impl FnMut(Field<'a>) -> Result<(), Refusal>,
    ) -> Result<Self, Refusal> {
        let (mut fields, mut count) = (Fields::new(payload), 0);
        while let Some(field) = fields.next()? {
            if field.number == number {
                field.bytes()?;
                count += 1;
                if count > MAX_BATCH {
                    return Err(Refusal::invalid(format!(
                        "{name} has more than {MAX_BATCH} items; send them in several calls"
                    )));
                }
            } else {
                other(field)?;
            }
        }
        Ok(Self { payload, number, count })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn fields(&self) -> impl Iterator<Item = Field<'a>> + use<'a> {
        let (mut fields, number) = (Fields::new(self.payload), self.number);
        // `parse` has walked the same bytes to their end.
        core::iter::from_fn(move || fields.next().ok().flatten())
            .filter(move |field| field.number == number)
    }

    /// The items as keys, each good or bad on its own.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Result<KeyRef<'a>, Refusal>> + use<'a> {
        self.fields().map(|field| key(field, "keys"))
    }

    fn messages(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.fields().filter_map(|field| field.bytes().ok())
    }
}

/// A request that lists keys and nothing else.
pub(crate) fn parse_keys(payload: &[u8]) -> Result<Items<'_>, Refusal> {
    Items::parse(payload, 1, "keys", |_| Ok(()))
}

pub(crate) fn write_keys(out: &mut BytesMut, keys: &[KeyRef<'_>]) {
    out.reserve(keys.iter().map(|key| key.as_str().len() + 3).sum());
    for key in keys {
        put_item_bytes(out, 1, key.as_str().as_bytes());
    }
}

/// `RemoveRequest`.
pub(crate) fn parse_remove(payload: &[u8]) -> Result<(KeyRef<'_>, bool), Refusal> {
    let (mut fields, mut found, mut force) = (Fields::new(payload), None, false);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => found = Some(key(field, "key")?),
            2 => force = field.bool()?,
            _ => {}
        }
    }
    Ok((found.ok_or_else(missing_key)?, force))
}

pub(crate) fn write_remove(out: &mut BytesMut, key: KeyRef<'_>, force: bool) {
    write_key(out, key);
    put_u64(out, 2, force.into());
}

/// `BatchRemoveRequest`.
pub(crate) fn parse_batch_remove(payload: &[u8]) -> Result<(Items<'_>, bool), Refusal> {
    let mut force = false;
    let items = Items::parse(payload, 1, "keys", |field| {
        if field.number == 2 {
            force = field.bool()?;
        }
        Ok(())
    })?;
    Ok((items, force))
}

pub(crate) fn write_batch_remove(out: &mut BytesMut, keys: &[KeyRef<'_>], force: bool) {
    write_keys(out, keys);
    put_u64(out, 2, force.into());
}

/// `RemoveAllRequest`.
pub(crate) fn parse_remove_all(payload: &[u8]) -> Result<bool, Refusal> {
    let (mut fields, mut force) = (Fields::new(payload), false);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            force = field.bool()?;
        }
    }
    Ok(force)
}

pub(crate) fn write_remove_all(out: &mut BytesMut, force: bool) {
    put_u64(out, 1, force.into());
}

/// `MountSegmentRequest` and `ReMountSegmentRequest`, which have the same fields.
pub(crate) fn parse_mount(payload: &[u8]) -> Result<(ClientId, SegmentSpec), Refusal> {
    let mut fields = Fields::new(payload);
    let (mut base, mut size, mut name) = (0, 0, "");
    let (mut id, mut who, mut served) = (None, None, None);
    let (mut remote_key, mut ticket_key) = (None, None);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => base = field.u64()?,
            2 => size = field.u64()?,
            3 => name = segment_name(field, "segment_name")?,
            4 => id = Some(SegmentId::from_bytes(sixteen(field.bytes()?, "segment_id")?)),
            5 => who = Some(client(field)?),
            6 => served = Some(endpoint(field)?),
            7 => {
                remote_key = Some(RemoteKey::from_bytes(sixteen(field.bytes()?, "remote_key")?));
            }
            8 if field.bytes()?.is_empty() => ticket_key = None,
            8 => {
                ticket_key = Some(TicketKey::from_bytes(sixteen(field.bytes()?, "ticket_key")?));
            }
            _ => {}
        }
    }
    let missing = |name| move || Refusal::invalid(format!("{name} is missing"));
    let spec = SegmentSpec {
        id: id.ok_or_else(missing("segment_id"))?,
        name: name.into(),
        base,
        size,
        endpoint: served.ok_or_else(missing("endpoint"))?,
        remote_key: remote_key.ok_or_else(missing("remote_key"))?,
        ticket_key,
    };
    Ok((who.ok_or_else(no_client)?, spec))
}

pub(crate) fn write_mount(out: &mut BytesMut, client: ClientId, spec: &SegmentSpec) {
    put_u64(out, 1, spec.base);
    put_u64(out, 2, spec.size);
    put_bytes(out, 3, spec.name.as_bytes());
    put_bytes(out, 4, &spec.id.to_bytes());
    put_bytes(out, 5, &client.to_bytes());
    put_bytes(out, 6, spec.endpoint.as_str().as_bytes());
    put_bytes(out, 7, &spec.remote_key.to_bytes());
    if let Some(key) = &spec.ticket_key {
        put_bytes(out, 8, &key.to_bytes());
    }
}

/// How an `UnmountSegmentRequest` names the segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SegmentName<'a> {
    Id(SegmentId),
    Name(&'a str),
}

/// `UnmountSegmentRequest`.
pub(crate) fn parse_unmount(payload: &[u8]) -> Result<(ClientId, SegmentName<'_>), Refusal> {
    parse_unmount_with(payload, |_| Ok(()))
}

/// The fields that `UnmountSegmentRequest` and `GracefulUnmountSegmentRequest` have in
/// common; the others go to `other`.
fn parse_unmount_with<'a>(
    payload: &'a [u8],
    mut other: impl FnMut(Field<'a>) -> Result<(), Refusal>,
) -> Result<(ClientId, SegmentName<'a>), Refusal> {
    let (mut fields, mut name, mut id, mut who) = (Fields::new(payload), "", None, None);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => name = segment_name(field, "segment_name")?,
            2 if !field.bytes()?.is_empty() => {
                id = Some(SegmentId::from_bytes(sixteen(field.bytes()?, "segment_id")?));
            }
            3 => who = Some(client(field)?),
            _ => other(field)?,
        }
    }
    let segment = match id {
        Some(id) => SegmentName::Id(id),
        None if !name.is_empty() => SegmentName::Name(name),
        None => return Err(Refusal::invalid("neither segment_id nor segment_name is given")),
    };
    Ok((who.ok_or_else(no_client)?, segment))
}

pub(crate) fn write_unmount(out: &mut BytesMut, client: ClientId, id: SegmentId) {
    put_bytes(out, 2, &id.to_bytes());
    put_bytes(out, 3, &client.to_bytes());
}

/// `GracefulUnmountSegmentRequest`.
pub(crate) fn parse_graceful_unmount(
    payload: &[u8],
) -> Result<(ClientId, SegmentName<'_>, Duration), Refusal> {
    let mut grace = 0;
    let (client, segment) = parse_unmount_with(payload, |field| {
        if field.number == 4 {
            grace = field.u64()?;
        }
        Ok(())
    })?;
    Ok((client, segment, Duration::from_millis(grace)))
}

pub(crate) fn write_graceful_unmount(
    out: &mut BytesMut,
    client: ClientId,
    id: SegmentId,
    grace: Duration,
) {
    write_unmount(out, client, id);
    put_u64(out, 4, u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
}

/// Every request that names a client and nothing else.
pub(crate) fn parse_ping(payload: &[u8]) -> Result<ClientId, Refusal> {
    let (mut fields, mut who) = (Fields::new(payload), None);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            who = Some(client(field)?);
        }
    }
    who.ok_or_else(no_client)
}

pub(crate) fn write_ping(out: &mut BytesMut, client: ClientId) {
    put_bytes(out, 1, &client.to_bytes());
}

/// Items in a page when a request says so many.
fn page_limit(limit: u32) -> Result<usize, Refusal> {
    match limit as usize {
        0 => Ok(DEFAULT_PAGE),
        limit if limit > MAX_PAGE => {
            Err(Refusal::invalid(format!("limit is {limit}; the most is {MAX_PAGE}")))
        }
        limit => Ok(limit),
    }
}

/// `ListKeysRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListKeysRequest<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) cursor: ListCursor,
    pub(crate) limit: usize,
}

impl<'a> ListKeysRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut prefix, mut cursor, mut limit) = (Fields::new(payload), "", 0, 0);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => prefix = field.text()?,
                2 => cursor = field.u64()?,
                3 => limit = field.u32()?,
                _ => {}
            }
        }
        if prefix.len() > MAX_KEY_LEN {
            return Err(Refusal::invalid(format!(
                "prefix has {} bytes; no key is longer than {MAX_KEY_LEN}",
                prefix.len()
            )));
        }
        let (cursor, limit) = (ListCursor::from_u64(cursor), page_limit(limit)?);
        Ok(Self { prefix, cursor, limit })
    }

    pub(crate) fn write(out: &mut BytesMut, prefix: &str, cursor: ListCursor, limit: usize) {
        put_bytes(out, 1, prefix.as_bytes());
        put_u64(out, 2, cursor.to_u64());
        put_u64(out, 3, u32::try_from(limit).unwrap_or(u32::MAX).into());
    }
}
