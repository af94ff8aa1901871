//! From a key to its object, in one look at memory.
//!
//! Cuckoo hashing with buckets of four (Erlingsson, Manasse and McSherry, "A cool and
//! practical alternative to traditional hash tables", 2006): an entry is in one of two
//! buckets, each as large as a line of the processor's cache. A bucket counts the entries
//! that it had no room for, so most looks for keys that are not there end at the first.
//! An entry says where the object's record is and where the text of its key is, so that
//! the two are fetched at the same time: with ten million objects nothing else takes as
//! long as waiting for memory.

use crate::tables::keys::KeyName;
use crate::vocabulary::slot::ObjectSlot;

/// Parts that one index is divided into. Only one of them grows at a time, so no
/// command waits for all of the index to be moved.
const PARTS: usize = 16;

/// Entries that are moved to make room for one before a part grows.
const MAX_MOVES: usize = 64;

/// Buckets of a part from which on it no longer doubles when it grows.
const DOUBLING: usize = 256;

/// The 32 bits of a key's hash that say nothing of its shard.
pub(crate) const fn tag_of(hash: u64) -> u32 {
    (hash & 0xf_ffff) as u32 | ((hash >> 52) as u32) << 20
}

/// Spreads a tag over 64 bits: the highest 32 say which bucket of a part is the first
/// choice, the others which is the second. Moving an entry needs no more than its tag.
const fn spread(tag: u32) -> u64 {
    let x = (tag as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// A number below `len`, in proportion to `bits`.
const fn scaled(bits: u32, len: usize) -> usize {
    ((bits as u64 * len as u64) >> 32) as usize
}

const fn part_of(tag: u32) -> usize {
    tag as usize % PARTS
}

#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    tag: u32,
    slot: ObjectSlot,
    name: KeyName,
}

/// In the slot of an entry that is free.
const FREE: ObjectSlot = ObjectSlot::NONE;

/// Entries in one bucket.
const WAYS: usize = 4;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; WAYS],
    slots: [ObjectSlot; WAYS],
    names: [KeyName; WAYS],
    /// Entries that would be here if there were room, and are in their second choice.
    displaced: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64, "one line of the cache");

impl Bucket {
    const EMPTY: Self =
        Self { tags: [0; WAYS], slots: [FREE; WAYS], names: [KeyName::NONE; WAYS], displaced: 0 };

    #[inline]
    fn find(&self, tag: u32, is_it: &mut impl FnMut(ObjectSlot, KeyName) -> bool) -> Option<usize> {
        // One bit for each way: all tags are compared at once.
        let of_way = |way| u32::from(self.tags[way] == tag) << way;
        let mut ways = of_way(0) | of_way(1) | of_way(2) | of_way(3);
        while ways != 0 {
            let way = ways.trailing_zeros() as usize % WAYS;
            if self.slots[way] != FREE && is_it(self.slots[way], self.names[way]) {
                return Some(way);
            }
            ways &= ways - 1;
        }
        None
    }

    fn entry(&self, way: usize) -> IndexEntry {
        IndexEntry { tag: self.tags[way], slot: self.slots[way], name: self.names[way] }
    }

    fn set(&mut self, way: usize, entry: IndexEntry) {
        self.tags[way] = entry.tag;
        self.slots[way] = entry.slot;
        self.names[way] = entry.name;
    }

    /// Takes an entry in, if there is room.
    fn take(&mut self, entry: IndexEntry) -> bool {
        let free = self.slots.iter().position(|slot| *slot == FREE);
        if let Some(way) = free {
            self.set(way, entry);
        }
        free.is_some()
    }

    fn entries(&self) -> impl Iterator<Item = IndexEntry> {
        (0..WAYS).map(|way| self.entry(way)).filter(|entry| entry.slot != FREE)
    }
}

/// The objects of one shard by the tags of their keys.
#[derive(Debug)]
pub(crate) struct Index {
    parts: [IndexPart; PARTS],
}

#[derive(Debug, Default)]
struct IndexPart {
    buckets: Vec<Bucket>,
    len: usize,
    /// Its room is for entries that are expected, and stays until it is given back.
    is_reserved: bool,
    /// Entries for which there is no room although the part is far from full: more than
    /// eight keys have the same tag, which only those who know the seed can bring
    /// about.
    crowd: Vec<IndexEntry>,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { parts: core::array::from_fn(|_| IndexPart::default()) }
    }

    /// The slot with this tag for which `is_it` says so; it is given the slot and the
    /// key's name.
    pub(crate) fn find(
        &self,
        tag: u32,
        is_it: impl FnMut(ObjectSlot, KeyName) -> bool,
    ) -> Option<ObjectSlot> {
        self.parts[part_of(tag)].find(tag, is_it).map(|entry| entry.slot)
    }

    /// Reads from the bucket that is looked at first for a tag.
    pub(crate) fn touch(&self, tag: u32) -> u32 {
        let part = &self.parts[part_of(tag)];
        let [first, _] = part.choices(tag);
        part.buckets.get(first).map_or(0, |bucket| bucket.displaced)
    }

    /// An entry of this tag in the bucket that is looked at first, which may be another key's.
    #[inline]
    pub(crate) fn likely(&self, tag: u32) -> Option<(ObjectSlot, KeyName)> {
        let part = &self.parts[part_of(tag)];
        let [first, _] = part.choices(tag);
        let bucket = part.buckets.get(first)?;
        let way = bucket.find(tag, &mut |_, _| true)?;
        Some((bucket.slots[way], bucket.names[way]))
    }

    /// The name of the key whose object is in the slot for which `is_it` says so.
    pub(crate) fn name(
        &self,
        tag: u32,
        mut is_it: impl FnMut(ObjectSlot) -> bool,
    ) -> Option<KeyName> {
        self.parts[part_of(tag)].find(tag, |slot, _| is_it(slot)).map(|entry| entry.name)
    }

    /// Adds a slot that is not there.
    pub(crate) fn insert(&mut self, tag: u32, slot: ObjectSlot, name: KeyName) {
        let part = &mut self.parts[part_of(tag)];
        if part.is_full() {
            part.grow(part_of(tag));
        }
        part.len += 1;
        if let Some(homeless) = part.settle(IndexEntry { tag, slot, name }) {
            part.crowd.push(homeless);
            // Not again at the next insertion: that this one found no room is either a
            // rare accident, which growing mends, or keys that no growth tells apart.
            if part.crowd.len() == 1 {
                part.grow(part_of(tag));
            }
        }
    }

    /// Takes a slot out and says the name of its key.
    pub(crate) fn remove(&mut self, tag: u32, slot: ObjectSlot) -> Option<KeyName> {
        self.parts[part_of(tag)].remove(tag, slot)
    }

    /// Makes room for so many entries, so that no part grows before they are there.
    pub(crate) fn reserve(&mut self, entries: usize) {
        let share = entries.div_ceil(PARTS);
        // Hashing does not divide them evenly: four standard deviations.
        let share = share + 4 * share.isqrt();
        for part in &mut self.parts {
            let buckets = (share * 16).div_ceil(WAYS * 13);
            part.is_reserved = true;
            if buckets > part.buckets.len() {
                part.resize(buckets);
            }
        }
    }

    /// Gives memory back that was reserved for many more entries than there are.
    pub(crate) fn shrink_when_sparse(&mut self) {
        for (number, part) in self.parts.iter_mut().enumerate() {
            part.is_reserved = false;
            part.shrink_when_sparse(number);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len).sum()
    }
}

impl IndexPart {
    /// The two buckets that an entry of this tag can be in.
    fn choices(&self, tag: u32) -> [usize; 2] {
        let bits = spread(tag);
        let len = self.buckets.len();
        [scaled((bits >> 32) as u32, len), scaled(bits as u32, len)]
    }

    fn find(
        &self,
        tag: u32,
        mut is_it: impl FnMut(ObjectSlot, KeyName) -> bool,
    ) -> Option<IndexEntry> {
        if let Some((at, way)) = self.place_of(tag, &mut is_it) {
            return Some(self.buckets[at].entry(way));
        }
        let mut crowd = self.crowd.iter().filter(|entry| entry.tag == tag);
        crowd.find(|entry| is_it(entry.slot, entry.name)).copied()
    }

    /// The bucket of an entry and where it is there.
    fn place_of(
        &self,
        tag: u32,
        is_it: &mut impl FnMut(ObjectSlot, KeyName) -> bool,
    ) -> Option<(usize, usize)> {
        let [first, second] = self.choices(tag);
        let bucket = self.buckets.get(first)?;
        if let Some(way) = bucket.find(tag, is_it) {
            return Some((first, way));
        }
        if bucket.displaced == 0 {
            return None;
        }
        self.buckets.get(second)?.find(tag, is_it).map(|way| (second, way))
    }

    fn remove(&mut self, tag: u32, slot: ObjectSlot) -> Option<KeyName> {
        let name = match self.place_of(tag, &mut |found, _| found == slot) {
            Some((at, way)) => {
                let entry = self.take_out(at, way);
                entry.name
            }
            None => {
                let at = self.crowd.iter().position(|entry| entry.slot == slot)?;
                self.crowd.swap_remove(at).name
            }
        };
        self.len -= 1;
        self.shrink_when_sparse(part_of(tag));
        Some(name)
    }

    /// Frees the place of an entry.
    fn take_out(&mut self, at: usize, way: usize) -> IndexEntry {
        let entry = self.buckets[at].entry(way);
        self.buckets[at].slots[way] = FREE;
        let [first, _] = self.choices(entry.tag);
        if at != first {
            self.buckets[first].displaced -= 1;
        }
        entry
    }

    /// Returns whether another entry would leave too few places to find one quickly.
    fn is_full(&self) -> bool {
        (self.len + 1) * 16 > self.buckets.len() * WAYS * 13
    }

    /// Puts an entry into one of its buckets, moving others to their other buckets when
    /// both are full; an entry that found no place comes back.
    fn settle(&mut self, mut entry: IndexEntry) -> Option<IndexEntry> {
        let mut from = usize::MAX;
        for turn in 0..MAX_MOVES {
            let [first, second] = self.choices(entry.tag);
            if self.buckets[first].take(entry) {
                return None;
            }
            if self.buckets[second].take(entry) {
                self.buckets[first].displaced += 1;
                return None;
            }
            // Not back to where it was just moved from.
            let at = if first == from { second } else { first };
            let way = (entry.slot.index() ^ turn) % WAYS;
            let victim = self.take_out(at, way);
            self.buckets[at].set(way, entry);
            if at != first {
                self.buckets[first].displaced += 1;
            }
            entry = victim;
            from = at;
        }
        Some(entry)
    }

    /// Moves the part to a larger table. Small ones double, as that is what costs least
    /// in the end; large ones grow by a quarter, since there memory counts. Parts begin
    /// with different sizes, so that they do not all grow at the same time.
    fn grow(&mut self, number: usize) {
        let len = self.buckets.len();
        self.resize(match len {
            0 => 2 + number % 4,
            1..DOUBLING => len * 2,
            _ => len + len / 4,
        });
    }

    fn shrink_when_sparse(&mut self, number: usize) {
        if self.is_reserved {
            return;
        }
        if self.len == 0 && self.crowd.is_empty() {
            self.buckets = Vec::new();
        } else if self.buckets.len() > 64 + number && self.len * 8 < self.buckets.len() * WAYS {
            self.resize((self.len / 2).max(1));
        }
    }

    fn resize(&mut self, len: usize) {
        let old = core::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; len]);
        let crowd = core::mem::take(&mut self.crowd);
        for entry in old.iter().flat_map(Bucket::entries).chain(crowd) {
            if let Some(homeless) = self.settle(entry) {
                self.crowd.push(homeless);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const fn at(number: u32) -> ObjectSlot {
        ObjectSlot::new(number)
    }

    fn name(number: u32) -> KeyName {
        let mut arena = crate::tables::keys::KeyArena::new();
        let text = "k".repeat(1 + number as usize % 100);
        arena.insert(mc_types::KeyRef::new(&text).unwrap())
    }

    #[test]
    fn equal_tags_are_told_apart() {
        let mut index = Index::new();
        for slot in 0..100 {
            index.insert(7, at(slot), name(slot));
            index.insert(u32::MAX - slot, at(1000 + slot), name(slot));
        }
        assert_eq!(index.len(), 200);
        let mut seen = Vec::new();
        let none = index.find(7, |slot, key| {
            assert_eq!(key, name(slot.as_u32()));
            seen.push(slot);
            false
        });
        seen.sort_unstable();
        assert_eq!((none, seen), (None, (0..100).map(at).collect()));
        for slot in (0..100).step_by(2) {
            assert_eq!(index.remove(7, at(slot)), Some(name(slot)));
            assert_eq!(index.remove(7, at(slot)), None);
        }
        for slot in 0..100 {
            assert_eq!(index.find(7, |found, _| found == at(slot)).is_some(), slot % 2 == 1);
            assert_eq!(index.find(u32::MAX - slot, |_, _| true), Some(at(1000 + slot)));
        }
    }

    #[test]
    fn a_tag_leaves_out_what_chooses_the_shard() {
        assert_eq!(tag_of(0x000f_ffff_fff0_0000), 0);
        assert_eq!(tag_of(!0x000f_ffff_fff0_0000), u32::MAX);
    }

    #[test]
    fn it_is_mostly_full_and_gives_memory_back() {
        let mut index = Index::new();
        let tag = |slot: u32| tag_of(crate::vocabulary::hash::mix(slot.into()));
        for slot in 0..200_000 {
            index.insert(tag(slot), at(slot), name(0));
        }
        let places = |index: &Index| index.parts.iter().map(|p| p.buckets.len() * 4).sum::<usize>();
        let full = places(&index);
        assert!((200_000..320_000).contains(&full), "{full}");
        assert!(index.parts.iter().all(|part| part.crowd.is_empty()));
        for slot in 10_000..200_000 {
            assert!(index.remove(tag(slot), at(slot)).is_some());
        }
        assert!(places(&index) < full / 4);
        for slot in 0..10_000 {
            assert_eq!(index.find(tag(slot), |found, _| found == at(slot)), Some(at(slot)));
        }
    }

    #[test]
    fn what_is_reserved_stays_until_it_is_given_back() {
        let mut index = Index::new();
        index.reserve(100_000);
        let places = |index: &Index| index.parts.iter().map(|p| p.buckets.len()).sum::<usize>();
        let reserved = places(&index);
        for slot in 0..2 {
            index.insert(7, at(slot), name(slot));
        }
        assert_eq!(index.remove(7, at(0)), Some(name(0)));
        assert_eq!(places(&index), reserved);
        index.shrink_when_sparse();
        assert!(places(&index) < 10);
        assert_eq!(index.find(7, |_, _| true), Some(at(1)));
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in proptest::collection::vec((0u32..300, 0u32..40, any::<bool>()), 0..600)) {
            let mut index = Index::new();
            let mut model = BTreeMap::new();
            for (slot, tag, insert) in ops {
                // Few tags, so that they crowd.
                let tag = tag * 16;
                if insert && !model.contains_key(&slot) {
                    index.insert(tag, at(slot), name(slot));
                    model.insert(slot, tag);
                } else if let Some(tag) = model.remove(&slot) {
                    prop_assert_eq!(index.remove(tag, at(slot)), Some(name(slot)));
                } else {
                    prop_assert_eq!(index.remove(tag, at(slot)), None);
                }
                prop_assert_eq!(index.len(), model.len());
            }
            for (slot, tag) in model {
                prop_assert_eq!(index.name(tag, |found| found == at(slot)), Some(name(slot)));
            }
        }
    }
}
