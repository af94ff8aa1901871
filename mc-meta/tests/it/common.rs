//! Segments of plain memory, for all of these tests.

use mc_meta::SegmentSpec;
use mc_types::{MediaType, RemoteKey, SegmentId};

/// A segment of plain memory, on a node of its own.
pub(crate) fn segment(number: u128, size: u64) -> SegmentSpec {
    SegmentSpec {
        id: SegmentId::from_u128(number),
        name: format!("segment-{number}").into(),
        base: 0,
        size,
        endpoint: format!("mem://node-{number}").parse().unwrap(),
        remote_key: RemoteKey::from_bytes([number as u8; 16]),
        ticket_key: None,
        medium: MediaType::Dram,
    }
}
