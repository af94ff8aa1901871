//! SplitMix64: the source of every pseudo-random bit in this crate.
//!
//! Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators",
//! OOPSLA 2014, with the finalizer constants of Stafford's variant 13.

/// The golden ratio in 64 bits: the generator's step.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of 64 bits in which every input bit reaches every output bit.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A sequence of pseudo-random numbers fixed by its start value.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub(crate) const fn new(start: u64) -> Self {
        Self { state: start }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// A number below `bound`; 0 when `bound` is 0. No number is likelier than
    /// another by more than `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The high half of the product is below `bound`, so it fits a usize.
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut numbers = SplitMix64::new(1_234_567);
        assert_eq!(numbers.next(), 6_457_827_717_110_365_317);
        assert_eq!(numbers.next(), 3_203_168_211_198_807_973);
        assert_eq!(numbers.next(), 9_817_491_932_198_370_423);
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
