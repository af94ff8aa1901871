//! The requests of clients that bring objects back from disks into memory.

use bytes::BytesMut;
use mc_meta::{LateWrites, MAX_NAMED_SEGMENTS, TransferHandle};
use mc_ticket::PutToken;
use mc_types::{ClientId, Generation};

use super::put::{late_writes, write_late_writes};
use super::tenant_key::TenantKeyParts;
use super::{TenantKey, client, no_client, segment_name};
use crate::error::Refusal;
use crate::wire::{Fields, put_bytes, put_fixed64, put_item_bytes, put_present_u64, put_u64};

/// `PromotionAllocStartRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PromotionStartRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) object: TenantKey<'a>,
    pub(crate) generation: Generation,
    pub(crate) len: u64,
    pub(crate) preferred: Vec<&'a str>,
}

impl<'a> PromotionStartRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut object) = (Fields::new(payload), TenantKeyParts::default());
        let (mut who, mut generation, mut len, mut preferred) = (None, 0, 0, Vec::new());
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => who = Some(client(field)?),
                3 => generation = field.u64()?,
                4 => len = field.u64()?,
                5 if preferred.len() == MAX_NAMED_SEGMENTS => {
                    return Err(Refusal::invalid(format!(
                        "preferred_segments has more than {MAX_NAMED_SEGMENTS} names"
                    )));
                }
                5 => preferred.push(segment_name(field, "preferred_segments")?),
                6 => object.tenant(field)?,
                _ => {}
            }
        }
        let (object, generation) = (object.finish()?, Generation::new(generation));
        Ok(Self { client: who.ok_or_else(no_client)?, object, generation, len, preferred })
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        object: &TenantKey<'_>,
        generation: Generation,
        len: u64,
        preferred: &[&str],
    ) {
        object.write(out, 6);
        put_bytes(out, 2, &client.to_bytes());
        put_u64(out, 3, generation.as_u64());
        put_u64(out, 4, len);
        for name in preferred {
            put_item_bytes(out, 5, name.as_bytes());
        }
    }
}

/// `NotifyPromotionSuccessRequest` and `NotifyPromotionFailureRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PromotionFinishRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) object: TenantKey<'a>,
    pub(crate) generation: Generation,
    /// The memory that was granted; none for a failure before that.
    pub(crate) handle: Option<TransferHandle>,
    pub(crate) late: LateWrites,
}

impl<'a> PromotionFinishRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut object) = (Fields::new(payload), TenantKeyParts::default());
        let (mut who, mut generation) = (None, 0);
        let (mut id, mut token, mut late) = (None, 0, LateWrites::Impossible);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => who = Some(client(field)?),
                3 => generation = field.u64()?,
                4 => object.tenant(field)?,
                5 => id = Some(Generation::new(field.u64()?)),
                6 => token = field.fixed64()?,
                7 => late = late_writes(field)?,
                _ => {}
            }
        }
        let (object, generation) = (object.finish()?, Generation::new(generation));
        let handle = id.map(|id| TransferHandle { id, token: PutToken::from_u64(token) });
        Ok(Self { client: who.ok_or_else(no_client)?, object, generation, handle, late })
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        object: &TenantKey<'_>,
        generation: Generation,
        handle: Option<TransferHandle>,
        late: LateWrites,
    ) {
        object.write(out, 4);
        put_bytes(out, 2, &client.to_bytes());
        put_u64(out, 3, generation.as_u64());
        if let Some(handle) = handle {
            put_present_u64(out, 5, handle.id.as_u64());
            put_fixed64(out, 6, handle.token.as_u64());
        }
        write_late_writes(out, 7, late);
    }
}
