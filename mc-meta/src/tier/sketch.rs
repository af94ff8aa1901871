//! How often keys were asked for lately, roughly and in little room.

use crate::shard::hash::mix;

const ROWS: usize = 4;
const WIDTH: usize = 4096;

/// Touches after which every counter is halved.
const AGE: u32 = (ROWS * WIDTH) as u32;

/// A count-min sketch (Cormode and Muthukrishnan, J. Algorithms 55, 2005) of four rows of
/// 4096 one-byte counters: 16 KiB, whatever the number of keys. It never says less than
/// was counted since the counters were halved last, and more only for a key that meets
/// others in every row. Only the smallest of a key's counters grow, which makes that
/// rarer (Estan and Varghese, SIGCOMM 2002); halving lets keys grow cold.
#[derive(Clone, Debug)]
pub(crate) struct FrequencySketch {
    rows: Box<[[u8; WIDTH]; ROWS]>,
    /// Touches since the counters were halved.
    touches: u32,
    seed: u64,
}

impl FrequencySketch {
    /// A sketch of nothing. `seed` decides which keys share counters.
    pub(crate) fn new(seed: u64) -> Self {
        Self { rows: Box::new([[0; WIDTH]; ROWS]), touches: 0, seed: mix(seed) }
    }

    /// Counts a key, given by its hash; says how often it was counted lately, this time
    /// included, up to 255.
    pub(crate) fn touch(&mut self, hash: u64) -> u8 {
        if self.touches == AGE {
            self.halve();
        }
        self.touches += 1;
        let places = self.places(hash);
        let count = self.count(places).saturating_add(1);
        for (row, place) in self.rows.iter_mut().zip(places) {
            row[place] = row[place].max(count);
        }
        count
    }

    fn count(&self, places: [usize; ROWS]) -> u8 {
        let counts = self.rows.iter().zip(places).map(|(row, place)| row[place]);
        counts.min().expect("there are rows")
    }

    /// The key's counter in each row: twelve bits of the hash for each.
    fn places(&self, hash: u64) -> [usize; ROWS] {
        let bits = mix(hash ^ self.seed);
        core::array::from_fn(|row| (bits >> (row * 12)) as usize % WIDTH)
    }

    fn halve(&mut self) {
        self.touches = 0;
        for counter in self.rows.as_flattened_mut() {
            *counter /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_key_alone_is_counted_exactly() {
        let mut sketch = FrequencySketch::new(1);
        for expected in (1..=255).chain([255, 255]) {
            assert_eq!(sketch.touch(7), expected);
        }
    }

    #[test]
    fn keys_rarely_meet() {
        let mut sketch = FrequencySketch::new(2);
        let wrong = (0..2000).filter(|hash| sketch.touch(*hash) != 1).count();
        assert!(wrong < 40, "{wrong} of 2000 keys took each other's counts");
    }

    #[test]
    fn a_crowd_of_cold_keys_makes_few_of_them_warm() {
        let mut sketch = FrequencySketch::new(2);
        let wrong = (0..8000).filter(|hash| sketch.touch(*hash) > 2).count();
        assert!(wrong < 40, "{wrong} of 8000 keys read once were counted three times");
    }

    #[test]
    fn keys_grow_cold() {
        let mut sketch = FrequencySketch::new(3);
        for _ in 0..10 {
            sketch.touch(7);
        }
        // The touch that halves comes first, so this one is the eleventh, halved after ten.
        for _ in 10..AGE {
            sketch.touch(8);
        }
        assert_eq!(sketch.touch(7), 6);
    }

    proptest! {
        #[test]
        fn it_never_says_less_than_there_was(
            seed in any::<u64>(),
            hashes in prop::collection::vec(0..64u64, 1..2000),
        ) {
            let mut sketch = FrequencySketch::new(seed);
            let mut counts = BTreeMap::<u64, u8>::new();
            for hash in hashes {
                let count = counts.entry(hash).or_default();
                *count = count.saturating_add(1);
                prop_assert!(sketch.touch(hash) >= *count);
            }
        }
    }
}
