//! Calls about every object whose key matches a pattern.

use bytes::BytesMut;
use mc_meta::{ListCursor, Pattern};
use mc_types::ErrorCode;

use super::{CallContext, calls};
use crate::answer::ReplicaPage;
use crate::refusal::Refusal;
use crate::reply::MatchReply;
use crate::request::{MAX_BATCH, MatchRequest, parse_remove_by_regex};
use crate::{answer, reply, request};

calls! {
    /// [`get_replica_list`](Self::get_replica_list) of up to `limit` objects whose keys
    /// `pattern` matches, from `cursor` on; those that cannot be read now are passed over.
    /// A page may have fewer although more follow. The limit 0 asks for all of them in one
    /// answer, from `cursor` on.
    ///
    /// [`mc_meta::Pattern`] describes patterns.
    ///
    /// # Errors
    /// Refused with `InvalidParams` when the pattern is none or would cost too much, beyond
    /// [`MAX_PAGE`](crate::MAX_PAGE) objects, and for all of them beyond
    /// [`MAX_BATCH`](crate::MAX_BATCH) or what one answer holds; or any other [`RpcError`].
    fn get_replica_list_by_regex(&self, pattern: &str, cursor: ListCursor, limit: usize) -> ReplicaPage {
        GetReplicaListByRegex,
        |out: &mut BytesMut| MatchRequest::write(out, pattern, cursor, limit),
        |message: &[u8]| answer::read_replica_page(message, limit),
    }

    /// Removes every object whose key `pattern` matches and that no client may be reading,
    /// with `force` the others too, and returns how many that were.
    ///
    /// # Errors
    /// Refused with `InvalidParams` when the pattern is empty, is none or would cost too
    /// much; or any other [`RpcError`].
    fn remove_by_regex(&self, pattern: &str, force: bool) -> u64 {
        RemoveByRegex,
        |out: &mut BytesMut| request::write_remove_by_regex(out, pattern, force),
        answer::read_count,
    }
}

/// Number of objects that the master is asked for at a time. Those that do not fit into the
/// answer are looked up again for the next page.
const STEP: usize = 64;

impl CallContext<'_> {
    pub(crate) fn get_replica_list_by_regex(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let MatchRequest { key_regex, cursor, limit } = MatchRequest::parse(self.payload)?;
        let pattern = Pattern::new(key_regex)?;
        let mut reply = MatchReply::new(out, self.max_reply, self.signer);
        let (mut at, mut left, mut step) = (cursor, limit.unwrap_or(MAX_BATCH + 1), STEP);
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

    pub(crate) fn remove_by_regex(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (key_regex, force) = parse_remove_by_regex(self.payload)?;
        let pattern = Pattern::new(key_regex)?;
        let removed = self.master.remove_by_regex_of(self.now, self.tenant, &pattern, force);
        reply::write_count(out, removed);
        Ok(())
    }
}

fn too_many() -> Refusal {
    Refusal::invalid("more objects match than one answer can hold; set a limit and ask for pages")
}

fn too_long() -> Refusal {
    let message = "one object's replicas do not fit into the answer; accept a longer one";
    Refusal::new(ErrorCode::InvalidParams, message)
}
