//! The requests of clients that bring objects back from disks into memory.

use bytes::BytesMut;
use mc_meta::MAX_NAMED_SEGMENTS;
use mc_types::{ClientId, Generation};

use super::tenant_key::TenantKeyParts;
use super::{TenantKey, client, no_client, segment_name};
use crate::error::Refusal;
use crate::wire::{Fields, put_bytes, put_item_bytes, put_u64};

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
}

impl<'a> PromotionFinishRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut object) = (Fields::new(payload), TenantKeyParts::default());
        let (mut who, mut generation) = (None, 0);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => who = Some(client(field)?),
                3 => generation = field.u64()?,
                4 => object.tenant(field)?,
                _ => {}
            }
        }
        let (object, generation) = (object.finish()?, Generation::new(generation));
        Ok(Self { client: who.ok_or_else(no_client)?, object, generation })
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        object: &TenantKey<'_>,
        generation: Generation,
    ) {
        object.write(out, 4);
        put_bytes(out, 2, &client.to_bytes());
        put_u64(out, 3, generation.as_u64());
    }
}
