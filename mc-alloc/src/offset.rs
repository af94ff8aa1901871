//! The offset allocator.

use core::fmt;
use core::iter::FusedIterator;
use core::num::NonZeroU32;

use mc_types::Extent;

use crate::error::{AllocateError, FreeError};
use crate::free_index::FreeIndex;
use crate::mix::mix;
use crate::regions::{MAX_REGIONS, NONE, Node, RegionId, RegionTable};
use crate::report::{BinReport, Report};

/// Divides a range of offsets `[0, capacity)` into extents, without touching what lies
/// at those offsets.
///
/// [`allocate`](Self::allocate) and [`free`](Self::free) take constant time: neither
/// searches through regions, and a freed region merges with both neighbours at once.
/// An allocation has exactly the size asked for. One region (an allocation or a gap
/// between two) costs 32 bytes of metadata; the table of regions starts empty, grows
/// in chunks of 16 KiB and never moves. The size classes cost up to 31 KiB, by
/// capacity.
///
/// Sources: TLSF (Masmano and others, ECRTS 2004) for the two-level bitmap and the
/// immediate merging, Sebastian Aaltonen's OffsetAllocator for keeping the metadata
/// apart from the memory and for size classes that are small floating-point numbers.
///
/// ```
/// use mc_alloc::OffsetAllocator;
///
/// let mut space = OffsetAllocator::new(1 << 30);
/// let page = space.allocate(65_536)?;
/// assert_eq!(page.extent().len(), 65_536);
/// assert_eq!(space.used(), 65_536);
/// space.free(page)?;
/// assert_eq!(space.largest_free(), 1 << 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OffsetAllocator {
    regions: RegionTable,
    free: FreeIndex,
    /// The region at offset 0; [`NONE`] when the capacity is 0.
    first: RegionId,
    /// The tag of the next allocation.
    tag: NonZeroU32,
    capacity: u64,
    used: u64,
    live: usize,
}

impl OffsetAllocator {
    /// An allocator of `capacity` bytes, all free, with the settings that
    /// [`OffsetAllocatorBuilder`] documents as defaults.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self::builder(capacity).build()
    }

    /// An allocator of `capacity` bytes with other settings than the defaults.
    pub const fn builder(capacity: u64) -> OffsetAllocatorBuilder {
        OffsetAllocatorBuilder { capacity, identity: None, max_regions: MAX_REGIONS }
    }

    /// Takes `size` bytes out of the free space.
    ///
    /// Among the free regions, one of the closest size class that fits is used, from
    /// its lower end.
    ///
    /// # Errors
    ///
    /// See [`AllocateError`]; the allocator is unchanged then.
    pub fn allocate(&mut self, size: u64) -> Result<Allocation, AllocateError> {
        let available = self.available();
        if size == 0 {
            return Err(AllocateError::ZeroSize);
        }
        if size > self.capacity {
            return Err(AllocateError::LargerThanCapacity {
                requested: size,
                capacity: self.capacity,
            });
        }
        if size > available {
            return Err(AllocateError::Full { requested: size, available });
        }
        let Some(found) = self.free.find(&self.regions, size) else {
            return Err(AllocateError::Fragmented {
                requested: size,
                available,
                largest_free: self.largest_free(),
            });
        };
        let offset = self.regions[found].offset;
        let region = if self.regions[found].size == size {
            self.free.remove(&mut self.regions, found);
            self.regions[found].set_in_use(self.tag.get());
            found
        } else {
            self.split_front(found, size)?
        };
        let extent = Extent::new(offset, size).expect("a region ends within the capacity");
        let allocation = Allocation { extent, region, tag: self.tag };
        self.tag = following(self.tag);
        self.used += size;
        self.live += 1;
        Ok(allocation)
    }

    /// Gives an allocation's bytes back and merges them with the free neighbours.
    ///
    /// # Errors
    ///
    /// Gives the allocation back, and changes nothing, when it is not a live one of
    /// this allocator. See [`OffsetAllocatorBuilder::identity`] for how that is told.
    pub fn free(&mut self, allocation: Allocation) -> Result<(), FreeError> {
        let Some(node) = self.find_live(&allocation) else {
            return Err(FreeError::new(allocation));
        };
        let id = allocation.region;
        let (before, after) = (node.before, node.after);
        let (offset, size) = (allocation.extent.offset(), allocation.extent.len());
        let merges_before = before != NONE && self.regions[before].is_free();
        let merges_after = after != NONE && self.regions[after].is_free();
        match (merges_before, merges_after) {
            (false, false) => self.free.insert(&mut self.regions, id),
            (true, false) => {
                let merged = self.regions[before].size + size;
                self.free.resize(&mut self.regions, before, merged);
                self.link(before, after);
                self.regions.remove(id);
            }
            (false, true) => {
                let merged = self.regions[after].size + size;
                self.free.resize(&mut self.regions, after, merged);
                self.regions[after].offset = offset;
                self.link(before, after);
                self.regions.remove(id);
            }
            (true, true) => {
                let Node { size: size_after, after: beyond, .. } = self.regions[after];
                self.free.remove(&mut self.regions, after);
                let merged = self.regions[before].size + size + size_after;
                self.free.resize(&mut self.regions, before, merged);
                self.link(before, beyond);
                self.regions.remove(id);
                self.regions.remove(after);
            }
        }
        self.used -= size;
        self.live -= 1;
        Ok(())
    }

    /// Frees everything at once. Allocations made before are refused from now on.
    pub fn reset(&mut self) {
        self.regions.clear();
        self.free.clear();
        self.used = 0;
        self.live = 0;
        self.first = NONE;
        self.insert_whole();
    }

    /// Whether `allocation` is a live one of this allocator, so that
    /// [`free`](Self::free) would take it.
    #[must_use]
    pub fn owns(&self, allocation: &Allocation) -> bool {
        self.find_live(allocation).is_some()
    }

    /// Bytes managed.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes in live allocations.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Bytes free, in however many regions.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.capacity - self.used
    }

    /// Live allocations.
    #[must_use]
    pub const fn live(&self) -> usize {
        self.live
    }

    /// Bytes of the largest free region, in constant time.
    ///
    /// An allocation of this size succeeds. It is exact while at most eight regions
    /// share the highest size class, and otherwise a lower bound: the largest region is
    /// then less than 1/64 larger. [`regions`](Self::regions) gives the exact figure.
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        self.free.largest(&self.regions)
    }

    /// Sums, fragmentation and the histogram of free sizes. Takes time in the number
    /// of size classes (at most 3,776), not of regions.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            capacity: self.capacity,
            used: self.used,
            free: self.available(),
            largest_free: self.largest_free(),
            live: self.live,
            bins: self
                .free
                .counts()
                .map(|(bin, regions)| BinReport {
                    smallest: bin.smallest(),
                    largest: bin.largest(),
                    regions,
                })
                .collect(),
        }
    }

    /// Every region, used and free, in address order. They cover `[0, capacity)`
    /// without gap or overlap, and no two free ones are neighbours.
    #[must_use]
    pub const fn regions(&self) -> Regions<'_> {
        Regions { table: &self.regions, next: self.first }
    }

    /// The region of `allocation`, when it is a live one of this allocator.
    fn find_live(&self, allocation: &Allocation) -> Option<&Node> {
        let node = self.regions.get(allocation.region)?;
        let is_live = node.is_in_use_as(allocation.tag.get())
            && node.offset == allocation.extent.offset()
            && node.size == allocation.extent.len();
        is_live.then_some(node)
    }

    /// Makes the first `size` bytes of the larger free region `whole` a region in use.
    fn split_front(&mut self, whole: RegionId, size: u64) -> Result<RegionId, AllocateError> {
        let Node { offset, size: whole_size, before, .. } = self.regions[whole];
        let mut front = Node { offset, size, before, after: whole, prev: NONE, next: NONE };
        front.set_in_use(self.tag.get());
        let Some(id) = self.regions.insert(front) else {
            return Err(AllocateError::TooManyRegions { limit: self.regions.limit() });
        };
        self.free.resize(&mut self.regions, whole, whole_size - size);
        let rest = &mut self.regions[whole];
        rest.offset += size;
        rest.before = id;
        match before {
            NONE => self.first = id,
            before => self.regions[before].after = id,
        }
        Ok(id)
    }

    /// Makes two regions neighbours in address order; [`NONE`] is either end.
    fn link(&mut self, before: RegionId, after: RegionId) {
        match before {
            NONE => self.first = after,
            before => self.regions[before].after = after,
        }
        if after != NONE {
            self.regions[after].before = before;
        }
    }

    /// Makes the whole capacity one free region of an allocator that has none.
    fn insert_whole(&mut self) {
        if self.capacity == 0 {
            return;
        }
        let whole = Node {
            offset: 0,
            size: self.capacity,
            before: NONE,
            after: NONE,
            prev: NONE,
            next: NONE,
        };
        self.first = self.regions.insert(whole).expect("an empty table has room for one region");
        self.free.insert(&mut self.regions, self.first);
    }
}

impl fmt::Debug for OffsetAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffsetAllocator")
            .field("capacity", &self.capacity)
            .field("used", &self.used)
            .field("live", &self.live)
            .field("largest_free", &self.largest_free())
            .finish_non_exhaustive()
    }
}

/// Settings of an [`OffsetAllocator`].
///
/// ```
/// use mc_alloc::OffsetAllocator;
///
/// let space = OffsetAllocator::builder(4 << 30).identity(7).max_regions(1 << 20).build();
/// assert_eq!(space.capacity(), 4 << 30);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct OffsetAllocatorBuilder {
    capacity: u64,
    identity: Option<u64>,
    max_regions: u32,
}

impl OffsetAllocatorBuilder {
    /// What tells this allocator's allocations from those of others, so that an
    /// allocation freed into the wrong one is refused: a segment id, say.
    ///
    /// Each allocation carries a 32-bit tag from a counter that starts at a value mixed
    /// from the identity. An allocation is taken back when region, offset, size and tag
    /// all match a live one. So an allocation is never freed twice within 2^32
    /// allocations of one allocator, and one of another identity passes with a chance
    /// of 2^-32 where offset and size happen to agree. Allocators of *equal* identity
    /// cannot be told apart while their histories are the same: give each its own.
    ///
    /// By default the identity is the address of the allocator's own index, which
    /// tells apart the allocators that exist at the same time. It needs no state
    /// outside the allocator, and it is not seen in any output. It does not promise to
    /// tell an allocator from an earlier one that is gone; name an identity where
    /// allocations can outlive their allocator.
    ///
    /// A mistaken free that passes would release an extent that someone still uses; it
    /// cannot damage the allocator itself.
    pub const fn identity(mut self, identity: u64) -> Self {
        self.identity = Some(identity);
        self
    }

    /// How many regions, free and in use, there may be at most; this bounds the
    /// metadata to 32 bytes times this. At least 1; by default, and at most, `2^32 - 3`.
    pub const fn max_regions(mut self, regions: u32) -> Self {
        self.max_regions = match regions {
            0 => 1,
            1..=MAX_REGIONS => regions,
            _ => MAX_REGIONS,
        };
        self
    }

    /// The allocator, with all of its capacity free.
    #[must_use]
    pub fn build(self) -> OffsetAllocator {
        let free = FreeIndex::new(self.capacity);
        let identity = self.identity.unwrap_or(free.address() as u64);
        let mut allocator = OffsetAllocator {
            regions: RegionTable::new(self.max_regions),
            free,
            first: NONE,
            tag: NonZeroU32::new(mix(identity) as u32).unwrap_or(NonZeroU32::MIN),
            capacity: self.capacity,
            used: 0,
            live: 0,
        };
        allocator.insert_whole();
        allocator
    }
}

/// Bytes taken from an [`OffsetAllocator`], to be given back to it with
/// [`free`](OffsetAllocator::free).
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
}

impl fmt::Debug for Allocation {
    /// Leaves the tag out: it may stem from an address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("extent", &self.extent).finish_non_exhaustive()
    }
}

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

    /// Whether the region is free; otherwise it is one live allocation.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.free
    }
}

/// The regions of an allocator in address order; from [`OffsetAllocator::regions`].
#[derive(Clone)]
pub struct Regions<'a> {
    table: &'a RegionTable,
    next: RegionId,
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

/// The tag after `tag`: every value but 0 comes before any comes again.
pub(crate) fn following(tag: NonZeroU32) -> NonZeroU32 {
    tag.checked_add(1).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn allocations_start_at_the_front_and_have_the_exact_size() {
        let mut space = OffsetAllocator::new(1000);
        let first = space.allocate(7).unwrap();
        let second = space.allocate(993).unwrap();
        assert_eq!(first.extent(), Extent::new(0, 7).unwrap());
        assert_eq!(second.extent(), Extent::new(7, 993).unwrap());
        assert_eq!((space.used(), space.available(), space.live()), (1000, 0, 2));
        assert_eq!(
            space.allocate(1).unwrap_err(),
            AllocateError::Full { requested: 1, available: 0 }
        );
    }

    #[test]
    fn a_freed_region_merges_with_either_or_both_neighbours() {
        // Each order of freeing three neighbours meets another case of merging.
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut space = OffsetAllocator::new(300);
            let mut held: Vec<_> = (0..3).map(|_| Some(space.allocate(100).unwrap())).collect();
            for index in order {
                space.free(held[index].take().unwrap()).unwrap();
            }
            assert_eq!(space.regions().count(), 1, "{order:?}");
            assert_eq!(space.largest_free(), 300);
        }
    }

    #[test]
    fn capacities_of_nothing_one_and_everything() {
        let mut nothing = OffsetAllocator::new(0);
        assert_eq!(nothing.regions().count(), 0);
        assert_eq!(nothing.allocate(0).unwrap_err(), AllocateError::ZeroSize);
        assert_eq!(
            nothing.allocate(1).unwrap_err(),
            AllocateError::LargerThanCapacity { requested: 1, capacity: 0 }
        );
        assert_eq!(nothing.report().fragmentation(), 0.0);

        let mut one = OffsetAllocator::new(1);
        let byte = one.allocate(1).unwrap();
        one.free(byte).unwrap();
        assert_eq!(one.largest_free(), 1);

        let mut everything = OffsetAllocator::new(u64::MAX);
        let all = everything.allocate(u64::MAX).unwrap();
        everything.free(all).unwrap();
        let most = everything.allocate(u64::MAX - 1).unwrap();
        let last = everything.allocate(1).unwrap();
        assert_eq!(last.extent(), Extent::new(u64::MAX - 1, 1).unwrap());
        everything.free(most).unwrap();
        everything.free(last).unwrap();
        assert_eq!(everything.largest_free(), u64::MAX);
    }

    #[test]
    fn an_allocation_of_another_allocator_comes_back() {
        // The same history in both, so that offsets, sizes and regions agree.
        let mut ours = OffsetAllocator::new(1 << 20);
        let mut theirs = OffsetAllocator::new(1 << 20);
        let mine = ours.allocate(4096).unwrap();
        let foreign = theirs.allocate(4096).unwrap();
        let extent = foreign.extent();
        let refused = ours.free(foreign).unwrap_err();
        assert_eq!(refused.allocation().extent(), extent);
        assert_eq!((ours.used(), ours.live()), (4096, 1));
        theirs.free(refused.into_allocation()).unwrap();
        ours.free(mine).unwrap();
    }

    #[test]
    fn identities_tell_an_allocator_from_one_that_is_gone() {
        let mut before = OffsetAllocator::builder(1 << 20).identity(1).build();
        let stale = before.allocate(4096).unwrap();
        drop(before);
        let mut now = OffsetAllocator::builder(1 << 20).identity(2).build();
        let live = now.allocate(4096).unwrap();
        assert!(now.free(stale).is_err());
        assert!(now.owns(&live));
    }

    #[test]
    fn an_allocation_from_before_a_reset_comes_back() {
        let mut space = OffsetAllocator::new(1 << 20);
        let stale = space.allocate(4096).unwrap();
        space.reset();
        let stale = space.free(stale).unwrap_err().into_allocation();
        // The same bytes are in use again, as the same region.
        let live = space.allocate(4096).unwrap();
        assert_eq!(live.extent(), stale.extent());
        assert!(space.free(stale).is_err());
        assert!(space.owns(&live));
        assert_eq!(space.used(), 4096);
    }

    #[test]
    fn the_region_limit_is_an_error_of_its_own_and_exact_fits_still_work() {
        let mut space = OffsetAllocator::builder(4).max_regions(3).build();
        let first = space.allocate(1).unwrap();
        let second = space.allocate(1).unwrap();
        let at_limit = AllocateError::TooManyRegions { limit: 3 };
        assert_eq!(space.allocate(1).unwrap_err(), at_limit);
        assert_eq!((space.used(), space.live()), (2, 2));
        let rest = space.allocate(2).unwrap();
        for allocation in [first, second, rest] {
            space.free(allocation).unwrap();
        }
        assert_eq!(space.largest_free(), 4);
    }

    #[test]
    fn a_region_of_exactly_the_wanted_size_is_found_behind_smaller_ones_of_its_bin() {
        let mut space = OffsetAllocator::new(1031 + 3 * 1030 + 4);
        let mut held = Vec::new();
        for size in [1031, 1030, 1030, 1030] {
            held.push(space.allocate(size).unwrap());
            let _wall = space.allocate(1).unwrap();
        }
        // The list of a bin starts with what was freed last: a smaller one.
        for allocation in held {
            space.free(allocation).unwrap();
        }
        assert_eq!(space.report().bins.len(), 1);
        assert_eq!(space.largest_free(), 1031);
        assert_eq!(space.allocate(1031).unwrap().extent().offset(), 0);
    }

    #[test]
    fn fragmentation_names_what_was_seen() {
        let mut space = OffsetAllocator::new(400);
        let held: Vec<_> = (0..4).map(|_| space.allocate(100).unwrap()).collect();
        for (index, allocation) in held.into_iter().enumerate() {
            if index % 2 == 0 {
                space.free(allocation).unwrap();
            }
        }
        assert_eq!(
            space.allocate(101).unwrap_err(),
            AllocateError::Fragmented { requested: 101, available: 200, largest_free: 100 }
        );
        let report = space.report();
        assert_eq!(report.fragmentation(), 0.5);
        assert_eq!(report.utilisation(), 0.5);
        assert_eq!(report.free_regions(), 2);
        assert_eq!(report.bins.len(), 1);
    }
}
