//! The one generator of pseudo-random numbers.

/// SplitMix64: a sequence of pseudo-random numbers that its seed determines.
///
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with
/// the finalizer constants of Stafford's variant 13. Not for secrets.
///
/// ```
/// let mut numbers = mc_types::SplitMix64::new(1_234_567);
/// assert_eq!(numbers.next_u64(), 6_457_827_717_110_365_317);
/// assert!(numbers.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The generator's step: 2^64 divided by the golden ratio, made odd.
    pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Creates the generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A bijection of 64 bits in which every input bit reaches every output bit; it maps 0 to 0.
    #[must_use]
    pub const fn mix(value: u64) -> u64 {
        let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Returns the next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(Self::STEP);
        Self::mix(self.state)
    }

    /// Returns a number below `bound`; 0 when `bound` is 0. No number is likelier than another by
    /// more than `bound / 2^64`.
    pub const fn below(&mut self, bound: usize) -> usize {
        // The high half of the product is below `bound`, so it fits a usize.
        ((self.next_u64() as u128 * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut numbers = SplitMix64::new(1_234_567);
        assert_eq!(numbers.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(numbers.next_u64(), 3_203_168_211_198_807_973);
        assert_eq!(numbers.next_u64(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn numbers_stay_below_their_bound() {
        let mut numbers = SplitMix64::new(7);
        assert_eq!(numbers.below(0), 0);
        assert_eq!(numbers.below(1), 0);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[numbers.below(5)] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
