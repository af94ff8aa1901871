//! The regions of an allocator, one after the other.

use core::fmt;
use core::iter::FusedIterator;

use mc_types::Extent;

use crate::regions::{NONE, RegionId, RegionTable};

/// A part of an allocator's range that is in use or free as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    extent: Extent,
    free: bool,
}

impl Region {
    /// Where the region is; never empty.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Returns whether the region is free; otherwise it is one live allocation.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.free
    }
}

/// The regions of an allocator in address order; from
/// [`OffsetAllocator::regions`](crate::OffsetAllocator::regions).
#[derive(Clone)]
pub struct Regions<'a> {
    pub(super) table: &'a RegionTable,
    pub(super) next: RegionId,
}

impl Iterator for Regions<'_> {
    type Item = Region;

    fn next(&mut self) -> Option<Region> {
        if self.next == NONE {
            return None;
        }
        let node = &self.table[self.next];
        self.next = node.after;
        let extent =
            Extent::new(node.offset, node.size).expect("a region ends within the capacity");
        Some(Region { extent, free: node.is_free() })
    }
}

impl FusedIterator for Regions<'_> {}

impl fmt::Debug for Regions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}
