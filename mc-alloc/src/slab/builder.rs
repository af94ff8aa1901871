//! Building a slab allocator, with all of its slabs free or with some in use.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use mc_types::{Extent, SplitMix64};

use super::size_classes::SizeClasses;
use super::slabs::{NONE, SlabId, SlabTable};
use super::{Class, ClassSet, SlabAllocator, slabs_in};
use crate::error::RestoreError;
use crate::{Allocation, Allocator};

/// Settings of a [`SlabAllocator`].
///
/// ```
/// use mc_alloc::{Allocator, SizeClasses, SlabAllocator};
///
/// let sizes = SizeClasses::explicit(1 << 20, &[16_384, 262_144])?;
/// let mut space = SlabAllocator::builder(5 << 19).sizes(sizes).identity(7).build();
/// assert_eq!((space.capacity(), space.unusable()), (2 << 20, 1 << 19));
/// let page = space.allocate(10_000, 1)?;
/// assert_eq!(space.usable_size(&page), Some(16_384));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SlabAllocatorBuilder {
    range: u64,
    sizes: Option<SizeClasses>,
    identity: Option<u64>,
}

impl SlabAllocatorBuilder {
    pub(super) const fn new(range: u64) -> Self {
        Self { range, sizes: None, identity: None }
    }

    /// The slab size and the size classes; by default those of [`SizeClasses::default`].
    pub fn sizes(mut self, sizes: SizeClasses) -> Self {
        self.sizes = Some(sizes);
        self
    }

    /// The identity that distinguishes this allocator's allocations from others', exactly as
    /// [`OffsetAllocatorBuilder::identity`](crate::OffsetAllocatorBuilder::identity)
    /// explains it. By default it is the address of the allocator's own table of classes,
    /// which tells apart the allocators that exist at the same time.
    pub const fn identity(mut self, identity: u64) -> Self {
        self.identity = Some(identity);
        self
    }

    /// The allocator, with all of its slabs free.
    #[must_use]
    pub fn build(self) -> SlabAllocator {
        let sizes = self.sizes.unwrap_or_default();
        let slab_size = sizes.slab_size();
        let slab_shift = slab_size.trailing_zeros();
        let classes: Box<[Class]> =
            sizes.sizes().iter().map(|&size| Class::new(size, slab_size)).collect();
        let identity = self.identity.unwrap_or(classes.as_ptr().addr() as u64);
        let (count, unusable) = slabs_in(self.range, slab_shift);
        SlabAllocator {
            sizes,
            classes,
            open: ClassSet::default(),
            slabs: SlabTable::new(),
            pool: NONE,
            pooled: 0,
            count,
            unusable,
            slab_shift,
            tag: NonZeroU32::new(SplitMix64::mix(identity) as u32).unwrap_or(NonZeroU32::MIN),
            used: 0,
            live: 0,
        }
    }

    /// The allocator with the extents `live`, in any order, in use: what
    /// [`snapshot`](Allocator::snapshot) said before a restart. Returns their allocations
    /// in the same order.
    ///
    /// A slab gets the smallest class of which all its extents can be slots. That is the
    /// class it had, or a smaller one when alignment had asked for more than the sizes
    /// did; [`usable_size`](Allocator::usable_size) is that of the class it gets.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`]: extents that are empty, overlap, lie outside the capacity or
    /// are slots of no class.
    ///
    /// ```
    /// use mc_alloc::{Allocator, SlabAllocator};
    ///
    /// let mut before = SlabAllocator::new(64 << 20);
    /// let page = before.allocate(60_000, 1)?;
    /// let other = before.allocate(60_000, 1)?;
    /// before.free(page)?;
    /// let saved = before.snapshot();
    /// drop((before, other));
    ///
    /// let (mut now, allocations) = SlabAllocator::builder(64 << 20).restore(saved.clone())?;
    /// assert_eq!(now.snapshot(), saved);
    /// for allocation in allocations {
    ///     now.free(allocation)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore(
        self,
        live: impl IntoIterator<Item = Extent>,
    ) -> Result<(SlabAllocator, Vec<Allocation>), RestoreError> {
        let mut allocator = self.build();
        let sorted = in_address_order(live, allocator.capacity())?;
        let shift = allocator.slab_shift;
        let slab_of = |extent: Extent| (extent.offset() >> shift) as SlabId;
        let mut allocations: Vec<Option<Allocation>> = Vec::new();
        allocations.resize_with(sorted.len(), || None);
        for group in sorted.chunk_by(|a, b| slab_of(a.1) == slab_of(b.1)) {
            let id = slab_of(group[0].1);
            while allocator.slabs.len() < id {
                let skipped = allocator.slabs.push();
                allocator.pool_slab(skipped);
            }
            allocator.slabs.push();
            allocator.restore_slab(id, group, |index, made| allocations[index] = Some(made))?;
        }
        let in_order = allocations.into_iter().flatten().collect();
        Ok((allocator, in_order))
    }
}

/// The extents by offset, each with its place in `live`, once they are known to lie apart
/// and below `capacity`.
fn in_address_order(
    live: impl IntoIterator<Item = Extent>,
    capacity: u64,
) -> Result<Vec<(usize, Extent)>, RestoreError> {
    let mut sorted: Vec<_> = live.into_iter().enumerate().collect();
    sorted.sort_unstable_by_key(|(_, extent)| extent.offset());
    for &(_, extent) in &sorted {
        if extent.is_empty() {
            return Err(RestoreError::Empty { extent });
        }
        if extent.end() > capacity {
            return Err(RestoreError::OutOfRange { extent, capacity });
        }
    }
    match sorted.windows(2).find(|pair| pair[0].1.overlaps(pair[1].1)) {
        Some(pair) => Err(RestoreError::Overlap { first: pair[0].1, second: pair[1].1 }),
        None => Ok(sorted),
    }
}
