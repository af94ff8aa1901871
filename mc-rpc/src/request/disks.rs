//! The requests about the clients' own disks.

use bytes::BytesMut;
use mc_types::{ClientId, Endpoint, Generation};

use super::tenant_key::TenantKeyParts;
use super::{Items, MAX_PAGE, TenantKey, client, endpoint, no_client, page_limit, sixteen};
use crate::error::Refusal;
use crate::wire::{Fields, put_bytes, put_message, put_u64};

/// `MountLocalDiskRequest`.
pub(crate) fn parse_mount_disk(payload: &[u8]) -> Result<(ClientId, Endpoint, bool), Refusal> {
    let mut fields = Fields::new(payload);
    let (mut who, mut served, mut enabled) = (None, None, false);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => who = Some(client(field)?),
            2 => served = Some(endpoint(field)?),
            3 => enabled = field.bool()?,
            _ => {}
        }
    }
    let served = served.ok_or_else(|| Refusal::invalid("endpoint is missing"))?;
    Ok((who.ok_or_else(no_client)?, served, enabled))
}

pub(crate) fn write_mount_disk(
    out: &mut BytesMut,
    client: ClientId,
    endpoint: &Endpoint,
    enabled: bool,
) {
    put_bytes(out, 1, &client.to_bytes());
    put_bytes(out, 2, endpoint.as_str().as_bytes());
    put_u64(out, 3, enabled.into());
}

/// `OffloadHeartbeatRequest`.
pub(crate) fn parse_offload_heartbeat(payload: &[u8]) -> Result<(ClientId, bool, usize), Refusal> {
    let (mut fields, mut who, mut enabled, mut max) = (Fields::new(payload), None, false, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => who = Some(client(field)?),
            2 => enabled = field.bool()?,
            3 => max = field.u32()?,
            _ => {}
        }
    }
    let max = match max as usize {
        0 => MAX_PAGE,
        max => max.min(MAX_PAGE),
    };
    Ok((who.ok_or_else(no_client)?, enabled, max))
}

pub(crate) fn write_offload_heartbeat(
    out: &mut BytesMut,
    client: ClientId,
    enabled: bool,
    max: usize,
) {
    put_bytes(out, 1, &client.to_bytes());
    put_u64(out, 2, enabled.into());
    put_u64(out, 3, u32::try_from(max).unwrap_or(u32::MAX).into());
}

/// `ReportSsdCapacityRequest`.
pub(crate) fn parse_ssd_capacity(payload: &[u8]) -> Result<(ClientId, u64), Refusal> {
    let (mut fields, mut who, mut capacity) = (Fields::new(payload), None, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => who = Some(client(field)?),
            2 => capacity = field.u64()?,
            _ => {}
        }
    }
    Ok((who.ok_or_else(no_client)?, capacity))
}

pub(crate) fn write_ssd_capacity(out: &mut BytesMut, client: ClientId, capacity: u64) {
    put_bytes(out, 1, &client.to_bytes());
    put_u64(out, 2, capacity);
}

/// `ListLocalDisksRequest`: the client after which to begin, and how many at most.
pub(crate) fn parse_disk_page(payload: &[u8]) -> Result<(Option<ClientId>, usize), Refusal> {
    let (mut fields, mut after, mut limit) = (Fields::new(payload), None, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 if !field.bytes()?.is_empty() => {
                after = Some(ClientId::from_bytes(sixteen(field.bytes()?, "after")?));
            }
            2 => limit = field.u32()?,
            _ => {}
        }
    }
    Ok((after, page_limit(limit)?))
}

pub(crate) fn write_disk_page(out: &mut BytesMut, after: Option<ClientId>, limit: usize) {
    if let Some(after) = after {
        put_bytes(out, 1, &after.to_bytes());
    }
    put_u64(out, 2, u32::try_from(limit).unwrap_or(u32::MAX).into());
}

/// `OffloadOutcome`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutcomeItem<'a> {
    pub(crate) object: TenantKey<'a>,
    pub(crate) generation: Generation,
    pub(crate) written: bool,
}

/// `FoundOnDisk`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundItem<'a> {
    pub(crate) object: TenantKey<'a>,
    pub(crate) generation: Generation,
    pub(crate) len: u64,
}

/// An object of a batch and the last of its fields, which says how it is.
fn parse_item(message: &[u8]) -> Result<(TenantKey<'_>, Generation, u64), Refusal> {
    let (mut fields, mut object) = (Fields::new(message), TenantKeyParts::default());
    let (mut generation, mut last) = (0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => object.key(field)?,
            2 => object.tenant(field)?,
            3 => generation = field.u64()?,
            4 => last = field.u64()?,
            _ => {}
        }
    }
    Ok((object.finish()?, Generation::new(generation), last))
}

fn write_item(out: &mut BytesMut, object: &TenantKey<'_>, generation: Generation, last: u64) {
    put_message(out, 2, |out| {
        object.write(out, 2);
        put_u64(out, 3, generation.as_u64());
        put_u64(out, 4, last);
    });
}

fn parse_items<'a>(
    payload: &'a [u8],
    name: &'static str,
) -> Result<(ClientId, Items<'a>), Refusal> {
    let mut who = None;
    let items = Items::parse(payload, 2, name, |field| {
        if field.number == 1 {
            who = Some(client(field)?);
        }
        Ok(())
    })?;
    Ok((who.ok_or_else(no_client)?, items))
}

/// `NotifyOffloadRequest`.
#[derive(Debug)]
pub(crate) struct BatchOutcomeRequest<'a> {
    pub(crate) client: ClientId,
    items: Items<'a>,
}

impl<'a> BatchOutcomeRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (client, items) = parse_items(payload, "outcomes")?;
        Ok(Self { client, items })
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The items in order, each good or bad on its own.
    pub(crate) fn items(&self) -> impl Iterator<Item = Result<OutcomeItem<'a>, Refusal>> + use<'a> {
        self.items.messages().map(|message| {
            let (object, generation, written) = parse_item(message)?;
            Ok(OutcomeItem { object, generation, written: written != 0 })
        })
    }

    pub(crate) fn write<'k>(
        out: &mut BytesMut,
        client: ClientId,
        items: impl IntoIterator<Item = (&'k TenantKey<'k>, Generation, bool)>,
    ) {
        put_bytes(out, 1, &client.to_bytes());
        for (object, generation, written) in items {
            write_item(out, object, generation, written.into());
        }
    }
}

/// `ReportLocalDiskRequest`.
#[derive(Debug)]
pub(crate) struct BatchFoundRequest<'a> {
    pub(crate) client: ClientId,
    items: Items<'a>,
}

impl<'a> BatchFoundRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (client, items) = parse_items(payload, "found")?;
        Ok(Self { client, items })
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The items in order, each good or bad on its own.
    pub(crate) fn items(&self) -> impl Iterator<Item = Result<FoundItem<'a>, Refusal>> + use<'a> {
        self.items.messages().map(|message| {
            let (object, generation, len) = parse_item(message)?;
            Ok(FoundItem { object, generation, len })
        })
    }

    pub(crate) fn write<'k>(
        out: &mut BytesMut,
        client: ClientId,
        items: impl IntoIterator<Item = (&'k TenantKey<'k>, Generation, u64)>,
    ) {
        put_bytes(out, 1, &client.to_bytes());
        for (object, generation, len) in items {
            write_item(out, object, generation, len);
        }
    }
}
