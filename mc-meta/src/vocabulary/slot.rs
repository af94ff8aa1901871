//! The places of objects in their shards.

use core::ops::Range;

/// A slot of an object in its shard. Reused when the object has gone: what outlives the shard's
/// lock names the object's generation, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct ObjectSlot(u32);

impl ObjectSlot {
    /// No object's slot.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) const fn new(number: u32) -> Self {
        Self(number)
    }

    pub(crate) const fn as_u32(self) -> u32 {
        self.0
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the slots with these numbers.
    pub(crate) fn range(numbers: Range<u32>) -> impl Iterator<Item = Self> {
        numbers.map(Self)
    }
}
