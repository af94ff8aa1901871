//! etcd's messages, generated from `proto/etcd.proto`, and short forms to write them.

#![allow(missing_docs, unreachable_pub, reason = "generated, and private to this crate")]
#![allow(clippy::all, clippy::large_futures, reason = "generated")]

use bytes::Bytes;

include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));

impl Compare {
    /// The key was written last by this revision; zero: there is no such key.
    pub(crate) fn written_at(key: &str, revision: i64) -> Self {
        Self {
            result: compare::CompareResult::Equal.into(),
            target: compare::CompareTarget::Mod.into(),
            key: Bytes::copy_from_slice(key.as_bytes()),
            target_union: Some(compare::TargetUnion::ModRevision(revision)),
        }
    }

    /// The key has this value.
    pub(crate) fn has_value(key: &str, value: Bytes) -> Self {
        Self {
            result: compare::CompareResult::Equal.into(),
            target: compare::CompareTarget::Value.into(),
            key: Bytes::copy_from_slice(key.as_bytes()),
            target_union: Some(compare::TargetUnion::Value(value)),
        }
    }
}

impl RangeRequest {
    /// One key.
    pub(crate) fn key(key: &str) -> Self {
        Self { key: Bytes::copy_from_slice(key.as_bytes()), ..Self::default() }
    }
}

impl RangeRequest {
    /// The number of keys with this beginning, which does not end with the highest byte; of all keys
    /// when it is empty.
    pub(crate) fn count(prefix: &str) -> Self {
        let mut range_end = prefix.as_bytes().to_vec();
        match range_end.last_mut() {
            Some(last) => *last += 1,
            None => range_end.push(0),
        }
        // No key is empty; this is the first that there can be.
        let key = if prefix.is_empty() { "\0" } else { prefix };
        Self {
            key: Bytes::copy_from_slice(key.as_bytes()),
            range_end: range_end.into(),
            count_only: true,
            serializable: true,
            ..Self::default()
        }
    }
}

impl RequestOp {
    pub(crate) fn get(key: &str) -> Self {
        Self { request: Some(request_op::Request::RequestRange(RangeRequest::key(key))) }
    }

    pub(crate) fn delete(key: &str) -> Self {
        let delete = DeleteRangeRequest { key: Bytes::copy_from_slice(key.as_bytes()) };
        Self { request: Some(request_op::Request::RequestDeleteRange(delete)) }
    }

    pub(crate) fn put(key: &str, value: Bytes) -> Self {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let put = PutRequest { key, value, lease: 0 };
        Self { request: Some(request_op::Request::RequestPut(put)) }
    }
}

impl ResponseOp {
    /// The first pair that a range in a transaction found.
    pub(crate) fn into_pair(self) -> Option<KeyValue> {
        match self.response {
            Some(response_op::Response::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        }
    }
}
