//! What a call asks for, put together by key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use smallvec::{SmallVec, smallvec};

/// Where a key is named, which is one place for most.
pub(crate) type Places = SmallVec<[usize; 2]>;

/// The keys, in the order in which they are first named, with the places where they are.
pub(crate) fn by_key<K: Copy + Eq + Hash>(
    keys: impl ExactSizeIterator<Item = K>,
) -> Vec<(K, Places)> {
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
