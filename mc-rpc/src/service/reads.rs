//! Calls of those who read.

use bytes::BytesMut;
use mc_meta::{RangeRead, ScopedKey};
use mc_types::KeyRef;

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, ExistReply, PlacedReply};
use crate::request::{self, BatchReadRequest, RangedReads};

impl Turn<'_> {
    pub(super) fn get_replica_list(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let mut ranges = Vec::new();
        let key = self.scoped(request::parse_read(self.payload, &mut ranges)?)?;
        if ranges.is_empty() {
            let list = self.master.get_replica_list(self.now, key.as_ref())?;
            reply::write_replica_list(out, &list, self.signer);
        } else {
            let read = RangeRead { key: key.as_ref(), ranges: &ranges };
            let mut lists = self.master.batch_get_ranges(self.now, &[read]);
            let ranged = lists.pop().expect("the master answers for each read")?;
            reply::write_ranged_list(out, &ranged, self.signer);
        }
        Ok(())
    }

    pub(super) fn batch_get_replica_list(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = match BatchReadRequest::parse(self.payload)? {
            BatchReadRequest::Keys(keys) => keys,
            BatchReadRequest::Reads(reads) => return self.batch_get_ranges(&reads, out),
        };
        let mut reply = self.placed_reply(keys.len(), out)?;
        let ask = |keys: &[KeyRef<'_>]| self.master.batch_get_replica_list(self.now, keys);
        self.in_bunches(keys, ask, |list| match list.and_then(|list| Ok(list?)) {
            Ok(list) => reply.replica_list(&list),
            Err(refusal) => reply.refused(&refusal),
        });
        Ok(())
    }

    fn batch_get_ranges(self, reads: &RangedReads<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let mut reply = self.placed_reply(reads.len(), out)?;
        let ask = |reads: &[RangeRead<'_>]| self.master.batch_get_ranges(self.now, reads);
        self.in_ranged_bunches(reads, ask, |ranged| match ranged.and_then(|ranged| Ok(ranged?)) {
            Ok(ranged) => reply.ranged_list(&ranged),
            Err(refusal) => reply.refused(&refusal),
        });
        Ok(())
    }

    fn placed_reply(self, items: usize, out: &mut BytesMut) -> Result<PlacedReply<'_>, Refusal> {
        PlacedReply::new(out, [2, 3], items, self.max_reply, self.signer)
    }

    pub(super) fn exist(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let key = self.scoped(request::parse_key(self.payload)?)?;
        reply::write_exists(out, self.master.exist(self.now, key.as_ref()));
        Ok(())
    }

    pub(super) fn batch_exist(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = request::parse_keys(self.payload)?;
        let mut reply = ExistReply::new(out, keys.len(), self.max_reply)?;
        let ask = |keys: &[KeyRef<'_>]| self.master.batch_exist(self.now, keys);
        self.in_bunches(keys, ask, |exists| match exists {
            Ok(exists) => reply.exists(exists),
            Err(refusal) => reply.refused(&refusal),
        });
        reply.finish()
    }

    pub(super) fn longest_prefix(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = request::parse_keys(self.payload)?;
        let keys = keys
            .keys()
            .map(|key| self.scoped(key?))
            .collect::<Result<Vec<ScopedKey<'_>>, Refusal>>()?;
        let length = self.master.longest_prefix(self.now, keys.iter().map(ScopedKey::as_ref));
        reply::write_count(out, length as u64);
        Ok(())
    }
}
