//! Neighbours in an allocator's range, and their labels: for caches that make room by evicting
//! neighbours.

use core::fmt;

use mc_types::Extent;

use crate::regions::RegionId;

/// A number that the holder of an allocation attaches to it, to find the owner of the bytes at a
/// place. It is kept where the allocator has bits to spare, and costs no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(u32);

impl Label {
    /// The bits that a number may have.
    pub const BITS: u32 = 31;

    /// The number of an allocation that has none.
    pub(crate) const NONE: u32 = (1 << Self::BITS) - 1;

    /// A label; `None` for numbers from `2^31 - 2` on.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        // The number before `NONE` would read as a vacant region of an `OffsetAllocator`.
        if number < Self::NONE - 1 { Some(Self(number)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u32) -> Option<Self> {
        Self::new(bits & Self::NONE)
    }
}

/// The position of a region or an allocation in its allocator. The allocation may be gone, or
/// another one be there, by the time the place is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub(crate) offset: u64,
    /// The region, or the slot, among those of its allocator.
    pub(crate) region: RegionId,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// The state of a [`Neighbour`]'s bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Free.
    Free,
    /// A live allocation, and its label if one was [set](crate::Allocator::set_label).
    Live(Option<Label>),
}

/// A part of an allocator's range that is free, or taken by one allocation, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The bytes, those that are lost to rounding up included.
    pub extent: Extent,
    /// The position in the allocator.
    pub place: Place,
    /// The state of the bytes.
    pub content: Content,
}

/// The direction of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To lower offsets.
    Down,
    /// To higher offsets.
    Up,
}

/// The bytes that have to be free for an allocation to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// As many as are asked for, in a row, wherever they begin.
    Anywhere,
    /// All of these.
    Exactly(Extent),
    /// None: there is no such place any more, or the range never holds so many.
    Nowhere,
}
