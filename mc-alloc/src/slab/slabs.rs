//! The table of slabs and the slots of each.
//!
//! A slab that belongs to no class is in the pool or was never used. One that belongs
//! to a class and has both live and free slots is in that class's list of partly used
//! slabs; a full one is in no list.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::neighbours::{Content, Label};

/// Names a slab: its offset divided by the slab size.
pub(super) type SlabId = u32;

/// No slab, and no slot.
pub(super) const NONE: u32 = u32::MAX;

/// In [`Slab::class`]: the slab belongs to none.
const NO_CLASS: u16 = u16::MAX;

/// A slot that has been used at least once since its slab got its class.
#[derive(Clone, Copy)]
struct Slot {
    /// Bytes asked for; 0 when the slot is free.
    len: u64,
    /// In use: the tag. Free: the next free slot.
    word: u32,
    /// The label of the allocation.
    label: u32,
}

const _: () = assert!(size_of::<Slot>() == 16, "the documented metadata cost of an allocation");

pub(super) struct Slab {
    /// The slots up to the last one ever used.
    slots: Vec<Slot>,
    /// The most recently freed slot.
    vacant: u32,
    live: u32,
    prev: SlabId,
    next: SlabId,
    class: u16,
}

const _: () = assert!(size_of::<Slab>() == 48, "the documented metadata cost of a slab");

impl Slab {
    const UNASSIGNED: Self =
        Self { slots: Vec::new(), vacant: NONE, live: 0, prev: NONE, next: NONE, class: NO_CLASS };

    /// The class that the slab belongs to.
    pub(super) fn class(&self) -> Option<usize> {
        (self.class != NO_CLASS).then_some(usize::from(self.class))
    }

    /// Slots in use.
    pub(super) const fn live(&self) -> u32 {
        self.live
    }

    /// Gives an unassigned slab to a class.
    pub(super) fn assign(&mut self, class: usize) {
        self.class = u16::try_from(class).expect("classes are few");
    }

    /// Forgets the class and gives the memory of the slot table back.
    pub(super) fn unassign(&mut self) {
        *self = Self::UNASSIGNED;
    }

    /// Takes a free slot of a slab that has one, of `slots` in all.
    pub(super) fn take(&mut self, slots: u32, len: u64, tag: u32) -> u32 {
        self.live += 1;
        let taken = Slot { len, word: tag, label: Label::NONE };
        if self.vacant != NONE {
            let id = self.vacant;
            let slot = &mut self.slots[id as usize];
            self.vacant = slot.word;
            *slot = taken;
            return id;
        }
        let used = self.slots.len();
        if used == self.slots.capacity() {
            // Doubles, as a push would, but never beyond the slots that there are.
            let missing = slots as usize - used;
            self.slots.reserve_exact(missing.min(used.max(4)));
        }
        self.slots.push(taken);
        used as u32
    }

    /// Takes slot `id`, behind all that were ever used.
    pub(super) fn take_at(&mut self, id: u32, len: u64, tag: u32) {
        while self.slots.len() < id as usize {
            let skipped = self.slots.len() as u32;
            self.slots.push(Slot { len: 0, word: self.vacant, label: Label::NONE });
            self.vacant = skipped;
        }
        self.slots.push(Slot { len, word: tag, label: Label::NONE });
        self.live += 1;
    }

    /// Takes slot `id`, which is free.
    pub(super) fn take_there(&mut self, id: u32, len: u64, tag: u32) {
        if id as usize >= self.slots.len() {
            return self.take_at(id, len, tag);
        }
        let next = self.slots[id as usize].word;
        if self.vacant == id {
            self.vacant = next;
        } else {
            let mut before = self.vacant;
            while self.slots[before as usize].word != id {
                before = self.slots[before as usize].word;
            }
            self.slots[before as usize].word = next;
        }
        self.slots[id as usize] = Slot { len, word: tag, label: Label::NONE };
        self.live += 1;
    }

    /// Returns whether a slot, of those that there are, is free.
    pub(super) fn is_free(&self, id: u32) -> bool {
        self.slots.get(id as usize).is_none_or(|slot| slot.len == 0)
    }

    /// Returns whether slot `id`, wherever that came from, is in use with this length and tag.
    pub(super) fn holds(&self, id: u32, len: u64, tag: u32) -> bool {
        self.slots.get(id as usize).is_some_and(|slot| {
            // A free slot has the length 0, and no allocation is empty.
            slot.len == len && slot.word == tag && len != 0
        })
    }

    /// Labels a slot in use.
    pub(super) fn set_label(&mut self, id: u32, label: Label) {
        self.slots[id as usize].label = label.number();
    }

    /// The content of a slot.
    pub(super) fn content(&self, id: u32) -> Content {
        match self.slots.get(id as usize) {
            Some(slot) if slot.len != 0 => Content::Live(Label::from_bits(slot.label)),
            _ => Content::Free,
        }
    }

    /// Frees a slot that is in use.
    pub(super) fn give_back(&mut self, id: u32) {
        self.slots[id as usize] = Slot { len: 0, word: self.vacant, label: Label::NONE };
        self.vacant = id;
        self.live -= 1;
    }

    /// The slots in use, in ascending order, and the bytes asked for of each.
    pub(super) fn lens(&self) -> impl Iterator<Item = (u32, u64)> {
        let slots = (0..).zip(&self.slots);
        slots.filter(|(_, slot)| slot.len != 0).map(|(id, slot)| (id, slot.len))
    }
}

/// The slabs up to the last one ever used.
pub(super) struct SlabTable {
    slabs: Vec<Slab>,
}

impl SlabTable {
    pub(super) const fn new() -> Self {
        Self { slabs: Vec::new() }
    }

    pub(super) fn len(&self) -> u32 {
        self.slabs.len() as u32
    }

    /// Adds the slab behind the last one, unassigned and in no list.
    pub(super) fn push(&mut self) -> SlabId {
        self.slabs.push(Slab::UNASSIGNED);
        self.len() - 1
    }

    /// Forgets the last slab, which must be in no list.
    pub(super) fn pop(&mut self) {
        self.slabs.pop();
    }

    pub(super) fn get(&self, id: u64) -> Option<&Slab> {
        self.slabs.get(usize::try_from(id).ok()?)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (SlabId, &Slab)> {
        self.slabs.iter().enumerate().map(|(id, slab)| (id as SlabId, slab))
    }

    /// Puts a slab that is in no list at the front of the list that starts at `head`.
    pub(super) fn link(&mut self, head: &mut SlabId, id: SlabId) {
        let next = *head;
        let slab = &mut self[id];
        slab.prev = NONE;
        slab.next = next;
        if next != NONE {
            self[next].prev = id;
        }
        *head = id;
    }

    /// Takes a slab out of the list that starts at `head`.
    pub(super) fn unlink(&mut self, head: &mut SlabId, id: SlabId) {
        let Slab { prev, next, .. } = self[id];
        match prev {
            NONE => *head = next,
            prev => self[prev].next = next,
        }
        if next != NONE {
            self[next].prev = prev;
        }
    }
}

impl Index<SlabId> for SlabTable {
    type Output = Slab;

    fn index(&self, id: SlabId) -> &Slab {
        &self.slabs[id as usize]
    }
}

impl IndexMut<SlabId> for SlabTable {
    fn index_mut(&mut self, id: SlabId) -> &mut Slab {
        &mut self.slabs[id as usize]
    }
}
