//! Allocators shared between threads, and the states of their buffers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;

use mc_alloc::{
    AllocateAtError, AllocateError, AllocatedBuffer, Allocation, Allocator, BufferStatus,
    Direction, FreeError, Label, Neighbour, OffsetAllocator, Place, Report, ResizeError, Room,
    SharedAllocator, SlabAllocator,
};
use mc_types::Extent;

const MIB: u64 = 1 << 20;

/// Eight threads allocate, settle, pass on and drop; every extent is written to a table
/// of owners while it is held, so that an overlap is seen.
fn hammer<A: Allocator + Send + 'static>(space: &SharedAllocator<A>) {
    use std::sync::atomic::{AtomicU32, Ordering};
    const PAGE: u64 = 4096;
    let pages = (space.capacity() / PAGE) as usize;
    let owners: Vec<AtomicU32> = (0..pages).map(|_| AtomicU32::new(0)).collect();
    let pages_of = |buffer: &AllocatedBuffer<A>| {
        let extent = buffer.extent();
        &owners[(extent.offset() / PAGE) as usize..(extent.end() / PAGE) as usize]
    };
    let (sender, receiver) = std::sync::mpsc::channel::<(u32, AllocatedBuffer<A>)>();
    let drop_checked = |owner: u32, buffer: AllocatedBuffer<A>| {
        for page in pages_of(&buffer) {
            assert_eq!(page.swap(0, Ordering::Relaxed), owner, "someone else wrote there");
        }
        drop(buffer);
    };
    thread::scope(|scope| {
        for owner in 1..=8 {
            let (space, sender) = (space.clone(), sender.clone());
            let (pages_of, drop_checked) = (&pages_of, &drop_checked);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(owner.into());
                let mut held = Vec::new();
                for _ in 0..5000 {
                    let size = random.u64(1..=16) * PAGE;
                    match space.allocate(size, PAGE) {
                        Ok(mut buffer) => {
                            assert!(buffer.usable_size() >= size);
                            for page in pages_of(&buffer) {
                                assert_eq!(page.swap(owner, Ordering::Relaxed), 0, "overlap");
                            }
                            if random.bool() {
                                buffer.complete().expect("it is new");
                            } else {
                                buffer.fail().expect("it is new");
                            }
                            held.push(buffer);
                        }
                        Err(error) => assert!(error.is_retryable(), "{error}"),
                    }
                    while held.len() > 20 {
                        let buffer = held.swap_remove(random.usize(..held.len()));
                        if random.u8(..4) == 0 {
                            // The receiver drops what another thread allocated.
                            sender.send((owner, buffer)).expect("the receiver waits");
                        } else {
                            drop_checked(owner, buffer);
                        }
                    }
                }
                for buffer in held {
                    drop_checked(owner, buffer);
                }
            });
        }
        drop(sender);
        for (owner, buffer) in receiver {
            drop_checked(owner, buffer);
        }
    });
    assert_eq!((space.used(), space.live()), (0, 0));
    assert_eq!(space.available(), space.capacity());
}

#[test]
fn threads_leave_one_free_region() {
    let space = SharedAllocator::new(OffsetAllocator::new(8 * MIB));
    hammer(&space);
    assert_eq!(space.largest_free(), 8 * MIB);
    assert_eq!(space.report().unwrap().free_regions(), 1);
}

#[test]
fn threads_leave_all_slabs_free() {
    let space = SharedAllocator::new(SlabAllocator::new(16 * MIB));
    hammer(&space);
    assert_eq!(space.retire().unwrap().free_slabs(), 4);
}

#[test]
fn an_allocator_chosen_at_run_time_can_be_shared() {
    for slab in [false, true] {
        let chosen: Box<dyn Allocator + Send> = if slab {
            Box::new(SlabAllocator::new(16 * MIB))
        } else {
            Box::new(OffsetAllocator::new(16 * MIB))
        };
        hammer(&SharedAllocator::new(chosen));
    }
}

/// A buffer in `status`, by legal means.
fn buffer_in(status: BufferStatus) -> AllocatedBuffer {
    let space = SharedAllocator::new(OffsetAllocator::new(100));
    let mut buffer = space.allocate(10, 1).expect("all is free");
    match status {
        BufferStatus::Complete => buffer.complete().expect("it is new"),
        BufferStatus::Failed => buffer.fail().expect("it is new"),
        BufferStatus::Unregistered => drop(space.retire()),
        _ => {}
    }
    assert_eq!(buffer.status(), status);
    buffer
}

#[test]
fn every_change_of_state_is_as_documented() {
    use BufferStatus::{Complete, Failed, Init, Unregistered};
    let all = [Init, Complete, Failed, Unregistered];
    for (from, legal) in [
        (Init, &[Complete, Failed, Unregistered][..]),
        (Complete, &[Unregistered]),
        (Failed, &[Unregistered]),
        (Unregistered, &[]),
    ] {
        for to in all {
            assert_eq!(from.can_become(to), legal.contains(&to), "{from} to {to}");
            let mut buffer = buffer_in(from);
            let changed = match to {
                Complete => buffer.complete(),
                Failed => buffer.fail(),
                _ => continue,
            };
            if legal.contains(&to) {
                assert_eq!((changed, buffer.status()), (Ok(()), to));
            } else {
                let error = changed.unwrap_err();
                assert_eq!((error.from, error.to), (from, to));
                assert_eq!(buffer.status(), from, "a refused change leaves no trace");
                assert_eq!(buffer.extent(), Extent::new(0, 10).unwrap());
            }
        }
    }
}

#[test]
fn retiring_ends_everything_but_the_buffers() {
    let space = SharedAllocator::new(OffsetAllocator::new(1000));
    let handle = space.clone();
    let mut buffers: Vec<_> = (0..3).map(|_| space.allocate(100, 1).unwrap()).collect();
    buffers[1].complete().unwrap();
    drop(buffers.pop());

    let mut books = space.retire().expect("this is the first time");
    assert_eq!((books.used(), books.live()), (200, 2));
    assert!(handle.is_retired());
    assert!(handle.retire().is_none());
    for buffer in &mut buffers {
        assert_eq!(buffer.status(), BufferStatus::Unregistered);
        assert_eq!(buffer.usable_size(), 100);
        assert_eq!(buffer.complete().unwrap_err().from, BufferStatus::Unregistered);
    }
    let refused = handle.allocate(1, 1).unwrap_err();
    assert_eq!(refused, AllocateError::Retired);
    assert!(!refused.is_retryable());
    assert_eq!(handle.resize(10), Err(ResizeError::Retired));
    assert_eq!((handle.capacity(), handle.available(), handle.used()), (0, 0, 0));
    assert_eq!((handle.live(), handle.largest_free(), handle.max_allocation()), (0, 0, 0));
    assert!(handle.report().is_none() && handle.snapshot().is_empty());
    let allocation = books.allocate(5).unwrap();
    let allocation = handle.adopt(allocation).unwrap_err().into_allocation();
    books.free(allocation).unwrap();

    drop(buffers);
    assert_eq!(books.used(), 200, "the buffers account for nothing any more");
}

#[test]
fn retiring_while_threads_allocate_and_drop() {
    for _ in 0..50 {
        let space = SharedAllocator::new(SlabAllocator::new(16 * MIB));
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    barrier.wait();
                    let mut held = Vec::new();
                    loop {
                        match space.allocate(1000, 1) {
                            Ok(buffer) => held.push(buffer),
                            Err(AllocateError::Retired) => break,
                            Err(error) => assert!(error.is_retryable(), "{error}"),
                        }
                        if held.len() > 10 {
                            held.clear();
                        }
                    }
                    for mut buffer in held {
                        assert_eq!(buffer.status(), BufferStatus::Unregistered);
                        assert!(buffer.complete().is_err());
                    }
                });
            }
            barrier.wait();
            let books = space.retire().unwrap();
            assert!(books.live() <= 3 * 11);
        });
    }
}

#[test]
fn buffers_keep_the_allocator() {
    let space = SharedAllocator::from(SlabAllocator::new(16 * MIB));
    let mut buffer = space.allocate(5000, 4096).unwrap();
    assert_eq!(buffer.usable_size(), 8192);
    drop(space);
    assert_eq!(buffer.status(), BufferStatus::Init);
    buffer.complete().unwrap();
}

#[test]
fn resizing_and_snapshots_reach_the_allocator() {
    let space = SharedAllocator::new(OffsetAllocator::new(100));
    let buffer = space.allocate(60, 1).unwrap();
    space.resize(200).unwrap();
    assert_eq!((space.capacity(), space.available()), (200, 140));
    assert_eq!(space.resize(50), Err(ResizeError::InUse { requested: 50, smallest: 60 }));
    assert_eq!(space.snapshot(), [buffer.extent()]);
}

#[test]
fn a_restored_allocation_becomes_a_buffer_and_a_foreign_one_comes_back() {
    let live = [Extent::new(10, 20).unwrap(), Extent::new(50, 5).unwrap()];
    let (allocator, allocations) = OffsetAllocator::builder(100).identity(1).restore(live).unwrap();
    let space = SharedAllocator::new(allocator);
    let buffers: Vec<_> =
        allocations.into_iter().map(|allocation| space.adopt(allocation).unwrap()).collect();
    assert_eq!(buffers[1].extent(), live[1]);
    let mut other = OffsetAllocator::builder(100).identity(2).build();
    let foreign = space.adopt(other.allocate(20).unwrap()).unwrap_err().into_allocation();
    other.free(foreign).unwrap();
    drop(buffers);
    assert_eq!((space.used(), space.largest_free()), (0, 100));
}

/// Panics, with the lock held, when asked for 13 bytes.
struct Superstitious(OffsetAllocator);

impl Allocator for Superstitious {
    fn allocate(&mut self, size: u64, align: u64) -> Result<Allocation, AllocateError> {
        assert_ne!(size, 13);
        Allocator::allocate(&mut self.0, size, align)
    }

    fn allocate_at(&mut self, extent: Extent) -> Result<Allocation, AllocateAtError> {
        self.0.allocate_at(extent)
    }

    fn free(&mut self, allocation: Allocation) -> Result<(), FreeError> {
        self.0.free(allocation)
    }

    fn usable_size(&self, allocation: &Allocation) -> Option<u64> {
        self.0.usable_size(allocation)
    }

    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn used(&self) -> u64 {
        self.0.used()
    }

    fn live(&self) -> usize {
        self.0.live()
    }

    fn largest_free(&self) -> u64 {
        self.0.largest_free()
    }

    fn max_allocation(&self) -> u64 {
        self.0.max_allocation()
    }

    fn report(&self) -> Report {
        self.0.report()
    }

    fn snapshot(&self) -> Vec<Extent> {
        self.0.snapshot()
    }

    fn set_label(&mut self, allocation: &Allocation, label: Label) {
        self.0.set_label(allocation, label);
    }

    fn makes_room(&self, allocation: &Allocation, size: u64) -> bool {
        self.0.makes_room(allocation, size)
    }

    fn room_at(&self, place: Place, size: u64) -> Room {
        self.0.room_at(place, size)
    }

    fn walk(&self, place: Place, direction: Direction, show: &mut dyn FnMut(Neighbour) -> bool) {
        self.0.walk(place, direction, show);
    }

    fn place_near(&self, number: u64) -> Option<Place> {
        self.0.place_near(number)
    }

    fn resize(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.0.resize(capacity)
    }
}

#[test]
fn a_panic_under_the_lock_leaves_the_allocator_usable() {
    let space = SharedAllocator::new(Superstitious(OffsetAllocator::new(100)));
    let buffer = space.allocate(40, 1).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| space.allocate(13, 1).map(drop)));
    assert!(panicked.is_err());
    assert_eq!(space.used(), 40);
    let other = space.allocate(60, 1).unwrap();
    drop((buffer, other));
    assert_eq!((space.used(), space.largest_free()), (0, 100));
}
