//! Calls about every object whose key matches a pattern.

use bytes::BytesMut;
use mc_meta::Pattern;
use mc_types::ErrorCode;

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, MatchReply};
use crate::request::{MAX_BATCH, MatchRequest, parse_remove_by_regex};

/// Objects that the master is asked for at a time: those that do not fit into the answer
/// any more are asked for once more by whoever goes on.
const STEP: usize = 64;

impl Turn<'_> {
    pub(super) fn get_replica_list_by_regex(self, out: &mut BytesMut) -> Result<(), Refusal> {
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

    pub(super) fn remove_by_regex(self, out: &mut BytesMut) -> Result<(), Refusal> {
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
