//! Allocating where another allocator has.

use alloc::collections::BTreeMap;

use mc_types::Extent;

use super::{Allocation, OffsetAllocator};
use crate::error::AllocateAtError;
use crate::regions::{NONE, RegionId};

/// The free regions, by where they begin.
pub(super) type Starts = BTreeMap<u64, RegionId>;

impl OffsetAllocator {
    /// Takes exactly this extent out of the free space: what another allocator of the same range has
    /// placed there.
    ///
    /// Takes O(log n) time in the number of free regions, for which they are kept in a second order
    /// from the first such call on, until the allocator places something by itself or changes its
    /// capacity. The first call takes time in the number of regions.
    ///
    /// ```
    /// use mc_alloc::OffsetAllocator;
    ///
    /// let (mut leader, mut standby) = (OffsetAllocator::new(1 << 20), OffsetAllocator::new(1 << 20));
    /// let first = leader.allocate(4096)?;
    /// let second = leader.allocate(4096)?;
    /// // In any order.
    /// assert_eq!(standby.allocate_at(second.extent())?.extent(), second.extent());
    /// standby.allocate_at(first.extent())?;
    /// assert_eq!(standby.snapshot(), leader.snapshot());
    /// assert!(standby.allocate_at(first.extent()).is_err(), "it is in use");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocateAtError`]; the allocator is unchanged then.
    pub fn allocate_at(&mut self, extent: Extent) -> Result<Allocation, AllocateAtError> {
        let (capacity, offset, size) = (self.capacity, extent.offset(), extent.len());
        if size == 0 {
            return Err(AllocateAtError::Empty { extent });
        }
        if extent.end() > capacity {
            return Err(AllocateAtError::OutOfRange { extent, capacity });
        }
        let mut starts = self.starts.take().unwrap_or_else(|| self.starts());
        let taken = self.take_at(&mut starts, offset, size);
        self.starts = Some(starts);
        taken.unwrap_or(Err(AllocateAtError::InUse { extent }))
    }

    /// Takes `size` bytes at `offset`; `None` when they are not free.
    fn take_at(
        &mut self,
        starts: &mut Starts,
        offset: u64,
        size: u64,
    ) -> Option<Result<Allocation, AllocateAtError>> {
        let (&start, &found) = starts.range(..=offset).next_back()?;
        let pad = offset - start;
        let whole = self.regions[found].size;
        let rest = whole.checked_sub(pad)?.checked_sub(size)?;
        let taken = match pad {
            0 => self.take_front(found, size),
            pad => self.take_behind(found, pad, size),
        };
        let Ok(allocation) = taken else {
            let limit = self.regions.limit();
            return Some(Err(AllocateAtError::TooManyRegions { limit }));
        };
        if pad == 0 {
            starts.remove(&start);
        }
        if rest > 0 {
            starts.insert(offset + size, self.regions[allocation.region].after);
        }
        Some(Ok(allocation))
    }

    /// The free regions by where they begin.
    fn starts(&self) -> Starts {
        let mut starts = Starts::new();
        let mut next = self.first;
        while next != NONE {
            let node = &self.regions[next];
            if node.is_free() {
                starts.insert(node.offset, next);
            }
            next = node.after;
        }
        starts
    }

    /// Notes that a region was freed, and which of its neighbours it has become one with.
    #[cold]
    pub(super) fn note_freed(&mut self, id: RegionId, freed: Extent, before: bool, after: bool) {
        let Some(starts) = &mut self.starts else { return };
        let behind = if after { starts.remove(&freed.end()) } else { None };
        if !before {
            // The one behind has grown, unless there is none.
            starts.insert(freed.offset(), behind.unwrap_or(id));
        }
    }

    /// Gives the second order up: from now on the allocator chooses where to place what.
    #[cold]
    pub(super) fn follow_no_more(&mut self) {
        self.starts = None;
    }
}
