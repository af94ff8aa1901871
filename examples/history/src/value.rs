//! Values whose parts tell what they are.

use mc_history::ValueId;

/// Every so many bytes of a value tell its key, its id and their own place.
const BLOCK: usize = 32;

/// The shortest value, longer than any range begins.
pub(crate) const SHORTEST: usize = 2048;

/// The shortest range: it has at least one whole block.
pub(crate) const SHORTEST_RANGE: usize = 2 * BLOCK;

/// The bytes of a value, all of which differ from those of any other.
pub(crate) fn value(key: u32, id: ValueId, len: usize) -> Vec<u8> {
    let blocks = 0..len.div_ceil(BLOCK);
    let mut bytes: Vec<u8> =
        blocks.flat_map(|nth| block(key, id, len as u32, nth as u32)).collect();
    bytes.truncate(len);
    bytes
}

fn block(key: u32, id: ValueId, len: u32, nth: u32) -> [u8; BLOCK] {
    let words = [key, id.writer, id.version, len, nth];
    // Words that follow from the others (FNV-1a), so that a torn block is found.
    let mut mixed =
        words.iter().fold(0x811c_9dc5_u32, |hash, word| (hash ^ word).wrapping_mul(0x0100_0193));
    let mut bytes = [0; BLOCK];
    for (at, place) in bytes.chunks_exact_mut(4).enumerate() {
        let word = words.get(at).copied().unwrap_or_else(|| {
            mixed = (mixed ^ at as u32).wrapping_mul(0x0100_0193).rotate_left(13);
            mixed
        });
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The value that these bytes are a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) id: ValueId,
    /// The length of the whole value.
    pub(crate) len: usize,
}

/// Returns the value of the key that these bytes are of, which begin at `offset` in it; `None` when
/// a byte is wrong.
pub(crate) fn identify(key: u32, bytes: &[u8], offset: usize) -> Option<Part> {
    let first = offset.div_ceil(BLOCK);
    let whole = bytes.get(first * BLOCK - offset..)?.first_chunk::<BLOCK>()?;
    let word = |at: usize| {
        let bytes = whole[4 * at..].first_chunk::<4>().expect("a block has eight words");
        u32::from_le_bytes(*bytes)
    };
    let id = ValueId { writer: word(1), version: word(2) };
    let len = word(3);
    let end = offset + bytes.len();
    if word(0) != key || end > len as usize {
        return None;
    }
    let is_right = |(at, byte): (usize, &u8)| {
        let at = offset + at;
        // Whole blocks are compared below; this is for the ends.
        block(key, id, len, (at / BLOCK) as u32)[at % BLOCK] == *byte
    };
    let head = (first * BLOCK - offset).min(bytes.len());
    let blocks = bytes[head..].chunks_exact(BLOCK);
    let tail = bytes.len() - blocks.remainder().len();
    let blocks_are_right =
        blocks.enumerate().all(|(nth, found)| *found == block(key, id, len, (first + nth) as u32));
    let ends = bytes[..head].iter().enumerate().chain(bytes.iter().enumerate().skip(tail));
    (blocks_are_right && ends.into_iter().all(is_right)).then_some(Part { id, len: len as usize })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_by_each_part_of_it() {
        let id = ValueId { writer: 2, version: 3 };
        let whole = value(7, id, 3001);
        let part = Some(Part { id, len: 3001 });
        assert_eq!(identify(7, &whole, 0), part);
        for begin in 0..100 {
            for len in [SHORTEST_RANGE, 101, 1000] {
                assert_eq!(identify(7, &whole[begin..begin + len], begin), part);
            }
        }
        assert_eq!(identify(7, &whole[2950..], 2950), None, "less than a block");
    }

    #[test]
    fn every_wrong_byte_is_found() {
        let id = ValueId { writer: 2, version: 3 };
        let whole = value(7, id, 2100);
        assert_eq!(identify(8, &whole, 0), None);
        assert_eq!(identify(7, &whole, 32), None);
        assert_eq!(identify(7, &[], 0), None);
        assert_eq!(identify(7, &[whole.clone(), vec![0]].concat(), 0), None);
        for at in 0..whole.len() {
            let mut torn = whole.clone();
            torn[at] ^= 1;
            assert_eq!(identify(7, &torn, 0), None, "byte {at}");
            assert_eq!(identify(7, &torn[..at.max(40)], 0).is_none(), at < 40, "byte {at}");
        }
        // Two values, torn at each place.
        let other = value(7, ValueId { writer: 2, version: 4 }, 2100);
        for at in (1..2100).step_by(13) {
            let torn = [&whole[..at], &other[at..]].concat();
            // Their first bytes are the same.
            let is_torn = torn != whole && torn != other;
            assert_eq!(identify(7, &torn, 0).is_none(), is_torn, "torn at {at}");
        }
    }
}
