use alloc::boxed::Box;
use alloc::vec::Vec;

use mc_types::Extent;

use super::*;
use crate::Allocator;
use crate::error::RestoreError;

#[test]
fn allocations_start_at_the_front_and_have_the_exact_size() {
    let mut space = OffsetAllocator::new(1000);
    let first = space.allocate(7).unwrap();
    let second = space.allocate(993).unwrap();
    assert_eq!(first.extent(), Extent::new(0, 7).unwrap());
    assert_eq!(second.extent(), Extent::new(7, 993).unwrap());
    assert_eq!((space.used(), space.available(), space.live()), (1000, 0, 2));
    assert_eq!(space.allocate(1).unwrap_err(), AllocateError::Full { requested: 1, available: 0 });
}

#[test]
fn a_freed_region_merges_with_either_or_both_neighbours() {
    // Each order of freeing three neighbours meets another case of merging.
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut space = OffsetAllocator::new(300);
        let mut held: Vec<_> = (0..3).map(|_| Some(space.allocate(100).unwrap())).collect();
        for index in order {
            space.free(held[index].take().unwrap()).unwrap();
        }
        assert_eq!(space.regions().count(), 1, "{order:?}");
        assert_eq!(space.largest_free(), 300);
    }
}

#[test]
fn capacities_of_nothing_one_and_everything() {
    let mut nothing = OffsetAllocator::new(0);
    assert_eq!(nothing.regions().count(), 0);
    assert_eq!(nothing.allocate(0).unwrap_err(), AllocateError::ZeroSize);
    assert_eq!(
        nothing.allocate(1).unwrap_err(),
        AllocateError::LargerThanCapacity { requested: 1, capacity: 0 }
    );
    assert_eq!(nothing.report().fragmentation(), 0.0);

    let mut one = OffsetAllocator::new(1);
    let byte = one.allocate(1).unwrap();
    one.free(byte).unwrap();
    assert_eq!(one.largest_free(), 1);

    let mut everything = OffsetAllocator::new(u64::MAX);
    let all = everything.allocate(u64::MAX).unwrap();
    everything.free(all).unwrap();
    let most = everything.allocate(u64::MAX - 1).unwrap();
    let last = everything.allocate(1).unwrap();
    assert_eq!(last.extent(), Extent::new(u64::MAX - 1, 1).unwrap());
    everything.free(most).unwrap();
    everything.free(last).unwrap();
    assert_eq!(everything.largest_free(), u64::MAX);
}

#[test]
fn an_allocation_of_another_allocator_comes_back() {
    // The same history in both, so that offsets, sizes and regions agree.
    let mut ours = OffsetAllocator::new(1 << 20);
    let mut theirs = OffsetAllocator::new(1 << 20);
    let mine = ours.allocate(4096).unwrap();
    let foreign = theirs.allocate(4096).unwrap();
    let extent = foreign.extent();
    let refused = ours.free(foreign).unwrap_err();
    assert_eq!(refused.allocation().extent(), extent);
    assert_eq!((ours.used(), ours.live()), (4096, 1));
    theirs.free(refused.into_allocation()).unwrap();
    ours.free(mine).unwrap();
}

#[test]
fn identities_tell_an_allocator_from_one_that_is_gone() {
    let mut before = OffsetAllocator::builder(1 << 20).identity(1).build();
    let stale = before.allocate(4096).unwrap();
    drop(before);
    let mut now = OffsetAllocator::builder(1 << 20).identity(2).build();
    let live = now.allocate(4096).unwrap();
    assert!(now.free(stale).is_err());
    assert!(now.owns(&live));
}

#[test]
fn an_allocation_from_before_a_reset_comes_back() {
    let mut space = OffsetAllocator::new(1 << 20);
    let stale = space.allocate(4096).unwrap();
    space.reset();
    let stale = space.free(stale).unwrap_err().into_allocation();
    // The same bytes are in use again, as the same region.
    let live = space.allocate(4096).unwrap();
    assert_eq!(live.extent(), stale.extent());
    assert!(space.free(stale).is_err());
    assert!(space.owns(&live));
    assert_eq!(space.used(), 4096);
}

#[test]
fn the_region_limit_is_an_error_of_its_own_and_exact_fits_still_work() {
    let mut space = OffsetAllocator::builder(4).max_regions(3).build();
    let first = space.allocate(1).unwrap();
    let second = space.allocate(1).unwrap();
    let at_limit = AllocateError::TooManyRegions { limit: 3 };
    assert_eq!(space.allocate(1).unwrap_err(), at_limit);
    assert_eq!((space.used(), space.live()), (2, 2));
    let rest = space.allocate(2).unwrap();
    for allocation in [first, second, rest] {
        space.free(allocation).unwrap();
    }
    assert_eq!(space.largest_free(), 4);
}

#[test]
fn a_region_of_exactly_the_wanted_size_is_found_behind_smaller_ones_of_its_bin() {
    let mut space = OffsetAllocator::new(1031 + 3 * 1030 + 4);
    let mut held = Vec::new();
    for size in [1031, 1030, 1030, 1030] {
        held.push(space.allocate(size).unwrap());
        let _wall = space.allocate(1).unwrap();
    }
    // The list of a bin starts with what was freed last: a smaller one.
    for allocation in held {
        space.free(allocation).unwrap();
    }
    assert_eq!(space.report().bins.len(), 1);
    assert_eq!(space.largest_free(), 1031);
    assert_eq!(space.allocate(1031).unwrap().extent().offset(), 0);
}

#[test]
fn fragmentation_names_what_was_seen() {
    let mut space = OffsetAllocator::new(400);
    let held: Vec<_> = (0..4).map(|_| space.allocate(100).unwrap()).collect();
    for (index, allocation) in held.into_iter().enumerate() {
        if index % 2 == 0 {
            space.free(allocation).unwrap();
        }
    }
    assert_eq!(
        space.allocate(101).unwrap_err(),
        AllocateError::Fragmented { requested: 101, available: 200, largest_free: 100 }
    );
    let report = space.report();
    assert_eq!(report.fragmentation(), 0.5);
    assert_eq!(report.utilisation(), 0.5);
    assert_eq!(report.free_regions(), 2);
    assert_eq!(report.bins.len(), 1);
}

#[test]
fn alignment_leaves_the_pad_free_and_takes_what_fits_exactly() {
    let mut space = OffsetAllocator::new(1 << 16);
    let head = space.allocate(100).unwrap();
    let page = space.allocate_aligned(4096, 4096).unwrap();
    assert_eq!(page.extent().offset(), 4096);
    // The pad is a free region like any other.
    let pad = space.allocate(4096 - 100).unwrap();
    assert_eq!(pad.extent().offset(), 100);
    let rest = space.allocate_aligned((1 << 16) - 8192, 8192).unwrap();
    assert_eq!(rest.extent().end(), 1 << 16);
    assert_eq!(space.available(), 0);
    for allocation in [head, page, pad, rest] {
        space.free(allocation).unwrap();
    }
    assert_eq!(space.regions().count(), 1);
}

#[test]
fn alignments_that_are_none_and_that_nothing_fits() {
    let mut space = OffsetAllocator::new(1 << 16);
    for align in [0, 3, u64::MAX] {
        assert_eq!(
            space.allocate_aligned(1, align).unwrap_err(),
            AllocateError::BadAlignment { align }
        );
    }
    let first = space.allocate_aligned(1, 1 << 63).unwrap();
    assert_eq!(first.extent().offset(), 0);
    assert_eq!(
        space.allocate_aligned(1, 1 << 63).unwrap_err(),
        AllocateError::Misaligned {
            requested: 1,
            align: 1 << 63,
            available: (1 << 16) - 1,
            largest_free: (1 << 16) - 1
        }
    );
    let mut everything = OffsetAllocator::new(u64::MAX);
    let _low = everything.allocate(1).unwrap();
    assert_eq!(everything.allocate_aligned(1, 1 << 63).unwrap().extent().offset(), 1 << 63);
    assert!(everything.allocate_aligned(1 << 63, 1 << 63).is_err());
}

#[test]
fn sizes_in_multiples_of_the_alignment_waste_nothing() {
    let mut space = OffsetAllocator::new(64 * 4096);
    let mut pages: Vec<_> =
        (0..64).map(|_| Some(space.allocate_aligned(4096, 4096).unwrap())).collect();
    for page in pages.iter_mut().step_by(2) {
        space.free(page.take().unwrap()).unwrap();
    }
    for _ in 0..32 {
        let _page = space.allocate_aligned(4096, 4096).unwrap();
    }
    assert_eq!(space.available(), 0);
}

#[test]
fn an_alignment_at_the_region_limit_changes_nothing() {
    let mut space = OffsetAllocator::builder(1 << 16).max_regions(3).build();
    let head = space.allocate(1).unwrap();
    // A pad, the page and the rest would make four.
    assert_eq!(
        space.allocate_aligned(4096, 4096).unwrap_err(),
        AllocateError::TooManyRegions { limit: 3 }
    );
    assert_eq!(space.regions().count(), 2);
    let end = space.allocate_aligned(4096, 61_440).unwrap_err();
    assert_eq!(end, AllocateError::BadAlignment { align: 61_440 });
    let end = space.allocate_aligned(1 << 15, 1 << 15).unwrap();
    assert_eq!(end.extent().end(), 1 << 16);
    space.free(head).unwrap();
    space.free(end).unwrap();
    assert_eq!(space.largest_free(), 1 << 16);
}

#[test]
fn a_range_grows_from_nothing_and_shrinks_to_what_is_in_use() {
    let mut space = OffsetAllocator::new(0);
    space.resize(100).unwrap();
    let low = space.allocate(60).unwrap();
    assert_eq!(space.resize(59).unwrap_err(), ResizeError::InUse { requested: 59, smallest: 60 });
    space.resize(60).unwrap();
    assert_eq!((space.available(), space.regions().count()), (0, 1));
    // Bins that the index had no rows for.
    space.resize(u64::MAX).unwrap();
    let high = space.allocate(u64::MAX - 60).unwrap();
    assert!(space.resize(u64::MAX - 1).is_err());
    space.free(high).unwrap();
    space.free(low).unwrap();
    assert_eq!(space.largest_free(), u64::MAX);
    space.resize(0).unwrap();
    assert_eq!(space.regions().count(), 0);
    space.resize(1).unwrap();
    assert!(space.allocate(1).is_ok());
}

#[test]
fn growth_beyond_the_region_limit_is_refused() {
    let mut space = OffsetAllocator::builder(8).max_regions(1).build();
    let all = space.allocate(8).unwrap();
    assert_eq!(space.resize(9).unwrap_err(), ResizeError::TooManyRegions { limit: 1 });
    assert_eq!(space.capacity(), 8);
    space.free(all).unwrap();
    space.resize(9).unwrap();
    assert_eq!(space.allocate(9).unwrap().extent().len(), 9);
}

#[test]
fn a_grown_allocator_and_a_new_one_tell_their_allocations_apart() {
    let mut grown = OffsetAllocator::new(100);
    let ours = grown.allocate(10).unwrap();
    grown.resize(u64::MAX).unwrap();
    // One of these may lie where the index of the other was before it grew.
    for mut other in (0..64).map(|_| OffsetAllocator::new(100)).collect::<Vec<_>>() {
        let _theirs = other.allocate(10).unwrap();
        assert!(!other.owns(&ours));
    }
    assert_eq!(grown.usable_size(&ours), Some(10));
}

#[test]
fn extents_that_cannot_all_be_live_are_named() {
    let extent = |offset, len| Extent::new(offset, len).unwrap();
    let restore = |live: &[Extent]| {
        let builder = OffsetAllocator::builder(100).max_regions(4);
        builder.restore(live.iter().copied()).map(|_| ()).unwrap_err()
    };
    assert_eq!(
        restore(&[extent(0, 5), extent(7, 0)]),
        RestoreError::Empty { extent: extent(7, 0) }
    );
    assert_eq!(
        restore(&[extent(99, 2)]),
        RestoreError::OutOfRange { extent: extent(99, 2), capacity: 100 }
    );
    for live in [[extent(10, 5), extent(14, 5)], [extent(14, 5), extent(10, 5)]] {
        let (first, second) = (extent(10, 5), extent(14, 5));
        assert_eq!(restore(&live), RestoreError::Overlap { first, second });
    }
    assert_eq!(restore(&[extent(1, 1), extent(5, 1)]), RestoreError::TooManyRegions { limit: 4 });
}

#[test]
fn nothing_and_everything_are_restored() {
    let (mut empty, live) = OffsetAllocator::builder(100).restore([]).unwrap();
    assert!(live.is_empty());
    let (mut full, mut live) =
        OffsetAllocator::builder(100).restore([empty.allocate(100).unwrap().extent()]).unwrap();
    assert_eq!(full.available(), 0);
    full.free(live.remove(0)).unwrap();
    assert_eq!(full.largest_free(), 100);
    assert_eq!(OffsetAllocator::builder(0).restore([]).unwrap().0.regions().count(), 0);
}

#[test]
fn an_allocator_is_chosen_at_run_time() {
    let mut space: Box<dyn Allocator> = Box::new(OffsetAllocator::new(1 << 20));
    let block = space.allocate(1000, 256).unwrap();
    assert_eq!(space.usable_size(&block), Some(1000));
    assert_eq!(space.snapshot(), [block.extent()]);
    assert_eq!((space.used(), space.available(), space.live()), (1000, (1 << 20) - 1000, 1));
    space.resize(1 << 21).unwrap();
    space.free(block).unwrap();
    assert_eq!((space.largest_free(), space.capacity()), (1 << 21, 1 << 21));
    assert_eq!(space.report().free_regions(), 1);
}
