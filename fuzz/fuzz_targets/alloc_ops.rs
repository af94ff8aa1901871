//! Operations on two allocators of the same history against a map of what is live.

#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mc_alloc::{AllocateError, Allocation, OffsetAllocator, ResizeError};

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
    /// Any alignment, powers of two or not.
    AllocateAligned(u64, u64),
    /// Small sizes at small powers of two.
    AllocateSmallAligned(u16, u8),
    Free(u8),
    /// Frees an allocation into the other allocator.
    FreeForeign(u8),
    Reset,
    Resize(u64),
    /// Moves the end to this many bytes behind the last live extent.
    ResizeBehind(u16),
    /// Builds both again from a snapshot.
    Restore,
}

struct Run {
    max_regions: u32,
    /// Identities given so far.
    identities: u64,
    space: OffsetAllocator,
    twin: OffsetAllocator,
    live: Vec<(Allocation, Allocation)>,
    model: BTreeMap<u64, u64>,
    used: u64,
}

impl Run {
    fn new(input: &Input) -> Self {
        let max_regions = u32::from(input.max_regions);
        let build = |identity| {
            OffsetAllocator::builder(input.capacity)
                .max_regions(max_regions)
                .identity(identity)
                .build()
        };
        Self {
            max_regions,
            identities: 2,
            space: build(1),
            twin: build(2),
            live: Vec::new(),
            model: BTreeMap::new(),
            used: 0,
        }
    }

    fn allocate(&mut self, size: u64) {
        self.allocate_aligned(size, 1);
    }

    fn allocate_aligned(&mut self, size: u64, align: u64) {
        let capacity = self.space.capacity();
        let free = capacity - self.used;
        let twin = self.twin.allocate_aligned(size, align);
        let allocation = match self.space.allocate_aligned(size, align) {
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
                        let room = limit as usize - self.space.regions().count();
                        assert!(room == 0 || room == 1 && align > 1);
                    }
                    AllocateError::BadAlignment { .. } => assert!(!align.is_power_of_two()),
                    AllocateError::Misaligned { available, largest_free, .. } => {
                        assert_eq!(available, free);
                        let largest = self.largest_gap();
                        assert!((size..=largest).contains(&largest_free));
                        let ample = u128::from(size) + u128::from(align) - 1;
                        assert!(u128::from(largest) <= ample + ample / 64);
                    }
                    other => panic!("{other}"),
                }
                return;
            }
        };
        let extent = allocation.extent();
        assert_eq!(extent.len(), size);
        assert!(extent.end() <= capacity);
        assert_eq!(extent.offset() % align, 0);
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

    /// The end of the last live extent.
    fn end(&self) -> u64 {
        self.model.last_key_value().map_or(0, |(offset, len)| offset + len)
    }

    fn resize(&mut self, capacity: u64) {
        let (before, end) = (self.space.capacity(), self.end());
        let result = self.space.resize(capacity);
        assert_eq!(self.twin.resize(capacity), result, "twins agree");
        match result {
            Ok(()) => assert!(end <= capacity),
            Err(ResizeError::InUse { requested, smallest }) => {
                assert_eq!((requested, smallest), (capacity, end));
                assert!(capacity < end);
            }
            Err(ResizeError::TooManyRegions { limit }) => {
                assert!(capacity > before && end == before);
                assert_eq!(self.space.regions().count(), limit as usize);
            }
            Err(other) => panic!("{other}"),
        }
        let now = if result.is_ok() { capacity } else { before };
        assert_eq!(self.space.capacity(), now);
    }

    fn restore(&mut self) {
        let snapshot = self.space.snapshot();
        let model = self.model.iter().map(|(&offset, &len)| (offset, len));
        assert!(snapshot.iter().map(|one| (one.offset(), one.len())).eq(model));
        let mut restored = || {
            self.identities += 1;
            OffsetAllocator::builder(self.space.capacity())
                .max_regions(self.max_regions)
                .identity(self.identities)
                .restore(self.live.iter().map(|(allocation, _)| allocation.extent()))
                .expect("they were live")
        };
        let (space, live) = restored();
        let (twin, twins) = restored();
        for (stale, now) in self.live.drain(..).zip(&live) {
            assert_eq!(stale.0.extent(), now.extent());
            assert!(!space.owns(&stale.0) && space.owns(now));
        }
        (self.space, self.twin) = (space, twin);
        self.live = live.into_iter().zip(twins).collect();
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
            Operation::AllocateAligned(size, align) => run.allocate_aligned(size, align),
            Operation::AllocateSmallAligned(size, power) => {
                run.allocate_aligned(u64::from(size), 1 << (power % 16));
            }
            Operation::Resize(capacity) => run.resize(capacity),
            Operation::ResizeBehind(room) => {
                run.resize(run.end().saturating_add(u64::from(room)));
            }
            Operation::Restore => run.restore(),
        }
        run.check();
    }
    while !run.live.is_empty() {
        run.free(0);
    }
    run.check();
    assert_eq!(run.space.largest_free(), run.space.capacity());
});
