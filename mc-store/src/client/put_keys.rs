//! The keys that a client is putting.
//!
//! A put whose start was answered by a master that is gone begins anew, and the unfinished object that
//! the next master may know of it has to go. The master cannot tell that object from the one of another
//! put of the key by the same client, which has its grant and may be writing. So the client asks for it
//! only while it has a single put of the key: then it has no grant for the key, and none is on its way.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher, RandomState};

use mc_types::KeyRef;
use parking_lot::Mutex;

/// How many puts of each key are under way. Keys of one hash count as one key: a put that shares its
/// hash only waits where it could begin anew.
#[derive(Debug, Default)]
pub(super) struct PutKeys {
    hasher: RandomState,
    counts: Mutex<HashMap<u64, u32, BuildHasherDefault<Hashed>>>,
}

/// Takes a number that is a hash as its hash.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("hashes are numbers");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Puts under way; ends when dropped.
#[derive(Debug)]
pub(super) struct PutsUnderWay<'a> {
    keys: &'a PutKeys,
    /// The hash of each put's key.
    hashes: Vec<u64>,
}

impl PutKeys {
    /// Counts a put of each of these keys as under way.
    pub(super) fn enter<'k>(&self, keys: impl Iterator<Item = KeyRef<'k>>) -> PutsUnderWay<'_> {
        let hashes: Vec<u64> = keys.map(|key| self.hasher.hash_one(key.as_str())).collect();
        let mut counts = self.counts.lock();
        hashes.iter().for_each(|hash| *counts.entry(*hash).or_default() += 1);
        drop(counts);
        PutsUnderWay { keys: self, hashes }
    }
}

impl PutsUnderWay<'_> {
    /// Returns whether no other put of the key of put `at` is under way.
    pub(super) fn is_only(&self, at: usize) -> bool {
        self.keys.counts.lock().get(&self.hashes[at]) == Some(&1)
    }
}

impl Drop for PutsUnderWay<'_> {
    fn drop(&mut self) {
        let mut counts = self.keys.counts.lock();
        for hash in &self.hashes {
            if let Some(count) = counts.get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(hash);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<'a>(names: &'a [&str]) -> impl Iterator<Item = KeyRef<'a>> {
        names.iter().map(|name| KeyRef::new(name).expect("a valid key"))
    }

    #[test]
    fn a_put_is_the_only_one_of_its_key_until_there_is_another() {
        let all = PutKeys::default();
        let puts = all.enter(keys(&["a", "b", "b"]));
        assert_eq!([0, 1, 2].map(|at| puts.is_only(at)), [true, false, false]);
        let other = all.enter(keys(&["a"]));
        assert!(!puts.is_only(0) && !other.is_only(0));
        drop(puts);
        assert!(other.is_only(0));
        drop(other);
        assert!(all.counts.lock().is_empty());
    }
}
