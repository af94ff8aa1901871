//! The table of regions: every byte of the managed range belongs to exactly one.
//!
//! Regions are doubly linked in address order, so that both neighbours of a region
//! that is freed are one step away. A free region is also linked into the list of its
//! bin; a region in use keeps its tag and its label in the same eight bytes.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::neighbours::Label;

/// Names a slot of the table.
pub(crate) type RegionId = u32;

/// No region.
pub(crate) const NONE: RegionId = IN_USE - 1;

/// Slots that the table can have at most: ids below [`NONE`].
pub(crate) const MAX_REGIONS: u32 = NONE;

/// The bit of [`Node::prev`] that says: the region is in use, the other bits are its label,
/// and [`Node::next`] is its tag.
const IN_USE: u32 = 1 << Label::BITS;
/// In [`Node::prev`]: the slot holds no region and [`Node::next`] is the next such slot. No
/// label of a region in use reads like it.
const VACANT: u32 = u32::MAX - 1;

/// One region, or a vacant slot.
///
/// Code on the hot path reads and writes the fields it needs, not whole nodes: loading a
/// node at once right after one of its fields was stored stalls the processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// The region that ends where this one starts.
    pub(crate) before: RegionId,
    /// The region that starts where this one ends.
    pub(crate) after: RegionId,
    /// Free: the previous region of the bin.
    pub(crate) prev: RegionId,
    /// Free: the next region of the bin.
    pub(crate) next: RegionId,
}

const _: () = assert!(size_of::<Node>() == 32, "the documented metadata cost of a region");

impl Node {
    /// A free region that is in no bin yet.
    pub(crate) const fn free(offset: u64, size: u64, before: RegionId, after: RegionId) -> Self {
        Self { offset, size, before, after, prev: NONE, next: NONE }
    }

    /// Bytes from the start of the region to the next multiple of `align`, a power of
    /// two.
    pub(crate) const fn pad(&self, align: u64) -> u64 {
        self.offset.wrapping_neg() & (align - 1)
    }

    /// Returns whether `size` bytes fit behind the pad.
    pub(crate) fn holds(&self, size: u64, align: u64) -> bool {
        self.size.checked_sub(self.pad(align)).is_some_and(|rest| rest >= size)
    }

    pub(crate) const fn is_free(&self) -> bool {
        self.prev <= NONE
    }

    pub(crate) const fn is_in_use_as(&self, tag: u32) -> bool {
        self.is_in_use() && self.next == tag
    }

    pub(crate) const fn is_in_use(&self) -> bool {
        self.prev >= IN_USE && self.prev != VACANT
    }

    pub(crate) const fn set_in_use(&mut self, tag: u32) {
        self.prev = IN_USE | Label::NONE;
        self.next = tag;
    }

    /// The label of a region in use.
    pub(crate) const fn label(&self) -> Option<Label> {
        Label::from_bits(self.prev)
    }

    /// Labels a region in use.
    pub(crate) const fn set_label(&mut self, label: Label) {
        self.prev = IN_USE | label.number();
    }
}

/// Slots in a chunk of the table: 16 KiB of nodes.
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 9;

/// Slots that are looked at for one with a region.
const NEARBY: usize = 64;

const NEVER_USED: Node =
    Node { offset: 0, size: 0, before: NONE, after: NONE, prev: VACANT, next: NONE };

/// The regions, by id. Grows by one chunk at a time and never moves a node, so no
/// single insertion pays for a copy of the whole table. Vacated slots are used again
/// before the table grows.
pub(crate) struct RegionTable {
    chunks: Vec<Box<[Node; CHUNK]>>,
    /// Slots that have ever been used.
    len: u32,
    /// The most recently vacated slot.
    vacant: RegionId,
    limit: u32,
}

impl RegionTable {
    pub(crate) const fn new(limit: u32) -> Self {
        Self { chunks: Vec::new(), len: 0, vacant: NONE, limit }
    }

    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Adds a region; `None` when the table is at its limit.
    pub(crate) fn insert(&mut self, node: Node) -> Option<RegionId> {
        if self.vacant != NONE {
            let id = self.vacant;
            let slot = &mut self[id];
            let next = slot.next;
            *slot = node;
            self.vacant = next;
            return Some(id);
        }
        if self.len >= self.limit {
            return None;
        }
        let id = self.len;
        if (id as usize).is_multiple_of(CHUNK) {
            let chunk = vec![NEVER_USED; CHUNK].into_boxed_slice();
            self.chunks.push(chunk.try_into().expect("it was made with CHUNK slots"));
        }
        self[id] = node;
        self.len += 1;
        Some(id)
    }

    /// Vacates the slot of a region that its neighbours no longer name.
    pub(crate) fn remove(&mut self, id: RegionId) {
        let next = self.vacant;
        let slot = &mut self[id];
        slot.prev = VACANT;
        slot.next = next;
        self.vacant = id;
    }

    /// The node of `id`, wherever that came from; a vacant one, or `None`, when the
    /// table has no such region.
    pub(crate) fn get(&self, id: RegionId) -> Option<&Node> {
        let chunk = self.chunks.get(id as usize >> CHUNK_BITS)?;
        Some(&chunk[id as usize % CHUNK])
    }

    /// A region among the [`NEARBY`] slots from the one on that `number` stands for.
    pub(crate) fn near(&self, number: u64) -> Option<RegionId> {
        let first = number.checked_rem(u64::from(self.len))? as RegionId;
        let slots = (first..self.len).chain(0..first).take(NEARBY);
        slots.into_iter().find(|&id| self[id].prev != VACANT)
    }

    /// Forgets every region and gives the memory back.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.limit);
    }
}

impl Index<RegionId> for RegionTable {
    type Output = Node;

    fn index(&self, id: RegionId) -> &Node {
        &self.chunks[id as usize >> CHUNK_BITS][id as usize % CHUNK]
    }
}

impl IndexMut<RegionId> for RegionTable {
    fn index_mut(&mut self, id: RegionId) -> &mut Node {
        &mut self.chunks[id as usize >> CHUNK_BITS][id as usize % CHUNK]
    }
}
