//! Reads: where objects are, and whether they are.

use bytes::BytesMut;
use mc_meta::{RangeRead, ScopedKey};
use mc_types::KeyRef;

use super::{CallContext, calls};
use crate::answer::{RangedList, ReplicaList};
use crate::refusal::Refusal;
use crate::reply::{ExistReply, PlacedReply};
use crate::request::{BatchReadRequest, RangedReads};
use crate::{answer, reply, request};

calls! {
    /// Returns where to read an object. The master keeps it there for
    /// [`ReplicaList::lease`].
    fn get_replica_list(&self, key: KeyRef<'_>) -> ReplicaList {
        GetReplicaList "Refused with `ObjectNotFound` or `ReplicaIsNotReady`.",
        |out: &mut BytesMut| request::write_key(out, key),
        answer::read_replica_list,
    }

    /// Returns whether an object can be read; when it can, it gets a lease.
    fn exist(&self, key: KeyRef<'_>) -> bool {
        ExistKey,
        |out: &mut BytesMut| request::write_key(out, key),
        answer::read_exists,
    }

    /// Returns whether an object can be read, without a lease, and without counting as a use of
    /// it. A master of an older version grants a lease all the same.
    fn probe(&self, key: KeyRef<'_>) -> bool {
        ExistKey,
        |out: &mut BytesMut| request::write_flagged_key(out, key, true),
        answer::read_exists,
    }

    /// Returns how many of the first keys exist, up to the first that does not. Grants
    /// no lease.
    fn longest_prefix(&self, keys: &[KeyRef<'_>]) -> usize {
        LongestPrefix "Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys.",
        |out: &mut BytesMut| request::write_keys(out, keys),
        |message: &[u8]| answer::read_length(message, keys.len()),
    }

    /// [`get_replica_list`](Self::get_replica_list) of many keys; the answers
    /// are in the order of the keys.
    fn batch_get_replica_list(&self, keys: &[KeyRef<'_>]) -> Vec<Result<ReplicaList, Refusal>> {
        BatchGetReplicaList
            "Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys. What \
             concerns one key is in its item.",
        |out: &mut BytesMut| request::write_keys(out, keys),
        |message: &[u8]| answer::read_replica_lists(message, keys.len()),
    }

    /// [`get_replica_list`](Self::get_replica_list) of many keys, and for each range of
    /// them what to read to [verify](RangedList::spans) it. The answers are in the order
    /// of the reads.
    fn batch_get_ranges(&self, reads: &[RangeRead<'_>]) -> Vec<Result<RangedList, Refusal>> {
        BatchGetReplicaList
            "Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys or as many \
             ranges together. What concerns one key is in its item: `InvalidParams` beyond \
             [`MAX_RANGES`](crate::MAX_RANGES) ranges of it.",
        |out: &mut BytesMut| request::write_reads(out, reads),
        |message: &[u8]| answer::read_ranged_lists(message, reads),
    }

    /// [`exist`](Self::exist) of many keys.
    fn batch_exist(&self, keys: &[KeyRef<'_>]) -> Vec<Result<bool, Refusal>> {
        BatchExistKey "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| request::write_keys(out, keys),
        |message: &[u8]| answer::read_all_exist(message, keys.len()),
    }

    /// [`probe`](Self::probe) of many keys.
    fn batch_probe(&self, keys: &[KeyRef<'_>]) -> Vec<Result<bool, Refusal>> {
        BatchExistKey "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| request::write_flagged_keys(out, keys, true),
        |message: &[u8]| answer::read_all_exist(message, keys.len()),
    }
}

impl CallContext<'_> {
    pub(crate) fn get_replica_list(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let mut ranges = Vec::new();
        let key = self.scoped(request::parse_read(self.payload, &mut ranges)?)?;
        if ranges.is_empty() {
            let list = self.reading().get_replica_list(key.as_ref());
            self.looked_up(list.is_ok().into(), 1);
            reply::write_replica_list(out, &list?, self.signer);
        } else {
            let read = RangeRead { key: key.as_ref(), ranges: &ranges };
            let mut lists = self.reading().batch_get_ranges(&[read]);
            let ranged = lists.pop().expect("the master answers for each read");
            self.looked_up(ranged.is_ok().into(), 1);
            reply::write_ranged_list(out, &ranged?, self.signer);
        }
        Ok(())
    }

    pub(crate) fn batch_get_replica_list(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = match BatchReadRequest::parse(self.payload)? {
            BatchReadRequest::Keys(keys) => keys,
            BatchReadRequest::Reads(reads) => return self.batch_get_ranges(&reads, out),
        };
        let asked = keys.len();
        let mut reply = self.placed_reply(asked, out)?;
        let (reading, mut found) = (self.reading(), 0);
        let ask = |keys: &[KeyRef<'_>]| reading.batch_get_replica_list(keys);
        self.in_key_batches(keys, ask, |list| match list.and_then(|list| Ok(list?)) {
            Ok(list) => {
                found += 1;
                reply.replica_list(&list);
            }
            Err(refusal) => reply.refused(&refusal),
        });
        self.looked_up(found, asked as u64);
        Ok(())
    }

    fn batch_get_ranges(self, reads: &RangedReads<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let mut reply = self.placed_reply(reads.len(), out)?;
        let (reading, mut found) = (self.reading(), 0);
        let ask = |reads: &[RangeRead<'_>]| reading.batch_get_ranges(reads);
        self.in_ranged_key_batches(reads, ask, |ranged| {
            match ranged.and_then(|ranged| Ok(ranged?)) {
                Ok(ranged) => {
                    found += 1;
                    reply.ranged_list(&ranged);
                }
                Err(refusal) => reply.refused(&refusal),
            }
        });
        self.looked_up(found, reads.len() as u64);
        Ok(())
    }

    /// Counts what the caller's tenant asked for, of which so many could be read.
    fn looked_up(self, found: u64, asked: u64) {
        self.master.note_lookups(self.tenant, found, asked.saturating_sub(found));
    }

    fn placed_reply(self, items: usize, out: &mut BytesMut) -> Result<PlacedReply<'_>, Refusal> {
        PlacedReply::new(out, [2, 3], items, self.max_reply, self.signer)
    }

    pub(crate) fn exist(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (key, probes) = request::parse_flagged_key(self.payload)?;
        let key = self.scoped(key)?;
        let exists = match probes {
            false => self.master.exist(self.now, key.as_ref()),
            true => self.master.probe(self.now, key.as_ref()),
        };
        self.looked_up(exists.into(), 1);
        reply::write_exists(out, exists);
        Ok(())
    }

    pub(crate) fn batch_exist(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (keys, probes) = request::parse_flagged_keys(self.payload)?;
        let (asked, mut found) = (keys.len() as u64, 0);
        let mut reply = ExistReply::new(out, keys.len(), self.max_reply)?;
        let ask = |keys: &[KeyRef<'_>]| match probes {
            false => self.master.batch_exist(self.now, keys),
            true => self.master.batch_probe(self.now, keys),
        };
        self.in_key_batches(keys, ask, |exists| match exists {
            Ok(exists) => {
                found += u64::from(exists);
                reply.exists(exists);
            }
            Err(refusal) => reply.refused(&refusal),
        });
        self.looked_up(found, asked);
        reply.finish()
    }

    pub(crate) fn longest_prefix(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = request::parse_keys(self.payload)?;
        let keys = keys
            .keys()
            .map(|key| self.scoped(key?))
            .collect::<Result<Vec<ScopedKey<'_>>, Refusal>>()?;
        let length = self.master.longest_prefix(self.now, keys.iter().map(ScopedKey::as_ref));
        // No further key was asked for than the first that could not be read.
        self.looked_up(length as u64, keys.len().min(length + 1) as u64);
        reply::write_count(out, length as u64);
        Ok(())
    }
}
