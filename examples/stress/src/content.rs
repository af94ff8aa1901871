//! The content of a value: bytes that follow from its number, its length and the seed.
//!
//! Word `i` is `mix(start + i * STEP)`, little-endian: numbers of [`SplitMix64`], so that the
//! words within a value are all different. Bytes of another value, of another place or
//! of nothing at all are found out.

use mc_store::MemorySlice;
use mc_types::SplitMix64;

use crate::args::Workload;

/// Bytes generated at a time, few enough to stay in the first cache.
const PIECE: usize = 4 << 10;

/// One value of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    start: u64,
}

impl Content {
    pub(crate) fn of(workload: Workload, number: u64) -> Self {
        let mix = SplitMix64::mix;
        let run = mix(workload.seed.wrapping_add(mix(workload.value_len as u64)));
        // Mixed twice, so that neighbouring numbers are far apart.
        Self { start: mix(mix(run.wrapping_add(number)).wrapping_add(SplitMix64::STEP)) }
    }

    /// Writes the value over `target`.
    pub(crate) fn write_to(self, target: &MemorySlice) {
        let mut piece = [0; PIECE];
        for at in (0..target.len()).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(target.len() - at)];
            self.fill(at, piece);
            target.copy_from(at, piece).expect("the loop stays inside the target");
        }
    }

    /// Returns whether `source` holds the value.
    pub(crate) fn is_in(self, source: &MemorySlice) -> bool {
        let (mut found, mut right) = ([0; PIECE], [0; PIECE]);
        (0..source.len()).step_by(PIECE).all(|at| {
            let len = PIECE.min(source.len() - at);
            source.copy_to(at, &mut found[..len]).expect("the loop stays inside the source");
            self.fill(at, &mut right[..len]);
            found[..len] == right[..len]
        })
    }

    /// Fills `bytes` with those from `at` on, a multiple of eight.
    fn fill(self, at: usize, bytes: &mut [u8]) {
        let mut state = self.start.wrapping_add((at as u64 / 8).wrapping_mul(SplitMix64::STEP));
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = SplitMix64::mix(state).to_le_bytes();
            state = state.wrapping_add(SplitMix64::STEP);
        }
        rest.copy_from_slice(&SplitMix64::mix(state).to_le_bytes()[..rest.len()]);
    }
}

/// The key of a value. It carries all that the content follows from, so that runs of
/// different workloads can share a cluster.
pub(crate) fn key(workload: Workload, number: u64) -> String {
    format!("stress/{}/{}/{number}", workload.seed, workload.value_len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_store::Memory;
    use std::time::Duration;

    fn workload(value_len: usize, seed: u64) -> Workload {
        let wait = Duration::ZERO;
        Workload { value_len, requests: 1, threads: 1, seed, wait, keep: false }
    }

    fn value(workload: Workload, number: u64) -> MemorySlice {
        let memory = Memory::allocate(workload.value_len).unwrap();
        Content::of(workload, number).write_to(&memory.whole());
        memory.whole()
    }

    #[test]
    fn content_never_changes() {
        // The two sides may be of two versions.
        let plain = workload(11, 0);
        assert_eq!(key(plain, 7), "stress/0/11/7");
        assert_eq!(value(plain, 7).to_vec(), [251, 62, 76, 188, 153, 22, 14, 158, 65, 20, 203]);
    }

    #[test]
    fn any_difference_is_found() {
        let plain = workload(5000, 3);
        let right = value(plain, 9);
        assert!(Content::of(plain, 9).is_in(&right));
        assert!(!Content::of(plain, 10).is_in(&right));
        assert!(!Content::of(workload(5000, 4), 9).is_in(&right));
        assert!(!Content::of(workload(5001, 3), 9).is_in(&right));
        for place in [0, 7, 4095, 4096, 4999] {
            let mut byte = [0];
            right.copy_to(place, &mut byte).unwrap();
            right.copy_from(place, &[byte[0] ^ 1]).unwrap();
            assert!(!Content::of(plain, 9).is_in(&right), "{place}");
            right.copy_from(place, &byte).unwrap();
        }
    }
}
