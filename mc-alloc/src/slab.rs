//! The slab allocator.

mod builder;
mod size_classes;
mod slabs;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;

use mc_types::Extent;

pub use self::builder::SlabAllocatorBuilder;
use self::size_classes::MAX_CLASSES;
pub use self::size_classes::{SizeClassError, SizeClasses};
use self::slabs::{NONE, Slab, SlabId, SlabTable};
use crate::error::{AllocateAtError, AllocateError, FreeError, ResizeError, RestoreError};
use crate::neighbours::{Content, Direction, Label, Neighbour, Place, Room};
use crate::offset::following;
use crate::report::{BinReport, Report};
use crate::{Allocation, Allocator};

/// Divides a range of offsets into slabs of one size, and each slab into slots of one
/// size class.
///
/// An allocation takes a slot of the smallest class that fits, from a slab of that class
/// that is partly used, or else from a free slab, which then belongs to the class. A
/// slab whose last slot is freed is free again at once, for any class. Both operations
/// take constant time but for a binary search among at most 256 classes, and for the
/// table of a slab's slots, which doubles as slots come into use.
///
/// Compared with [`OffsetAllocator`](crate::OffsetAllocator): an alignment chooses the class
/// instead of searching for a gap, and a class that has churned for long has lost nothing to gaps
/// between its slots. In return the bytes between the size asked for and that of the slot stay
/// unused, a request never crosses a slab, and a free slot serves its own class only: see
/// [`Fragmented`](AllocateError::Fragmented). One allocation costs 16 bytes of metadata (up to
/// twice that while a slab fills), one slab 48, once it or one behind it has been used.
///
/// There are at most `2^32 - 2` slabs. What lies beyond the last whole slab is not used;
/// [`unusable`](Self::unusable) says how much that is.
///
/// Source: Bonwick, "The Slab Allocator: An Object-Caching Kernel Memory Allocator",
/// USENIX Summer 1994, with the metadata kept apart from the memory.
///
/// ```
/// use mc_alloc::{Allocator, SlabAllocator};
///
/// let mut space = SlabAllocator::new(64 << 20);
/// let page = space.allocate(60_000, 4096)?;
/// assert_eq!(page.extent().len(), 60_000);
/// assert_eq!(page.extent().offset() % 4096, 0);
/// assert_eq!(space.usable_size(&page), Some(65_536));
/// assert_eq!(space.used(), 65_536);
/// space.free(page)?;
/// assert_eq!(space.free_slabs(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SlabAllocator {
    sizes: SizeClasses,
    classes: Box<[Class]>,
    /// The classes that have a free slot.
    open: ClassSet,
    slabs: SlabTable,
    /// The list of the slabs of the table that belong to no class.
    pool: SlabId,
    pooled: u32,
    /// Slabs in the range; those beyond the end of the table were never used.
    count: u32,
    unusable: u64,
    slab_shift: u32,
    /// The tag of the next allocation.
    tag: NonZeroU32,
    used: u64,
    live: usize,
}

/// The part of a class that the hot path needs.
#[derive(Clone)]
struct Class {
    size: u64,
    /// Every slot's offset is a multiple of this power of two.
    align: u64,
    /// Slots in a slab.
    slots: u32,
    /// The list of slabs that have both live and free slots.
    partial: SlabId,
    slabs: u32,
    live: u64,
}

impl Class {
    fn new(size: u64, slab_size: u64) -> Self {
        let slots = u32::try_from(slab_size / size).expect("size classes bound the slots");
        // The only slot of a slab begins where the slab does.
        let align = if slots == 1 { slab_size } else { 1 << size.trailing_zeros() };
        Self { size, align, slots, partial: NONE, slabs: 0, live: 0 }
    }

    /// Free slots in slabs of this class.
    fn free(&self) -> u64 {
        u64::from(self.slabs) * u64::from(self.slots) - self.live
    }
}

impl SlabAllocator {
    /// An allocator of the first `range` bytes, all free, with the default size classes
    /// of slabs of 4 MiB.
    #[must_use]
    pub fn new(range: u64) -> Self {
        Self::builder(range).build()
    }

    /// An allocator of the first `range` bytes with other settings than the defaults.
    pub fn builder(range: u64) -> SlabAllocatorBuilder {
        SlabAllocatorBuilder::new(range)
    }

    /// The slab size and the size classes.
    #[must_use]
    pub const fn sizes(&self) -> &SizeClasses {
        &self.sizes
    }

    /// Bytes at the end of the range that belong to no slab: fewer than a slab has,
    /// except in a range of more than `2^32 - 2` slabs. They are not part of the capacity.
    #[must_use]
    pub const fn unusable(&self) -> u64 {
        self.unusable
    }

    /// Slabs that belong to no class now.
    #[must_use]
    pub fn free_slabs(&self) -> u32 {
        self.count - self.slabs.len() + self.pooled
    }

    /// The size classes, smallest first, and what each has.
    pub fn classes(&self) -> impl Iterator<Item = ClassReport> {
        self.classes.iter().map(|class| ClassReport {
            size: class.size,
            align: class.align,
            slots_per_slab: class.slots,
            slabs: class.slabs,
            live: class.live,
            free: class.free(),
        })
    }

    /// Returns whether `allocation` is a live one of this allocator, so that
    /// [`free`](Allocator::free) would take it.
    #[must_use]
    pub fn owns(&self, allocation: &Allocation) -> bool {
        self.find_live(allocation).is_some()
    }

    /// Frees everything at once. Allocations made before are refused from now on.
    pub fn reset(&mut self) {
        self.slabs = SlabTable::new();
        self.pool = NONE;
        self.pooled = 0;
        self.open = ClassSet::default();
        self.used = 0;
        self.live = 0;
        for class in &mut self.classes {
            *class = Class::new(class.size, self.sizes.slab_size());
        }
    }

    /// The smallest class whose slots have at least `size` bytes and are aligned.
    fn class_for(&self, size: u64, align: u64) -> Result<usize, AllocateError> {
        let first = self.sizes.sizes().partition_point(|&class| class < size);
        let candidates = &self.classes[first..];
        if candidates.is_empty() || self.count == 0 {
            let capacity = self.max_allocation();
            return Err(AllocateError::LargerThanCapacity { requested: size, capacity });
        }
        match candidates.iter().position(|class| class.align >= align) {
            Some(position) => Ok(first + position),
            None => Err(AllocateError::AlignmentTooLarge {
                requested: size,
                align,
                largest: candidates.iter().map(|class| class.align).max().unwrap_or(1),
            }),
        }
    }

    /// Why a class has no slot while no slab is free.
    fn no_slot(&self, requested: u64) -> AllocateError {
        let available = self.available();
        if requested > available {
            AllocateError::Full { requested, available }
        } else {
            let largest_free = self.largest_free();
            AllocateError::Fragmented { requested, available, largest_free }
        }
    }

    /// Gives a free slab, if there is one, to a class that has no free slot.
    fn assign(&mut self, class: usize) -> Option<SlabId> {
        let id = match self.pool {
            NONE if self.slabs.len() < self.count => self.slabs.push(),
            NONE => return None,
            pooled => {
                self.assign_pooled(class, pooled);
                return Some(pooled);
            }
        };
        self.assign_slab(class, id);
        Some(id)
    }

    /// Gives a slab of the pool to a class.
    fn assign_pooled(&mut self, class: usize, id: SlabId) {
        self.slabs.unlink(&mut self.pool, id);
        self.pooled -= 1;
        self.assign_slab(class, id);
    }

    /// Gives a slab that is in no list to a class.
    fn assign_slab(&mut self, class: usize, id: SlabId) {
        self.slabs[id].assign(class);
        self.classes[class].slabs += 1;
        self.open_slab(class, id);
    }

    /// Lists a slab that has a free slot.
    fn open_slab(&mut self, class: usize, id: SlabId) {
        self.slabs.link(&mut self.classes[class].partial, id);
        self.open.insert(class);
    }

    /// Takes a listed slab off the list of its class.
    fn close_slab(&mut self, class: usize, id: SlabId) {
        self.slabs.unlink(&mut self.classes[class].partial, id);
        if self.classes[class].partial == NONE {
            self.open.remove(class);
        }
    }

    /// Puts a slab that belongs to no class and is in no list into the pool.
    fn pool_slab(&mut self, id: SlabId) {
        self.slabs.link(&mut self.pool, id);
        self.pooled += 1;
    }

    /// The slab and the class of `allocation`, when it is a live one of this allocator.
    fn find_live(&self, allocation: &Allocation) -> Option<(SlabId, usize)> {
        let Allocation { extent, region: slot, tag } = allocation;
        let id = extent.offset() >> self.slab_shift;
        let slab = self.slabs.get(id)?;
        let class = slab.class()?;
        let expected = self.slot_offset(id as SlabId, class, *slot);
        let is_live = expected == extent.offset() && slab.holds(*slot, extent.len(), tag.get());
        is_live.then_some((id as SlabId, class))
    }

    /// Where a slot begins. Wraps for a slot that does not exist.
    fn slot_offset(&self, slab: SlabId, class: usize, slot: u32) -> u64 {
        let base = u64::from(slab) << self.slab_shift;
        base.wrapping_add(u64::from(slot).wrapping_mul(self.classes[class].size))
    }

    /// Books a slot that was just taken.
    fn issue(&mut self, slab: SlabId, class: usize, slot: u32, len: u64) -> Allocation {
        let extent = Extent::new(self.slot_offset(slab, class, slot), len)
            .expect("a slab ends within the range");
        let class = &mut self.classes[class];
        class.live += 1;
        self.used += class.size;
        self.live += 1;
        let allocation = Allocation { extent, region: slot, tag: self.tag };
        self.tag = following(self.tag);
        allocation
    }

    /// Rebuilds one slab from all of its live extents, which are in address order, and
    /// hands the allocations to `made`. The slab is the last of the table and in no list.
    fn restore_slab(
        &mut self,
        id: SlabId,
        extents: &[(Extent, Option<Label>)],
        made: &mut impl FnMut(Allocation),
    ) -> Result<(), RestoreError> {
        let base = u64::from(id) << self.slab_shift;
        let place = |class: &Class, extent: Extent| {
            let start = extent.offset() - base;
            let slot = start / class.size;
            let fits = start.is_multiple_of(class.size)
                && extent.len() <= class.size
                && slot < u64::from(class.slots);
            fits.then_some(slot as u32)
        };
        let fits_all =
            |class: &Class| extents.iter().all(|&(extent, _)| place(class, extent).is_some());
        let Some(class) = self.classes.iter().position(fits_all) else {
            return Err(RestoreError::Misplaced { extent: extents[0].0 });
        };
        self.slabs[id].assign(class);
        self.classes[class].slabs += 1;
        for &(extent, label) in extents {
            let slot = place(&self.classes[class], extent).expect("the class was chosen by it");
            self.slabs[id].take_at(slot, extent.len(), self.tag.get());
            let allocation = self.issue(id, class, slot, extent.len());
            if let Some(label) = label {
                self.set_label(&allocation, label);
            }
            made(allocation);
        }
        if self.slabs[id].live() < self.classes[class].slots {
            self.open_slab(class, id);
        }
        Ok(())
    }
}

impl SlabAllocator {
    /// The slab at `place`, and its class if it has one; `None` when that place is none.
    fn class_at(&self, place: Place) -> Option<(SlabId, Option<usize>)> {
        let id = place.offset >> self.slab_shift;
        let class = self.slabs.get(id)?.class();
        let id = id as SlabId;
        let is_there = place.region < self.parts(id)
            && self.part(id, place.region).place.offset == place.offset;
        is_there.then_some((id, class))
    }

    /// Slots of a slab, and one more for what lies behind the last; 1 without a class.
    fn parts(&self, id: SlabId) -> u32 {
        let Some(class) = self.slabs[id].class() else { return 1 };
        let Class { size, slots, .. } = self.classes[class];
        let is_any_left = u64::from(slots) * size < self.sizes.slab_size();
        slots + u32::from(is_any_left)
    }

    /// One of the [`parts`](Self::parts) of a slab.
    fn part(&self, id: SlabId, slot: u32) -> Neighbour {
        let (slab, base) = (&self.slabs[id], u64::from(id) << self.slab_shift);
        let end = base + self.sizes.slab_size();
        let (offset, end, content) = match slab.class() {
            None => (base, end, Content::Free),
            Some(class) => {
                let offset = self.slot_offset(id, class, slot);
                let end = end.min(offset + self.classes[class].size);
                (offset, end, slab.content(slot))
            }
        };
        let extent = Extent::new(offset, end - offset).expect("a slab ends within the range");
        Neighbour { extent, place: Place { offset, region: slot }, content }
    }
}

impl Allocator for SlabAllocator {
    fn allocate(&mut self, size: u64, align: u64) -> Result<Allocation, AllocateError> {
        if size == 0 {
            return Err(AllocateError::ZeroSize);
        }
        if !align.is_power_of_two() {
            return Err(AllocateError::BadAlignment { align });
        }
        let class = self.class_for(size, align)?;
        let id = match self.classes[class].partial {
            NONE => match self.assign(class) {
                Some(id) => id,
                None => return Err(self.no_slot(size)),
            },
            partial => partial,
        };
        let slots = self.classes[class].slots;
        let slab = &mut self.slabs[id];
        let slot = slab.take(slots, size, self.tag.get());
        if slab.live() == slots {
            self.close_slab(class, id);
        }
        Ok(self.issue(id, class, slot, size))
    }

    /// Takes time in the number of free slots of the slab that were used before, and for the first
    /// extent in a slab in the number of slabs before it that were never used.
    fn allocate_at(&mut self, extent: Extent) -> Result<Allocation, AllocateAtError> {
        let (capacity, size) = (self.capacity(), extent.len());
        if size == 0 {
            return Err(AllocateAtError::Empty { extent });
        }
        if extent.end() > capacity {
            return Err(AllocateAtError::OutOfRange { extent, capacity });
        }
        let misplaced = AllocateAtError::Misplaced { extent };
        let class = self.class_for(size, 1).map_err(|_| misplaced)?;
        // Below the capacity, so a number of a slab.
        let id = (extent.offset() >> self.slab_shift) as SlabId;
        let Class { size: slot_size, slots, .. } = self.classes[class];
        let start = extent.offset() - (u64::from(id) << self.slab_shift);
        let slot = start / slot_size;
        if !start.is_multiple_of(slot_size) || slot >= u64::from(slots) {
            return Err(misplaced);
        }
        let slot = slot as u32;
        match self.slabs.get(u64::from(id)).map(Slab::class) {
            Some(Some(other)) if other != class => return Err(misplaced),
            Some(Some(_)) if !self.slabs[id].is_free(slot) => {
                return Err(AllocateAtError::InUse { extent });
            }
            Some(Some(_)) => {}
            Some(None) => self.assign_pooled(class, id),
            None => {
                while self.slabs.len() <= id {
                    let added = self.slabs.push();
                    self.pool_slab(added);
                }
                self.assign_pooled(class, id);
            }
        }
        self.slabs[id].take_there(slot, size, self.tag.get());
        if self.slabs[id].live() == slots {
            self.close_slab(class, id);
        }
        Ok(self.issue(id, class, slot, size))
    }

    fn free(&mut self, allocation: Allocation) -> Result<(), FreeError> {
        let Some((id, class)) = self.find_live(&allocation) else {
            return Err(FreeError::new(allocation));
        };
        let was_full = self.slabs[id].live() == self.classes[class].slots;
        self.slabs[id].give_back(allocation.region);
        self.classes[class].live -= 1;
        self.used -= self.classes[class].size;
        self.live -= 1;
        if self.slabs[id].live() == 0 {
            if !was_full {
                self.close_slab(class, id);
            }
            self.slabs[id].unassign();
            self.classes[class].slabs -= 1;
            self.pool_slab(id);
        } else if was_full {
            self.open_slab(class, id);
        }
        Ok(())
    }

    fn usable_size(&self, allocation: &Allocation) -> Option<u64> {
        let (_, class) = self.find_live(allocation)?;
        Some(self.classes[class].size)
    }

    /// Bytes in slabs; what [`unusable`](SlabAllocator::unusable) counts is not among
    /// them.
    fn capacity(&self) -> u64 {
        u64::from(self.count) << self.slab_shift
    }

    /// Bytes in the slots of live allocations. The free slots of partly used slabs, and
    /// what lies behind the last slot of a slab, do not count.
    fn used(&self) -> u64 {
        self.used
    }

    fn live(&self) -> usize {
        self.live
    }

    /// Bytes of the largest class that has a free slot; with a free slab, of the largest
    /// class. Smaller requests can fail: a slot serves its own class only.
    fn largest_free(&self) -> u64 {
        if self.free_slabs() > 0 {
            return self.max_allocation();
        }
        self.open.last().map_or(0, |class| self.classes[class].size)
    }

    fn max_allocation(&self) -> u64 {
        if self.count == 0 { 0 } else { self.classes.last().map_or(0, |class| class.size) }
    }

    /// The bins are the classes that have free slots, and the free slabs as regions of
    /// the slab size.
    fn report(&self) -> Report {
        let slots = self.classes.iter().map(|class| (class.size, class.free()));
        let slabs = (self.sizes.slab_size(), u64::from(self.free_slabs()));
        let bins = slots.chain([slabs]).filter(|&(_, regions)| regions > 0);
        Report {
            capacity: self.capacity(),
            used: self.used,
            free: self.available(),
            largest_free: self.largest_free(),
            live: self.live,
            bins: bins
                .map(|(size, regions)| BinReport {
                    smallest: size,
                    largest: size,
                    regions: u32::try_from(regions).unwrap_or(u32::MAX),
                })
                .collect(),
        }
    }

    fn snapshot(&self) -> Vec<Extent> {
        let mut extents = Vec::with_capacity(self.live);
        for (id, slab) in self.slabs.iter() {
            let Some(class) = slab.class() else { continue };
            extents.extend(slab.lens().map(|(slot, len)| {
                Extent::new(self.slot_offset(id, class, slot), len)
                    .expect("a slab ends within the range")
            }));
        }
        extents
    }

    fn set_label(&mut self, allocation: &Allocation, label: Label) {
        if let Some((id, _)) = self.find_live(allocation) {
            self.slabs[id].set_label(allocation.region, label);
        }
    }

    fn makes_room(&self, allocation: &Allocation, size: u64) -> bool {
        let (Some((id, class)), Ok(wanted)) = (self.find_live(allocation), self.class_for(size, 1))
        else {
            return false;
        };
        class == wanted || self.slabs[id].live() == 1
    }

    /// The slot, where it is of the class that serves `size` bytes, and else the slab.
    fn room_at(&self, place: Place, size: u64) -> Room {
        let (Some((id, class)), Ok(wanted)) = (self.class_at(place), self.class_for(size, 1))
        else {
            return Room::Nowhere;
        };
        let (offset, len) = if class == Some(wanted) {
            (place.offset, self.classes[wanted].size)
        } else {
            (u64::from(id) << self.slab_shift, self.sizes.slab_size())
        };
        Room::Exactly(Extent::new(offset, len).expect("a slab ends within the range"))
    }

    /// Shows slots, with what lies behind the last one of a slab as something free, and
    /// slabs that belong to no class.
    fn walk(&self, place: Place, direction: Direction, show: &mut dyn FnMut(Neighbour) -> bool) {
        if self.class_at(place).is_none() {
            return;
        }
        let (mut id, mut slot) = ((place.offset >> self.slab_shift) as SlabId, place.region);
        loop {
            let parts = self.parts(id);
            if !show(self.part(id, slot.min(parts - 1))) {
                return;
            }
            (id, slot) = match direction {
                Direction::Up if slot + 1 < parts => (id, slot + 1),
                Direction::Up if id + 1 < self.slabs.len() => (id + 1, 0),
                Direction::Down if slot > 0 => (id, slot.min(parts - 1) - 1),
                Direction::Down if id > 0 => (id - 1, self.parts(id - 1) - 1),
                _ => return,
            };
        }
    }

    fn place_near(&self, number: u64) -> Option<Place> {
        let id = number.checked_rem(u64::from(self.slabs.len()))? as SlabId;
        let slot = (number >> 32) as u32 % self.parts(id);
        Some(self.part(id, slot).place)
    }

    /// Adds free slabs at the end, or removes them from there. A part of a slab at the
    /// new end becomes [`unusable`](SlabAllocator::unusable).
    fn resize(&mut self, range: u64) -> Result<(), ResizeError> {
        let (count, unusable) = slabs_in(range, self.slab_shift);
        let last = self.slabs.iter().rev().find(|(_, slab)| slab.class().is_some());
        let needed = last.map_or(0, |(id, _)| id + 1);
        if count < needed {
            return Err(ResizeError::InUse {
                requested: range,
                smallest: u64::from(needed) << self.slab_shift,
            });
        }
        while self.slabs.len() > count {
            let id = self.slabs.len() - 1;
            self.slabs.unlink(&mut self.pool, id);
            self.slabs.pop();
            self.pooled -= 1;
        }
        self.count = count;
        self.unusable = unusable;
        Ok(())
    }
}

impl fmt::Debug for SlabAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabAllocator")
            .field("capacity", &self.capacity())
            .field("used", &self.used)
            .field("live", &self.live)
            .field("slab_size", &self.sizes.slab_size())
            .field("free_slabs", &self.free_slabs())
            .finish_non_exhaustive()
    }
}

/// Whole slabs in a range, and the bytes left over.
fn slabs_in(range: u64, slab_shift: u32) -> (u32, u64) {
    // One below the id that means none.
    let count = u32::try_from(range >> slab_shift).unwrap_or(NONE).min(NONE - 1);
    (count, range - (u64::from(count) << slab_shift))
}

/// Usage of one size class of a [`SlabAllocator`]; from [`SlabAllocator::classes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassReport {
    /// Bytes of a slot.
    pub size: u64,
    /// The alignment of every slot's offset.
    pub align: u64,
    /// Slots that a slab of this class has.
    pub slots_per_slab: u32,
    /// Slabs that belong to this class now.
    pub slabs: u32,
    /// Slots in use.
    pub live: u64,
    /// Free slots in the slabs of this class.
    pub free: u64,
}

/// A set of class indices.
#[derive(Default)]
struct ClassSet {
    words: [u64; MAX_CLASSES / 64],
}

impl ClassSet {
    fn insert(&mut self, class: usize) {
        self.words[class / 64] |= 1 << (class % 64);
    }

    fn remove(&mut self, class: usize) {
        self.words[class / 64] &= !(1 << (class % 64));
    }

    /// The largest class in the set.
    fn last(&self) -> Option<usize> {
        let word = self.words.iter().rposition(|&word| word != 0)?;
        Some(word * 64 + self.words[word].ilog2() as usize)
    }
}
