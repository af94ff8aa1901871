//! Calls of those who read.

use bytes::BytesMut;
use mc_meta::RangeRead;
use mc_types::KeyRef;

use super::calls;
use crate::answer::{self, RangedList, ReplicaList};
use crate::error::Refusal;
use crate::request;

calls! {
    /// Where to read an object. The master keeps it there for
    /// [`ReplicaList::lease`].
    ///
    /// # Errors
    /// Refused with `ObjectNotFound` or `ReplicaIsNotReady`; or any other
    /// [`RpcError`].
    fn get_replica_list(&self, key: KeyRef<'_>) -> ReplicaList {
        GetReplicaList,
        |out: &mut BytesMut| request::write_key(out, key),
        answer::read_replica_list,
    }

    /// Whether an object can be read; when it can, it gets a lease.
    ///
    /// # Errors
    /// Any [`RpcError`].
    fn exist(&self, key: KeyRef<'_>) -> bool {
        ExistKey,
        |out: &mut BytesMut| request::write_key(out, key),
        answer::read_exists,
    }

    /// How many of the first keys exist, up to the first that does not. Grants
    /// no lease.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys;
    /// or any other [`RpcError`].
    fn longest_prefix(&self, keys: &[KeyRef<'_>]) -> usize {
        LongestPrefix,
        |out: &mut BytesMut| request::write_keys(out, keys),
        |message: &[u8]| answer::read_length(message, keys.len()),
    }

    /// [`get_replica_list`](Self::get_replica_list) of many keys; the answers
    /// are in the order of the keys.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys;
    /// or any other [`RpcError`]. What concerns one key is in its item.
    fn batch_get_replica_list(&self, keys: &[KeyRef<'_>]) -> Vec<Result<ReplicaList, Refusal>> {
        BatchGetReplicaList,
        |out: &mut BytesMut| request::write_keys(out, keys),
        |message: &[u8]| answer::read_replica_lists(message, keys.len()),
    }

    /// [`get_replica_list`](Self::get_replica_list) of many keys, and for each range of
    /// them what to read to [verify](RangedList::spans) it. The answers are in the order
    /// of the reads.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys or as many
    /// ranges together; or any other [`RpcError`]. What concerns one key is in its item:
    /// `InvalidParams` beyond [`MAX_RANGES`](crate::MAX_RANGES) ranges of it.
    fn batch_get_ranges(&self, reads: &[RangeRead<'_>]) -> Vec<Result<RangedList, Refusal>> {
        BatchGetReplicaList,
        |out: &mut BytesMut| request::write_reads(out, reads),
        |message: &[u8]| answer::read_ranged_lists(message, reads),
    }

    /// [`exist`](Self::exist) of many keys.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    fn batch_exist(&self, keys: &[KeyRef<'_>]) -> Vec<Result<bool, Refusal>> {
        BatchExistKey,
        |out: &mut BytesMut| request::write_keys(out, keys),
        |message: &[u8]| answer::read_all_exist(message, keys.len()),
    }
}
