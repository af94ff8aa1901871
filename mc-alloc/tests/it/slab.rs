//! The slab allocator against a map of what is live, and each of its errors.

use std::collections::BTreeMap;

use mc_alloc::{
    AllocateError, Allocation, Allocator, OffsetAllocator, ResizeError, RestoreError, SizeClasses,
    SlabAllocator,
};
use mc_types::Extent;
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn extent(offset: u64, len: u64) -> Extent {
    Extent::new(offset, len).expect("the tests stay below the end")
}

/// Slabs of 4 KiB with few classes, so that slabs fill and change class all the time.
fn small_sizes() -> SizeClasses {
    SizeClasses::explicit(4 * KIB, &[100, 256, 700, 1024, 2000, 4096]).expect("they are in order")
}

/// The live allocations: length and slot size by offset.
#[derive(Default)]
struct Model {
    live: BTreeMap<u64, (u64, u64)>,
}

impl Model {
    fn used(&self) -> u64 {
        self.live.values().map(|&(_, slot)| slot).sum()
    }

    /// The live slots and the slot size of each slab that has any.
    fn slabs(&self, slab_size: u64) -> BTreeMap<u64, (u64, u64)> {
        let mut slabs = BTreeMap::new();
        for (&offset, &(_, slot)) in &self.live {
            let slab = slabs.entry(offset / slab_size).or_insert((0, slot));
            assert_eq!(slab.1, slot, "a slab has slots of one size");
            slab.0 += 1;
        }
        slabs
    }

    fn insert(&mut self, offset: u64, len: u64, slot: u64) {
        let before = self.live.range(..offset + slot).next_back();
        assert!(
            before.is_none_or(|(start, (_, slot))| start + slot <= offset),
            "slots overlap at {offset}"
        );
        self.live.insert(offset, (len, slot));
    }
}

/// The allocator, the model, and what is live in both.
struct Pair {
    space: SlabAllocator,
    model: Model,
    live: Vec<Allocation>,
}

impl Pair {
    fn new(range: u64, sizes: SizeClasses) -> Self {
        let space = SlabAllocator::builder(range).sizes(sizes).build();
        Self { space, model: Model::default(), live: Vec::new() }
    }

    fn slab_size(&self) -> u64 {
        self.space.sizes().slab_size()
    }

    fn largest_class(&self) -> u64 {
        *self.space.sizes().sizes().last().expect("there is a class")
    }

    /// The slot size that a request must get.
    fn slot_for(&self, size: u64, align: u64) -> Option<u64> {
        let slab = self.slab_size();
        let aligned = |class: u64| {
            (0..slab / class).all(|slot| (slot * class).is_multiple_of(align)) && align <= slab
        };
        self.space.sizes().sizes().iter().copied().find(|&class| class >= size && aligned(class))
    }

    /// Free slots of the class of `slot` bytes, free slabs left aside.
    fn free_slots(&self, slot: u64) -> u64 {
        let slabs = self.model.slabs(self.slab_size());
        let of_class = slabs.values().filter(|(_, size)| *size == slot);
        of_class.map(|(live, _)| self.slab_size() / slot - live).sum()
    }

    fn free_slabs(&self) -> u64 {
        let slabs = self.model.slabs(self.slab_size());
        self.space.capacity() / self.slab_size() - slabs.len() as u64
    }

    fn allocate(&mut self, size: u64, align: u64) {
        let free = self.space.capacity() - self.model.used();
        let slot = self.slot_for(size, align).filter(|_| size > 0);
        let fits = slot.is_some_and(|slot| self.free_slots(slot) > 0 || self.free_slabs() > 0);
        match self.space.allocate(size, align) {
            Ok(allocation) => {
                assert!(fits);
                let extent = allocation.extent();
                assert_eq!(extent.len(), size);
                assert!(extent.offset().is_multiple_of(align));
                let usable = self.space.usable_size(&allocation).expect("it is live");
                assert_eq!(Some(usable), slot);
                let within = extent.offset() % self.slab_size() + usable;
                assert!(within <= self.slab_size(), "a slot lies in one slab");
                assert!(extent.offset() + usable <= self.space.capacity());
                self.model.insert(extent.offset(), size, usable);
                self.live.push(allocation);
            }
            Err(error) => {
                assert!(!fits, "{error}");
                match error {
                    AllocateError::ZeroSize => assert_eq!(size, 0),
                    AllocateError::LargerThanCapacity { requested, capacity } => {
                        assert_eq!(requested, size);
                        assert_eq!(capacity, self.space.max_allocation());
                        assert!(size > capacity);
                    }
                    AllocateError::AlignmentTooLarge { requested, align: said, largest } => {
                        assert_eq!((requested, said, slot), (size, align, None));
                        assert!(self.slot_for(size, largest).is_some());
                        assert!(largest < align && self.slot_for(size, largest * 2).is_none());
                    }
                    AllocateError::Full { requested, available } => {
                        assert_eq!((requested, available), (size, free));
                        assert!(size > free);
                    }
                    AllocateError::Fragmented { requested, available, largest_free } => {
                        assert_eq!((requested, available), (size, free));
                        assert_eq!(largest_free, self.space.largest_free());
                        assert!(size <= free);
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }

    fn free(&mut self, choice: usize) {
        if self.live.is_empty() {
            return;
        }
        let allocation = self.live.swap_remove(choice % self.live.len());
        let extent = allocation.extent();
        self.space.free(allocation).expect("it is live");
        let (len, _) = self.model.live.remove(&extent.offset()).expect("it is live");
        assert_eq!(len, extent.len());
    }

    fn resize(&mut self, range: u64) {
        let slab_size = self.slab_size();
        let needed = self
            .model
            .live
            .last_key_value()
            .map_or(0, |(&offset, _)| (offset / slab_size + 1) * slab_size);
        match self.space.resize(range) {
            Ok(()) => {
                assert!(range >= needed);
                assert_eq!(self.space.capacity(), range / slab_size * slab_size);
                assert_eq!(self.space.unusable(), range % slab_size);
            }
            Err(error) => {
                assert_eq!(error, ResizeError::InUse { requested: range, smallest: needed });
                assert!(range < needed);
            }
        }
    }

    /// Frees into a rebuilt allocator what was allocated from the one before.
    fn restart(&mut self) {
        let extents: Vec<_> = self.live.drain(..).map(|allocation| allocation.extent()).collect();
        let builder = SlabAllocator::builder(self.space.capacity() + self.space.unusable())
            .sizes(self.space.sizes().clone());
        let (space, allocations) = builder.restore(extents.clone()).expect("it was a snapshot");
        let order: Vec<_> = allocations.iter().map(Allocation::extent).collect();
        assert_eq!(order, extents);
        assert_eq!(space.snapshot(), self.space.snapshot());
        // Aligned extents may have a smaller class than before.
        for allocation in &allocations {
            let usable = space.usable_size(allocation).expect("it is live");
            let offset = allocation.extent().offset();
            let live = self.model.live.get_mut(&offset).expect("it is live");
            assert!((live.0..=live.1).contains(&usable));
            live.1 = usable;
        }
        self.space = space;
        self.live = allocations;
    }

    fn check(&self) {
        let slab_size = self.slab_size();
        let capacity = self.space.capacity();
        let used = self.model.used();
        assert_eq!(u64::from(self.space.free_slabs()), self.free_slabs());

        let report = self.space.report();
        assert_eq!((report.capacity, report.used, report.free), (capacity, used, capacity - used));
        assert_eq!(report.live, self.model.live.len());
        let slabs = self.model.slabs(slab_size);
        let mut bins = Vec::new();
        for class in self.space.classes() {
            let of_class = || slabs.values().filter(|(_, size)| *size == class.size);
            assert_eq!(u64::from(class.slabs), of_class().count() as u64);
            assert_eq!(class.live, of_class().map(|(live, _)| live).sum::<u64>());
            assert_eq!(class.free, self.free_slots(class.size));
            if class.free > 0 {
                bins.push((class.size, class.free));
            }
        }
        let mut largest = bins.last().map_or(0, |&(size, _)| size);
        if self.free_slabs() > 0 {
            bins.push((slab_size, self.free_slabs()));
            largest = self.largest_class();
        }
        let reported: Vec<_> = report
            .bins
            .iter()
            .map(|bin| {
                assert_eq!(bin.smallest, bin.largest);
                (bin.largest, u64::from(bin.regions))
            })
            .collect();
        assert_eq!(reported, bins);
        assert_eq!((report.largest_free, self.space.largest_free()), (largest, largest));
        let max = if capacity == 0 { 0 } else { self.largest_class() };
        assert_eq!(self.space.max_allocation(), max);

        let live = self.model.live.iter().map(|(&offset, &(len, _))| extent(offset, len));
        assert_eq!(self.space.snapshot(), live.collect::<Vec<_>>());
    }

    fn free_everything(&mut self) {
        while !self.live.is_empty() {
            self.free(0);
        }
        self.check();
        assert_eq!(self.space.used(), 0);
        assert_eq!(self.free_slabs() * self.slab_size(), self.space.capacity());
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate { size: u64, align_shift: u32 },
    AllocateLargestFree,
    Free(usize),
    FreeAll,
    Resize(u64),
    Restart,
}

fn operations(largest: u64) -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        4 => (0..largest / 16).prop_map(|size| Operation::Allocate { size, align_shift: 0 }),
        3 => (0..largest + 10).prop_map(|size| Operation::Allocate { size, align_shift: 0 }),
        3 => (0..largest, 0_u32..14)
            .prop_map(|(size, align_shift)| Operation::Allocate { size, align_shift }),
        1 => Just(Operation::AllocateLargestFree),
        8 => any::<usize>().prop_map(Operation::Free),
        1 => (0..20 * largest).prop_map(Operation::Resize),
        1 => Just(Operation::Restart),
    ];
    let operation = prop_oneof![60 => operation, 1 => Just(Operation::FreeAll)];
    proptest::collection::vec(operation, 1..300)
}

fn run(mut pair: Pair, operations: Vec<Operation>) {
    for operation in operations {
        match operation {
            Operation::Allocate { size, align_shift } => pair.allocate(size, 1 << align_shift),
            Operation::AllocateLargestFree => {
                let largest = pair.space.largest_free();
                let live = pair.live.len();
                pair.allocate(largest, 1);
                assert_eq!(pair.live.len(), live + usize::from(largest > 0), "as promised");
            }
            Operation::Free(choice) => pair.free(choice),
            Operation::FreeAll => pair.free_everything(),
            Operation::Resize(range) => pair.resize(range),
            Operation::Restart => pair.restart(),
        }
        pair.check();
    }
    pair.free_everything();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_allocator_agrees_with_the_model(
        range in 0_u64..60_000,
        operations in operations(4096),
    ) {
        run(Pair::new(range, small_sizes()), operations);
    }

    #[test]
    fn the_default_classes_agree_with_the_model(
        range in 0_u64..600_000,
        operations in operations(32_768),
    ) {
        run(Pair::new(range, SizeClasses::geometric(32_768).unwrap()), operations);
    }

    /// Two allocators with the same history, so that everything about an allocation but
    /// its origin agrees.
    #[test]
    fn allocations_of_a_twin_are_given_back(
        sizes in proptest::collection::vec(1_u64..1000, 1..50),
        choices in proptest::collection::vec(any::<usize>(), 1..50),
    ) {
        let mut ours = Pair::new(100_000, small_sizes());
        let mut theirs = Pair::new(100_000, small_sizes());
        for &size in &sizes {
            ours.allocate(size, 1);
            theirs.allocate(size, 1);
        }
        for choice in choices {
            let foreign = theirs.live.swap_remove(choice % theirs.live.len());
            let extent = foreign.extent();
            let foreign = ours.space.free(foreign).unwrap_err().into_allocation();
            prop_assert_eq!(foreign.extent(), extent);
            prop_assert_eq!(ours.space.usable_size(&foreign), None);
            theirs.live.push(foreign);
            ours.check();
        }
        ours.free_everything();
        theirs.free_everything();
    }

    /// Whatever list is to be restored, the answer is an error or exactly that list.
    #[test]
    fn any_list_of_extents_is_restored_or_refused(
        extents in proptest::collection::vec((0_u64..200, 0_u64..5, any::<bool>()), 0..12),
    ) {
        let extents: Vec<_> = extents
            .into_iter()
            .map(|(slot, quarters, odd)| extent(slot * 256 + u64::from(odd), quarters * 64))
            .collect();
        let builder = SlabAllocator::builder(40_000).sizes(small_sizes());
        if let Ok((space, allocations)) = builder.restore(extents.clone()) {
            let order: Vec<_> = allocations.iter().map(Allocation::extent).collect();
            prop_assert_eq!(&order, &extents);
            let mut model = Model::default();
            for allocation in &allocations {
                let usable = space.usable_size(allocation).unwrap();
                model.insert(allocation.extent().offset(), allocation.extent().len(), usable);
            }
            let mut pair = Pair { space, model, live: allocations };
            pair.check();
            pair.free_everything();
        }
    }
}

/// The reference never gave a slab back, so that even after everything was removed,
/// putting values of different sizes failed.
#[test]
fn after_everything_is_freed_any_other_size_fits() {
    let mut space = SlabAllocator::new(64 * MIB);
    for size in [100, 4 * MIB, 64, 3 * KIB, 700 * KIB, MIB + 1, 100_000] {
        let mut held = Vec::new();
        let mut refused = None;
        while refused.is_none() {
            match space.allocate(size, 1) {
                Ok(allocation) => held.push(allocation),
                Err(error) => refused = Some(error),
            }
        }
        let per_slab = 4 * MIB / space.usable_size(&held[0]).unwrap();
        assert_eq!(held.len() as u64, 16 * per_slab, "all of the space serves {size} bytes");
        for allocation in held {
            space.free(allocation).unwrap();
        }
        assert_eq!((space.used(), space.free_slabs()), (0, 16));
    }
}

/// The same with objects of all sizes at once, a part of which stays.
#[test]
fn a_slab_changes_its_class_as_soon_as_it_is_empty() {
    let sizes = SizeClasses::explicit(4096, &[1024, 4096]).unwrap();
    let mut space = SlabAllocator::builder(8192).sizes(sizes).build();
    let mut small: Vec<_> = (0..8).map(|_| space.allocate(1000, 1).unwrap()).collect();
    small.sort_by_key(|allocation| allocation.extent().offset());
    let fragmented =
        |available| AllocateError::Fragmented { requested: 4000, available, largest_free: 1024 };
    assert_eq!(
        space.allocate(4000, 1).unwrap_err(),
        AllocateError::Full { requested: 4000, available: 0 }
    );
    // One of each slab, and then two: enough bytes, but in parts of slabs.
    for index in [7, 6, 2, 1] {
        space.free(small.remove(index)).unwrap();
    }
    assert_eq!(space.allocate(4000, 1).unwrap_err(), fragmented(4096));
    // The last two of the second slab.
    for _ in 0..2 {
        space.free(small.pop().unwrap()).unwrap();
    }
    let large = space.allocate(4000, 4096).unwrap();
    assert_eq!(large.extent(), extent(4096, 4000));
    // The first slab still serves its class.
    assert!(space.allocate(1000, 1).unwrap().extent().offset() < 4096);
}

#[test]
fn sizes_and_alignments_that_can_never_fit_have_errors_of_their_own() {
    let mut space = SlabAllocator::builder(20_000).sizes(small_sizes()).build();
    for (size, align, expected) in [
        (0, 1, AllocateError::ZeroSize),
        (1, 0, AllocateError::BadAlignment { align: 0 }),
        (1, 12, AllocateError::BadAlignment { align: 12 }),
        (4097, 1, AllocateError::LargerThanCapacity { requested: 4097, capacity: 4096 }),
        (u64::MAX, 1, AllocateError::LargerThanCapacity { requested: u64::MAX, capacity: 4096 }),
        (1, 8192, AllocateError::AlignmentTooLarge { requested: 1, align: 8192, largest: 4096 }),
        (
            1,
            1 << 63,
            AllocateError::AlignmentTooLarge { requested: 1, align: 1 << 63, largest: 4096 },
        ),
    ] {
        let error = space.allocate(size, align).unwrap_err();
        assert_eq!(error, expected);
        assert!(!error.is_retryable());
    }
    assert_eq!(space.live(), 0);
    let odd = SizeClasses::explicit(4096, &[100]).unwrap();
    let mut space = SlabAllocator::builder(8192).sizes(odd).build();
    assert_eq!(
        space.allocate(10, 8).unwrap_err(),
        AllocateError::AlignmentTooLarge { requested: 10, align: 8, largest: 4 }
    );
}

#[test]
fn free_slots_of_a_larger_class_are_named_and_not_used() {
    let mut space = SlabAllocator::builder(4096).sizes(small_sizes()).build();
    let _held = space.allocate(1000, 1).unwrap();
    let error = space.allocate(100, 1).unwrap_err();
    assert_eq!(
        error,
        AllocateError::Fragmented { requested: 100, available: 3072, largest_free: 1024 }
    );
    assert!(error.is_retryable());
    assert!(error.to_string().contains("other size classes"), "{error}");
    assert!(space.allocate(space.largest_free(), 1).is_ok());
}

#[test]
fn alignment_chooses_the_class() {
    let mut space = SlabAllocator::builder(40_960).sizes(small_sizes()).build();
    for (size, align, usable) in [
        (100, 1, 100),
        (100, 4, 100),
        (100, 8, 256),
        (300, 4, 700),
        (300, 8, 1024),
        (100, 512, 1024),
        (1100, 16, 2000),
        (1100, 2048, 4096),
        (1, 4096, 4096),
    ] {
        let allocation = space.allocate(size, align).unwrap();
        assert_eq!(space.usable_size(&allocation), Some(usable), "{size} at {align}");
        assert!(allocation.extent().offset().is_multiple_of(align));
    }
}

#[test]
fn a_range_with_a_part_of_a_slab_says_so() {
    let mut space = SlabAllocator::new(10 * MIB);
    assert_eq!((space.capacity(), space.unusable()), (8 * MIB, 2 * MIB));
    space.resize(12 * MIB).unwrap();
    assert_eq!((space.capacity(), space.unusable()), (12 * MIB, 0));

    let mut nothing = SlabAllocator::new(4 * MIB - 1);
    assert_eq!((nothing.capacity(), nothing.unusable()), (0, 4 * MIB - 1));
    assert_eq!((nothing.largest_free(), nothing.report().free_regions()), (0, 0));
    assert_eq!(
        nothing.allocate(1, 1).unwrap_err(),
        AllocateError::LargerThanCapacity { requested: 1, capacity: 0 }
    );
}

#[test]
fn the_largest_ranges_cost_nothing_until_they_are_used() {
    for slab_size in [4096, 4 * MIB, 1 << 40, 1 << 63] {
        let sizes = SizeClasses::geometric(slab_size).unwrap();
        let mut space = SlabAllocator::builder(u64::MAX).sizes(sizes).build();
        assert_eq!(u128::from(space.capacity()) + u128::from(space.unusable()), u64::MAX.into());
        let first = space.allocate(1, 1).unwrap();
        assert_eq!(first.extent().offset(), 0);
        assert_eq!(space.report().live, 1);
        space.free(first).unwrap();
        let whole = space.allocate(slab_size, slab_size).unwrap();
        space.free(whole).unwrap();
        assert_eq!(space.used(), 0);
    }
}

#[test]
fn a_stale_or_foreign_allocation_comes_back() {
    let build =
        |identity| SlabAllocator::builder(MIB).sizes(small_sizes()).identity(identity).build();
    let mut before = build(1);
    let stale = before.allocate(50, 1).unwrap();
    drop(before);
    let mut now = build(2);
    let live = now.allocate(50, 1).unwrap();
    assert_eq!(live.extent(), stale.extent());
    let stale = now.free(stale).unwrap_err().into_allocation();
    assert!(now.owns(&live));

    now.reset();
    assert_eq!((now.live(), now.used(), now.free_slabs()), (0, 0, 256));
    let after_reset = now.free(live).unwrap_err().into_allocation();
    let again = now.allocate(50, 1).unwrap();
    assert!(now.free(after_reset).is_err());
    assert!(now.free(stale).is_err());

    let mut other = OffsetAllocator::new(MIB);
    let foreign = other.allocate(50).unwrap();
    assert_eq!(foreign.extent(), again.extent());
    let foreign = now.free(foreign).unwrap_err().into_allocation();
    let again = other.free(again).unwrap_err().into_allocation();
    other.free(foreign).unwrap();
    now.free(again).unwrap();
    assert_eq!(now.used(), 0);
}

#[test]
fn a_range_shrinks_to_the_last_slab_in_use() {
    let sizes = SizeClasses::explicit(4096, &[4096]).unwrap();
    let mut space = SlabAllocator::builder(10 * 4096).sizes(sizes).build();
    let mut held: Vec<_> = (0..5).map(|_| space.allocate(4096, 1).unwrap()).collect();
    assert_eq!(
        space.resize(4 * 4096 + 4095),
        Err(ResizeError::InUse { requested: 4 * 4096 + 4095, smallest: 5 * 4096 })
    );
    assert_eq!(space.capacity(), 10 * 4096);
    for index in [4, 2, 1] {
        space.free(held.remove(index)).unwrap();
    }
    // Slab 3 is in use; 1 and 2 are free below it, 4 beyond it.
    space.resize(4 * 4096).unwrap();
    assert_eq!((space.capacity(), space.free_slabs()), (4 * 4096, 2));
    space.resize(6 * 4096).unwrap();
    assert_eq!(space.free_slabs(), 4);
    let mut offsets: Vec<_> =
        (0..4).map(|_| space.allocate(1, 1).unwrap().extent().offset() / 4096).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, [1, 2, 4, 5]);
    assert!(space.allocate(1, 1).is_err());
}

#[test]
fn what_no_allocator_can_have_placed_is_not_restored() {
    let refused = |extents: &[Extent]| {
        let builder = SlabAllocator::builder(10_000).sizes(small_sizes());
        builder.restore(extents.iter().copied()).unwrap_err()
    };
    let fine = extent(0, 90);
    assert_eq!(refused(&[fine, extent(200, 0)]), RestoreError::Empty { extent: extent(200, 0) });
    for beyond in [extent(8192, 10), extent(8000, 200), extent(u64::MAX - 1, 1)] {
        assert_eq!(
            refused(&[beyond, fine]),
            RestoreError::OutOfRange { extent: beyond, capacity: 8192 }
        );
    }
    assert_eq!(
        refused(&[extent(89, 10), fine]),
        RestoreError::Overlap { first: fine, second: extent(89, 10) }
    );
    assert_eq!(refused(&[fine, fine]), RestoreError::Overlap { first: fine, second: fine });
    // No slot begins there; longer than the only class with that slot; across two slabs;
    // fine alone, but of different classes.
    for misplaced in [
        &[extent(50, 10)][..],
        &[extent(100, 101)],
        &[extent(4000, 200)],
        &[extent(100, 50), extent(256, 50)],
    ] {
        assert_eq!(refused(misplaced), RestoreError::Misplaced { extent: misplaced[0] });
    }
    let builder = SlabAllocator::builder(10_000).sizes(small_sizes());
    let (space, made) = builder.restore([extent(4096 + 256, 60), extent(200, 100)]).unwrap();
    assert_eq!(space.usable_size(&made[0]), Some(256));
    assert_eq!(space.usable_size(&made[1]), Some(100));
    assert_eq!(space.snapshot(), [extent(200, 100), extent(4096 + 256, 60)]);
}
