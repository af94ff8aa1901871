//! Both allocators show the whole of their range, with labels, from any place and in either
//! direction, and room that they promise is there.

use std::collections::BTreeMap;

use mc_alloc::{
    Allocation, Allocator, Content, Direction, Label, Neighbour, OffsetAllocator, Place, Room,
    SizeClasses, SlabAllocator,
};
use proptest::prelude::*;

const CAPACITY: u64 = 64 << 10;

fn allocators() -> [Box<dyn Allocator>; 2] {
    let classes =
        SizeClasses::explicit(4 << 10, &[100, 256, 700, 1024, 2000, 4096]).expect("in order");
    [
        Box::new(OffsetAllocator::new(CAPACITY)),
        Box::new(SlabAllocator::builder(CAPACITY).sizes(classes).build()),
    ]
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate(u64),
    Free(usize),
    /// Makes room for this many bytes by giving up one allocation, if one makes it.
    Swap(u64),
    /// Makes room for this many bytes by giving up neighbours around one allocation.
    Clear(usize, u64),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        6 => (1_u64..4096).prop_map(Operation::Allocate),
        3 => any::<usize>().prop_map(Operation::Free),
        1 => (1_u64..4096).prop_map(Operation::Swap),
        1 => (any::<usize>(), 1_u64..4096).prop_map(|(at, size)| Operation::Clear(at, size)),
    ];
    proptest::collection::vec(operation, 1..200)
}

struct Pool {
    space: Box<dyn Allocator>,
    live: BTreeMap<u32, Allocation>,
    next: u32,
}

impl Pool {
    fn allocate(&mut self, size: u64) -> bool {
        let Ok(allocation) = self.space.allocate(size, 1) else { return false };
        // Some have none.
        if !self.next.is_multiple_of(7) {
            let label = Label::new(self.next).expect("it is small");
            self.space.set_label(&allocation, label);
        }
        self.live.insert(self.next, allocation);
        self.next += 1;
        true
    }

    fn free(&mut self, number: u32) {
        let allocation = self.live.remove(&number).expect("it is live");
        self.space.free(allocation).expect("it is live");
    }

    fn number_of(&self, at: usize) -> Option<u32> {
        self.live.keys().nth(at.checked_rem(self.live.len())?).copied()
    }

    fn walk(&self, place: Place, direction: Direction) -> Vec<Neighbour> {
        let mut seen = Vec::new();
        self.space.walk(place, direction, &mut |it| {
            seen.push(it);
            true
        });
        seen
    }

    fn swap(&mut self, size: u64) {
        let makes = |allocation: &Allocation| self.space.makes_room(allocation, size);
        let found = self.live.iter().find(|(_, allocation)| makes(allocation));
        if let Some((&number, _)) = found {
            self.free(number);
            assert!(self.allocate(size), "{size} bytes were promised");
        }
    }

    fn clear(&mut self, at: usize, size: u64) {
        let Some(number) = self.number_of(at) else { return };
        let place = self.live[&number].place();
        let Room::Exactly(extent) = self.space.room_at(place, size) else {
            assert_eq!(self.space.room_at(place, size), Room::Anywhere);
            let mut above = 0;
            let mut victims = Vec::new();
            for it in self.walk(place, Direction::Up) {
                if above < size {
                    victims.push(it.extent);
                    above += it.extent.len();
                }
            }
            if above >= size {
                self.free_inside(&victims);
                assert!(self.allocate(size), "{size} bytes are free in a row");
            }
            return;
        };
        self.free_inside(&[extent]);
        assert!(self.allocate(size), "{extent} is free");
    }

    fn free_inside(&mut self, extents: &[mc_types::Extent]) {
        let is_inside = |allocation: &Allocation| {
            let offset = allocation.extent().offset();
            extents.iter().any(|it| it.offset() <= offset && offset < it.end())
        };
        let inside = self.live.iter().filter(|(_, allocation)| is_inside(allocation));
        let inside: Vec<u32> = inside.map(|(number, _)| *number).collect();
        inside.into_iter().for_each(|number| self.free(number));
    }

    fn check(&self, draw: u64) {
        let Some(start) = self.space.place_near(draw) else {
            assert!(self.live.is_empty(), "nothing was ever in use");
            return;
        };
        let mut all = self.walk(start, Direction::Down);
        assert_eq!(all[0].place, start);
        all.reverse();
        all.pop();
        all.extend(self.walk(start, Direction::Up));
        let mut end = 0;
        for it in &all {
            assert_eq!(it.extent.offset(), end, "there are no gaps");
            end = it.extent.end();
        }
        // A slab that was never in use is not shown.
        assert!(end <= CAPACITY);
        let live = all.iter().filter(|it| it.content != Content::Free);
        let shown: BTreeMap<u64, Content> =
            live.map(|it| (it.extent.offset(), it.content)).collect();
        let known = self.live.iter().map(|(&number, allocation)| {
            let label = (!number.is_multiple_of(7)).then(|| Label::new(number).expect("small"));
            (allocation.extent().offset(), Content::Live(label))
        });
        assert_eq!(shown, known.collect());
        for allocation in self.live.values() {
            let mut seen = None;
            self.space.walk(allocation.place(), Direction::Up, &mut |it| {
                seen = Some(it);
                false
            });
            let seen = seen.expect("it is there");
            assert_eq!(seen.place, allocation.place());
            assert!(seen.extent.len() >= allocation.extent().len());
        }
    }
}

proptest! {
    #[test]
    fn all_of_a_range_is_shown_and_room_is_where_it_is_promised(
        operations in operations(), draws in proptest::collection::vec(any::<u64>(), 200),
    ) {
        for space in allocators() {
            let mut pool = Pool { space, live: BTreeMap::new(), next: 0 };
            for (operation, draw) in operations.iter().zip(&draws) {
                match *operation {
                    Operation::Allocate(size) => drop(pool.allocate(size)),
                    Operation::Free(at) => {
                        if let Some(number) = pool.number_of(at) {
                            pool.free(number);
                        }
                    }
                    Operation::Swap(size) => pool.swap(size),
                    Operation::Clear(at, size) => pool.clear(at, size),
                }
                pool.check(*draw);
            }
        }
    }
}

#[test]
fn a_place_that_is_gone_shows_nothing() {
    for mut space in allocators() {
        let a = space.allocate(1000, 1).expect("all is free");
        let b = space.allocate(1000, 1).expect("nearly all is free");
        let place = b.place();
        space.free(b).expect("it is live");
        space.free(a).expect("it is live");
        let mut seen = 0;
        space.walk(place, Direction::Up, &mut |it| {
            assert_eq!(it.content, Content::Free);
            seen += 1;
            true
        });
        assert_eq!(seen, 0, "its space is part of another region now");
        assert_eq!(space.room_at(place, 10), Room::Nowhere);
    }
}

#[test]
fn a_label_goes_with_its_allocation() {
    for mut space in allocators() {
        let first = space.allocate(1000, 1).expect("all is free");
        let place = first.place();
        space.set_label(&first, Label::new(5).expect("it is small"));
        space.free(first).expect("it is live");
        let second = space.allocate(1000, 1).expect("all is free");
        assert_eq!(second.place(), place);
        let mut seen = Vec::new();
        space.walk(place, Direction::Up, &mut |it| {
            seen.push(it.content);
            false
        });
        assert_eq!(seen, [Content::Live(None)]);
        assert!(Label::new(u32::MAX).is_none() && Label::new(1 << Label::BITS).is_none());
    }
}
