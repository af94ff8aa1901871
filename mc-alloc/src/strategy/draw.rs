//! Numbers in random order, each once.

use alloc::collections::BTreeMap;
use core::mem;

use mc_types::SplitMix64;

/// Draws the numbers below `len` without replacement, each order equally likely.
///
/// This is the Fisher-Yates shuffle of the array `0, 1, 2, …` stopped after as many
/// steps as are asked for. The array is not stored: only the entries that a step has
/// moved are, and that of the latest step not before the next one, so that a single
/// draw allocates nothing.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    len: usize,
    /// Entries of the array that have been drawn: those below this.
    drawn: usize,
    /// The entry that the latest step moved, and its new place.
    latest: Option<(usize, usize)>,
    moved: BTreeMap<usize, usize>,
    numbers: SplitMix64,
}

impl Draw {
    pub(super) const fn new(len: usize, seed: u64) -> Self {
        let numbers = SplitMix64::new(seed);
        Self { len, drawn: 0, latest: None, moved: BTreeMap::new(), numbers }
    }

    /// Entry `index` of the array, which no later step asks for.
    fn take(&mut self, index: usize) -> usize {
        self.moved.remove(&index).unwrap_or(index)
    }
}

impl Iterator for Draw {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.drawn == self.len {
            return None;
        }
        if let Some((index, value)) = mem::take(&mut self.latest) {
            self.moved.insert(index, value);
        }
        let first = self.drawn;
        self.drawn += 1;
        let chosen = first + self.numbers.below(self.len - first);
        let value = self.take(chosen);
        if chosen != first {
            self.latest = Some((chosen, self.take(first)));
        }
        Some(value)
    }
}
