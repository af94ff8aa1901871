//! Calls that look at the state.

use bytes::BytesMut;
use mc_meta::{KeyPage, ListCursor};
use mc_types::KeyRef;

use super::calls;
use crate::answer::{self, ClusterReport, ObjectDescription, ObjectExplanation};
use crate::request::{self, ListKeysRequest};

calls! {
    /// Everything known of one object; grants no lease.
    ///
    /// # Errors
    /// Refused with `ObjectNotFound`; or any other [`RpcError`].
    fn describe(&self, key: KeyRef<'_>) -> ObjectDescription {
        DescribeObject,
        |out: &mut BytesMut| request::write_key(out, key),
        answer::read_object,
    }

    /// Why a key is as it is: its object and what keeps it, and what became of earlier
    /// ones; grants no lease.
    ///
    /// # Errors
    /// Any [`RpcError`]. That there is no object is no error.
    fn explain(&self, key: KeyRef<'_>) -> ObjectExplanation {
        ExplainObject,
        |out: &mut BytesMut| request::write_key(out, key),
        answer::read_explanation,
    }

    /// At most `limit` keys that begin with `prefix`, from `cursor` on; 0 lets
    /// the master choose how many.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_PAGE`](crate::MAX_PAGE) keys; or
    /// any other [`RpcError`].
    fn list_keys(&self, prefix: &str, cursor: ListCursor, limit: usize) -> KeyPage {
        ListKeys,
        |out: &mut BytesMut| ListKeysRequest::write(out, prefix, cursor, limit),
        answer::read_key_page,
    }

    /// The master's totals and its segments.
    ///
    /// # Errors
    /// Any [`RpcError`].
    fn cluster_report(&self) -> ClusterReport {
        ClusterReport,
        |_: &mut BytesMut| (),
        answer::read_report,
    }
}
