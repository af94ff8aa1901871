//! Calls that remove objects.

use bytes::BytesMut;
use mc_types::KeyRef;

use super::calls;
use crate::answer;
use crate::error::Refusal;
use crate::request;

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
