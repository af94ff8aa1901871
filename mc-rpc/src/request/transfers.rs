//! The requests of a copy or a move: its start, its end, its revocation.

use bytes::BytesMut;
use mc_meta::{MAX_REPLICAS, TransferKind};
use mc_types::{ClientId, Generation};

use super::tenant_key::TenantKeyParts;
use super::{TenantKey, client, no_client, segment_name};
use crate::error::Refusal;
use crate::wire::{Field, Fields, put_bytes, put_item_bytes, put_present_u64};

/// One more of at most [`MAX_REPLICAS`] names of targets.
pub(super) fn push_target<'a>(field: Field<'a>, targets: &mut Vec<&'a str>) -> Result<(), Refusal> {
    let name = segment_name(field, "targets")?;
    if targets.len() == MAX_REPLICAS {
        return Err(Refusal::invalid(format!("targets has more than {MAX_REPLICAS} names")));
    }
    targets.push(name);
    Ok(())
}

pub(super) fn write_targets(out: &mut BytesMut, number: u32, targets: &[&str]) {
    for name in targets {
        put_item_bytes(out, number, name.as_bytes());
    }
}

/// `CopyStartRequest`, and `MoveStartRequest`, which has one target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TransferStartRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) object: TenantKey<'a>,
    pub(crate) source: &'a str,
    pub(crate) targets: Vec<&'a str>,
}

impl<'a> TransferStartRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8], kind: TransferKind) -> Result<Self, Refusal> {
        let (mut fields, mut object) = (Fields::new(payload), TenantKeyParts::default());
        let (mut who, mut source, mut targets) = (None, "", Vec::new());
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => who = Some(client(field)?),
                3 => source = segment_name(field, "source")?,
                4 => {
                    // Of a field that is not repeated the last one counts.
                    if kind == TransferKind::Move {
                        targets.clear();
                    }
                    push_target(field, &mut targets)?;
                }
                5 => object.tenant(field)?,
                _ => {}
            }
        }
        let object = object.finish()?;
        Ok(Self { client: who.ok_or_else(no_client)?, object, source, targets })
    }

    /// Where a move goes to.
    pub(crate) fn target(&self) -> Result<&'a str, Refusal> {
        self.targets.first().copied().ok_or_else(|| Refusal::invalid("target is missing"))
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        object: &TenantKey<'_>,
        source: &str,
        targets: &[&str],
    ) {
        object.write(out, 5);
        put_bytes(out, 2, &client.to_bytes());
        put_bytes(out, 3, source.as_bytes());
        write_targets(out, 4, targets);
    }
}

/// `CopyEndRequest`, `CopyRevokeRequest`, `MoveEndRequest`, `MoveRevokeRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TransferFinishRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) object: TenantKey<'a>,
    pub(crate) transfer: Option<Generation>,
}

impl<'a> TransferFinishRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut object) = (Fields::new(payload), TenantKeyParts::default());
        let (mut who, mut transfer) = (None, None);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => who = Some(client(field)?),
                3 => transfer = Some(Generation::new(field.u64()?)),
                4 => object.tenant(field)?,
                _ => {}
            }
        }
        let object = object.finish()?;
        Ok(Self { client: who.ok_or_else(no_client)?, object, transfer })
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        object: &TenantKey<'_>,
        transfer: Option<Generation>,
    ) {
        object.write(out, 4);
        put_bytes(out, 2, &client.to_bytes());
        if let Some(transfer) = transfer {
            put_present_u64(out, 3, transfer.as_u64());
        }
    }
}
