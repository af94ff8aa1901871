//! The requests of a copy or a move: its start, its end, its revocation.

use bytes::BytesMut;
use mc_meta::{LateWrites, MAX_REPLICAS, TransferHandle, TransferKind};
use mc_ticket::PutToken;
use mc_types::{ClientId, Generation};

use super::put::{late_writes, write_late_writes};
use super::tenant_key::TenantKeyParts;
use super::{TenantKey, client, no_client, segment_name};
use crate::error::Refusal;
use crate::wire::{Field, Fields, put_bytes, put_fixed64, put_item_bytes, put_present_u64};

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

/// `CopyEndRequest` and `MoveEndRequest`; `CopyRevokeRequest` and `MoveRevokeRequest`, which
/// say as well whether the targets may still be written to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TransferFinishRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) object: TenantKey<'a>,
    pub(crate) handle: TransferHandle,
    pub(crate) late: LateWrites,
}

impl<'a> TransferFinishRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut object) = (Fields::new(payload), TenantKeyParts::default());
        let (mut who, mut id, mut token, mut late) = (None, None, 0, LateWrites::Impossible);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => who = Some(client(field)?),
                3 => id = Some(Generation::new(field.u64()?)),
                4 => object.tenant(field)?,
                5 => token = field.fixed64()?,
                6 => late = late_writes(field)?,
                _ => {}
            }
        }
        let (object, client) = (object.finish()?, who.ok_or_else(no_client)?);
        let missing = || Refusal::invalid("transfer is missing; it says which one is meant");
        let id = id.ok_or_else(missing)?;
        let handle = TransferHandle { id, token: PutToken::from_u64(token) };
        Ok(Self { client, object, handle, late })
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        object: &TenantKey<'_>,
        handle: TransferHandle,
        late: LateWrites,
    ) {
        object.write(out, 4);
        put_bytes(out, 2, &client.to_bytes());
        put_present_u64(out, 3, handle.id.as_u64());
        put_fixed64(out, 5, handle.token.as_u64());
        write_late_writes(out, 6, late);
    }
}
