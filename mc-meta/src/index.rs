//! From a key to the slot of its object.

use hashbrown::HashTable;

/// Tables that one index is divided into. Only one of them grows at a time, so no
/// command waits for all of the index to be moved.
const PARTS: usize = 16;

/// Slots by the tags of their keys. Four bytes and a bit for each entry: the tag
/// itself is kept with the object.
#[derive(Debug)]
pub(crate) struct Index {
    parts: [HashTable<u32>; PARTS],
}

/// The 32 bits of a key's hash that say nothing of its shard.
pub(crate) const fn tag_of(hash: u64) -> u32 {
    (hash & 0xf_ffff) as u32 | ((hash >> 52) as u32) << 20
}

/// Spreads a tag, as `HashTable` looks at the lowest and the highest bits.
const fn spread(tag: u32) -> u64 {
    (tag as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

const fn part_of(tag: u32) -> usize {
    (spread(tag) >> 40) as usize % PARTS
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { parts: [const { HashTable::new() }; PARTS] }
    }

    /// The slot with this tag for which `is_it` says so.
    pub(crate) fn find(&self, tag: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.parts[part_of(tag)].find(spread(tag), |&slot| is_it(slot)).copied()
    }

    /// Adds a slot that is not there; `tag_of` knows the tags of those that are.
    pub(crate) fn insert(&mut self, tag: u32, slot: u32, tag_of: impl Fn(u32) -> u32) {
        let part = &mut self.parts[part_of(tag)];
        part.insert_unique(spread(tag), slot, |&slot| spread(tag_of(slot)));
    }

    /// Takes a slot out; false when it is not there.
    pub(crate) fn remove(&mut self, tag: u32, slot: u32) -> bool {
        let part = &mut self.parts[part_of(tag)];
        part.find_entry(spread(tag), |&indexed| indexed == slot)
            .map(hashbrown::hash_table::OccupiedEntry::remove)
            .is_ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(HashTable::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tags_are_told_apart() {
        let tags = [7, 7, 9, u32::MAX, 7];
        let mut index = Index::new();
        for (slot, tag) in (0..).zip(tags) {
            index.insert(tag, slot, |slot| tags[slot as usize]);
        }
        assert_eq!(index.len(), 5);
        let mut seen = Vec::new();
        assert_eq!(
            index.find(7, |slot| {
                seen.push(slot);
                false
            }),
            None
        );
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 4]);
        assert!(index.remove(7, 1));
        assert!(!index.remove(7, 1));
        assert_eq!(index.find(7, |slot| slot == 4), Some(4));
        assert_eq!(index.find(u32::MAX, |_| true), Some(3));
        assert_eq!(index.len(), 4);
    }

    #[test]
    fn a_tag_leaves_out_what_chooses_the_shard() {
        assert_eq!(tag_of(0x000f_ffff_fff0_0000), 0);
        assert_eq!(tag_of(!0x000f_ffff_fff0_0000), u32::MAX);
    }
}
