//! Building a slab allocator, with all of its slabs free or with some in use.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use mc_types::{Extent, SplitMix64};

use super::size_classes::SizeClasses;
use super::slabs::{NONE, SlabId, SlabTable};
use super::{Class, ClassSet, SlabAllocator, slabs_in};
use crate::error::RestoreError;
use crate::neighbours::Label;
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
    /// [label](Allocator::set_label): `made` is given their allocations in the same order, and no
    /// more is kept of them than those of one slab. Takes time in their number.
    ///
    /// # Errors
    ///
    /// As [`restore`](Self::restore); [`RestoreError::Overlap`], too, when an extent begins before
    /// the one before it.
    pub fn restore_in_order(
        self,
        live: impl IntoIterator<Item = (Extent, Option<Label>)>,
        mut made: impl FnMut(Allocation),
    ) -> Result<SlabAllocator, RestoreError> {
        let mut allocator = self.build();
        let (capacity, shift) = (allocator.capacity(), allocator.slab_shift);
        let slab_of = |extent: Extent| (extent.offset() >> shift) as SlabId;
        let mut group: Vec<(Extent, Option<Label>)> = Vec::new();
        for (extent, label) in live {
            if extent.is_empty() {
                return Err(RestoreError::Empty { extent });
            }
            if extent.end() > capacity {
                return Err(RestoreError::OutOfRange { extent, capacity });
            }
            if let Some(&(first, _)) = group.last() {
                if extent.offset() < first.end() {
                    return Err(RestoreError::Overlap { first, second: extent });
                }
                if slab_of(first) != slab_of(extent) {
                    allocator.restore_group(slab_of(first), &group, &mut made)?;
                    group.clear();
                }
            }
            group.push((extent, label));
        }
        if let Some(&(last, _)) = group.last() {
            allocator.restore_group(slab_of(last), &group, &mut made)?;
        }
        Ok(allocator)
    }
}

impl SlabAllocator {
    /// Adds the slab with these extents, behind slabs that are free.
    fn restore_group(
        &mut self,
        id: SlabId,
        group: &[(Extent, Option<Label>)],
        made: &mut impl FnMut(Allocation),
    ) -> Result<(), RestoreError> {
        while self.slabs.len() < id {
            let skipped = self.slabs.push();
            self.pool_slab(skipped);
        }
        self.slabs.push();
        self.restore_slab(id, group, made)
    }
}
