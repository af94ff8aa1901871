//! What the client hands out about objects whose keys match a pattern.

use mc_meta::ListCursor;
use mc_types::ObjectKey;

use super::ReplicaList;
use super::read::{Answer, ListParts, Status, object_key, problem, push_replica};
use crate::error::MalformedReply;
use crate::request::MAX_BATCH;
use crate::wire::Fields;

/// Part of the objects whose keys match, in no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPage {
    /// The objects; may be empty although more follow.
    pub objects: Vec<(ObjectKey, ReplicaList)>,
    /// The position of the next page; `None` at the end.
    pub next: Option<ListCursor>,
}

/// `GetReplicaListByRegexResponse` to a question for `limit` objects, or for all.
pub(crate) fn read_replica_page(message: &[u8], limit: usize) -> Answer<ReplicaPage> {
    let most = if limit == 0 { MAX_BATCH } else { limit };
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut objects, mut next) = (Vec::new(), None);
    while let Some(field) = fields.next()? {
        match field.number {
            2 if objects.len() == most => {
                return Err(problem("object_map", "has too many objects"));
            }
            2 => objects.push(read_entry(field.bytes()?)?),
            3 => next = Some(ListCursor::from_u64(field.u64()?)),
            _ => status.read(field)?,
        }
    }
    status.or(|| Ok(ReplicaPage { objects, next }))
}

/// One entry of the map.
fn read_entry(message: &[u8]) -> Result<(ObjectKey, ReplicaList), MalformedReply> {
    let (mut fields, mut key, mut list) = (Fields::new(message), "", &b""[..]);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => key = field.text()?,
            2 => list = field.bytes()?,
            _ => {}
        }
    }
    Ok((object_key(key)?, read_object_replica_list(list)?))
}

/// `ObjectReplicaList`.
fn read_object_replica_list(message: &[u8]) -> Result<ReplicaList, MalformedReply> {
    let (mut fields, mut parts) = (Fields::new(message), ListParts::default());
    while let Some(field) = fields.next()? {
        match field.number {
            1 => push_replica(&mut parts.replicas, field.bytes()?, &[])?,
            _ => {
                parts.read(field)?;
            }
        }
    }
    parts.finish()
}
