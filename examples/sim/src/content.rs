//! Values that tell at each byte which put they are of.

use bytes::Bytes;
use mc_history::ValueId;

/// Bytes at the beginning of each 64-byte block that name the value and the block.
const BLOCK: usize = 64;

const fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const fn number(id: ValueId) -> u64 {
    (id.writer as u64) << 32 | id.version as u64
}

/// The bytes of this value of a key.
pub(crate) fn value(id: ValueId, key: u32, len: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(len.next_multiple_of(BLOCK));
    let mut place = 0;
    while bytes.len() < len {
        bytes.extend_from_slice(&block(id, key, place));
        place += 1;
    }
    bytes.truncate(len);
    bytes.into()
}

/// Eight bytes that name the value, and others that follow from it, the key and the place.
fn block(id: ValueId, key: u32, place: u64) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    bytes[..8].copy_from_slice(&number(id).to_le_bytes());
    let mut seed = mix(number(id) ^ u64::from(key).rotate_left(40) ^ place.rotate_left(20));
    for word in bytes[8..].chunks_exact_mut(8) {
        word.copy_from_slice(&seed.to_le_bytes());
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15).rotate_left(7);
    }
    bytes
}

/// Why bytes are not those of a value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoValue {
    /// There is no whole name of a value in them.
    #[error("they are too short to tell")]
    Short,
    /// The bytes begin as one value's and continue otherwise.
    #[error("byte {at}, or one soon after it, is not of {id}, which the first bytes are of")]
    Torn { id: ValueId, at: usize },
}

/// Returns which value of the key these bytes are of, from `start` of it on.
pub(crate) fn value_of(key: u32, start: usize, bytes: &[u8]) -> Result<ValueId, NoValue> {
    let first = start.next_multiple_of(BLOCK) - start;
    let name = bytes.get(first..first + 8).ok_or(NoValue::Short)?;
    let number = u64::from_le_bytes(name.try_into().expect("8 bytes"));
    let id = ValueId { writer: (number >> 32) as u32, version: number as u32 };
    let mut at = 0;
    while at < bytes.len() {
        let place = start + at;
        let offset = place % BLOCK;
        let expected = block(id, key, (place / BLOCK) as u64);
        let len = (BLOCK - offset).min(bytes.len() - at);
        if bytes[at..at + len] != expected[offset..offset + len] {
            return Err(NoValue::Torn { id, at: place });
        }
        at += len;
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_tell_their_value_from_any_place_on() {
        let id = ValueId { writer: 3, version: 99 };
        let bytes = value(id, 7, 1000);
        for start in [0, 1, 63, 64, 65, 500] {
            assert_eq!(value_of(7, start, &bytes[start..]), Ok(id), "{start}");
            assert!(value_of(8, start, &bytes[start..]).is_err());
            assert!(value_of(7, start + 64, &bytes[start..]).is_err());
        }
        let mut torn = bytes.to_vec();
        torn[700..].copy_from_slice(&value(ValueId { writer: 3, version: 100 }, 7, 1000)[700..]);
        assert!(matches!(value_of(7, 0, &torn), Err(NoValue::Torn { .. })));
        assert_eq!(value_of(7, 1, &torn[1..60]), Err(NoValue::Short));
    }
}
