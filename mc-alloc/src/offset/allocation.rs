//! The handle of an allocation.

use core::fmt;
use core::num::NonZeroU32;

use mc_types::Extent;

use crate::neighbours::Place;
use crate::regions::RegionId;

/// Bytes taken from an [allocator](crate::Allocator), to be given back to it with
/// [`free`](crate::Allocator::free).
///
/// It can be neither copied nor cloned, so it cannot be freed twice. Dropping it frees
/// nothing: the bytes stay taken until the allocator is reset or dropped.
#[must_use = "the bytes stay taken when an allocation is dropped instead of freed"]
pub struct Allocation {
    pub(crate) extent: Extent,
    /// The region, or the slot, among those of its allocator.
    pub(crate) region: RegionId,
    pub(crate) tag: NonZeroU32,
}

const _: () = assert!(size_of::<Option<Allocation>>() == 24, "kept once per replica by masters");

impl Allocation {
    /// Where the bytes are; never empty.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Where it is in its allocator, to be looked for later.
    #[must_use]
    pub const fn place(&self) -> Place {
        Place { offset: self.extent.offset(), region: self.region }
    }
}

impl fmt::Debug for Allocation {
    /// Leaves the tag out: it may stem from an address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("extent", &self.extent).finish_non_exhaustive()
    }
}

/// The tag after `tag`: every value but 0 comes before any comes again.
pub(crate) fn following(tag: NonZeroU32) -> NonZeroU32 {
    tag.checked_add(1).unwrap_or(NonZeroU32::MIN)
}
