//! Random operations against the obvious model: a sorted map of live extents.

use std::collections::BTreeMap;

use mc_alloc::{AllocateError, Allocation, Allocator, OffsetAllocator, ResizeError};
use proptest::prelude::*;

/// Live extents by offset.
#[derive(Default)]
struct Model {
    capacity: u64,
    live: BTreeMap<u64, u64>,
}

impl Model {
    fn used(&self) -> u64 {
        self.live.values().sum()
    }

    /// Sizes of the gaps between live extents, in address order.
    fn gaps(&self) -> Vec<u64> {
        let mut end = 0;
        let mut gaps = Vec::new();
        for (&offset, &len) in &self.live {
            gaps.push(offset - end);
            end = offset + len;
        }
        gaps.push(self.capacity - end);
        gaps.retain(|&gap| gap > 0);
        gaps
    }

    fn largest_gap(&self) -> u64 {
        self.gaps().into_iter().max().unwrap_or(0)
    }

    /// The end of the last live extent.
    fn end(&self) -> u64 {
        self.live.last_key_value().map_or(0, |(offset, len)| offset + len)
    }

    fn insert(&mut self, offset: u64, len: u64) {
        let before = self.live.range(..=offset).next_back();
        assert!(before.is_none_or(|(start, len)| start + len <= offset), "overlap below {offset}");
        let after = self.live.range(offset..).next();
        assert!(after.is_none_or(|(&start, _)| offset + len <= start), "overlap above {offset}");
        assert!(offset + len <= self.capacity);
        self.live.insert(offset, len);
    }
}

/// The allocator, the model, and what is live in both.
struct Pair {
    space: OffsetAllocator,
    model: Model,
    live: Vec<Allocation>,
}

impl Pair {
    fn new(capacity: u64) -> Self {
        let model = Model { capacity, ..Model::default() };
        Self { space: OffsetAllocator::new(capacity), model, live: Vec::new() }
    }

    fn allocate(&mut self, size: u64) {
        self.allocate_aligned(size, 1);
    }

    fn allocate_aligned(&mut self, size: u64, align: u64) {
        let capacity = self.model.capacity;
        let free = capacity - self.model.used();
        let largest = self.model.largest_gap();
        let result = match align {
            1 => self.space.allocate(size),
            align => {
                let space: &mut dyn Allocator = &mut self.space;
                space.allocate(size, align)
            }
        };
        match result {
            Ok(allocation) => {
                let extent = allocation.extent();
                assert_eq!(extent.len(), size);
                assert_eq!(extent.offset() % align, 0);
                assert_eq!(self.space.usable_size(&allocation), Some(size));
                self.model.insert(extent.offset(), extent.len());
                self.live.push(allocation);
            }
            Err(AllocateError::ZeroSize) => assert_eq!(size, 0),
            Err(AllocateError::LargerThanCapacity { requested, capacity: said }) => {
                assert_eq!((requested, said), (size, capacity));
                assert!(size > capacity);
            }
            Err(AllocateError::Full { requested, available }) => {
                assert_eq!((requested, available), (size, free));
                assert!(size > free && size <= capacity);
            }
            Err(AllocateError::Fragmented { requested, available, largest_free }) => {
                assert_eq!((requested, available), (size, free));
                assert!(size <= free);
                assert!(largest_free < size && largest_free <= largest);
                // What may have been missed is in the bin of the request.
                let missed = largest.saturating_sub(size);
                assert!(missed == 0 || missed < size.div_ceil(64), "{largest} for {size}");
            }
            Err(AllocateError::BadAlignment { align: said }) => {
                assert_eq!(said, align);
                assert!(!align.is_power_of_two());
            }
            Err(AllocateError::Misaligned { requested, align: said, available, largest_free }) => {
                assert_eq!((requested, said, available), (size, align, free));
                assert!((size..=largest).contains(&largest_free));
                // With this many bytes any alignment fits, and only a region of the
                // same bin may be missed.
                let ample = u128::from(size) + u128::from(align) - 1;
                assert!(u128::from(largest) <= ample + ample / 64, "{largest} for {ample}");
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn free(&mut self, choice: usize) {
        if self.live.is_empty() {
            return;
        }
        let allocation = self.live.swap_remove(choice % self.live.len());
        let extent = allocation.extent();
        self.space.free(allocation).expect("it is live");
        assert_eq!(self.model.live.remove(&extent.offset()), Some(extent.len()));
    }

    fn resize(&mut self, capacity: u64) {
        let end = self.model.end();
        match self.space.resize(capacity) {
            Ok(()) => {
                assert!(end <= capacity);
                self.model.capacity = capacity;
            }
            Err(ResizeError::InUse { requested, smallest }) => {
                assert_eq!((requested, smallest), (capacity, end));
                assert!(capacity < end);
            }
            Err(other) => panic!("{other}"),
        }
        assert_eq!(self.space.capacity(), self.model.capacity);
    }

    /// Goes on with an allocator made from the extents of the live allocations, given
    /// in an order that has nothing to do with their addresses.
    fn restore(&mut self) {
        let snapshot: Vec<_> =
            self.model.live.iter().map(|(&offset, &len)| (offset, len)).collect();
        let said = self.space.snapshot();
        assert_eq!(said.iter().map(|one| (one.offset(), one.len())).collect::<Vec<_>>(), snapshot);
        let extents: Vec<_> = self.live.iter().map(Allocation::extent).collect();
        let builder = OffsetAllocator::builder(self.model.capacity);
        let (space, live) = builder.restore(extents.iter().copied()).expect("they were live");
        assert_eq!(live.iter().map(Allocation::extent).collect::<Vec<_>>(), extents);
        for (stale, live) in self.live.iter().zip(&live) {
            assert!(space.owns(live) && !space.owns(stale) && !self.space.owns(live));
        }
        (self.space, self.live) = (space, live);
    }

    fn check(&self) {
        let gaps = self.model.gaps();
        let largest = self.model.largest_gap();
        let used = self.model.used();

        let report = self.space.report();
        assert_eq!(report.capacity, self.model.capacity);
        assert_eq!((report.used, report.free), (used, self.model.capacity - used));
        assert_eq!(report.live, self.model.live.len());
        assert_eq!(report.free_regions(), gaps.len() as u64);
        for bin in &report.bins {
            let inside = gaps.iter().filter(|&&gap| (bin.smallest..=bin.largest).contains(&gap));
            assert_eq!(inside.count(), bin.regions as usize);
        }
        assert!(report.largest_free <= largest);
        assert!(largest - report.largest_free <= largest / 64);
        if gaps.len() <= 8 {
            assert_eq!(report.largest_free, largest);
        }

        let mut end = 0;
        let mut last_was_free = false;
        let mut free = Vec::new();
        for region in self.space.regions() {
            assert_eq!(region.extent().offset(), end);
            end = region.extent().end();
            assert!(!(region.is_free() && last_was_free), "neighbours were not merged");
            last_was_free = region.is_free();
            if region.is_free() {
                free.push(region.extent().len());
            } else {
                let Some(&len) = self.model.live.get(&region.extent().offset()) else {
                    panic!("{region:?} is not in the model");
                };
                assert_eq!(region.extent().len(), len);
            }
        }
        assert_eq!(end, self.model.capacity);
        assert_eq!(free, gaps);
    }

    fn free_everything(&mut self) {
        for allocation in self.live.drain(..) {
            self.space.free(allocation).expect("it is live");
        }
        self.model.live.clear();
        self.check();
        assert_eq!(self.space.largest_free(), self.model.capacity);
        assert_eq!(self.space.available(), self.model.capacity);
        if self.model.capacity == 0 {
            return;
        }
        let whole = self.space.allocate(self.model.capacity).expect("all is free");
        self.space.free(whole).expect("it is live");
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate(u64),
    /// Allocates a share, in 256ths, of what is free.
    AllocateShare(u8),
    /// Size, and the alignment's power of two.
    AllocateAligned(u64, u32),
    /// An alignment that may be none.
    AllocateAt(u64, u64),
    Free(usize),
    /// Moves the end to this many bytes behind the last live extent.
    ResizeBehind(u64),
    Resize(u64),
    Restore,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        3 => (0_u64..200).prop_map(Operation::Allocate),
        3 => (1000_u64..1100).prop_map(Operation::Allocate),
        2 => (0_u32..64, any::<u64>())
            .prop_map(|(shift, bits)| Operation::Allocate(bits >> shift)),
        1 => any::<u8>().prop_map(Operation::AllocateShare),
        3 => (1_u64..1100, 0_u32..12)
            .prop_map(|(size, power)| Operation::AllocateAligned(size, power)),
        1 => (0_u32..64, any::<u64>(), 0_u32..64)
            .prop_map(|(shift, bits, power)| Operation::AllocateAligned(bits >> shift, power)),
        1 => (0_u64..200, 0_u64..70).prop_map(|(size, align)| Operation::AllocateAt(size, align)),
        8 => any::<usize>().prop_map(Operation::Free),
        1 => (0_u64..2000).prop_map(Operation::ResizeBehind),
        1 => (0_u32..64, any::<u64>()).prop_map(|(shift, bits)| Operation::Resize(bits >> shift)),
        1 => Just(Operation::Restore),
    ];
    proptest::collection::vec(operation, 1..300)
}

fn capacities() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(u64::MAX),
        1_u64..100,
        1000_u64..100_000,
        (0_u32..64).prop_map(|shift| u64::MAX >> shift),
        (0_u32..63).prop_map(|shift| (1 << shift) + 1),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_allocator_agrees_with_the_model(
        capacity in capacities(),
        operations in operations(),
    ) {
        let mut pair = Pair::new(capacity);
        for operation in operations {
            match operation {
                Operation::Allocate(size) => pair.allocate(size),
                Operation::AllocateShare(share) => {
                    let size = u128::from(pair.space.available()) * u128::from(share) / 255;
                    pair.allocate(u64::try_from(size).unwrap());
                }
                Operation::AllocateAligned(size, power) => pair.allocate_aligned(size, 1 << power),
                Operation::AllocateAt(size, align) => pair.allocate_aligned(size, align),
                Operation::Free(choice) => pair.free(choice),
                Operation::ResizeBehind(room) => {
                    pair.resize(pair.model.end().saturating_add(room));
                }
                Operation::Resize(capacity) => pair.resize(capacity),
                Operation::Restore => pair.restore(),
            }
            pair.check();
        }
        pair.free_everything();
    }

    /// Two allocators with the same history, so that everything about an allocation
    /// but its origin agrees.
    #[test]
    fn allocations_of_a_twin_are_given_back(
        sizes in proptest::collection::vec(1_u64..1000, 1..50),
        choices in proptest::collection::vec(any::<usize>(), 1..50),
    ) {
        let mut ours = Pair::new(100_000);
        let mut theirs = Pair::new(100_000);
        for &size in &sizes {
            ours.allocate(size);
            theirs.allocate(size);
        }
        for choice in choices {
            let foreign = theirs.live.swap_remove(choice % theirs.live.len());
            let extent = foreign.extent();
            let foreign = ours.space.free(foreign).unwrap_err().into_allocation();
            prop_assert_eq!(foreign.extent(), extent);
            theirs.live.push(foreign);
            ours.check();
        }
        ours.free_everything();
        theirs.free_everything();
    }

    /// However many allocations there are, the limit holds and leaves no damage.
    #[test]
    fn the_region_limit_holds(
        limit in 1_u32..20,
        operations in operations(),
    ) {
        let mut space = OffsetAllocator::builder(10_000).max_regions(limit).build();
        let mut live = Vec::new();
        for operation in operations {
            let (size, align) = match operation {
                Operation::Allocate(size) => (size, 1),
                Operation::AllocateAligned(size, power) => (size, 1 << power),
                Operation::Free(choice) => {
                    if live.is_empty() {
                        continue;
                    }
                    let allocation = live.swap_remove(choice % live.len());
                    space.free(allocation).unwrap();
                    continue;
                }
                _ => continue,
            };
            let before: Vec<_> = space.regions().collect();
            match space.allocate_aligned(size, align) {
                Ok(allocation) => live.push(allocation),
                Err(error) => {
                    if let AllocateError::TooManyRegions { limit: said } = error {
                        prop_assert_eq!(said, limit);
                        // An aligned one may take two more.
                        let room = limit as usize - before.len();
                        prop_assert!(room == 0 || room == 1 && align > 1);
                    }
                    prop_assert_eq!(space.regions().collect::<Vec<_>>(), before);
                }
            }
            prop_assert!(space.regions().count() <= limit as usize);
        }
        for allocation in live {
            space.free(allocation).unwrap();
        }
        prop_assert_eq!(space.largest_free(), 10_000);
    }
}

/// Every size next to an edge of a size class, over the whole of 64 bits.
#[test]
fn sizes_around_every_bin_edge_fit_exactly_and_not_one_byte_more() {
    for exponent in 0..64 {
        for part in 0..64_u128 {
            let edge = (1_u128 << exponent) + (part << exponent >> 6);
            for size in [edge - 1, edge, edge + 1] {
                let Ok(size) = u64::try_from(size) else { continue };
                if size == 0 {
                    continue;
                }
                // As the whole, in front of a byte, and behind one.
                let mut pair = Pair::new(size);
                pair.allocate(size);
                assert_eq!(pair.live.len(), 1, "{size} in {size}");
                pair.free_everything();
                if let Some(larger) = size.checked_add(1) {
                    let mut pair = Pair::new(larger);
                    pair.allocate(size);
                    pair.allocate(1);
                    assert_eq!(pair.live.len(), 2, "{size} and 1 in {larger}");
                    pair.free(0);
                    pair.allocate(larger);
                    assert_eq!(pair.live.len(), 1, "{larger} does not fit {size}");
                    pair.allocate(size);
                    assert_eq!(pair.live.len(), 2, "{size} fits its own gap again");
                    pair.free_everything();
                }
            }
        }
    }
}
