//! Calls that remove objects.

use bytes::BytesMut;
use mc_types::{ClientId, KeyRef, ObjectKey};

use super::calls;
use crate::answer;
use crate::error::Refusal;
use crate::request::{self, ClearRequest};

calls! {
    /// Removes an object; with `force` even while somebody may be reading it.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::RemoveError`]; or any other
    /// [`RpcError`].
    fn remove(&self, key: KeyRef<'_>, force: bool) -> () {
        Remove,
        |out: &mut BytesMut| request::write_remove(out, key, force),
        answer::read_done,
    }

    /// Removes every object that nobody may be reading, with `force` the others
    /// too, and says how many that were.
    ///
    /// # Errors
    /// Any [`RpcError`].
    fn remove_all(&self, force: bool) -> u64 {
        RemoveAll,
        |out: &mut BytesMut| request::write_remove_all(out, force),
        answer::read_count,
    }

    /// Takes back the replicas of those of `keys` that `client` has put: all of them, and
    /// so the object, or with a segment's name only the one there. Says which keys were
    /// cleared, in their order. Passed over are objects that are not there or not this
    /// client's, that are under lease or being written, copied or moved, and that have no
    /// replica in the segment.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys; or any
    /// other [`RpcError`].
    fn batch_replica_clear(&self, client: ClientId, keys: &[KeyRef<'_>], segment_name: Option<&str>) -> Vec<ObjectKey> {
        BatchReplicaClear,
        |out: &mut BytesMut| ClearRequest::write(out, client, keys, segment_name),
        |message: &[u8]| answer::read_cleared_keys(message, keys.len()),
    }

    /// [`remove`](Self::remove) of many keys.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    fn batch_remove(&self, keys: &[KeyRef<'_>], force: bool) -> Vec<Result<(), Refusal>> {
        BatchRemove,
        |out: &mut BytesMut| request::write_batch_remove(out, keys, force),
        |message: &[u8]| answer::read_all_done(message, keys.len()),
    }
}
