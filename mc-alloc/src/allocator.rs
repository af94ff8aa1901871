//! The trait of all offset allocators.

use alloc::boxed::Box;
use alloc::vec::Vec;

use mc_types::Extent;

use crate::error::{AllocateAtError, AllocateError, FreeError, ResizeError};
use crate::neighbours::{Direction, Label, Neighbour, Place, Room};
use crate::{Allocation, Report};

/// Divides a range of offsets `[0, capacity)` into extents, without touching what lies
/// at those offsets.
///
/// For a choice at run time use `Box<dyn Allocator>`; the trait is
/// object-safe.
pub trait Allocator {
    /// Takes `size` bytes whose first offset is a multiple of `align`.
    ///
    /// # Errors
    ///
    /// See [`AllocateError`]; nothing is changed then. `align` must be a power of two.
    fn allocate(&mut self, size: u64, align: u64) -> Result<Allocation, AllocateError>;

    /// Takes exactly this extent, for one that follows what another allocator of the same range does:
    /// a standby, or a copy in another process. The other one's
    /// [`allocate`](Self::allocate) may have placed it there.
    ///
    /// # Errors
    ///
    /// [`AllocateAtError`]; nothing is changed then.
    fn allocate_at(&mut self, extent: Extent) -> Result<Allocation, AllocateAtError>;

    /// Gives an allocation's bytes back.
    ///
    /// # Errors
    ///
    /// Gives the allocation back, and changes nothing, when it is not a live one of
    /// this allocator.
    fn free(&mut self, allocation: Allocation) -> Result<(), FreeError>;

    /// Bytes that the holder of `allocation` may use from its first offset on: at
    /// least those asked for, more where the allocator rounds up. `None` when it is
    /// not a live allocation of this allocator.
    fn usable_size(&self, allocation: &Allocation) -> Option<u64>;

    /// Bytes managed.
    fn capacity(&self) -> u64;

    /// Bytes that live allocations keep from others, what was rounded up included.
    fn used(&self) -> u64;

    /// Bytes not in use: `capacity - used`.
    fn available(&self) -> u64 {
        self.capacity() - self.used()
    }

    /// Live allocations.
    fn live(&self) -> usize;

    /// Bytes of an allocation that would succeed now, as large as can be told in
    /// constant time.
    fn largest_free(&self) -> u64;

    /// Bytes of the largest allocation that can succeed with everything free; 0 when
    /// none can.
    fn max_allocation(&self) -> u64;

    /// Sums, fragmentation and the histogram of free sizes.
    fn report(&self) -> Report;

    /// The extents of all live allocations in address order: with the capacity, all
    /// that is needed to build the allocator again after a restart.
    fn snapshot(&self) -> Vec<Extent>;

    /// Labels an allocation, for [`walk`](Self::walk) to show. Has no effect when the allocation
    /// is not a live one of this allocator. Constant time.
    fn set_label(&mut self, allocation: &Allocation, label: Label);

    /// Returns whether `size` bytes, not aligned, could be allocated if the bytes of `allocation`
    /// alone were freed. Constant time.
    fn makes_room(&self, allocation: &Allocation, size: u64) -> bool;

    /// Returns the bytes around `place` that have to be free for `size` bytes, not aligned, to be
    /// allocated there. Constant time.
    fn room_at(&self, place: Place, size: u64) -> Room;

    /// Shows what is at `place` and then, one after the other without gaps, what lies
    /// behind or before it, until `show` returns false, and nothing when there is no such
    /// place any more. Constant time for each neighbour shown. A [`SlabAllocator`] ends behind the
    /// last slab that was ever in use.
    ///
    /// [`SlabAllocator`]: crate::SlabAllocator
    fn walk(&self, place: Place, direction: Direction, show: &mut dyn FnMut(Neighbour) -> bool);

    /// Returns a place with something free or live, for a `number` that the caller draws: over
    /// all numbers each place comes about as often as any other. `None` when the range is empty,
    /// or nothing in it was ever in use.
    fn place_near(&self, number: u64) -> Option<Place>;

    /// Moves the end of the range to `capacity`. A larger range gets free space at its
    /// end; a smaller one must have it there.
    ///
    /// # Errors
    ///
    /// [`ResizeError`], and nothing is changed, when something is in use beyond the new
    /// end.
    fn resize(&mut self, capacity: u64) -> Result<(), ResizeError>;
}

impl<A: Allocator + ?Sized> Allocator for Box<A> {
    fn allocate(&mut self, size: u64, align: u64) -> Result<Allocation, AllocateError> {
        (**self).allocate(size, align)
    }

    fn allocate_at(&mut self, extent: Extent) -> Result<Allocation, AllocateAtError> {
        (**self).allocate_at(extent)
    }

    fn free(&mut self, allocation: Allocation) -> Result<(), FreeError> {
        (**self).free(allocation)
    }

    fn usable_size(&self, allocation: &Allocation) -> Option<u64> {
        (**self).usable_size(allocation)
    }

    fn capacity(&self) -> u64 {
        (**self).capacity()
    }

    fn used(&self) -> u64 {
        (**self).used()
    }

    fn available(&self) -> u64 {
        (**self).available()
    }

    fn live(&self) -> usize {
        (**self).live()
    }

    fn largest_free(&self) -> u64 {
        (**self).largest_free()
    }

    fn max_allocation(&self) -> u64 {
        (**self).max_allocation()
    }

    fn report(&self) -> Report {
        (**self).report()
    }

    fn snapshot(&self) -> Vec<Extent> {
        (**self).snapshot()
    }

    fn set_label(&mut self, allocation: &Allocation, label: Label) {
        (**self).set_label(allocation, label);
    }

    fn makes_room(&self, allocation: &Allocation, size: u64) -> bool {
        (**self).makes_room(allocation, size)
    }

    fn room_at(&self, place: Place, size: u64) -> Room {
        (**self).room_at(place, size)
    }

    fn walk(&self, place: Place, direction: Direction, show: &mut dyn FnMut(Neighbour) -> bool) {
        (**self).walk(place, direction, show);
    }

    fn place_near(&self, number: u64) -> Option<Place> {
        (**self).place_near(number)
    }

    fn resize(&mut self, capacity: u64) -> Result<(), ResizeError> {
        (**self).resize(capacity)
    }
}
