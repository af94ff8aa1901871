//! On a GPU, by the public interface alone. Says loudly that it was skipped where there is none.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::ops::Range;
use std::time::{Duration, Instant};

use mc_cuda::{Copier, CopierOptions, Cuda, CudaDevice, CudaError, Order, Pieces, PointerKind};
use mc_memory::{Memory, MemorySlice};

/// Prints to standard error past the test runner.
fn say(text: &str) {
    let mut uncaptured = std::io::stderr();
    writeln!(uncaptured, "##### {text} #####").unwrap();
}

/// The first GPU; `None`, and a line that no test runner hides, when there is none.
fn gpu() -> Option<(Cuda, CudaDevice)> {
    let found = Cuda::load().and_then(|cuda| Ok((cuda.clone(), cuda.device(0)?)));
    found.map_err(|error| say(&format!("SKIPPED: a real GPU was not tested: {error}"))).ok()
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn the_driver_knows_its_memory_without_a_current_context() {
    let Some((cuda, device)) = gpu() else { return };
    say(&format!(
        "driver {}, {} at {}, NUMA node {:?}",
        cuda.version(),
        device.uuid().unwrap(),
        device.pci_bus_id().unwrap(),
        device.numa_node()
    ));
    let plain = Memory::allocate(1 << 20).unwrap();
    let address = |slice: &MemorySlice| slice.address().expose_provenance() as u64;
    assert_eq!(cuda.pointer(address(&plain.whole()), 1).unwrap(), None);
    let registered = device.register(&plain.whole());
    registered.wait();
    assert_eq!(registered.failure(), None);
    let (vram, pinned) = (device.allocate(1 << 20).unwrap(), device.pinned(1 << 20).unwrap());
    for (at, kind) in [
        (vram.address(), PointerKind::Device),
        (address(&pinned.whole()), PointerKind::HostAllocated),
        (address(&plain.whole()), PointerKind::HostRegistered),
    ] {
        let found = cuda.pointer(at + 5, 1000).unwrap().unwrap();
        assert_eq!((found.kind, found.device), (kind, 0), "{found:?}");
        assert!(found.base <= at && found.len >= 1 << 20, "{found:?}");
        cuda.verify(&found).unwrap();
    }
    let known = cuda.pointer(vram.address(), 1).unwrap().unwrap();
    drop(vram);
    let again = device.allocate(1 << 20).unwrap();
    let freed = cuda.verify(&known);
    assert!(matches!(freed, Err(CudaError::Freed { .. })), "{freed:?} {:#x}", again.address());
}

/// The fastest of some copies.
fn fastest(mut copy: impl FnMut()) -> Duration {
    let time = |_| {
        let begin = Instant::now();
        copy();
        begin.elapsed()
    };
    (0..20).map(time).min().unwrap()
}

fn check_pieces(copier: &Copier, pieces: &Pieces, name: &str, wanted: &[u8]) {
    let slot = copier.wait_slot().unwrap().slice(0, pieces.len()).unwrap();
    slot.copy_from(0, &vec![0xee; slot.len()]).unwrap();
    copier.read(pieces, &slot, Order::Now).wait().unwrap();
    assert!(slot.to_vec() == wanted, "{name}");
    let read = fastest(|| copier.read(pieces, &slot, Order::Now).wait().unwrap());
    let write = fastest(|| copier.write(&slot, pieces, Order::Now, None).wait().unwrap());
    say(&format!("{name}: gathered in {read:?}, scattered in {write:?}"));
}

#[test]
fn blocks_are_gathered_and_scattered_in_every_form() {
    let Some((_, device)) = gpu() else { return };
    // 1,024 blocks of 32 KiB, every other one, and the same in another order.
    let (block, count) = (32 << 10, 1024);
    let len = 2 * block * count;
    let vram = device.allocate(len).unwrap();
    let all = device.pinned(len).unwrap();
    all.whole().copy_from(0, &value(len)).unwrap();
    vram.write(0, &all.whole()).unwrap();
    let rows: Vec<Range<usize>> =
        (0..count).map(|row| 2 * row * block..(2 * row + 1) * block).collect();
    let mut mixed = rows.clone();
    fastrand::Rng::with_seed(7).shuffle(&mut mixed);
    for (form, batches) in [("batch", true), ("rows or one by one", false)] {
        let options = CopierOptions::default().slots(1).slot_len(block * count).batches(batches);
        let copier = device.copier_with(options).unwrap();
        for (order, ranges) in [("equal distances", &rows), ("any order", &mixed)] {
            let pieces = vram.pieces(ranges.iter().cloned()).unwrap();
            let wanted: Vec<u8> = ranges
                .iter()
                .flat_map(|range| range.clone().map(|at| (at * 7 % 251) as u8))
                .collect();
            check_pieces(&copier, &pieces, &format!("1,024 x 32 KiB, {order}, {form}"), &wanted);
        }
    }
    vram.read(0, &all.whole()).unwrap();
    assert!(all.whole().to_vec() == value(len), "what was scattered is what was gathered");
}

#[test]
fn memory_of_any_kind_is_copied() {
    let Some((_, device)) = gpu() else { return };
    let len = 9 << 20;
    let vram = device.allocate(len).unwrap();
    let plain = Memory::allocate(len).unwrap();
    vram.read(0, &plain.whole()).unwrap();
    assert!(plain.whole().to_vec().iter().all(|byte| *byte == 0), "fresh memory is zeroed");
    plain.whole().copy_from(0, &value(len)).unwrap();
    vram.write(0, &plain.whole()).unwrap();
    let pinned = device.pinned(len).unwrap();
    vram.read(0, &pinned.whole()).unwrap();
    assert!(pinned.whole().to_vec() == value(len));
    assert!(matches!(device.allocate(usize::MAX / 2), Err(CudaError::OutOfMemory { .. })));
}
