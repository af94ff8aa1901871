//! Operations on two allocators of the same history against a map of what is live.

#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mc_alloc::{AllocateError, Allocation, OffsetAllocator};

#[derive(Arbitrary, Debug)]
struct Input {
    capacity: u64,
    max_regions: u16,
    operations: Vec<Operation>,
}

#[derive(Arbitrary, Debug)]
enum Operation {
    Allocate(u64),
    /// Small sizes meet each other more often.
    AllocateSmall(u16),
    AllocateLargestFree,
    AllocateEverythingFree,
    Free(u8),
    /// Frees an allocation into the other allocator.
    FreeForeign(u8),
    Reset,
}

struct Run {
    space: OffsetAllocator,
    twin: OffsetAllocator,
    live: Vec<(Allocation, Allocation)>,
    model: BTreeMap<u64, u64>,
    used: u64,
}

impl Run {
    fn new(input: &Input) -> Self {
        let build = |identity| {
            OffsetAllocator::builder(input.capacity)
                .max_regions(u32::from(input.max_regions))
                .identity(identity)
                .build()
        };
        Self {
            space: build(1),
            twin: build(2),
            live: Vec::new(),
            model: BTreeMap::new(),
            used: 0,
        }
    }

    fn allocate(&mut self, size: u64) {
        let capacity = self.space.capacity();
        let free = capacity - self.used;
        let twin = self.twin.allocate(size);
        let allocation = match self.space.allocate(size) {
            Ok(allocation) => allocation,
            Err(error) => {
                assert_eq!(twin.unwrap_err(), error, "twins agree");
                match error {
                    AllocateError::ZeroSize => assert_eq!(size, 0),
                    AllocateError::LargerThanCapacity { .. } => assert!(size > capacity),
                    AllocateError::Full { available, .. } => {
                        assert_eq!(available, free);
                        assert!(size > free && size <= capacity);
                    }
                    AllocateError::Fragmented { available, largest_free, .. } => {
                        assert_eq!(available, free);
                        assert!(size <= free && largest_free < size);
                        let missed = self.largest_gap().saturating_sub(size);
                        assert!(missed == 0 || missed < size.div_ceil(64));
                    }
                    AllocateError::TooManyRegions { limit } => {
                        assert_eq!(self.space.regions().count(), limit as usize);
                    }
                    other => panic!("{other}"),
                }
                return;
            }
        };
        let extent = allocation.extent();
        assert_eq!(extent.len(), size);
        assert!(extent.end() <= capacity);
        let before = self.model.range(..extent.end()).next_back();
        assert!(before.is_none_or(|(start, len)| start + len <= extent.offset()), "overlap");
        self.model.insert(extent.offset(), size);
        self.used += size;
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
        assert_eq!(self.model.remove(&extent.offset()), Some(extent.len()));
        self.used -= extent.len();
    }

    fn free_foreign(&mut self, choice: u8) {
        if self.live.is_empty() {
            return;
        }
        let (allocation, twin) = self.live.swap_remove(usize::from(choice) % self.live.len());
        let twin = self.space.free(twin).expect_err("it is the twin's").into_allocation();
        self.live.push((allocation, twin));
    }

    fn reset(&mut self) {
        self.space.reset();
        self.twin.reset();
        self.model.clear();
        self.used = 0;
        for (stale, _) in self.live.drain(..) {
            self.space.free(stale).expect_err("it is from before the reset");
        }
    }

    fn largest_gap(&self) -> u64 {
        let mut end = 0;
        let mut largest = 0;
        for (&offset, &len) in &self.model {
            largest = largest.max(offset - end);
            end = offset + len;
        }
        largest.max(self.space.capacity() - end)
    }

    fn check(&self) {
        assert_eq!(self.space.used(), self.used);
        assert_eq!(self.space.live(), self.model.len());
        let largest = self.largest_gap();
        assert!(self.space.largest_free() <= largest);
        assert!(largest - self.space.largest_free() <= largest / 64);
        let mut end = 0;
        let mut last_was_free = false;
        for region in self.space.regions() {
            assert_eq!(region.extent().offset(), end);
            end = region.extent().end();
            assert!(!(region.is_free() && last_was_free), "neighbours were not merged");
            last_was_free = region.is_free();
            let live = self.model.get(&region.extent().offset()).copied();
            assert_eq!(live, (!region.is_free()).then_some(region.extent().len()));
        }
        assert_eq!(end, self.space.capacity());
    }
}

fuzz_target!(|input: Input| {
    let mut run = Run::new(&input);
    for operation in &input.operations {
        match *operation {
            Operation::Allocate(size) => run.allocate(size),
            Operation::AllocateSmall(size) => run.allocate(u64::from(size)),
            Operation::AllocateLargestFree => run.allocate(run.space.largest_free()),
            Operation::AllocateEverythingFree => run.allocate(run.space.available()),
            Operation::Free(choice) => run.free(choice),
            Operation::FreeForeign(choice) => run.free_foreign(choice),
            Operation::Reset => run.reset(),
        }
        run.check();
    }
    while !run.live.is_empty() {
        run.free(0);
    }
    run.check();
    assert_eq!(run.space.largest_free(), run.space.capacity());
});
