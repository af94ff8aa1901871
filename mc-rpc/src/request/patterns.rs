//! Requests that mean every object whose key matches a pattern. Whether it is one, the
//! master says: what is here bounds nothing but the text.

use bytes::BytesMut;
use mc_meta::ListCursor;

use super::page_limit;
use crate::refusal::Refusal;
use crate::wire::{Fields, put_bytes, put_u64};

/// `GetReplicaListByRegexRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MatchRequest<'a> {
    pub(crate) key_regex: &'a str,
    pub(crate) cursor: ListCursor,
    /// `None` for all of them in one answer.
    pub(crate) limit: Option<usize>,
}

impl<'a> MatchRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut key_regex, mut cursor, mut limit) = (Fields::new(payload), "", 0, 0);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => key_regex = field.text()?,
                2 => cursor = field.u64()?,
                3 => limit = field.u32()?,
                _ => {}
            }
        }
        let limit = if limit == 0 { None } else { Some(page_limit(limit)?) };
        Ok(Self { key_regex, cursor: ListCursor::from_u64(cursor), limit })
    }

    pub(crate) fn write(out: &mut BytesMut, key_regex: &str, cursor: ListCursor, limit: usize) {
        put_bytes(out, 1, key_regex.as_bytes());
        put_u64(out, 2, cursor.to_u64());
        put_u64(out, 3, u32::try_from(limit).unwrap_or(u32::MAX).into());
    }
}

/// `RemoveByRegexRequest`: the pattern, and whether by force. A pattern that is missing is
/// refused, because it would match every key.
pub(crate) fn parse_remove_by_regex(payload: &[u8]) -> Result<(&str, bool), Refusal> {
    let (mut fields, mut key_regex, mut force) = (Fields::new(payload), "", false);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => key_regex = field.text()?,
            2 => force = field.bool()?,
            _ => {}
        }
    }
    if key_regex.is_empty() {
        return Err(Refusal::invalid(
            "key_regex is empty and would match every key; RemoveAll removes every object",
        ));
    }
    Ok((key_regex, force))
}

pub(crate) fn write_remove_by_regex(out: &mut BytesMut, key_regex: &str, force: bool) {
    put_bytes(out, 1, key_regex.as_bytes());
    put_u64(out, 2, force.into());
}
