//! The objects of a shard, by their slots.

use core::ops::{Index, IndexMut};

use crate::object::Object;
use crate::tables::slab::{Slab, Slot};
use crate::vocabulary::slot::ObjectSlot;

const _: () = assert!(
    size_of::<Slot<Object>>() == size_of::<Option<Object>>(),
    "a chain of free slots costs objects nothing"
);

/// The objects of a shard, or what is kept beside each of them.
#[derive(Debug)]
pub(crate) struct Objects<T = Object>(Slab<T>);

impl<T> Objects<T> {
    pub(crate) const fn new() -> Self {
        Self(Slab::new())
    }

    /// Returns the slot that the next object gets.
    #[inline]
    pub(crate) fn next_slot(&self) -> ObjectSlot {
        ObjectSlot::new(self.0.next_slot())
    }

    #[inline]
    pub(crate) fn insert(&mut self, object: T) -> ObjectSlot {
        ObjectSlot::new(self.0.insert(object))
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: ObjectSlot) -> Option<T> {
        self.0.remove(slot.as_u32())
    }

    #[inline]
    pub(crate) fn get(&self, slot: ObjectSlot) -> Option<&T> {
        self.0.get(slot.as_u32())
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: ObjectSlot) -> Option<&mut T> {
        self.0.get_mut(slot.as_u32())
    }

    /// Takes out the object of a slot that is occupied.
    ///
    /// # Panics
    /// When the slot is vacant, see [`Index`](Self::index).
    #[inline]
    pub(crate) fn take(&mut self, slot: ObjectSlot) -> T {
        self.remove(slot).expect(OCCUPIED)
    }

    /// Returns a bound that the numbers of all slots in use are below.
    pub(crate) fn end(&self) -> u32 {
        self.0.end()
    }
}

/// Slots that a shard's tables hold are occupied: an object that goes is taken out of every table
/// under the same lock.
const OCCUPIED: &str = "a slot in a shard's tables is occupied";

impl<T> Index<ObjectSlot> for Objects<T> {
    type Output = T;

    /// Returns the object of a slot that one of the shard's tables holds, or that was looked up
    /// under the same lock.
    ///
    /// # Panics
    /// When the slot is vacant: a table kept the slot of an object that has gone.
    #[inline]
    fn index(&self, slot: ObjectSlot) -> &T {
        self.get(slot).expect(OCCUPIED)
    }
}

impl<T> IndexMut<ObjectSlot> for Objects<T> {
    #[inline]
    fn index_mut(&mut self, slot: ObjectSlot) -> &mut T {
        self.get_mut(slot).expect(OCCUPIED)
    }
}
