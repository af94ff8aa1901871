//! Checks the fields of messages, on both sides: what a check lets through is of a type that
//! cannot be wrong.

use core::fmt;
use core::time::Duration;
use std::borrow::Cow;

use mc_meta::{MAX_SEGMENT_NAME_LEN, TenantId};
use mc_types::{ClientId, Endpoint, ErrorCode, Extent, KeyRef, MediaType, ObjectKey};

use crate::error::MalformedReply;
use crate::refusal::Refusal;
use crate::request::{MAX_PAGE, TenantKey};

/// A field with a value that the protocol does not allow.
#[derive(Debug)]
pub(crate) struct BadField {
    field: &'static str,
    problem: Cow<'static, str>,
    code: ErrorCode,
}

impl BadField {
    /// A field that `problem`, which begins with a verb.
    pub(crate) fn new(field: &'static str, problem: impl Into<Cow<'static, str>>) -> Self {
        Self { field, problem: problem.into(), code: ErrorCode::InvalidParams }
    }

    /// A field that is not what it says, for this reason.
    fn not(field: &'static str, expected: &str, reason: impl fmt::Display) -> Self {
        Self::new(field, format!("is not {expected}: {reason}"))
    }
}

impl From<BadField> for Refusal {
    fn from(BadField { field, problem, code }: BadField) -> Self {
        Self::new(code, format!("{field} {problem}"))
    }
}

impl From<BadField> for MalformedReply {
    fn from(BadField { field, problem, .. }: BadField) -> Self {
        Self::Field { field, problem }
    }
}

/// A field that has to be there and is not.
pub(crate) fn missing(field: &'static str) -> BadField {
    BadField::new(field, "is missing")
}

/// An id, which `make` makes of its bytes.
pub(crate) fn id<T>(
    bytes: &[u8],
    field: &'static str,
    make: fn([u8; 16]) -> T,
) -> Result<T, BadField> {
    match bytes.try_into() {
        Ok(bytes) => Ok(make(bytes)),
        Err(_) if bytes.is_empty() => Err(missing(field)),
        Err(_) => Err(BadField::new(field, format!("has {} bytes, not 16", bytes.len()))),
    }
}

pub(crate) fn client_id(bytes: &[u8]) -> Result<ClientId, BadField> {
    id(bytes, "client_id", ClientId::from_bytes)
}

/// An id that may be left out.
pub(crate) fn optional_id<T>(
    bytes: &[u8],
    field: &'static str,
    make: fn([u8; 16]) -> T,
) -> Result<Option<T>, BadField> {
    if bytes.is_empty() { Ok(None) } else { id(bytes, field, make).map(Some) }
}

/// The items, if they are at most `max`.
pub(crate) fn at_most<'a, T>(
    items: &'a [T],
    max: usize,
    field: &'static str,
) -> Result<&'a [T], BadField> {
    if items.len() <= max {
        return Ok(items);
    }
    Err(BadField::new(field, format!("has more than {max} items")))
}

/// The name of a segment, or nothing.
pub(crate) fn segment_name<'a>(text: &'a str, field: &'static str) -> Result<&'a str, BadField> {
    if text.len() <= MAX_SEGMENT_NAME_LEN {
        return Ok(text);
    }
    let problem = format!("has {} bytes; the limit is {MAX_SEGMENT_NAME_LEN}", text.len());
    Err(BadField::new(field, problem))
}

/// At most `max` names of segments.
pub(crate) fn segment_names<'a, T: From<&'a str>>(
    names: &'a [String],
    max: usize,
    field: &'static str,
) -> Result<Vec<T>, BadField> {
    at_most(names, max, field)?;
    names.iter().map(|name| segment_name(name, field).map(T::from)).collect()
}

pub(crate) fn endpoint(text: &str) -> Result<Endpoint, BadField> {
    text.parse().map_err(|error| BadField::not("endpoint", "an endpoint", error))
}

/// A medium by its number.
pub(crate) fn medium(number: i32) -> Result<MediaType, BadField> {
    let known = u8::try_from(number).ok().and_then(MediaType::from_number);
    known.ok_or_else(|| BadField::new("medium", format!("is {number}, which is unknown")))
}

pub(crate) fn extent(offset: u64, len: u64) -> Result<Extent, BadField> {
    Extent::new(offset, len).ok_or_else(|| {
        BadField::new("offset", "and the length go beyond the last byte that there can be")
    })
}

pub(crate) fn key<'a>(text: &'a str, field: &'static str) -> Result<KeyRef<'a>, BadField> {
    KeyRef::new(text).map_err(|error| {
        let bad = BadField::not(field, "a key", error);
        BadField { code: ErrorCode::InvalidKey, ..bad }
    })
}

pub(crate) fn object_key(text: &str) -> Result<ObjectKey, BadField> {
    key(text, "key").map(KeyRef::to_owned)
}

pub(crate) fn tenant(name: &str) -> Result<TenantId, BadField> {
    TenantId::new(name).map_err(|error| BadField::not("tenant_id", "a tenant's name", error))
}

/// An object of the caller's tenant, or of the one that is named.
pub(crate) fn tenant_key<'a>(text: &'a str, name: &str) -> Result<TenantKey<'a>, BadField> {
    let tenant = if name.is_empty() { None } else { Some(tenant(name)?) };
    Ok(TenantKey { tenant, key: key(text, "key")? })
}

/// The name of the object's tenant, nothing for that of the caller.
pub(crate) fn tenant_name(object: &TenantKey<'_>) -> String {
    object.tenant.as_ref().map(TenantId::to_string).unwrap_or_default()
}

/// The items in a page when a request asks for `limit`, of which 0 is `default`.
pub(crate) fn page_limit(limit: u32, default: usize) -> Result<usize, BadField> {
    match limit as usize {
        0 => Ok(default),
        limit if limit <= MAX_PAGE => Ok(limit),
        limit => Err(BadField::new("limit", format!("is {limit}; the most is {MAX_PAGE}"))),
    }
}

pub(crate) fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().copied().map(String::from).collect()
}

/// As milliseconds, at most what the field can say.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A count, at most what the field can say.
pub(crate) fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
