//! What a call asks for, put together by key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The keys, in the order in which they are first named, with the places where they are.
pub(crate) fn by_key<'a>(
    keys: impl ExactSizeIterator<Item = &'a str>,
) -> Vec<(&'a str, Vec<usize>)> {
    let mut groups = Vec::with_capacity(keys.len());
    let mut known = HashMap::with_capacity(keys.len());
    for (place, key) in keys.enumerate() {
        match known.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(groups.len());
                groups.push((key, vec![place]));
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
        assert_eq!(groups, [("b", vec![0, 2, 5]), ("a", vec![1, 4]), ("", vec![3])]);
        assert!(by_key([].into_iter()).is_empty());
    }
}
