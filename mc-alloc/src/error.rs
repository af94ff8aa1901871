//! Errors of allocating and freeing.

use core::error::Error;
use core::fmt;

use mc_types::Extent;

use crate::Allocation;

/// Why an allocation was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocateError {
    /// No bytes were asked for.
    ZeroSize,
    /// The alignment is not a power of two.
    BadAlignment {
        /// The alignment asked for.
        align: u64,
    },
    /// More bytes were asked for than one allocation of this allocator can have,
    /// however empty it is: all that it manages, or the largest size class.
    LargerThanCapacity {
        /// Bytes asked for.
        requested: u64,
        /// Bytes managed.
        capacity: u64,
    },
    /// More bytes were asked for than are free.
    Full {
        /// Bytes asked for.
        requested: u64,
        /// Bytes free.
        available: u64,
    },
    /// Enough bytes are free, but no free region was found that holds them.
    ///
    /// Every free region lies below the end of the requested size's bin: the largest
    /// is less than 1/64 larger than `requested`. One that would have fitted is missed
    /// only when its bin has more than eight regions.
    ///
    /// In a [`SlabAllocator`](crate::SlabAllocator), the free bytes lie in slots of other
    /// size classes and behind the last slots of slabs.
    Fragmented {
        /// Bytes asked for.
        requested: u64,
        /// Bytes free.
        available: u64,
        /// Bytes of the largest free region that was seen, below `requested`; or of the
        /// largest free slot, which may be one of a larger class.
        largest_free: u64,
    },
    /// Enough bytes are free, and a free region has as many as were asked for, but none
    /// was found that has them behind a multiple of the alignment.
    ///
    /// No free region above the bin of `requested + align - 1` bytes exists; a smaller
    /// one that would have fitted is missed only behind eight others of its bin, or when
    /// a bin between that and the bin of `requested` has it.
    Misaligned {
        /// Bytes asked for.
        requested: u64,
        /// The alignment asked for.
        align: u64,
        /// Bytes free.
        available: u64,
        /// Bytes of the largest free region that was seen.
        largest_free: u64,
    },
    /// The region to allocate from would have to be split, and the table of regions is
    /// at its limit.
    TooManyRegions {
        /// Regions, free and in use, that the allocator may have.
        limit: u32,
    },
    /// No size class of enough bytes has slots that are aligned like this.
    AlignmentTooLarge {
        /// Bytes asked for.
        requested: u64,
        /// The alignment asked for.
        align: u64,
        /// The largest alignment of any class of at least `requested` bytes.
        largest: u64,
    },
    /// The allocator was retired: its range is no longer there to be divided.
    Retired,
}

impl AllocateError {
    /// Returns whether the same request can succeed once other allocations have been freed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::ZeroSize
            | Self::BadAlignment { .. }
            | Self::LargerThanCapacity { .. }
            | Self::AlignmentTooLarge { .. }
            | Self::Retired => false,
            Self::Full { .. }
            | Self::Fragmented { .. }
            | Self::Misaligned { .. }
            | Self::TooManyRegions { .. } => true,
        }
    }
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroSize => f.write_str("an allocation must have at least one byte"),
            Self::BadAlignment { align } => {
                write!(f, "an alignment is a power of two, {align} is none; 1 asks for none")
            }
            Self::LargerThanCapacity { requested, capacity } => write!(
                f,
                "{requested} bytes can never fit a capacity of {capacity}; split the request or \
                 use a larger segment"
            ),
            Self::Full { requested, available } => write!(
                f,
                "{requested} bytes requested but only {available} are free; free at least {} more",
                requested - available
            ),
            Self::Fragmented { requested, available, largest_free }
                if largest_free >= requested =>
            {
                write!(
                    f,
                    "{requested} bytes requested and {available} are free, but only in slots of \
                     other size classes, of up to {largest_free} bytes; free allocations of this \
                     size, or all of a slab"
                )
            }
            Self::Fragmented { requested, available, largest_free } => write!(
                f,
                "{requested} bytes requested and {available} are free, but the largest free \
                 region has {largest_free}; free neighbouring allocations"
            ),
            Self::Misaligned { requested, align, available, largest_free } => write!(
                f,
                "{requested} bytes requested at a multiple of {align} and {available} are free, \
                 but no free region found holds them there, and the largest has {largest_free}; \
                 free neighbouring allocations or allocate in multiples of the alignment"
            ),
            Self::TooManyRegions { limit } => write!(
                f,
                "the allocator already tracks its limit of {limit} regions; free some or use \
                 larger allocations"
            ),
            Self::AlignmentTooLarge { requested, align, largest } => write!(
                f,
                "no size class of at least {requested} bytes is aligned to {align}, the most is \
                 {largest}; add a class that is a multiple of {align}, or use larger slabs"
            ),
            Self::Retired => f.write_str("the allocator is retired; allocate from another segment"),
        }
    }
}

impl Error for AllocateError {}

/// An allocation that the allocator it was given to does not know: another one made
/// it, or the allocator was reset since. Gives the allocation back.
#[derive(Debug)]
pub struct FreeError {
    allocation: Allocation,
}

impl FreeError {
    pub(crate) const fn new(allocation: Allocation) -> Self {
        Self { allocation }
    }

    /// The allocation that was refused.
    pub const fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Takes the allocation back, to free it where it belongs.
    pub fn into_allocation(self) -> Allocation {
        self.allocation
    }
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the allocation {} is not one of this allocator's live ones; free it into the \
             allocator that made it",
            self.allocation.extent()
        )
    }
}

impl Error for FreeError {}

/// Why a range keeps its end. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResizeError {
    /// Some bytes beyond the new end are in use.
    InUse {
        /// The end asked for.
        requested: u64,
        /// The nearest end that is possible now.
        smallest: u64,
    },
    /// The space at the end would be a region of its own, and the table of regions is at
    /// its limit.
    TooManyRegions {
        /// Regions, free and in use, that the allocator may have.
        limit: u32,
    },
    /// The allocator was retired: its range is no longer there.
    Retired,
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { requested, smallest } => write!(
                f,
                "the range cannot end at {requested}: it is in use up to {smallest}; free what \
                 lies beyond, or end it there"
            ),
            Self::TooManyRegions { limit } => write!(
                f,
                "the allocator already tracks its limit of {limit} regions and cannot grow by \
                 one; free some"
            ),
            Self::Retired => f.write_str("the allocator is retired; nothing is left to resize"),
        }
    }
}

impl Error for ResizeError {}

/// Why a certain extent cannot be allocated. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocateAtError {
    /// The extent has no bytes.
    Empty {
        /// The extent.
        extent: Extent,
    },
    /// The extent reaches beyond the capacity.
    OutOfRange {
        /// The extent.
        extent: Extent,
        /// Bytes managed.
        capacity: u64,
    },
    /// A live allocation has some of its bytes.
    InUse {
        /// The extent.
        extent: Extent,
    },
    /// The allocator places no allocation of this length there: its slab belongs to another size
    /// class, or no slot of its class begins there.
    Misplaced {
        /// The extent.
        extent: Extent,
    },
    /// The allocation needs a region more than the allocator may have.
    TooManyRegions {
        /// Regions that it may have.
        limit: u32,
    },
}

impl fmt::Display for AllocateAtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { extent } => write!(f, "the extent {extent} has no bytes"),
            Self::OutOfRange { extent, capacity } => {
                write!(f, "the extent {extent} reaches beyond the capacity of {capacity}")
            }
            Self::InUse { extent } => write!(
                f,
                "a live allocation has bytes of the extent {extent}; free it first, or allocate \
                 elsewhere"
            ),
            Self::Misplaced { extent } => write!(
                f,
                "the extent {extent} fits no free slot of its slab; use the slab size and classes \
                 that it was made with"
            ),
            Self::TooManyRegions { limit } => write!(
                f,
                "the extent needs more than the limit of {limit} regions; free some, or raise it"
            ),
        }
    }
}

impl Error for AllocateAtError {}

/// Why an allocator cannot be built again from a list of live extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreError {
    /// An extent has no bytes.
    Empty {
        /// The extent.
        extent: Extent,
    },
    /// An extent reaches beyond the capacity.
    OutOfRange {
        /// The extent.
        extent: Extent,
        /// Bytes managed.
        capacity: u64,
    },
    /// Two extents share bytes.
    Overlap {
        /// The extent that begins first.
        first: Extent,
        /// The other extent.
        second: Extent,
    },
    /// The allocator could not have placed these extents: they fit no size class of
    /// their slab.
    Misplaced {
        /// The first of them.
        extent: Extent,
    },
    /// The extents need more regions than the allocator may have.
    TooManyRegions {
        /// Regions that it may have.
        limit: u32,
    },
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { extent } => write!(f, "the live extent {extent} has no bytes"),
            Self::OutOfRange { extent, capacity } => {
                write!(f, "the live extent {extent} reaches beyond the capacity of {capacity}")
            }
            Self::Overlap { first, second } => {
                write!(f, "the live extents {first} and {second} share bytes; drop one of them")
            }
            Self::Misplaced { extent } => write!(
                f,
                "the live extent {extent} fits no size class of its slab; restore it with the \
                 slab size and classes that it was made with"
            ),
            Self::TooManyRegions { limit } => {
                write!(f, "the live extents need more than the limit of {limit} regions")
            }
        }
    }
}

impl Error for RestoreError {}
