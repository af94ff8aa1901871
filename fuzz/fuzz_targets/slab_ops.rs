//! Operations on two slab allocators of the same history against a map of what is live.

#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mc_alloc::{AllocateError, Allocation, Allocator, ResizeError, SizeClasses, SlabAllocator};
use mc_types::Extent;

/// No range in which more slabs than this can come into use: the model counts them.
const MOST_SLABS: u64 = 64;

#[derive(Arbitrary, Debug)]
struct Input {
    range: u64,
    slab_shift: u8,
    /// Explicit classes, when they are valid ones.
    sizes: Vec<u16>,
    operations: Vec<Operation>,
}

#[derive(Arbitrary, Debug)]
enum Operation {
    Allocate {
        size: u64,
        align: u64,
    },
    /// Sizes below a slab, and alignments that exist, meet each other more often.
    AllocateFitting {
        size: u16,
        align_shift: u8,
    },
    AllocateLargestFree,
    Free(u8),
    FreeAll,
    /// Frees an allocation into the other allocator.
    FreeForeign(u8),
    Resize(u64),
    Restart,
    /// Restores what may never have been a snapshot.
    Restore(Vec<(u16, u16)>),
    Reset,
}

struct Run {
    sizes: SizeClasses,
    space: SlabAllocator,
    twin: SlabAllocator,
    live: Vec<(Allocation, Allocation)>,
    /// Length and slot size by offset.
    model: BTreeMap<u64, (u64, u64)>,
}

impl Run {
    fn new(input: &Input) -> Self {
        let slab_size = 4096 << (input.slab_shift % 4);
        let sizes: Vec<_> = input.sizes.iter().map(|&size| u64::from(size)).collect();
        let sizes = SizeClasses::explicit(slab_size, &sizes)
            .or_else(|_| SizeClasses::geometric(slab_size))
            .expect("the slab size is valid");
        let range = input.range % (MOST_SLABS * slab_size);
        let build = |identity| {
            SlabAllocator::builder(range).sizes(sizes.clone()).identity(identity).build()
        };
        let (space, twin) = (build(1), build(2));
        Self { sizes, space, twin, live: Vec::new(), model: BTreeMap::new() }
    }

    fn used(&self) -> u64 {
        self.model.values().map(|&(_, slot)| slot).sum()
    }

    /// Slabs in use, each with the size of its slots and how many are live.
    fn slabs(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut slabs = BTreeMap::new();
        for (&offset, &(_, slot)) in &self.model {
            let slab = slabs.entry(offset / self.sizes.slab_size()).or_insert((slot, 0));
            assert_eq!(slab.0, slot, "a slab has slots of one size");
            slab.1 += 1;
        }
        slabs
    }

    fn slab_count(&self) -> u64 {
        self.space.capacity() / self.sizes.slab_size()
    }

    /// Whether a request must succeed: a slot of the right class or a slab is free.
    fn must_fit(&self, size: u64, align: u64) -> bool {
        let slab_size = self.sizes.slab_size();
        let is_aligned = |class: u64| {
            align <= slab_size && (class.is_multiple_of(align) || class > slab_size / 2)
        };
        let mut classes = self.sizes.sizes().iter().copied();
        let Some(slot) = classes.find(|&class| class >= size && is_aligned(class)) else {
            return false;
        };
        let slabs = self.slabs();
        let has_slot = slabs.values().any(|&(of, live)| of == slot && live < slab_size / slot);
        has_slot || (slabs.len() as u64) < self.slab_count()
    }

    fn allocate(&mut self, size: u64, align: u64) {
        let free = self.space.capacity() - self.used();
        let must_fit = size > 0 && align.is_power_of_two() && self.must_fit(size, align);
        let twin = self.twin.allocate(size, align);
        let allocation = match self.space.allocate(size, align) {
            Ok(allocation) => allocation,
            Err(error) => {
                assert_eq!(twin.unwrap_err(), error, "twins agree");
                assert!(!must_fit, "{error}");
                match error {
                    AllocateError::ZeroSize => assert_eq!(size, 0),
                    AllocateError::BadAlignment { .. } => assert!(!align.is_power_of_two()),
                    AllocateError::LargerThanCapacity { capacity, .. } => assert!(size > capacity),
                    AllocateError::AlignmentTooLarge { largest, .. } => assert!(largest < align),
                    AllocateError::Full { available, .. } => {
                        assert_eq!(available, free);
                        assert!(size > free);
                    }
                    AllocateError::Fragmented { available, .. } => {
                        assert_eq!(available, free);
                        assert!(size <= free);
                    }
                    other => panic!("{other}"),
                }
                return;
            }
        };
        assert!(must_fit);
        let slot = self.space.usable_size(&allocation).expect("it is live");
        let extent = allocation.extent();
        assert_eq!(extent.len(), size);
        assert!(slot >= size && extent.offset().is_multiple_of(align));
        let end = extent.offset() + slot;
        assert!(end <= self.space.capacity());
        let before = self.model.range(..end).next_back();
        assert!(before.is_none_or(|(at, (_, slot))| at + slot <= extent.offset()), "overlap");
        self.model.insert(extent.offset(), (size, slot));
        self.live.push((allocation, twin.expect("twins agree")));
    }

    fn free(&mut self, choice: u8) {
        if self.live.is_empty() {
            return;
        }
        let (allocation, twin) = self.live.swap_remove(usize::from(choice) % self.live.len());
        let extent = allocation.extent();
        self.space.free(allocation).expect("it is live");
        self.twin.free(twin).expect("it is live");
        assert!(self.model.remove(&extent.offset()).is_some());
    }

    fn free_all(&mut self) {
        while !self.live.is_empty() {
            self.free(0);
        }
        assert_eq!(u64::from(self.space.free_slabs()), self.slab_count());
    }

    fn free_foreign(&mut self, choice: u8) {
        if self.live.is_empty() {
            return;
        }
        let (allocation, twin) = self.live.swap_remove(usize::from(choice) % self.live.len());
        let twin = self.space.free(twin).expect_err("it is the twin's").into_allocation();
        self.live.push((allocation, twin));
    }

    fn resize(&mut self, range: u64) {
        let slab_size = self.sizes.slab_size();
        let range = range % (MOST_SLABS * slab_size);
        let last = self.model.last_key_value();
        let needed = last.map_or(0, |(&offset, _)| (offset / slab_size + 1) * slab_size);
        let resized = self.space.resize(range);
        assert_eq!(self.twin.resize(range), resized, "twins agree");
        if range >= needed {
            assert_eq!(resized, Ok(()));
            assert_eq!(self.space.capacity() + self.space.unusable(), range);
        } else {
            let refused = ResizeError::InUse { requested: range, smallest: needed };
            assert_eq!(resized, Err(refused));
        }
    }

    fn restart(&mut self) {
        let extents: Vec<_> = self.live.iter().map(|(ours, _)| ours.extent()).collect();
        let restore = |identity| {
            let builder = SlabAllocator::builder(self.space.capacity() + self.space.unusable());
            let builder = builder.sizes(self.sizes.clone()).identity(identity);
            builder.restore(extents.iter().copied()).expect("it was a snapshot")
        };
        let ((space, ours), (twin, theirs)) = (restore(3), restore(4));
        for ((stale, _), restored) in self.live.drain(..).zip(&ours) {
            assert_eq!(stale.extent(), restored.extent());
            let slot = space.usable_size(restored).expect("it is live");
            let known = self.model.get_mut(&stale.extent().offset()).expect("it is live");
            assert!((known.0..=known.1).contains(&slot));
            known.1 = slot;
        }
        self.live = ours.into_iter().zip(theirs).collect();
        (self.space, self.twin) = (space, twin);
    }

    fn restore_anything(&self, extents: &[(u16, u16)]) {
        let extents = extents
            .iter()
            .filter_map(|&(offset, len)| Extent::new(u64::from(offset), u64::from(len)));
        let extents: Vec<_> = extents.collect();
        let builder = SlabAllocator::builder(self.space.capacity()).sizes(self.sizes.clone());
        let Ok((mut space, allocations)) = builder.restore(extents.iter().copied()) else {
            return;
        };
        let in_order = allocations.iter().map(Allocation::extent);
        assert!(in_order.eq(extents));
        for allocation in allocations {
            space.free(allocation).expect("it is live");
        }
        assert_eq!(u64::from(space.free_slabs()), self.slab_count());
    }

    fn reset(&mut self) {
        self.space.reset();
        self.twin.reset();
        self.model.clear();
        for (stale, _) in self.live.drain(..) {
            self.space.free(stale).expect_err("it is from before the reset");
        }
    }

    fn check(&self) {
        let slab_size = self.sizes.slab_size();
        assert_eq!(self.space.used(), self.used());
        assert_eq!(self.space.live(), self.model.len());
        let slabs = self.slabs();
        assert_eq!(u64::from(self.space.free_slabs()), self.slab_count() - slabs.len() as u64);
        for class in self.space.classes() {
            let of_class: Vec<_> = slabs.values().filter(|(slot, _)| *slot == class.size).collect();
            let live: u64 = of_class.iter().map(|(_, live)| live).sum();
            assert_eq!((u64::from(class.slabs), class.live), (of_class.len() as u64, live));
            assert_eq!(class.free, of_class.len() as u64 * (slab_size / class.size) - live);
        }
        let live = self.model.iter().map(|(&offset, &(len, _))| Extent::new(offset, len));
        assert!(live.eq(self.space.snapshot().into_iter().map(Some)));
    }
}

fuzz_target!(|input: Input| {
    let mut run = Run::new(&input);
    for operation in &input.operations {
        match operation {
            Operation::Allocate { size, align } => run.allocate(*size, *align),
            Operation::AllocateFitting { size, align_shift } => {
                run.allocate(u64::from(*size), 1 << (align_shift % 16));
            }
            Operation::AllocateLargestFree => {
                let (largest, live) = (run.space.largest_free(), run.live.len());
                run.allocate(largest, 1);
                assert_eq!(run.live.len(), live + usize::from(largest > 0), "as promised");
            }
            Operation::Free(choice) => run.free(*choice),
            Operation::FreeAll => run.free_all(),
            Operation::FreeForeign(choice) => run.free_foreign(*choice),
            Operation::Resize(range) => run.resize(*range),
            Operation::Restart => run.restart(),
            Operation::Restore(extents) => run.restore_anything(extents),
            Operation::Reset => run.reset(),
        }
        run.check();
    }
    run.free_all();
    run.check();
});
