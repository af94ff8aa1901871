//! How often keys were asked for lately, roughly and in little room.

use alloc::boxed::Box;

const ROWS: usize = 4;

/// A count-min sketch (Cormode and Muthukrishnan, J. Algorithms 55, 2005) of four rows of
/// `WIDTH` one-byte counters, whatever the number of keys.
///
/// It never says less than was counted since the counters were halved last, and more only for a
/// key that meets others in every row. Only the smallest of a key's counters grow, which makes
/// that rarer (Estan and Varghese, SIGCOMM 2002); halving lets keys grow cold.
///
/// Keys are given by hashes, whose every bit must depend on the whole key: each row takes other
/// bits of them. `WIDTH` is a power of two, and 65,536 at most.
///
/// ```
/// let mut asked = mc_evict::FrequencySketch::<4096>::new();
/// let hash = 0x9e37_79b9_7f4a_7c15;
/// assert_eq!(asked.touch(hash), 1);
/// assert_eq!(asked.touch(hash), 2);
/// assert_eq!(asked.count(hash), 2);
/// ```
#[derive(Clone, Debug)]
pub struct FrequencySketch<const WIDTH: usize> {
    rows: Box<[[u8; WIDTH]; ROWS]>,
    /// Touches since the counters were halved.
    touches: usize,
    halved_after: usize,
}

impl<const WIDTH: usize> FrequencySketch<WIDTH> {
    /// Bits of a hash that choose a counter of a row.
    const BITS: u32 = {
        assert!(WIDTH.is_power_of_two() && WIDTH <= 1 << 16, "see the type's documentation");
        WIDTH.trailing_zeros()
    };

    /// A sketch of nothing, whose counters are halved after as many touches as it has counters.
    #[must_use]
    pub fn new() -> Self {
        Self::halved_after(ROWS * WIDTH)
    }

    /// A sketch of nothing, whose counters are halved after so many touches.
    #[must_use]
    pub fn halved_after(touches: usize) -> Self {
        Self { rows: Box::new([[0; WIDTH]; ROWS]), touches: 0, halved_after: touches }
    }

    /// Counts a key, and returns how often it was counted lately, this time included, up to 255.
    pub fn touch(&mut self, hash: u64) -> u8 {
        if self.touches == self.halved_after {
            self.halve();
        }
        self.touches += 1;
        let places = Self::places(hash);
        let count = self.least(places).saturating_add(1);
        for (row, place) in self.rows.iter_mut().zip(places) {
            row[place] = row[place].max(count);
        }
        count
    }

    /// Returns how often a key was counted lately, up to 255.
    #[must_use]
    pub fn count(&self, hash: u64) -> u8 {
        self.least(Self::places(hash))
    }

    fn least(&self, places: [usize; ROWS]) -> u8 {
        let counts = self.rows.iter().zip(places).map(|(row, place)| row[place]);
        counts.min().expect("there are rows")
    }

    /// The key's counter in each row.
    fn places(hash: u64) -> [usize; ROWS] {
        core::array::from_fn(|row| (hash >> (row as u32 * Self::BITS)) as usize % WIDTH)
    }

    fn halve(&mut self) {
        self.touches = 0;
        for counter in self.rows.as_flattened_mut() {
            *counter /= 2;
        }
    }
}

impl<const WIDTH: usize> Default for FrequencySketch<WIDTH> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type FrequencySketch = super::FrequencySketch<4096>;

    const AGE: u32 = 4 * 4096;

    /// The finaliser of MurmurHash3, public domain, by Austin Appleby.
    fn hash(key: u64) -> u64 {
        let key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        key ^ (key >> 33)
    }

    #[test]
    fn a_key_alone_is_counted_exactly() {
        let mut sketch = FrequencySketch::new();
        for expected in (1..=255).chain([255, 255]) {
            assert_eq!(sketch.touch(hash(7)), expected);
        }
    }

    #[test]
    fn keys_rarely_meet() {
        let mut sketch = FrequencySketch::new();
        let wrong = (0..2000).filter(|key| sketch.touch(hash(*key)) != 1).count();
        assert!(wrong < 40, "{wrong} of 2000 keys took each other's counts");
    }

    #[test]
    fn a_crowd_of_cold_keys_makes_few_of_them_warm() {
        let mut sketch = FrequencySketch::new();
        let wrong = (0..8000).filter(|key| sketch.touch(hash(*key)) > 2).count();
        assert!(wrong < 40, "{wrong} of 8000 keys read once were counted three times");
    }

    #[test]
    fn keys_grow_cold() {
        let mut sketch = FrequencySketch::new();
        for _ in 0..10 {
            sketch.touch(hash(7));
        }
        // The touch that halves comes first, so this one is the eleventh, halved after ten.
        for _ in 10..AGE {
            sketch.touch(hash(8));
        }
        assert_eq!(sketch.touch(hash(7)), 6);
    }

    proptest! {
        #[test]
        fn it_never_says_less_than_there_was(
            seed in any::<u64>(),
            keys in prop::collection::vec(0..64u64, 1..2000),
        ) {
            let mut sketch = FrequencySketch::new();
            let mut counts = BTreeMap::<u64, u8>::new();
            for key in keys {
                let count = counts.entry(key).or_default();
                *count = count.saturating_add(1);
                prop_assert!(sketch.touch(hash(seed ^ key)) >= *count);
                prop_assert!(sketch.count(hash(seed ^ key)) >= *count);
            }
        }
    }
}
