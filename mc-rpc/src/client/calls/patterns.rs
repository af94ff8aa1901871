//! Calls about every object whose key matches a pattern.

use bytes::BytesMut;
use mc_meta::ListCursor;

use super::calls;
use crate::answer::{self, ReplicaPage};
use crate::request::{self, MatchRequest};

calls! {
    /// [`get_replica_list`](Self::get_replica_list) of up to `limit` objects whose keys
    /// `pattern` matches, from `cursor` on; those that cannot be read now are passed over.
    /// A page may have fewer although more follow. The limit 0 asks for all of them in one
    /// answer, from `cursor` on.
    ///
    /// What a pattern may be, [`mc_meta::Pattern`] says.
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

    /// Removes every object whose key `pattern` matches and that nobody may be reading,
    /// with `force` the others too, and says how many that were.
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
