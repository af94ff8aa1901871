//! A picture of an allocator's space, for metrics and diagnosis.

use alloc::vec::Vec;

/// The use of an allocator's space at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Bytes managed.
    pub capacity: u64,
    /// Bytes in live allocations.
    pub used: u64,
    /// Bytes free; `used + free == capacity`.
    pub free: u64,
    /// The result of [`Allocator::largest_free`](crate::Allocator::largest_free).
    pub largest_free: u64,
    /// Live allocations.
    pub live: usize,
    /// The sizes of the free regions: each bin that has any, smallest first.
    pub bins: Vec<BinReport>,
}

/// The free regions of one size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BinReport {
    /// Bytes of the smallest region that belongs here.
    pub smallest: u64,
    /// Bytes of the largest region that belongs here.
    pub largest: u64,
    /// Free regions with a size in between.
    pub regions: u32,
}

impl Report {
    /// The part of the free bytes that lies outside the largest free region:
    /// `1 - largest_free / free`. 0 when all free bytes are one region or none is
    /// free; near 1 when they are dust.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.free == 0 {
            return 0.0;
        }
        1.0 - self.largest_free as f64 / self.free as f64
    }

    /// The part of the capacity that is in use; 0 when there is no capacity.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        if self.capacity == 0 {
            return 0.0;
        }
        self.used as f64 / self.capacity as f64
    }

    /// Free regions.
    #[must_use]
    pub fn free_regions(&self) -> u64 {
        self.bins.iter().map(|bin| u64::from(bin.regions)).sum()
    }
}
