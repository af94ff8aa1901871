//! The texts of one shard's keys, packed in pages.
//!
//! A key of its own on the heap costs a pointer, a length and what the heap adds
//! to it. Here keys of about the same length share a page, and a record names its
//! key in six bytes. This is a slab allocator (Bonwick, "The Slab Allocator: An
//! Object-Caching Kernel Memory Allocator", USENIX 1994): one class for each eight
//! bytes of length, free slots chained through themselves, and a page that has no
//! key left is given back.
//!
//! Keys do not move. A page therefore stays for as long as one key lies in it,
//! and new keys go to the pages that were full last, so that sparse ones drain.

use mc_types::{KeyRef, MAX_KEY_LEN};

/// Slots of a class differ from those of the next by this many bytes.
const STEP: usize = 8;

const CLASSES: usize = MAX_KEY_LEN / STEP;

/// Bytes of the largest page.
const PAGE: usize = 16 * 1024;

/// A new page has room for one in this many of the keys that its class holds
/// already, up to [`PAGE`]: few keys of many lengths do not take a large page each.
const GROWTH: usize = 4;

/// Entries of the page table that are kept when there is no page left.
const KEPT_ENTRIES: usize = 64;

const LEN_BITS: u32 = MAX_KEY_LEN.ilog2();
const SLOT_BITS: u32 = (PAGE / STEP).ilog2();
const PAGE_BITS: u32 = 48 - SLOT_BITS - LEN_BITS;

/// No page.
const NO_PAGE: u32 = u32::MAX;

/// No slot.
const NO_SLOT: u16 = u16::MAX;

const _: () = assert!(MAX_KEY_LEN.is_power_of_two() && (PAGE / STEP).is_power_of_two());
const _: () = assert!(PAGE / STEP <= NO_SLOT as usize && MAX_KEY_LEN <= PAGE && PAGE_BITS < 32);
const _: () = assert!(size_of::<KeyName>() == 6 && align_of::<KeyName>() == 2);
const _: () = assert!(size_of::<Page>() == 32, "one for each page");

/// Where a [`KeyArena`] keeps a key: the page, the slot and one less than the
/// length, in 48 bits. It means something to the arena that gave it out, until
/// the key is removed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyName([u16; 3]);

impl KeyName {
    /// The name of no key, where there must be one.
    pub(crate) const NONE: Self = Self([0; 3]);

    fn new(page: u32, slot: u16, len: usize) -> Self {
        let bits = (u64::from(page) << (SLOT_BITS + LEN_BITS))
            | (u64::from(slot) << LEN_BITS)
            | (len as u64 - 1);
        Self([bits as u16, (bits >> 16) as u16, (bits >> 32) as u16])
    }

    fn bits(self) -> u64 {
        let [low, middle, high] = self.0;
        u64::from(low) | (u64::from(middle) << 16) | (u64::from(high) << 32)
    }

    fn page(self) -> u32 {
        (self.bits() >> (SLOT_BITS + LEN_BITS)) as u32
    }

    fn slot(self) -> u16 {
        ((self.bits() >> LEN_BITS) & ((1 << SLOT_BITS) - 1)) as u16
    }

    fn len(self) -> usize {
        (self.bits() & ((1 << LEN_BITS) - 1)) as usize + 1
    }

    fn class(self) -> usize {
        class_of(self.len())
    }
}

/// The class of keys of `len` bytes.
const fn class_of(len: usize) -> usize {
    (len - 1) / STEP
}

/// Bytes of a slot of `class`.
const fn slot_size(class: usize) -> usize {
    (class + 1) * STEP
}

/// The texts of one shard's keys.
///
/// A key takes its length, rounded up to a multiple of eight, and about a quarter
/// of a byte. Every operation is O(1) in the number of keys; the most expensive
/// `insert` takes a page from the heap, and a place for it in the table of pages.
#[derive(Debug)]
pub(crate) struct KeyArena {
    classes: [Class; CLASSES],
    pages: Vec<Page>,
    /// Head of the chain of entries in `pages` that hold no page.
    vacant: u32,
    /// Pages that are not vacant.
    in_use: u32,
    /// Bytes of the keys.
    live: u64,
    /// Bytes of the pages.
    held: u64,
}

/// The keys of one class.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// Head of the list of pages that hold keys and have room for more; the ones
    /// that were full last come first.
    room: u32,
    /// A page without keys that is kept for the next ones, so that the heap is
    /// not asked at every turn when keys come and go at the edge of a page.
    spare: u32,
    /// Keys in all pages.
    keys: u32,
}

#[derive(Debug)]
struct Page {
    /// The slots; empty when the entry is vacant.
    bytes: Box<[u8]>,
    /// Neighbours in the list of pages with room; `next` is also the chain of
    /// vacant entries.
    next: u32,
    prev: u32,
    /// Head of the chain of slots that are free again.
    free: u16,
    /// Slots from this one on have not been used since the page was empty.
    fresh: u16,
    /// Slots that hold keys.
    used: u16,
}

impl KeyArena {
    pub(crate) const fn new() -> Self {
        Self {
            classes: [Class { room: NO_PAGE, spare: NO_PAGE, keys: 0 }; CLASSES],
            pages: Vec::new(),
            vacant: NO_PAGE,
            in_use: 0,
            live: 0,
            held: 0,
        }
    }

    /// Keeps a copy of `key`.
    pub(crate) fn insert(&mut self, key: KeyRef<'_>) -> KeyName {
        let text = key.as_str().as_bytes();
        let class = class_of(text.len());
        let number = match self.classes[class].room {
            NO_PAGE => self.make_room(class),
            number => number,
        };
        let size = slot_size(class);
        let page = &mut self.pages[number as usize];
        let slot = page.take(size);
        let start = usize::from(slot) * size;
        page.bytes[start..start + text.len()].copy_from_slice(text);
        if page.is_full(size) {
            self.unlink(class, number);
        }
        self.classes[class].keys += 1;
        self.live += text.len() as u64;
        KeyName::new(number, slot, text.len())
    }

    /// The bytes of a key.
    pub(crate) fn bytes(&self, name: KeyName) -> &[u8] {
        let start = usize::from(name.slot()) * slot_size(name.class());
        &self.pages[name.page() as usize].bytes[start..start + name.len()]
    }

    /// A key; its bytes are checked again, so [`bytes`](Self::bytes) is for comparing.
    pub(crate) fn text(&self, name: KeyName) -> KeyRef<'_> {
        let text = core::str::from_utf8(self.bytes(name)).expect("keys are kept as they came");
        KeyRef::new(text).expect("keys are kept as they came")
    }

    /// Forgets a key. Its name then means nothing, or another key.
    pub(crate) fn remove(&mut self, name: KeyName) {
        let (class, number) = (name.class(), name.page());
        let size = slot_size(class);
        let page = &mut self.pages[number as usize];
        let was_full = page.is_full(size);
        page.give_back(name.slot(), size);
        let is_empty = page.used == 0;
        self.classes[class].keys -= 1;
        self.live -= name.len() as u64;
        if is_empty {
            if !was_full {
                self.unlink(class, number);
            }
            self.retire(class, number);
        } else if was_full {
            self.link(class, number);
        }
    }

    /// Bytes of all keys.
    #[cfg(test)]
    const fn live_bytes(&self) -> u64 {
        self.live
    }

    /// Bytes taken from the heap, and the arena itself.
    pub(crate) const fn held_bytes(&self) -> u64 {
        let table = self.pages.capacity() * size_of::<Page>();
        self.held + table as u64 + size_of::<Self>() as u64
    }

    /// Gives a class that has no room a page without keys.
    fn make_room(&mut self, class: usize) -> u32 {
        let Class { spare, keys, .. } = self.classes[class];
        let number = if spare == NO_PAGE {
            let size = slot_size(class);
            let slots = (keys as usize / GROWTH).clamp(1, PAGE / size);
            self.new_page(slots * size)
        } else {
            self.classes[class].spare = NO_PAGE;
            spare
        };
        self.link(class, number);
        number
    }

    fn new_page(&mut self, len: usize) -> u32 {
        let page = Page {
            bytes: vec![0; len].into(),
            next: NO_PAGE,
            prev: NO_PAGE,
            free: NO_SLOT,
            fresh: 0,
            used: 0,
        };
        self.held += len as u64;
        self.in_use += 1;
        if self.vacant != NO_PAGE {
            let number = self.vacant;
            let entry = &mut self.pages[number as usize];
            self.vacant = entry.next;
            *entry = page;
            return number;
        }
        let number = self.pages.len() as u32;
        assert!(number < 1 << PAGE_BITS, "a shard's keys are fewer than fit a terabyte");
        self.pages.push(page);
        number
    }

    /// Keeps a page that has no key left as its class's spare one, or drops it.
    fn retire(&mut self, class: usize, number: u32) {
        // A spare page at most doubles what the class's keys take.
        let worth = self.classes[class].keys as usize * slot_size(class);
        let spare = self.classes[class].spare;
        if spare != NO_PAGE && self.pages[spare as usize].bytes.len() > worth {
            self.classes[class].spare = NO_PAGE;
            self.drop_page(spare);
        }
        let page = &mut self.pages[number as usize];
        if self.classes[class].spare == NO_PAGE && page.bytes.len() <= worth {
            (page.free, page.fresh) = (NO_SLOT, 0);
            self.classes[class].spare = number;
        } else {
            self.drop_page(number);
        }
    }

    fn drop_page(&mut self, number: u32) {
        let page = &mut self.pages[number as usize];
        self.held -= page.bytes.len() as u64;
        page.bytes = Box::default();
        page.next = self.vacant;
        self.vacant = number;
        self.in_use -= 1;
        if self.in_use == 0 {
            self.vacant = NO_PAGE;
            self.pages.clear();
            self.pages.shrink_to(KEPT_ENTRIES);
        }
    }

    /// Puts a page in front of those of its class that have room.
    fn link(&mut self, class: usize, number: u32) {
        let first = core::mem::replace(&mut self.classes[class].room, number);
        if first != NO_PAGE {
            self.pages[first as usize].prev = number;
        }
        let page = &mut self.pages[number as usize];
        (page.prev, page.next) = (NO_PAGE, first);
    }

    fn unlink(&mut self, class: usize, number: u32) {
        let Page { prev, next, .. } = self.pages[number as usize];
        match prev {
            NO_PAGE => self.classes[class].room = next,
            prev => self.pages[prev as usize].next = next,
        }
        if next != NO_PAGE {
            self.pages[next as usize].prev = prev;
        }
    }
}

impl Page {
    fn is_full(&self, size: usize) -> bool {
        self.free == NO_SLOT && usize::from(self.fresh) * size == self.bytes.len()
    }

    /// A free slot of a page that is not full.
    fn take(&mut self, size: usize) -> u16 {
        self.used += 1;
        if self.free == NO_SLOT {
            self.fresh += 1;
            return self.fresh - 1;
        }
        let slot = self.free;
        let start = usize::from(slot) * size;
        self.free = u16::from_le_bytes([self.bytes[start], self.bytes[start + 1]]);
        slot
    }

    fn give_back(&mut self, slot: u16, size: usize) {
        let start = usize::from(slot) * size;
        self.bytes[start..start + 2].copy_from_slice(&self.free.to_le_bytes());
        self.free = slot;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn insert(arena: &mut KeyArena, key: &str) -> KeyName {
        arena.insert(KeyRef::new(key).unwrap())
    }

    fn forty(number: usize) -> String {
        format!("{number:040x}")
    }

    /// Bytes of an arena that never held a key, and of what it may keep of its table.
    fn empty_bytes() -> u64 {
        (size_of::<KeyArena>() + KEPT_ENTRIES * size_of::<Page>()) as u64
    }

    /// `len` bytes of text that tells `number`, with wide characters where they fit.
    fn text(len: usize, number: u64) -> String {
        let mut text = String::with_capacity(len);
        let mut rest = number;
        while text.len() < len {
            let wide = ['é', '鍵', '🔑'][(rest % 3) as usize];
            let left = len - text.len();
            text.push(if rest & 4 != 0 && wide.len_utf8() <= left {
                wide
            } else {
                char::from(b'a' + (rest % 26) as u8)
            });
            rest = crate::vocabulary::hash::mix(rest);
        }
        text
    }

    #[test]
    fn keys_of_every_length_come_back() {
        let mut arena = KeyArena::new();
        let keys: Vec<String> =
            (1..=MAX_KEY_LEN).chain(1..=MAX_KEY_LEN).map(|len| text(len, len as u64)).collect();
        let names: Vec<KeyName> = keys.iter().map(|key| insert(&mut arena, key)).collect();
        assert_eq!(arena.live_bytes(), keys.iter().map(|key| key.len() as u64).sum::<u64>());
        for (key, &name) in keys.iter().zip(&names) {
            assert_eq!(arena.bytes(name), key.as_bytes());
            assert_eq!(arena.text(name).as_str(), key);
        }
        names.into_iter().for_each(|name| arena.remove(name));
        assert_eq!(arena.live_bytes(), 0);
        assert!(arena.held_bytes() <= empty_bytes());
    }

    #[test]
    fn many_keys_cost_their_bytes_and_little_more() {
        let mut arena = KeyArena::new();
        let count = 100_000;
        let names: Vec<KeyName> = (0..count).map(|n| insert(&mut arena, &forty(n))).collect();
        assert!(arena.held_bytes() as f64 / (count as f64) < 40.5);
        // Keys go as they came, as an order of eviction has it.
        names[..count / 2].iter().for_each(|&name| arena.remove(name));
        assert!(arena.held_bytes() as f64 / ((count / 2) as f64) < 41.0);
        names[count / 2..].iter().for_each(|&name| arena.remove(name));
        assert!(arena.held_bytes() <= empty_bytes());
    }

    #[test]
    fn few_keys_of_many_lengths_take_no_large_pages() {
        let mut arena = KeyArena::new();
        for class in 0..CLASSES {
            for number in 0..10 {
                insert(&mut arena, &text(slot_size(class), number));
            }
        }
        assert!(arena.held_bytes() - empty_bytes() < arena.live_bytes() * 6 / 5);
    }

    #[test]
    fn a_key_at_the_edge_of_a_page_costs_no_page_each_time() {
        let mut arena = KeyArena::new();
        for number in 0..10_000 {
            insert(&mut arena, &forty(number));
        }
        while arena.classes[class_of(40)].room != NO_PAGE {
            insert(&mut arena, &forty(1));
        }
        let full = arena.held_bytes();
        let name = insert(&mut arena, &forty(2));
        let with_one_more = arena.held_bytes();
        assert!(with_one_more > full);
        arena.remove(name);
        assert_eq!(arena.held_bytes(), with_one_more);
        assert_eq!(insert(&mut arena, &forty(3)), name);
        assert_eq!(arena.held_bytes(), with_one_more);
    }

    #[test]
    fn new_keys_go_to_the_page_that_was_full_last() {
        let mut arena = KeyArena::new();
        let names: Vec<KeyName> = (0..20_000).map(|n| insert(&mut arena, &forty(n))).collect();
        let (sparse, dense) = (names[5_000].page(), names[10_000].page());
        assert_ne!(sparse, dense);
        for &name in names.iter().filter(|name| name.page() == sparse).skip(1) {
            arena.remove(name);
        }
        arena.remove(names[10_000]);
        assert_eq!(insert(&mut arena, &forty(7)), names[10_000]);
        assert_eq!(arena.bytes(names[10_000]), forty(7).as_bytes());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { len: usize, times: usize },
        Remove { at: usize, times: usize },
        RemoveLen { len: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let len = prop_oneof![
            3 => 1..=MAX_KEY_LEN,
            2 => 1..=24usize,
            2 => Just(MAX_KEY_LEN),
            2 => Just(36usize),
        ];
        let step = prop_oneof![
            4 => (len.clone(), 1..100usize).prop_map(|(len, times)| Step::Insert { len, times }),
            3 => (any::<usize>(), 1..100usize).prop_map(|(at, times)| Step::Remove { at, times }),
            1 => len.prop_map(|len| Step::RemoveLen { len }),
        ];
        vec(step, 1..60)
    }

    /// The texts by name, and the names in an order to pick from.
    #[derive(Default)]
    struct Model {
        texts: HashMap<[u16; 3], String>,
        names: Vec<KeyName>,
    }

    impl Model {
        fn insert(&mut self, name: KeyName, text: String) {
            assert!(self.texts.insert(name.0, text).is_none(), "{name:?} is taken");
            self.names.push(name);
        }

        fn remove(&mut self, at: usize, arena: &mut KeyArena) {
            let name = self.names.swap_remove(at);
            let text = self.texts.remove(&name.0).unwrap();
            assert_eq!(arena.text(name).as_str(), text);
            arena.remove(name);
        }

        fn check(&self, arena: &KeyArena) {
            for (&name, text) in &self.texts {
                assert_eq!(arena.bytes(KeyName(name)), text.as_bytes());
            }
            let live: usize = self.texts.values().map(String::len).sum();
            assert_eq!(arena.live_bytes(), live as u64);
            check_pages(arena, self.texts.len());
        }
    }

    /// Every page is full, has room, is spare or is vacant, as the lists have it.
    fn check_pages(arena: &KeyArena, keys: usize) {
        let mut seen = vec![false; arena.pages.len()];
        let mut see = |number: u32| {
            assert!(!std::mem::replace(&mut seen[number as usize], true), "in two lists");
        };
        for (class, &Class { room, spare, keys }) in arena.classes.iter().enumerate() {
            let size = slot_size(class);
            let (mut at, mut before) = (room, NO_PAGE);
            while at != NO_PAGE {
                see(at);
                let page = &arena.pages[at as usize];
                assert!(page.prev == before && page.used > 0 && !page.is_full(size));
                (before, at) = (at, page.next);
            }
            if spare != NO_PAGE {
                see(spare);
                assert_eq!(arena.pages[spare as usize].used, 0);
            }
            assert!(keys > 0 || (room, spare) == (NO_PAGE, NO_PAGE));
        }
        let mut at = arena.vacant;
        while at != NO_PAGE {
            see(at);
            at = arena.pages[at as usize].next;
        }
        for (page, seen) in arena.pages.iter().zip(seen) {
            assert!(seen || (page.used > 0 && page.free == NO_SLOT), "lost: {page:?}");
        }
        let in_use = arena.pages.iter().filter(|page| !page.bytes.is_empty());
        assert_eq!(in_use.clone().count(), arena.in_use as usize);
        assert_eq!(in_use.map(|page| page.bytes.len() as u64).sum::<u64>(), arena.held);
        let used: usize = arena.pages.iter().map(|page| usize::from(page.used)).sum();
        assert_eq!(used, keys);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn it_keeps_what_a_map_keeps(steps in steps()) {
            let mut arena = KeyArena::new();
            let mut model = Model::default();
            let mut number = 0;
            for step in steps {
                match step {
                    Step::Insert { len, times } => for _ in 0..times {
                        number += 1;
                        let text = text(len, number);
                        model.insert(insert(&mut arena, &text), text);
                    },
                    Step::Remove { at, times } => for turn in 0..times {
                        if model.names.is_empty() {
                            break;
                        }
                        let at = at.wrapping_add(turn * 31) % model.names.len();
                        model.remove(at, &mut arena);
                    },
                    Step::RemoveLen { len } => {
                        for at in (0..model.names.len()).rev() {
                            if model.names[at].len() == len {
                                model.remove(at, &mut arena);
                            }
                        }
                    }
                }
                model.check(&arena);
            }
            for at in (0..model.names.len()).rev() {
                model.remove(at, &mut arena);
            }
            model.check(&arena);
            prop_assert!(arena.held_bytes() <= empty_bytes());
        }
    }
}
