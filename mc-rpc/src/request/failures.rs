//! `ReportFailuresRequest`: what a client could not read or reach.

use bytes::BytesMut;
use mc_meta::ReplicaPlace;
use mc_types::{ClientId, Extent, Generation, SegmentId};

use super::tenant_key::TenantKeyParts;
use super::{Items, TenantKey, client, no_client, sixteen, write_ping};
use crate::error::Refusal;
use crate::proto::failure::Kind;
use crate::wire::{Fields, put_bytes, put_message, put_present_u64, put_u64};

/// Most failures in one call.
pub const MAX_FAILURES: usize = 256;

/// Something that a client could not read or reach.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure<'a> {
    /// The bytes of a replica are not those that were put.
    Damaged {
        /// The object.
        object: TenantKey<'a>,
        /// The put that was read.
        generation: Generation,
        /// The replica.
        place: ReplicaPlace,
    },
    /// A segment could not be reached, or gave no answer.
    Unreachable {
        /// The segment.
        segment: SegmentId,
    },
}

/// A failure as the master takes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReportedFailure<'a> {
    Known(Failure<'a>),
    /// Of a kind that this master does not know.
    Unknown,
}

/// Who reports, and what, in order.
pub(crate) fn parse_failures(
    payload: &[u8],
) -> Result<(ClientId, Vec<ReportedFailure<'_>>), Refusal> {
    let mut who = None;
    let items = Items::parse(payload, 2, "failures", |field| {
        if field.number == 1 {
            who = Some(client(field)?);
        }
        Ok(())
    })?;
    if items.len() > MAX_FAILURES {
        return Err(Refusal::invalid(format!(
            "failures has more than {MAX_FAILURES} items; send them in several calls"
        )));
    }
    let failures = items.messages().map(parse_failure).collect::<Result<_, _>>()?;
    Ok((who.ok_or_else(no_client)?, failures))
}

/// `Failure`.
fn parse_failure(message: &[u8]) -> Result<ReportedFailure<'_>, Refusal> {
    let (mut fields, mut object) = (Fields::new(message), TenantKeyParts::default());
    let (mut kind, mut generation, mut offset, mut len) = (0, 0, 0, 0);
    let (mut segment, mut disk) = (None, None);
    while let Some(field) = fields.next()? {
        match field.number {
            1 if !field.bytes()?.is_empty() => object.key(field)?,
            2 => kind = field.i32()?,
            3 => object.tenant(field)?,
            4 => generation = field.u64()?,
            5 if !field.bytes()?.is_empty() => {
                segment = Some(SegmentId::from_bytes(sixteen(field.bytes()?, "segment_id")?));
            }
            6 => offset = field.u64()?,
            7 => len = field.u64()?,
            8 if !field.bytes()?.is_empty() => {
                let id = sixteen(field.bytes()?, "disk_client_id")?;
                disk = Some(ClientId::from_bytes(id));
            }
            _ => {}
        }
    }
    Ok(match Kind::try_from(kind) {
        Ok(Kind::Damaged) => {
            let extent = Extent::new(offset, len);
            let extent = extent.ok_or_else(|| {
                Refusal::invalid("offset and length go beyond the last byte that there can be")
            })?;
            let place = match (segment, disk) {
                (Some(segment), _) => ReplicaPlace::Memory { segment, extent },
                (None, Some(client)) => ReplicaPlace::LocalDisk(client),
                (None, None) => ReplicaPlace::File,
            };
            let (object, generation) = (object.finish()?, Generation::new(generation));
            ReportedFailure::Known(Failure::Damaged { object, generation, place })
        }
        Ok(Kind::Unreachable) => {
            let segment = segment.ok_or_else(|| Refusal::invalid("segment_id is missing"))?;
            ReportedFailure::Known(Failure::Unreachable { segment })
        }
        _ => ReportedFailure::Unknown,
    })
}

pub(crate) fn write_failures(out: &mut BytesMut, client: ClientId, failures: &[Failure<'_>]) {
    write_ping(out, client);
    for failure in failures {
        put_message(out, 2, |out| write_failure(out, failure));
    }
}

fn write_failure(out: &mut BytesMut, failure: &Failure<'_>) {
    match failure {
        Failure::Damaged { object, generation, place } => {
            object.write(out, 3);
            put_u64(out, 2, Kind::Damaged as u64);
            put_present_u64(out, 4, generation.as_u64());
            match place {
                ReplicaPlace::Memory { segment, extent } => {
                    put_bytes(out, 5, &segment.to_bytes());
                    put_u64(out, 6, extent.offset());
                    put_u64(out, 7, extent.len());
                }
                ReplicaPlace::File => {}
                ReplicaPlace::LocalDisk(client) => put_bytes(out, 8, &client.to_bytes()),
            }
        }
        Failure::Unreachable { segment } => {
            put_u64(out, 2, Kind::Unreachable as u64);
            put_bytes(out, 5, &segment.to_bytes());
        }
    }
}
