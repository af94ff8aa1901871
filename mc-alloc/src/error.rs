//! What allocation and freeing can refuse, and why.

use core::error::Error;
use core::fmt;

use crate::Allocation;

/// Why an allocation was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocateError {
    /// No bytes were asked for.
    ZeroSize,
    /// More bytes were asked for than the allocator manages.
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
    Fragmented {
        /// Bytes asked for.
        requested: u64,
        /// Bytes free.
        available: u64,
        /// Bytes of the largest free region that was seen; always below `requested`.
        largest_free: u64,
    },
    /// The region to allocate from would have to be split, and the table of regions is
    /// at its limit.
    TooManyRegions {
        /// Regions, free and in use, that the allocator may have.
        limit: u32,
    },
}

impl AllocateError {
    /// Whether the same request can succeed once other allocations have been freed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::ZeroSize | Self::LargerThanCapacity { .. } => false,
            Self::Full { .. } | Self::Fragmented { .. } | Self::TooManyRegions { .. } => true,
        }
    }
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroSize => f.write_str("an allocation must have at least one byte"),
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
            Self::Fragmented { requested, available, largest_free } => write!(
                f,
                "{requested} bytes requested and {available} are free, but the largest free \
                 region has {largest_free}; free neighbouring allocations"
            ),
            Self::TooManyRegions { limit } => write!(
                f,
                "the allocator already tracks its limit of {limit} regions; free some or use \
                 larger allocations"
            ),
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
