//! Settings of an allocator, and building it empty or as it was.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use mc_types::{Extent, SplitMix64};

use super::{Allocation, OffsetAllocator};
use crate::error::RestoreError;
use crate::free_index::FreeIndex;
use crate::neighbours::Label;
use crate::regions::{MAX_REGIONS, NONE, Node, RegionId, RegionTable};

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
    pub(super) const fn new(capacity: u64) -> Self {
        Self { capacity, identity: None, max_regions: MAX_REGIONS }
    }

    /// The identity that distinguishes this allocator's allocations from others', so that an
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

    /// The maximum number of regions, free and in use; this bounds the
    /// metadata to 32 bytes times this. At least 1; by default, and at most, `2^31 - 1`.
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
        let mut allocator = self.build_without_regions();
        allocator.insert_whole();
        allocator
    }

    /// The allocator as it was when its live allocations were at `live`, for recovery
    /// from a [snapshot](OffsetAllocator::snapshot) or from what a directory knows, and
    /// the allocations, in the order of the extents. These need not be sorted.
    ///
    /// Takes time `n log n` in the number of extents.
    ///
    /// ```
    /// use mc_alloc::OffsetAllocator;
    ///
    /// let mut before = OffsetAllocator::new(1 << 20);
    /// let page = before.allocate(65_536)?;
    /// let (mut after, mut pages) = OffsetAllocator::builder(1 << 20).restore(before.snapshot())?;
    /// assert_eq!(pages[0].extent(), page.extent());
    /// after.free(pages.remove(0))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RestoreError`] when an extent is empty, reaches beyond the capacity or shares
    /// bytes with another, or when they need more regions than there may be.
    pub fn restore(
        self,
        live: impl IntoIterator<Item = Extent>,
    ) -> Result<(OffsetAllocator, Vec<Allocation>), RestoreError> {
        let live: Vec<Extent> = live.into_iter().collect();
        let mut order: Vec<usize> = (0..live.len()).collect();
        order.sort_unstable_by_key(|&at| live[at].offset());
        let mut placed: Vec<Option<Allocation>> = Vec::new();
        placed.resize_with(live.len(), || None);
        let mut places = order.iter();
        let sorted = order.iter().map(|&at| (live[at], None));
        let allocator = self.restore_in_order(sorted, |allocation| {
            if let Some(&at) = places.next() {
                placed[at] = Some(allocation);
            }
        })?;
        Ok((allocator, placed.into_iter().flatten().collect()))
    }

    /// As [`restore`](Self::restore) for extents in the order of their offsets, each with its
    /// [label](crate::Allocator::set_label): `made` is given their allocations in the same order,
    /// and nothing else is kept of them. Takes time in their number.
    ///
    /// # Errors
    ///
    /// As [`restore`](Self::restore); [`RestoreError::Overlap`], too, when an extent begins before
    /// the one before it.
    pub fn restore_in_order(
        self,
        live: impl IntoIterator<Item = (Extent, Option<Label>)>,
        mut made: impl FnMut(Allocation),
    ) -> Result<OffsetAllocator, RestoreError> {
        let mut allocator = self.build_without_regions();
        let mut last: Option<Extent> = None;
        for (extent, label) in live {
            if extent.is_empty() {
                return Err(RestoreError::Empty { extent });
            }
            if extent.end() > allocator.capacity {
                return Err(RestoreError::OutOfRange { extent, capacity: allocator.capacity });
            }
            let end = last.map_or(0, Extent::end);
            if let Some(first) = last
                && extent.offset() < end
            {
                return Err(RestoreError::Overlap { first, second: extent });
            }
            allocator.append_free(end, extent.offset())?;
            let mut node = Node::free(extent.offset(), extent.len(), NONE, NONE);
            node.set_in_use(allocator.tag.get());
            if let Some(label) = label {
                node.set_label(label);
            }
            let region = allocator.append(node)?;
            made(allocator.handed_out(extent.offset(), extent.len(), region));
            last = Some(extent);
        }
        allocator.append_free(last.map_or(0, Extent::end), allocator.capacity)?;
        Ok(allocator)
    }

    fn build_without_regions(self) -> OffsetAllocator {
        let free = FreeIndex::new(self.capacity);
        let identity = self.identity.unwrap_or(free.address() as u64);
        OffsetAllocator {
            regions: RegionTable::new(self.max_regions),
            free,
            first: NONE,
            last: NONE,
            tag: NonZeroU32::new(SplitMix64::mix(identity) as u32).unwrap_or(NonZeroU32::MIN),
            capacity: self.capacity,
            used: 0,
            live: 0,
            starts: None,
        }
    }
}

impl OffsetAllocator {
    /// Adds the free region `[start, end)` behind the last; none when that is empty.
    fn append_free(&mut self, start: u64, end: u64) -> Result<(), RestoreError> {
        if start < end {
            let id = self.append(Node::free(start, end - start, NONE, NONE))?;
            self.free.insert(&mut self.regions, id);
        }
        Ok(())
    }

    /// Adds a region behind the last.
    fn append(&mut self, node: Node) -> Result<RegionId, RestoreError> {
        let too_many = RestoreError::TooManyRegions { limit: self.regions.limit() };
        let id = self.regions.insert(node).ok_or(too_many)?;
        self.link(self.last, id);
        self.link(id, NONE);
        Ok(id)
    }
}
