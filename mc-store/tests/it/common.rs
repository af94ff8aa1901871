//! Values, and segments of nodes that are only played.

use bytes::Bytes;
use mc_meta::SegmentSpec;
use mc_store::Client;
use mc_types::{MediaType, RemoteKey, SegmentId};

/// Bytes that follow from the key.
pub(crate) fn content(key: &str, len: usize) -> Bytes {
    mc_testkit::content(key, len).into()
}

/// A segment of a node that is only played: nothing has to be there at `endpoint`.
pub(crate) fn segment(number: u128, size: u64, endpoint: &str) -> SegmentSpec {
    SegmentSpec {
        id: SegmentId::from_u128(number),
        name: format!("segment-{number}").into(),
        base: 0,
        size,
        endpoint: endpoint.parse().expect("a literal"),
        remote_key: RemoteKey::from_bytes([number as u8; 16]),
        ticket_key: None,
        medium: MediaType::Dram,
    }
}

/// The names of the segments that have a replica of an object, in their order.
pub(crate) async fn holders(app: &Client, key: &str) -> Vec<String> {
    let replicas = app.replicas(key).await.expect("the object is there");
    let mut names: Vec<_> = replicas.iter().map(|it| it.segment_name.to_string()).collect();
    names.sort();
    names
}
