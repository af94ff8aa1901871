//! The oldest of many, without keeping all.

use std::collections::BinaryHeap;

/// The first of many in their order that have the wanted bytes together.
#[derive(Debug)]
pub(crate) struct Oldest<T> {
    /// The youngest is the first.
    found: BinaryHeap<(T, u64)>,
    bytes: u64,
    wanted: u64,
}

impl<T: Ord> Oldest<T> {
    pub(crate) const fn new(wanted: u64) -> Self {
        Self { found: BinaryHeap::new(), bytes: 0, wanted }
    }

    pub(crate) fn add(&mut self, one: T, bytes: u64) {
        self.bytes += bytes;
        self.found.push((one, bytes));
        while let Some((_, youngest)) = self.found.peek()
            && self.bytes - youngest >= self.wanted
        {
            self.bytes -= youngest;
            self.found.pop();
        }
    }

    /// Returns the entries that were found with their bytes, the oldest first.
    pub(crate) fn into_vec(self) -> Vec<(T, u64)> {
        self.found.into_sorted_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_no_more_than_are_wanted() {
        for (wanted, expected) in [(0, vec![]), (1, vec![1]), (10, vec![1]), (11, vec![1, 2])] {
            let mut oldest = Oldest::new(wanted);
            [3, 1, 4, 2, 5].into_iter().for_each(|age| oldest.add(age, 10));
            let found: Vec<_> = oldest.into_vec().into_iter().map(|(age, _)| age).collect();
            assert_eq!(found, expected, "{wanted}");
        }
        let mut oldest = Oldest::new(100);
        oldest.add("all", 10);
        assert_eq!(oldest.into_vec(), [("all", 10)]);
    }
}
