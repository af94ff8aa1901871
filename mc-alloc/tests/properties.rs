//! Random operations against the obvious model: a sorted map of live extents.

use std::collections::BTreeMap;

use mc_alloc::{AllocateError, Allocation, OffsetAllocator};
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
        let capacity = self.model.capacity;
        let free = capacity - self.model.used();
        let largest = self.model.largest_gap();
        match self.space.allocate(size) {
            Ok(allocation) => {
                let extent = allocation.extent();
                assert_eq!(extent.len(), size);
                assert!(self.space.owns(&allocation));
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
        let whole = self.space.allocate(self.model.capacity).expect("all is free");
        self.space.free(whole).expect("it is live");
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate(u64),
    /// Allocates a share, in 256ths, of what is free.
    AllocateShare(u8),
    Free(usize),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        3 => (0_u64..200).prop_map(Operation::Allocate),
        3 => (1000_u64..1100).prop_map(Operation::Allocate),
        2 => (0_u32..64, any::<u64>())
            .prop_map(|(shift, bits)| Operation::Allocate(bits >> shift)),
        1 => any::<u8>().prop_map(Operation::AllocateShare),
        6 => any::<usize>().prop_map(Operation::Free),
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
                Operation::Free(choice) => pair.free(choice),
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
            match operation {
                Operation::Allocate(size) => match space.allocate(size) {
                    Ok(allocation) => live.push(allocation),
                    Err(AllocateError::TooManyRegions { limit: said }) => {
                        prop_assert_eq!(said, limit);
                        prop_assert_eq!(space.regions().count(), limit as usize);
                    }
                    Err(_) => {}
                },
                Operation::AllocateShare(_) => {}
                Operation::Free(choice) => {
                    if live.is_empty() {
                        continue;
                    }
                    let allocation = live.swap_remove(choice % live.len());
                    space.free(allocation).unwrap();
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
