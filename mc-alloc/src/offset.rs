//! The offset allocator.

mod allocation;
mod builder;
mod follow;
mod walk;

use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;

use mc_types::Extent;

pub use self::allocation::Allocation;
pub(crate) use self::allocation::following;
pub use self::builder::OffsetAllocatorBuilder;
use self::follow::Starts;
pub use self::walk::{Region, Regions};
use crate::allocator::Allocator;
use crate::error::{AllocateAtError, AllocateError, FreeError, ResizeError};
use crate::free_index::FreeIndex;
use crate::neighbours::{Content, Direction, Label, Neighbour, Place, Room};
use crate::regions::{NONE, Node, RegionId, RegionTable};
use crate::report::{BinReport, Report};

/// Divides a range of offsets `[0, capacity)` into extents, without touching what lies
/// at those offsets.
///
/// Allocating (aligned or not), freeing and resizing take constant time: none of them
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
    /// The region that ends at the capacity; [`NONE`] when that is 0.
    last: RegionId,
    /// The tag of the next allocation.
    tag: NonZeroU32,
    capacity: u64,
    used: u64,
    live: usize,
    /// The free regions by their offsets, while extents are allocated where others were placed.
    starts: Option<Starts>,
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
        OffsetAllocatorBuilder::new(capacity)
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
        if self.starts.is_some() {
            self.follow_no_more();
        }
        self.check_size(size)?;
        let Some(found) = self.free.find(&self.regions, size) else {
            return Err(self.fragmented(size));
        };
        self.take_front(found, size)
    }

    /// Takes `size` bytes whose first offset is a multiple of `align`.
    ///
    /// The space between the start of the region used and that offset stays free. So
    /// nothing is lost, and while every size is a multiple of the alignment every free
    /// region starts at one.
    ///
    /// Up to eight regions of the size's own bin and eight of the next one are tried,
    /// then those that hold `size + align - 1` bytes, where any alignment fits.
    ///
    /// # Errors
    ///
    /// See [`AllocateError`]; the allocator is unchanged then. `align` must be a power
    /// of two.
    pub fn allocate_aligned(&mut self, size: u64, align: u64) -> Result<Allocation, AllocateError> {
        if !align.is_power_of_two() {
            return Err(AllocateError::BadAlignment { align });
        }
        if self.starts.is_some() {
            self.follow_no_more();
        }
        self.check_size(size)?;
        let Some(found) = self.free.find_aligned(&self.regions, size, align) else {
            return Err(match self.fragmented(size) {
                AllocateError::Fragmented { requested, available, largest_free }
                    if largest_free >= size =>
                {
                    AllocateError::Misaligned { requested, align, available, largest_free }
                }
                fragmented => fragmented,
            });
        };
        match self.regions[found].pad(align) {
            0 => self.take_front(found, size),
            pad => self.take_behind(found, pad, size),
        }
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
        if self.starts.is_some() {
            self.note_freed(id, allocation.extent, merges_before, merges_after);
        }
        Ok(())
    }

    /// Frees everything at once. Allocations made before are refused from now on.
    pub fn reset(&mut self) {
        self.starts = None;
        self.regions.clear();
        self.free.clear();
        self.used = 0;
        self.live = 0;
        self.first = NONE;
        self.last = NONE;
        self.insert_whole();
    }

    /// Moves the end of the range to `capacity`, in constant time. A larger range gets
    /// free space at its end; a smaller one must have it there. Live allocations stay
    /// what they are.
    ///
    /// # Errors
    ///
    /// [`ResizeError`], and nothing is changed, when something is in use beyond the new
    /// end, or when the new space needs a region more than there may be.
    pub fn resize(&mut self, capacity: u64) -> Result<(), ResizeError> {
        if self.starts.is_some() {
            self.follow_no_more();
        }
        let last_free = (self.last != NONE && self.regions[self.last].is_free())
            .then(|| self.regions[self.last].offset);
        if capacity < self.capacity {
            let smallest = last_free.unwrap_or(self.capacity);
            if capacity < smallest {
                return Err(ResizeError::InUse { requested: capacity, smallest });
            }
        }
        self.free.grow(capacity);
        match last_free {
            Some(offset) if offset == capacity => {
                let last = self.last;
                self.free.remove(&mut self.regions, last);
                self.link(self.regions[last].before, NONE);
                self.regions.remove(last);
            }
            Some(offset) => self.free.resize(&mut self.regions, self.last, capacity - offset),
            None if capacity == self.capacity => {}
            None => {
                let (offset, before) = (self.capacity, self.last);
                let tail = Node::free(offset, capacity - offset, before, NONE);
                let Some(id) = self.regions.insert(tail) else {
                    return Err(ResizeError::TooManyRegions { limit: self.regions.limit() });
                };
                self.link(before, id);
                self.last = id;
                self.free.insert(&mut self.regions, id);
            }
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Bytes of `allocation`, exactly those asked for; `None` when it is not a live one
    /// of this allocator.
    #[must_use]
    pub fn usable_size(&self, allocation: &Allocation) -> Option<u64> {
        self.owns(allocation).then(|| allocation.extent.len())
    }

    /// The extents of all live allocations in address order, to
    /// [restore](OffsetAllocatorBuilder::restore) the allocator from. Takes time in the
    /// number of regions.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Extent> {
        let mut live = Vec::with_capacity(self.live);
        live.extend(
            self.regions().filter(|region| !region.is_free()).map(|region| region.extent()),
        );
        live
    }

    /// Returns whether `allocation` is a live one of this allocator, so that
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

    /// Refuses what no arrangement of the free regions could hold.
    fn check_size(&self, size: u64) -> Result<(), AllocateError> {
        let (capacity, available) = (self.capacity, self.available());
        if size == 0 {
            Err(AllocateError::ZeroSize)
        } else if size > capacity {
            Err(AllocateError::LargerThanCapacity { requested: size, capacity })
        } else if size > available {
            Err(AllocateError::Full { requested: size, available })
        } else {
            Ok(())
        }
    }

    fn fragmented(&self, requested: u64) -> AllocateError {
        let (available, largest_free) = (self.available(), self.largest_free());
        AllocateError::Fragmented { requested, available, largest_free }
    }

    /// Allocates the first `size` bytes of the free region `found`.
    fn take_front(&mut self, found: RegionId, size: u64) -> Result<Allocation, AllocateError> {
        let offset = self.regions[found].offset;
        let region = if self.regions[found].size == size {
            self.free.remove(&mut self.regions, found);
            self.regions[found].set_in_use(self.tag.get());
            found
        } else {
            self.split_front(found, size)?
        };
        Ok(self.handed_out(offset, size, region))
    }

    /// Allocates `size` bytes of the free region `found` behind its first `pad`, which
    /// are fewer than it has and not 0.
    fn take_behind(
        &mut self,
        found: RegionId,
        pad: u64,
        size: u64,
    ) -> Result<Allocation, AllocateError> {
        let Node { offset, size: whole, after, .. } = self.regions[found];
        let offset = offset + pad;
        let too_many = AllocateError::TooManyRegions { limit: self.regions.limit() };
        let mut taken = Node::free(offset, size, found, after);
        taken.set_in_use(self.tag.get());
        let id = self.regions.insert(taken).ok_or(too_many)?;
        if whole - pad == size {
            self.link(id, after);
        } else {
            let rest = Node::free(offset + size, whole - pad - size, id, after);
            let Some(rest) = self.regions.insert(rest) else {
                self.regions.remove(id);
                return Err(too_many);
            };
            self.free.insert(&mut self.regions, rest);
            self.link(id, rest);
            self.link(rest, after);
        }
        self.regions[found].after = id;
        self.free.resize(&mut self.regions, found, pad);
        Ok(self.handed_out(offset, size, id))
    }

    /// Counts a region that was given the tag of the next allocation, as that.
    fn handed_out(&mut self, offset: u64, size: u64, region: RegionId) -> Allocation {
        let extent = Extent::new(offset, size).expect("a region ends within the capacity");
        let allocation = Allocation { extent, region, tag: self.tag };
        self.tag = following(self.tag);
        self.used += size;
        self.live += 1;
        allocation
    }

    /// Makes the first `size` bytes of the larger free region `whole` a region in use.
    fn split_front(&mut self, whole: RegionId, size: u64) -> Result<RegionId, AllocateError> {
        let Node { offset, size: whole_size, before, .. } = self.regions[whole];
        let mut front = Node::free(offset, size, before, whole);
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
        match after {
            NONE => self.last = before,
            after => self.regions[after].before = before,
        }
    }

    /// Makes the whole capacity one free region of an allocator that has none.
    fn insert_whole(&mut self) {
        if self.capacity == 0 {
            return;
        }
        let whole = Node::free(0, self.capacity, NONE, NONE);
        self.first = self.regions.insert(whole).expect("an empty table has room for one region");
        self.last = self.first;
        self.free.insert(&mut self.regions, self.first);
    }
}

impl Allocator for OffsetAllocator {
    fn allocate(&mut self, size: u64, align: u64) -> Result<Allocation, AllocateError> {
        self.allocate_aligned(size, align)
    }

    fn allocate_at(&mut self, extent: Extent) -> Result<Allocation, AllocateAtError> {
        self.allocate_at(extent)
    }

    fn free(&mut self, allocation: Allocation) -> Result<(), FreeError> {
        self.free(allocation)
    }

    fn usable_size(&self, allocation: &Allocation) -> Option<u64> {
        self.usable_size(allocation)
    }

    fn capacity(&self) -> u64 {
        self.capacity()
    }

    fn used(&self) -> u64 {
        self.used()
    }

    fn live(&self) -> usize {
        self.live()
    }

    fn largest_free(&self) -> u64 {
        self.largest_free()
    }

    fn max_allocation(&self) -> u64 {
        self.capacity()
    }

    fn report(&self) -> Report {
        self.report()
    }

    fn snapshot(&self) -> Vec<Extent> {
        self.snapshot()
    }

    fn set_label(&mut self, allocation: &Allocation, label: Label) {
        if self.owns(allocation) {
            self.regions[allocation.region].set_label(label);
        }
    }

    fn makes_room(&self, allocation: &Allocation, size: u64) -> bool {
        self.find_live(allocation).is_some_and(|node| {
            node.size + self.free_size(node.before) + self.free_size(node.after) >= size
        })
    }

    fn room_at(&self, place: Place, size: u64) -> Room {
        match self.region_at(place) {
            Some(_) if size <= self.capacity => Room::Anywhere,
            _ => Room::Nowhere,
        }
    }

    fn walk(&self, place: Place, direction: Direction, show: &mut dyn FnMut(Neighbour) -> bool) {
        let Some(mut node) = self.region_at(place) else { return };
        let mut region = place.region;
        loop {
            let content = match node.is_free() {
                true => Content::Free,
                false => Content::Live(node.label()),
            };
            let extent =
                Extent::new(node.offset, node.size).expect("a region ends within the capacity");
            let place = Place { offset: node.offset, region };
            let goes_on = show(Neighbour { extent, place, content });
            region = match direction {
                Direction::Down => node.before,
                Direction::Up => node.after,
            };
            if !goes_on || region == NONE {
                return;
            }
            node = &self.regions[region];
        }
    }

    fn place_near(&self, number: u64) -> Option<Place> {
        let first = (self.first != NONE).then_some(self.first);
        let region = self.regions.near(number).or(first)?;
        Some(Place { offset: self.regions[region].offset, region })
    }

    fn resize(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.resize(capacity)
    }
}

impl OffsetAllocator {
    /// The region at `place`, if there still is one.
    fn region_at(&self, place: Place) -> Option<&Node> {
        let node = self.regions.get(place.region)?;
        let is_there = node.offset == place.offset && (node.is_free() || node.is_in_use());
        is_there.then_some(node)
    }

    /// The size of the region `id` if it is a free one.
    fn free_size(&self, id: RegionId) -> u64 {
        if id != NONE && self.regions[id].is_free() { self.regions[id].size } else { 0 }
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

#[cfg(test)]
mod tests;
