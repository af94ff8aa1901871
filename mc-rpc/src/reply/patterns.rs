//! The answer about every object whose key matches a pattern.

use bytes::BytesMut;
use mc_meta::{ListCursor, ReplicaList};
use mc_types::ObjectKey;

use super::{Names, Signer, put_replica_list};
use crate::wire::{put_item_bytes, put_message, put_present_u64};

/// Bytes that the cursor takes at most.
const CURSOR_CEILING: usize = 11;

/// `GetReplicaListByRegexResponse`, some objects at a time. Each replica names its segment
/// with everything needed to reach it, as in the answer about one object.
pub(crate) struct MatchReply<'a> {
    out: &'a mut BytesMut,
    start: usize,
    /// Objects may not make `out` grow beyond this.
    end: usize,
    signer: Signer,
}

impl<'a> MatchReply<'a> {
    pub(crate) fn new(out: &'a mut BytesMut, max_reply: usize, signer: Signer) -> Self {
        let start = out.len();
        let end = start + max_reply.saturating_sub(CURSOR_CEILING);
        Self { out, start, end, signer }
    }

    /// Returns whether no object has been written.
    pub(crate) fn is_empty(&self) -> bool {
        self.out.len() == self.start
    }

    /// Adds all of these objects, or none and says false when they do not fit.
    pub(crate) fn objects(&mut self, objects: &[(ObjectKey, ReplicaList)]) -> bool {
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

    /// Says where to go on.
    pub(crate) fn go_on(self, next: ListCursor) {
        put_present_u64(self.out, 3, next.to_u64());
    }
}
