//! Hashing of keys.

use core::hash::{BuildHasher, Hasher};

use foldhash::quality::FixedState;
use mc_types::{KeyRef, SplitMix64};

/// Hashes keys the same way for the life of one master. Seeded, so that keys that
/// collide in one master do not collide in the next.
#[derive(Clone, Debug)]
pub(crate) struct KeyHasher(FixedState);

impl KeyHasher {
    pub(crate) fn new(seed: u64) -> Self {
        Self(FixedState::with_seed(seed))
    }

    /// For other tables of the same master.
    pub(crate) fn state(&self) -> FixedState {
        self.0.clone()
    }

    pub(crate) fn hash(&self, key: KeyRef<'_>) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key.as_str().as_bytes());
        hasher.finish()
    }
}

impl KeyHasher {
    /// The hash of a block that an engine names so. No key has the same bytes.
    pub(crate) fn hash_of_block(&self, model: &str, block: &str) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(model.as_bytes());
        hasher.write(&[0xff]);
        hasher.write(block.as_bytes());
        hasher.finish()
    }
}

/// A key with its hash, which is computed once for each command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedKey<'a> {
    pub(crate) hash: u64,
    pub(crate) key: KeyRef<'a>,
}

impl HashedKey<'_> {
    /// Returns the one of `shards` that holds the key. The hash tables inside a shard use the
    /// lowest and the highest bits, so the choice is made by those between.
    pub(crate) const fn shard(self, shards: usize) -> usize {
        let middle = (self.hash >> 20) & 0xffff_ffff;
        ((middle * shards as u64) >> 32) as usize
    }
}

/// One well-mixed number for each input.
pub(crate) const fn mix(x: u64) -> u64 {
    SplitMix64::new(x).next_u64()
}
