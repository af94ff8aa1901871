//! An allocator that allocates where another one has.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use mc_alloc::{
    AllocateAtError, Allocation, Allocator, OffsetAllocator, SizeClasses, SlabAllocator,
};
use mc_types::Extent;
use proptest::prelude::*;

fn extent(offset: u64, len: u64) -> Extent {
    Extent::new(offset, len).expect("the tests stay below the end")
}

const CAPACITY: u64 = 64 << 10;

fn slabs() -> SlabAllocator {
    let sizes = SizeClasses::explicit(4096, &[100, 256, 700, 1024, 2000, 4096]).unwrap();
    SlabAllocator::builder(CAPACITY).sizes(sizes).build()
}

/// An allocator that chooses, one that follows, and the live allocations of both.
struct Pair<A> {
    leader: A,
    follower: A,
    live: Vec<(Allocation, Allocation)>,
}

impl<A: Allocator> Pair<A> {
    /// Allocates some, of which the follower hears in the opposite order.
    fn allocate(&mut self, sizes: &[u64]) {
        let placed: Vec<_> =
            sizes.iter().filter_map(|size| self.leader.allocate(*size, 1).ok()).collect();
        for leading in placed.into_iter().rev() {
            let following = self.follower.allocate_at(leading.extent()).unwrap();
            assert_eq!(following.extent(), leading.extent());
            assert_eq!(self.follower.usable_size(&following), self.leader.usable_size(&leading));
            self.live.push((leading, following));
        }
    }

    fn free(&mut self, choice: usize) {
        if !self.live.is_empty() {
            let (leading, following) = self.live.swap_remove(choice % self.live.len());
            self.leader.free(leading).unwrap();
            self.follower.free(following).unwrap();
        }
    }

    /// The follower takes over: it chooses from now on, and the other one follows.
    fn change(&mut self) {
        std::mem::swap(&mut self.leader, &mut self.follower);
        self.live.iter_mut().for_each(|(one, other)| std::mem::swap(one, other));
    }

    /// Anything may be asked for; what is granted was free, and what is refused changes nothing.
    fn ask(&mut self, offset: u64, len: u64) {
        let wanted = extent(offset, len);
        let is_free = self.live.iter().all(|(live, _)| {
            let live = live.extent();
            live.end() <= offset || wanted.end() <= live.offset()
        });
        let used = self.follower.used();
        match self.follower.allocate_at(wanted) {
            Ok(allocation) => {
                assert!(is_free && len > 0 && wanted.end() <= CAPACITY);
                assert_eq!(allocation.extent(), wanted);
                self.follower.free(allocation).unwrap();
            }
            Err(AllocateAtError::Empty { .. }) => assert_eq!(len, 0),
            Err(AllocateAtError::OutOfRange { .. }) => assert!(wanted.end() > CAPACITY),
            Err(AllocateAtError::InUse { .. }) => assert!(!is_free),
            Err(AllocateAtError::Misplaced { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        assert_eq!(self.follower.used(), used);
    }

    fn check(&self) {
        assert_eq!(self.follower.snapshot(), self.leader.snapshot());
        assert_eq!(self.follower.used(), self.leader.used());
        assert_eq!(self.follower.live(), self.live.len());
        let (one, other) = (self.follower.report(), self.leader.report());
        let bins = |report: &mc_alloc::Report| -> BTreeMap<u64, u32> {
            report.bins.iter().map(|bin| (bin.smallest, bin.regions)).collect()
        };
        assert_eq!(bins(&one), bins(&other));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(Vec<u64>),
    Free(usize),
    Change,
    Ask(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec(1u64..5000, 1..6).prop_map(Step::Allocate),
        6 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Change),
        2 => (0..CAPACITY + 100, 0u64..5000).prop_map(|(at, len)| Step::Ask(at, len)),
    ];
    prop::collection::vec(step, 1..200)
}

fn run<A: Allocator>(leader: A, follower: A, steps: Vec<Step>) {
    let mut pair = Pair { leader, follower, live: Vec::new() };
    for step in steps {
        match step {
            Step::Allocate(sizes) => pair.allocate(&sizes),
            Step::Free(choice) => pair.free(choice),
            Step::Change => pair.change(),
            Step::Ask(offset, len) => pair.ask(offset, len),
        }
        pair.check();
    }
}

proptest! {
    #[test]
    fn an_allocator_can_follow_another_and_take_over(steps in steps()) {
        let space = |identity| OffsetAllocator::builder(CAPACITY).identity(identity).build();
        run(space(1), space(2), steps.clone());
        run(slabs(), slabs(), steps);
    }
}

#[test]
fn extents_that_cannot_be_are_refused() {
    let mut space = OffsetAllocator::builder(1000).max_regions(3).build();
    let middle = space.allocate_at(extent(100, 50)).unwrap();
    for (wanted, error) in [
        (extent(0, 0), AllocateAtError::Empty { extent: extent(0, 0) }),
        (extent(999, 2), AllocateAtError::OutOfRange { extent: extent(999, 2), capacity: 1000 }),
        (extent(99, 2), AllocateAtError::InUse { extent: extent(99, 2) }),
        (extent(149, 1), AllocateAtError::InUse { extent: extent(149, 1) }),
        (extent(10, 5), AllocateAtError::TooManyRegions { limit: 3 }),
    ] {
        assert_eq!(space.allocate_at(wanted).unwrap_err(), error);
    }
    // What needs no region more is still granted.
    let before = space.allocate_at(extent(0, 100)).unwrap();
    space.free(middle).unwrap();
    space.free(before).unwrap();
    assert_eq!(space.largest_free(), 1000);

    let mut slabs = slabs();
    let first = slabs.allocate_at(extent(4096 + 700, 600)).unwrap();
    for (wanted, error) in [
        (extent(4096 + 700, 650), AllocateAtError::InUse { extent: extent(4096 + 700, 650) }),
        // Of another class, not at a slot, behind the last slot, longer than any class.
        (extent(4096, 256), AllocateAtError::Misplaced { extent: extent(4096, 256) }),
        (extent(4096 + 1, 600), AllocateAtError::Misplaced { extent: extent(4096 + 1, 600) }),
        (extent(3500, 700), AllocateAtError::Misplaced { extent: extent(3500, 700) }),
        (extent(0, 4097), AllocateAtError::Misplaced { extent: extent(0, 4097) }),
    ] {
        assert_eq!(slabs.allocate_at(wanted).unwrap_err(), error);
    }
    slabs.free(first).unwrap();
    assert_eq!((slabs.free_slabs(), slabs.used()), (16, 0));
    assert_eq!(slabs.allocate_at(extent(4096, 256)).unwrap().extent().len(), 256);
}
