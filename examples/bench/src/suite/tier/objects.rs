//! Objects whose ids and bytes follow from their numbers.

use bytes::Bytes;
use mc_tier::{ObjectBytes, ObjectId, SliceBytes};
use mc_types::{Generation, ObjectKey};

use crate::error::BenchError;
use crate::pattern::Pattern;

/// A key of 40 bytes.
pub(super) fn id(number: u64) -> Result<ObjectId, BenchError> {
    let invalid = |error| BenchError::wrong("naming an object", error);
    let key = ObjectKey::new(format!("bench-{number:034}")).map_err(|e| invalid(e.to_string()))?;
    ObjectId::new("bench", key, Generation::new(1)).map_err(|e| invalid(e.to_string()))
}

pub(super) fn object(number: u64, len: usize) -> Result<ObjectBytes, BenchError> {
    let slice = SliceBytes::new(Bytes::from(Pattern::new(number).bytes(len)));
    ObjectBytes::new(vec![slice]).map_err(|e| BenchError::wrong("making an object", e.to_string()))
}

/// Checks all bytes of an object.
pub(super) fn check(number: u64, len: usize, found: &ObjectBytes) -> Result<(), BenchError> {
    let bytes = found.slices()[0].bytes();
    if found.slices().len() != 1 || bytes.len() != len {
        return Err(BenchError::wrong("get", format!("{} of {len} bytes", bytes.len())));
    }
    Pattern::new(number).check("get", 0, bytes)
}
