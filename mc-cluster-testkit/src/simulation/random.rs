//! Random numbers that follow from one seed.

use std::sync::{Arc, Mutex, PoisonError};

/// A sequence of random numbers. Clones draw from the same sequence; [`fork`](Self::fork) begins
/// another one.
#[derive(Clone, Debug)]
pub struct Random(Arc<Mutex<mc_testkit::Random>>);

impl Random {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(mc_testkit::Random::new(seed))))
    }

    /// A sequence of its own for `purpose`: what is drawn for one purpose does not change what is
    /// drawn for another.
    #[must_use]
    pub fn of(seed: u64, purpose: &str) -> Self {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self::new(purpose.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, hash))
    }

    /// Returns the next number.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    /// A sequence whose seed is the next number.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(self.next())
    }

    /// Returns a number below `bound`, which is not 0.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a number from `from` up to, and not including, `to`.
    #[must_use]
    pub fn between(&self, from: u64, to: u64) -> u64 {
        from + self.below((to - from).max(1))
    }

    /// Returns true with this chance of a million. Draws nothing when the chance is 0.
    #[must_use]
    pub fn chance(&self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Fills `bytes`.
    pub fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns 128 random bits.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        bytes
    }
}
