//! Segments that no node serves: a master keeps the books of any range.

use mc_meta::SegmentSpec;
use mc_types::{Endpoint, RemoteKey, SegmentId};

use crate::error::BenchError;

/// The segment of this number, of `size` bytes.
pub(super) fn spec(number: u32, size: u64) -> Result<SegmentSpec, BenchError> {
    let address = format!("192.0.2.{}:{}", number % 256, 1024 + number / 256);
    let endpoint = Endpoint::new("tcp", &address)
        .map_err(|error| BenchError::wrong("naming an endpoint", error.to_string()))?;
    Ok(SegmentSpec {
        id: SegmentId::from_u128(u128::from(number) + 1),
        name: format!("bench-{number}").into(),
        base: 0,
        size,
        endpoint,
        remote_key: RemoteKey::from_bytes([number as u8; 16]),
        ticket_key: None,
        medium: mc_types::MediaType::Dram,
    })
}
