//! The common interface of the two allocators.

use mc_alloc::OffsetAllocator;

/// An allocator of offsets.
pub(crate) trait Space {
    /// Its name in figures.
    const NAME: &'static str;
    /// An allocation, as its holder keeps it.
    type Held;

    /// Manages `pool` bytes, all sizes being multiples of `unit`; tables that are
    /// made in advance have room for `regions`.
    fn new(pool: u64, unit: u64, regions: u64) -> Self;

    /// Takes `len` bytes; `None` when they are not to be had.
    fn allocate(&mut self, len: u64) -> Option<Self::Held>;

    /// Takes an allocation back and says how many bytes it had; `None` when it
    /// refuses.
    fn free(&mut self, held: Self::Held) -> Option<u64>;

    /// First byte and length.
    fn extent(&self, held: &Self::Held) -> (u64, u64);
}

/// `mc-alloc`.
pub(crate) struct Ours(OffsetAllocator);

impl Space for Ours {
    const NAME: &'static str = "ours";
    type Held = mc_alloc::Allocation;

    fn new(pool: u64, _unit: u64, _regions: u64) -> Self {
        Self(OffsetAllocator::new(pool))
    }

    fn allocate(&mut self, len: u64) -> Option<Self::Held> {
        self.0.allocate(len).ok()
    }

    fn free(&mut self, held: Self::Held) -> Option<u64> {
        let len = held.extent().len();
        self.0.free(held).ok().map(|()| len)
    }

    fn extent(&self, held: &Self::Held) -> (u64, u64) {
        (held.extent().offset(), held.extent().len())
    }
}

/// The crate `offset-allocator`. It counts in 32 bits, so large pools are given to
/// it in units.
pub(crate) struct Published {
    space: offset_allocator::Allocator<u32>,
    unit: u64,
}

/// Its allocations do not know their length, so the holder keeps it.
pub(crate) struct PublishedHeld {
    allocation: offset_allocator::Allocation<u32>,
    units: u32,
}

impl Published {
    fn units(&self, len: u64) -> u32 {
        u32::try_from(len / self.unit).expect("pools are chosen to fit into 32 bits of units")
    }
}

impl Space for Published {
    const NAME: &'static str = "offset-allocator";
    type Held = PublishedHeld;

    fn new(pool: u64, unit: u64, regions: u64) -> Self {
        let units = u32::try_from(pool / unit).expect("pools are chosen to fit into 32 bits");
        let regions = u32::try_from(regions).expect("fewer regions than units") + 1024;
        Self { space: offset_allocator::Allocator::with_max_allocs(units, regions), unit }
    }

    fn allocate(&mut self, len: u64) -> Option<Self::Held> {
        let units = self.units(len);
        self.space.allocate(units).map(|allocation| PublishedHeld { allocation, units })
    }

    fn free(&mut self, held: Self::Held) -> Option<u64> {
        self.space.free(held.allocation);
        Some(u64::from(held.units) * self.unit)
    }

    fn extent(&self, held: &Self::Held) -> (u64, u64) {
        let offset = u64::from(held.allocation.offset) * self.unit;
        (offset, u64::from(held.units) * self.unit)
    }
}
