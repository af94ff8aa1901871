//! The requests of clients that have deleted objects from a disk.

use bytes::BytesMut;
use mc_meta::ReplicaKind;
use mc_types::{ClientId, Generation};

use super::tenant_key::TenantKeyParts;
use super::{Items, TenantKey, client, no_client};
use crate::error::Refusal;
use crate::proto::evict_disk_replica_request::Kind;
use crate::wire::{Field, Fields, put_bytes, put_message, put_present_u64, put_u64};

fn kind(field: Field<'_>) -> Result<ReplicaKind, Refusal> {
    let number = field.i32()?;
    match Kind::try_from(number) {
        Ok(Kind::Memory) => Ok(ReplicaKind::Memory),
        Ok(Kind::Disk) => Ok(ReplicaKind::Disk),
        Ok(Kind::LocalDisk) => Ok(ReplicaKind::LocalDisk),
        Err(_) => Err(Refusal::invalid(format!("kind is {number}; name DISK or LOCAL_DISK"))),
    }
}

/// One object that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EvictItem<'a> {
    pub(crate) object: TenantKey<'a>,
    pub(crate) generation: Option<Generation>,
}

/// `EvictDiskReplicaRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EvictRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) kind: ReplicaKind,
    pub(crate) item: EvictItem<'a>,
}

impl<'a> EvictRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut object) = (Fields::new(payload), TenantKeyParts::default());
        let (mut who, mut generation, mut from) = (None, None, ReplicaKind::Memory);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => who = Some(client(field)?),
                3 => generation = Some(Generation::new(field.u64()?)),
                4 => from = kind(field)?,
                5 => object.tenant(field)?,
                _ => {}
            }
        }
        let item = EvictItem { object: object.finish()?, generation };
        Ok(Self { client: who.ok_or_else(no_client)?, kind: from, item })
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        object: &TenantKey<'_>,
        generation: Option<Generation>,
        kind: ReplicaKind,
    ) {
        object.write(out, 5);
        put_bytes(out, 2, &client.to_bytes());
        if let Some(generation) = generation {
            put_present_u64(out, 3, generation.as_u64());
        }
        put_u64(out, 4, kind as u64);
    }
}

/// `BatchEvictDiskReplicaRequest`.
#[derive(Debug)]
pub(crate) struct BatchEvictRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) kind: ReplicaKind,
    items: Items<'a>,
}

impl<'a> BatchEvictRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut who, mut from) = (None, ReplicaKind::Memory);
        let items = Items::parse(payload, 3, "items", |field| {
            match field.number {
                1 => who = Some(client(field)?),
                2 => from = kind(field)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(Self { client: who.ok_or_else(no_client)?, kind: from, items })
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The items in order, each good or bad on its own.
    pub(crate) fn items(&self) -> impl Iterator<Item = Result<EvictItem<'a>, Refusal>> + use<'a> {
        self.items.messages().map(Self::parse_item)
    }

    fn parse_item(message: &'a [u8]) -> Result<EvictItem<'a>, Refusal> {
        let (mut fields, mut object) = (Fields::new(message), TenantKeyParts::default());
        let mut generation = None;
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => generation = Some(Generation::new(field.u64()?)),
                3 => object.tenant(field)?,
                _ => {}
            }
        }
        Ok(EvictItem { object: object.finish()?, generation })
    }

    pub(crate) fn write<'k>(
        out: &mut BytesMut,
        client: ClientId,
        kind: ReplicaKind,
        items: impl IntoIterator<Item = (&'k TenantKey<'k>, Option<Generation>)>,
    ) {
        put_bytes(out, 1, &client.to_bytes());
        put_u64(out, 2, kind as u64);
        for (object, generation) in items {
            put_message(out, 3, |out| {
                object.write(out, 3);
                if let Some(generation) = generation {
                    put_present_u64(out, 2, generation.as_u64());
                }
            });
        }
    }
}
