//! The requests of a batch, grouped by key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use smallvec::{SmallVec, smallvec};

/// The positions of one key in a batch; most keys have one.
pub type Positions = SmallVec<[usize; 2]>;

/// Returns the keys of a batch, in the order in which they are first named, each with its
/// positions. An implementation of a batched read needs it: a key that is named twice has one
/// value.
///
/// ```
/// let groups = mc_store::by_key(["b", "a", "b"].into_iter());
/// assert_eq!((groups[0].0, &groups[0].1[..]), ("b", &[0, 2][..]));
/// assert_eq!((groups[1].0, &groups[1].1[..]), ("a", &[1][..]));
/// ```
pub fn by_key<K: Copy + Eq + Hash>(keys: impl ExactSizeIterator<Item = K>) -> Vec<(K, Positions)> {
    if keys.len() == 1 {
        return keys.map(|key| (key, smallvec![0])).collect();
    }
    let mut groups = Vec::with_capacity(keys.len());
    let mut known = HashMap::with_capacity(keys.len());
    for (place, key) in keys.enumerate() {
        match known.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(groups.len());
                groups.push((key, smallvec![place]));
            }
            Entry::Occupied(entry) => groups[*entry.get()].1.push(place),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_with_its_key() {
        let groups = by_key(["b", "a", "b", "", "a", "b"].into_iter());
        let groups: Vec<(&str, &[usize])> =
            groups.iter().map(|(key, places)| (*key, &places[..])).collect();
        assert_eq!(groups, [("b", &[0, 2, 5][..]), ("a", &[1, 4]), ("", &[3])]);
        assert!(by_key::<&str>([].into_iter()).is_empty());
    }
}
