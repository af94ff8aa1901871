//! Calls about every object whose key matches a pattern.

use bytes::BytesMut;
use mc_meta::{ListCursor, Pattern};
use mc_types::{ErrorCode, ObjectKey};

use super::{
    BadField, CallContext, DEFAULT_PAGE, MAX_BATCH, calls, count, message, object_key, page_limit,
    reply,
};
use crate::answer::{Answer, ListParts, ReplicaList, Status, push_replica};
use crate::error::MalformedReply;
use crate::proto;
use crate::refusal::Refusal;
use crate::reply::{Names, Signer, put_replica_list};
use crate::wire::{Fields, put_item_bytes, put_message, put_present_u64};

/// Part of the objects whose keys match, in no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPage {
    /// The objects; may be empty although more follow.
    pub objects: Vec<(ObjectKey, ReplicaList)>,
    /// The position of the next page; `None` at the end.
    pub next: Option<ListCursor>,
}

calls! {
    /// [`get_replica_list`](Self::get_replica_list) of up to `limit` objects whose keys
    /// `pattern` matches, from `cursor` on; those that cannot be read now are passed over.
    /// A page may have fewer although more follow. The limit 0 asks for all of them in one
    /// answer, from `cursor` on.
    ///
    /// [`mc_meta::Pattern`] describes patterns.
    fn get_replica_list_by_regex(&self, pattern: &str, cursor: ListCursor, limit: usize) -> ReplicaPage {
        GetReplicaListByRegex
            "Refused with `InvalidParams` when the pattern is none or would cost too much, beyond \
             [`MAX_PAGE`](crate::MAX_PAGE) objects, and for all of them beyond \
             [`MAX_BATCH`](crate::MAX_BATCH) or what one answer holds.",
        message(proto::GetReplicaListByRegexRequest {
            key_regex: pattern.into(),
            cursor: cursor.to_u64(),
            limit: count(limit),
        }),
        |message: &[u8]| read_replica_page(message, limit),
    }

    /// Removes every object whose key `pattern` matches and that no client may be reading,
    /// with `force` the others too, and returns how many that were.
    fn remove_by_regex(&self, pattern: &str, force: bool) -> u64 {
        RemoveByRegex
            "Refused with `InvalidParams` when the pattern is empty, is none or would cost too \
             much.",
        message(proto::RemoveByRegexRequest { key_regex: pattern.into(), force }),
        reply(|answer: &proto::RemoveByRegexResponse| {
            let removed = u64::try_from(answer.removed_count);
            removed.map_err(|_| BadField::new("removed_count", "is negative"))
        }),
    }
}

/// Number of objects that the master is asked for at a time. Those that do not fit into the
/// answer are looked up again for the next page.
const STEP: usize = 64;

impl CallContext<'_> {
    pub(crate) fn get_replica_list_by_regex(
        self,
        request: &proto::GetReplicaListByRegexRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let limit = match request.limit {
            0 => None,
            limit => Some(page_limit(limit, DEFAULT_PAGE)?),
        };
        let pattern = Pattern::new(&request.key_regex)?;
        let mut reply = MatchReply::new(out, self.max_reply, self.signer);
        let mut at = ListCursor::from_u64(request.cursor);
        let (mut left, mut step) = (limit.unwrap_or(MAX_BATCH + 1), STEP);
        loop {
            let wanted = left.min(step);
            let page = self.master.get_tenant_replica_list_by_regex(
                self.now,
                self.tenant,
                &pattern,
                at,
                wanted,
            );
            let found = page.objects.len();
            if !reply.objects(&page.objects) {
                match limit {
                    None => return Err(too_many()),
                    // As many of them as fit.
                    Some(_) if step > 1 => step = 1,
                    Some(_) if reply.is_empty() => return Err(too_long()),
                    Some(_) => {
                        reply.go_on(at);
                        return Ok(());
                    }
                }
                continue;
            }
            let Some(next) = page.next else { return Ok(()) };
            (at, left) = (next, left - found);
            match limit {
                None if left == 0 => return Err(too_many()),
                // A page ends when the master has looked at many objects for little, too.
                Some(_) if left == 0 || found < wanted => {
                    reply.go_on(at);
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    pub(crate) fn remove_by_regex(
        self,
        request: &proto::RemoveByRegexRequest,
    ) -> Result<proto::RemoveByRegexResponse, Refusal> {
        if request.key_regex.is_empty() {
            return Err(Refusal::invalid(
                "key_regex is empty and would match every key; RemoveAll removes every object",
            ));
        }
        let (pattern, force) = (Pattern::new(&request.key_regex)?, request.force);
        let removed = self.master.remove_by_regex_of(self.now, self.tenant, &pattern, force);
        let removed_count = i64::try_from(removed).unwrap_or(i64::MAX);
        Ok(proto::RemoveByRegexResponse { removed_count, ..Default::default() })
    }
}

fn too_many() -> Refusal {
    Refusal::invalid("more objects match than one answer can hold; set a limit and ask for pages")
}

fn too_long() -> Refusal {
    let message = "one object's replicas do not fit into the answer; accept a longer one";
    Refusal::new(ErrorCode::InvalidParams, message)
}

/// Bytes that the cursor takes at most.
const CURSOR_CEILING: usize = 11;

/// `GetReplicaListByRegexResponse`, some objects at a time. Each replica names its segment
/// with everything needed to reach it, as in the answer about one object.
struct MatchReply<'a> {
    out: &'a mut BytesMut,
    start: usize,
    /// Objects may not make `out` grow beyond this.
    end: usize,
    signer: Signer,
}

impl<'a> MatchReply<'a> {
    fn new(out: &'a mut BytesMut, max_reply: usize, signer: Signer) -> Self {
        let start = out.len();
        let end = start + max_reply.saturating_sub(CURSOR_CEILING);
        Self { out, start, end, signer }
    }

    /// Returns whether no object has been written.
    fn is_empty(&self) -> bool {
        self.out.len() == self.start
    }

    /// Adds all of these objects, or none and says false when they do not fit.
    fn objects(&mut self, objects: &[(ObjectKey, mc_meta::ReplicaList)]) -> bool {
        let (before, signer) = (self.out.len(), self.signer);
        for (key, list) in objects {
            put_message(self.out, 2, |out| {
                put_item_bytes(out, 1, key.as_str().as_bytes());
                put_message(out, 2, |out| {
                    put_replica_list(out, 1, list, signer, |_| Names::Inline);
                });
            });
            if self.out.len() > self.end {
                self.out.truncate(before);
                return false;
            }
        }
        true
    }

    /// Writes the cursor to go on with.
    fn go_on(self, next: ListCursor) {
        put_present_u64(self.out, 3, next.to_u64());
    }
}

/// `GetReplicaListByRegexResponse` to a question for `limit` objects, or for all.
pub(crate) fn read_replica_page(message: &[u8], limit: usize) -> Answer<ReplicaPage> {
    let most = if limit == 0 { MAX_BATCH } else { limit };
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut objects, mut next) = (Vec::new(), None);
    while let Some(field) = fields.next()? {
        match field.number {
            2 if objects.len() == most => {
                return Err(BadField::new("object_map", "has too many objects").into());
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
