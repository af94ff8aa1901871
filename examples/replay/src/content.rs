//! The content of a block: bytes that follow from its id and size alone, so that
//! every reader knows what must be there.
//!
//! Word `i` of a block is `mix(seed + i * STEP)`, little-endian, where `seed` is
//! drawn from the block's id and size. `mix` is a bijection with one multiplication
//! (the multiply-and-xor-shift steps of splitmix64, Steele, Lea and Flood, "Fast
//! Splittable Pseudorandom Number Generators", OOPSLA 2014, with one round instead
//! of two), and `STEP` is odd: the words of a block are all different, so bytes
//! from another place of the same block are as wrong as those of another block.

use mc_store::MemorySlice;

use crate::trace::BlockId;

/// 2^64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// An odd multiplier of splitmix64.
const MULTIPLIER: u64 = 0xbf58_476d_1ce4_e5b9;

/// Bytes generated at a time, few enough to stay in the first cache.
const PIECE: usize = 4 << 10;

const WORD: usize = size_of::<u64>();

/// The key of a block. It carries the size, so that runs with different sizes can
/// share a cluster.
pub(crate) fn block_key(id: BlockId, block_len: usize) -> String {
    format!("replay/{block_len}/{}", id.0)
}

/// The bytes of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockContent {
    seed: u64,
}

impl BlockContent {
    pub(crate) fn new(id: BlockId, block_len: usize) -> Self {
        // Mixed twice, so that neighbouring ids are far apart.
        let sized = mix((block_len as u64).wrapping_mul(STEP));
        Self { seed: mix(mix(id.0.wrapping_add(sized)).wrapping_add(STEP)) }
    }

    /// Writes the block over `target`, which is as long as the block.
    pub(crate) fn write_to(self, target: &MemorySlice) {
        let mut piece = [0; PIECE];
        for at in (0..target.len()).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(target.len() - at)];
            self.fill(at, piece);
            target.copy_from(at, piece).expect("the loop stays inside the target");
        }
    }

    /// The whole block, of `len` bytes.
    pub(crate) fn to_vec(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(0, &mut bytes);
        bytes
    }

    /// The number of wrong bytes in `source`, which is as long as the block.
    pub(crate) fn count_wrong(self, source: &MemorySlice) -> u64 {
        let mut piece = [0; PIECE];
        let mut wrong = 0;
        for at in (0..source.len()).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(source.len() - at)];
            source.copy_to(at, piece).expect("the loop stays inside the source");
            wrong += self.count_wrong_in(at, piece);
        }
        wrong
    }

    /// Writes the bytes from `at` on, a multiple of the word size.
    fn fill(self, at: usize, bytes: &mut [u8]) {
        let mut state = self.state_at(at);
        let mut words = bytes.chunks_exact_mut(WORD);
        for word in &mut words {
            word.copy_from_slice(&mix(state).to_le_bytes());
            state = state.wrapping_add(STEP);
        }
        let rest = words.into_remainder();
        rest.copy_from_slice(&mix(state).to_le_bytes()[..rest.len()]);
    }

    fn count_wrong_in(self, at: usize, bytes: &[u8]) -> u64 {
        let mut state = self.state_at(at);
        // Nearly always nothing is wrong, so differences are only collected here
        // and counted in a second pass.
        let mut difference = 0;
        let mut words = bytes.chunks_exact(WORD);
        for word in &mut words {
            let word = u64::from_le_bytes(word.try_into().expect("chunks have the word's size"));
            difference |= word ^ mix(state);
            state = state.wrapping_add(STEP);
        }
        let rest = words.remainder();
        let rest_is_right = *rest == mix(state).to_le_bytes()[..rest.len()];
        if difference == 0 && rest_is_right {
            return 0;
        }
        let mut right = vec![0; bytes.len()];
        self.fill(at, &mut right);
        bytes.iter().zip(&right).filter(|(byte, right)| byte != right).count() as u64
    }

    fn state_at(self, at: usize) -> u64 {
        self.seed.wrapping_add(((at / WORD) as u64).wrapping_mul(STEP))
    }
}

/// A bijection of 64-bit words.
fn mix(mut word: u64) -> u64 {
    word ^= word >> 32;
    word = word.wrapping_mul(MULTIPLIER);
    word ^ (word >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_store::Memory;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn block(id: u64, len: usize) -> MemorySlice {
        let memory = Memory::allocate(len).unwrap();
        BlockContent::new(BlockId(id), len).write_to(&memory.whole());
        memory.whole()
    }

    #[test]
    fn content_never_changes() {
        // Two runs, perhaps of two versions, may share a cluster.
        assert_eq!(block(7, 11).to_vec(), [229, 111, 113, 127, 72, 124, 23, 99, 16, 161, 0]);
        assert_eq!(block_key(BlockId(7), 65_536), "replay/65536/7");
    }

    #[test]
    fn words_of_a_block_are_all_different() {
        let bytes = block(3, 1 << 20).to_vec();
        let words: HashSet<&[u8]> = bytes.chunks(WORD).collect();
        assert_eq!(words.len(), (1 << 20) / WORD);
    }

    #[test]
    fn bits_are_balanced() {
        let ones: u32 = block(11, 1 << 20).to_vec().iter().map(|byte| byte.count_ones()).sum();
        let half = 4 << 20;
        assert!(ones.abs_diff(half) < half / 100, "{ones}");
    }

    #[test]
    fn blocks_share_nothing_with_other_ids_and_sizes() {
        let mut words = HashSet::new();
        let mut total = 0;
        for (id, len) in (0..200).flat_map(|id| [(id, 4096), (id, 4104)]) {
            let bytes = block(id, len).to_vec();
            total += bytes.len() / WORD;
            words.extend(bytes.chunks(WORD).map(<[u8]>::to_vec));
        }
        assert_eq!(words.len(), total);
    }

    proptest! {
        #[test]
        fn what_is_written_is_right(id: u64, len in 1usize..20_000) {
            let content = BlockContent::new(BlockId(id), len);
            prop_assert_eq!(content.count_wrong(&block(id, len)), 0);
            prop_assert_eq!(content.to_vec(len), block(id, len).to_vec());
        }

        #[test]
        fn every_wrong_byte_is_counted(
            id: u64, len in 1usize..20_000, at in prop::collection::vec(any::<prop::sample::Index>(), 1..9)
        ) {
            let block = block(id, len);
            let mut bytes = block.to_vec();
            let places: HashSet<usize> = at.iter().map(|index| index.index(len)).collect();
            for &place in &places {
                bytes[place] ^= 1 << (place % 8);
            }
            block.copy_from(0, &bytes).unwrap();
            let wrong = BlockContent::new(BlockId(id), len).count_wrong(&block);
            prop_assert_eq!(wrong, places.len() as u64);
        }

        #[test]
        fn shifted_blocks_are_wrong(id: u64, shift in 1usize..64) {
            let bytes = block(id, 8192).to_vec();
            let memory = Memory::allocate(8192 - shift).unwrap();
            memory.whole().copy_from(0, &bytes[shift..]).unwrap();
            let content = BlockContent::new(BlockId(id), 8192);
            prop_assert!(content.count_wrong(&memory.whole()) > 8000);
        }
    }
}
