//! The requests about drain jobs.

use bytes::BytesMut;
use mc_meta::{DEFAULT_DRAIN_CONCURRENCY, MAX_DRAIN_SEGMENTS};
use mc_types::JobId;

use super::{segment_name, sixteen};
use crate::error::Refusal;
use crate::wire::{Field, Fields, put_bytes, put_item_bytes, put_u64};

/// `CreateDrainJobRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CreateDrainJobRequest<'a> {
    pub(crate) segments: Vec<&'a str>,
    pub(crate) targets: Vec<&'a str>,
    pub(crate) max_concurrency: usize,
}

impl<'a> CreateDrainJobRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new(payload);
        let (mut segments, mut targets, mut max_concurrency) = (Vec::new(), Vec::new(), 0);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => push_name(field, "segments", &mut segments)?,
                2 => push_name(field, "targets", &mut targets)?,
                3 => max_concurrency = field.u32()?,
                _ => {}
            }
        }
        let max_concurrency = match max_concurrency as usize {
            0 => DEFAULT_DRAIN_CONCURRENCY,
            given => given,
        };
        Ok(Self { segments, targets, max_concurrency })
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        segments: &[&str],
        targets: &[&str],
        max_concurrency: usize,
    ) {
        for name in segments {
            put_item_bytes(out, 1, name.as_bytes());
        }
        for name in targets {
            put_item_bytes(out, 2, name.as_bytes());
        }
        put_u64(out, 3, u32::try_from(max_concurrency).unwrap_or(u32::MAX).into());
    }
}

fn push_name<'a>(
    field: Field<'a>,
    what: &'static str,
    names: &mut Vec<&'a str>,
) -> Result<(), Refusal> {
    let name = segment_name(field, what)?;
    if names.len() == MAX_DRAIN_SEGMENTS {
        return Err(Refusal::invalid(format!("{what} has more than {MAX_DRAIN_SEGMENTS} names")));
    }
    names.push(name);
    Ok(())
}

/// `QueryDrainJobRequest` and `CancelDrainJobRequest`.
pub(crate) fn parse_job(payload: &[u8]) -> Result<JobId, Refusal> {
    let (mut fields, mut id) = (Fields::new(payload), None);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            id = Some(JobId::from_bytes(sixteen(field.bytes()?, "job_id")?));
        }
    }
    id.ok_or_else(|| Refusal::invalid("job_id is missing"))
}

pub(crate) fn write_job(out: &mut BytesMut, id: JobId) {
    put_bytes(out, 1, &id.to_bytes());
}

/// `ReopenSegmentRequest`.
pub(crate) fn parse_reopen(payload: &[u8]) -> Result<&str, Refusal> {
    let (mut fields, mut name) = (Fields::new(payload), "");
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            name = segment_name(field, "segment_name")?;
        }
    }
    Ok(name)
}

pub(crate) fn write_reopen(out: &mut BytesMut, name: &str) {
    put_bytes(out, 1, name.as_bytes());
}
