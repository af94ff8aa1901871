//! Random numbers and bytes that can be had again.

use std::time::UNIX_EPOCH;

/// A generator of random numbers (splitmix64, public domain, by Sebastiano Vigna).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator with the [seed](seed) that `variable` names.
    ///
    /// # Panics
    /// When the variable is not a number.
    #[must_use]
    pub fn seeded(variable: &str) -> Self {
        Self(seed(variable))
    }

    /// Returns the next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub const fn below(&mut self, limit: usize) -> usize {
        (self.next_u64() % limit as u64) as usize
    }
}

/// Returns the seed of a test: the environment's `variable`; without it `MC_TEST_SEED`, the seed of
/// all tests; without that a new one. Prints it, so that a run that failed can be repeated.
///
/// # Panics
/// When the variable is not a number.
#[must_use]
pub fn seed(variable: &str) -> u64 {
    let clock = || UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let given = std::env::var(variable).or_else(|_| std::env::var("MC_TEST_SEED")).ok();
    let seed = given.map_or_else(clock, |seed| seed.parse().expect("a seed is a number"));
    println!("{variable}={seed}");
    seed
}

/// `len` bytes that no other key has at the same place by chance, the same in every run.
#[must_use]
pub fn content(key: &str, len: usize) -> Vec<u8> {
    let seed = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut random = Random::new(seed);
    let words = (0..len.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
    words.take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_differs_from_key_to_key_and_not_from_time_to_time() {
        let (one, two) = (content("one", 1001), content("two", 1001));
        assert_eq!((one.len(), &one), (1001, &content("one", 1001)));
        assert!(one.iter().zip(&two).filter(|(one, two)| one == two).count() < 50);
        assert_eq!(one[..100], content("one", 100));
    }
}
