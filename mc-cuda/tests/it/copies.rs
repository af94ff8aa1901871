//! Gathering and scattering, in every form.

use mc_cuda::{CopierOptions, Cuda, CudaError, DevicePiece, Order};

use crate::standin::{Standin, here, run};

const LEN: usize = 300_000;

/// Many random pieces, against a model in memory of the host.
fn gather_and_scatter(standin: &Standin, seed: u64, options: CopierOptions) {
    let mut random = fastrand::Rng::with_seed(seed);
    let device = Cuda::load().unwrap().device(0).unwrap();
    let copier = device.copier_with(options.slots(3).slot_len(LEN)).unwrap();
    let vram = device.allocate(LEN).unwrap();
    let mut model: Vec<u8> = (0..LEN).map(|_| random.u8(..)).collect();
    standin.poke(vram.address(), &model);
    for round in 0..30 {
        // Pieces that overlap no other, some of them neighbours, in any order.
        let mut cuts: Vec<usize> = (0..random.usize(2..60)).map(|_| random.usize(..LEN)).collect();
        cuts.sort_unstable();
        let mut ranges: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        if random.bool() {
            random.shuffle(&mut ranges);
        }
        ranges.truncate(random.usize(1..=ranges.len()));
        let pieces = vram.pieces(ranges.clone()).unwrap();
        let slot = copier.wait_slot().unwrap().slice(0, pieces.len()).unwrap();
        if random.bool() {
            copier.read(&pieces, &slot, Order::Now).wait().unwrap();
            let wanted: Vec<u8> =
                ranges.iter().flat_map(|range| &model[range.clone()]).copied().collect();
            assert_eq!(slot.to_vec(), wanted, "seed {seed}, round {round}");
        } else {
            let bytes: Vec<u8> = (0..slot.len()).map(|_| random.u8(..)).collect();
            slot.copy_from(0, &bytes).unwrap();
            copier.write(&slot, &pieces, Order::Now, None).wait().unwrap();
            let mut at = 0;
            for range in ranges {
                let len = range.len();
                model[range].copy_from_slice(&bytes[at..at + len]);
                at += len;
            }
            assert_eq!(standin.peek(vram.address(), LEN), model, "seed {seed}, round {round}");
        }
    }
}

/// The bytes are the same in the forms of each driver.
fn check_forms(standin: &Standin, batches: &str) {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    standin.inject("forbid_legacy=1");
    gather_and_scatter(standin, seed, CopierOptions::default());
    for name in ["cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"] {
        assert_eq!(standin.calls(name) > 0, name == batches, "{name}");
    }
    standin.inject("");
    gather_and_scatter(standin, seed, CopierOptions::default().batches(false));
    assert_eq!(standin.calls("cuMemcpyBatchAsync") + standin.calls("cuMemcpyBatchAsync_v2"), 0);
}

#[test]
fn pieces_match_a_model_with_the_batches_of_cuda_12() {
    run(here!(), "", |standin| check_forms(standin, "cuMemcpyBatchAsync"));
}

#[test]
fn pieces_match_a_model_with_the_batches_of_cuda_13() {
    run(here!(), "version=13000", |standin| check_forms(standin, "cuMemcpyBatchAsync_v2"));
}

#[test]
fn pieces_match_a_model_without_batches() {
    let missing = "version=13000,missing=cuMemcpyBatchAsync";
    run(here!(), missing, |standin| check_forms(standin, "none"));
}

#[test]
fn pieces_match_a_model_with_an_older_driver() {
    run(here!(), "version=11040", |standin| check_forms(standin, "none"));
}

#[test]
fn equal_pieces_at_equal_distances_are_one_copy() {
    run(here!(), "version=12000,forbid_legacy=1", |standin| {
        let device = Cuda::load().unwrap().device(0).unwrap();
        let (vram, copier) = (device.allocate(1 << 20).unwrap(), device.copier().unwrap());
        let value: Vec<u8> = (0..1 << 20).map(|at: u32| (at * 7 % 251) as u8).collect();
        standin.poke(vram.address(), &value);
        standin.inject("");
        let ranges: Vec<_> = (0..64).map(|row| row * 16_384 + 100..row * 16_384 + 612).collect();
        let pieces = vram.pieces(ranges.clone()).unwrap();
        let slot = copier.wait_slot().unwrap().slice(0, pieces.len()).unwrap();
        copier.read(&pieces, &slot, Order::Now).wait().unwrap();
        let wanted: Vec<u8> =
            ranges.iter().flat_map(|range| &value[range.clone()]).copied().collect();
        assert_eq!(slot.to_vec(), wanted);
        slot.copy_from(0, &vec![9; slot.len()]).unwrap();
        copier.write(&slot, &pieces, Order::Now, None).wait().unwrap();
        let now = standin.peek(vram.address(), value.len());
        for (at, (now, before)) in now.iter().zip(&value).enumerate() {
            let is_written = ranges.iter().any(|range| range.contains(&at));
            assert_eq!(*now, if is_written { 9 } else { *before }, "{at}");
        }
        assert_eq!(standin.calls("cuMemcpy2DAsync_v2"), 2);
        assert_eq!(standin.calls("cuMemcpyDtoHAsync_v2"), 0);
        // Neighbours are one piece.
        let pieces = vram.pieces([0..100, 100..4096]).unwrap();
        assert_eq!(pieces.as_slice(), [DevicePiece { address: vram.address(), len: 4096 }]);
    });
}

#[test]
fn pieces_of_several_allocations_at_equal_distances_are_no_matrix() {
    run(here!(), "version=12000", |standin| {
        let engine = standin.engine(0);
        let device = Cuda::load().unwrap().device(0).unwrap();
        let blocks: Vec<u64> = (0..4).map(|_| engine.allocate(4096)).collect();
        assert!(blocks.windows(2).all(|pair| pair[1] - pair[0] == 4096), "{blocks:?}");
        let each = blocks.iter().map(|address| DevicePiece { address: *address, len: 100 });
        // SAFETY: the blocks are freed after the copy.
        let pieces = unsafe { device.pieces(each, ()) }.unwrap();
        for (number, block) in blocks.iter().enumerate() {
            standin.poke(*block, &[number as u8; 100]);
        }
        let slot = device.copier().unwrap().wait_slot().unwrap().slice(0, 400).unwrap();
        device.copier().unwrap().read(&pieces, &slot, Order::Now).wait().unwrap();
        assert_eq!(slot.to_vec(), [[0; 100], [1; 100], [2; 100], [3; 100]].concat());
        assert_eq!(standin.calls("cuMemcpy2DAsync_v2"), 0);
        for block in blocks {
            assert_eq!(standin.free(block), 0);
        }
    });
}

#[test]
fn pieces_are_checked_before_they_are_copied() {
    run(here!(), "", |standin| {
        let engine = standin.engine(1);
        let other = engine.allocate(4096);
        let cuda = Cuda::load().unwrap();
        let [device, theirs] = [0, 1].map(|number| cuda.device(number).unwrap());
        let vram = device.allocate(4096).unwrap();
        let host = device.pinned(4096).unwrap();
        let host_address = host.whole().address().expose_provenance() as u64;
        let check = |address, len| {
            // SAFETY: nothing is copied.
            unsafe { device.pieces([DevicePiece { address, len }], ()) }.unwrap_err()
        };
        let wrong = CudaError::NotThisDevice { address: other, wanted: 0, found: 1 };
        assert_eq!(check(other, 1), wrong);
        let foreign = |address| CudaError::ForeignPointer { address };
        assert_eq!(check(host_address, 1), foreign(host_address));
        assert_eq!(check(0x1000, 1), foreign(0x1000));
        let beyond = CudaError::OutOfRange { at: 1, len: 4096, room: 4096 };
        assert_eq!(check(vram.address() + 1, 4096), beyond);

        let copier = device.copier().unwrap();
        let pieces = vram.piece(0..4096).unwrap();
        let plain = mc_memory::Memory::allocate(4096).unwrap();
        let refused = copier.read(&pieces, &plain.whole(), Order::Now).wait();
        assert_eq!(refused, Err(CudaError::NotPinned));
        let short = copier.read(&pieces, &host.slice(0, 5).unwrap(), Order::Now).wait();
        assert_eq!(short, Err(CudaError::LengthsDiffer { pieces: 4096, host: 5 }));
        let strange = theirs.copier().unwrap().read(&pieces, &host.whole(), Order::Now).wait();
        assert!(matches!(strange, Err(CudaError::NotThisDevice { wanted: 1, found: 0, .. })));
        assert_eq!(standin.free(other), 0);
    });
}

#[test]
fn slots_go_round_and_a_dropped_copy_keeps_its_own() {
    run(here!(), "", |standin| {
        let device = Cuda::load().unwrap().device(0).unwrap();
        let options = CopierOptions::default().slots(2).slot_len(4096);
        let copier = device.copier_with(options).unwrap();
        let vram = device.allocate(4096).unwrap();
        standin.poke(vram.address(), &[7; 4096]);
        let pieces = vram.piece(0..4096).unwrap();
        let (first, second) = (copier.wait_slot().unwrap(), copier.wait_slot().unwrap());
        assert!(copier.try_slot().unwrap().is_none());
        second.whole().copy_from(0, &[1; 4096]).unwrap();
        standin.inject("hang=cuMemcpyDtoHAsync_v2:1");
        let copy = copier.read(&pieces, &first.whole(), Order::Now);
        copy.wait_queued().unwrap();
        assert!(!copy.is_over());
        let address = first.whole().address();
        drop((copy, first, vram, pieces));
        assert!(copier.try_slot().unwrap().is_none());
        assert_eq!(standin.live()[0], 1, "the source is alive");
        standin.inject("resume=1");
        // The slot is given again when its copy has ended, and has its bytes.
        let again = copier.wait_slot().unwrap();
        assert_eq!(again.whole().address(), address);
        assert_eq!(again.whole().to_vec(), [7; 4096]);
        assert_eq!(standin.live()[0], 0, "the copy kept the source, and nothing else");
        drop((again, second));
    });
}

/// Wakes the thread that waits for a future.
struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, without a runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn copies_and_slots_are_futures_of_any_runtime() {
    run(here!(), "delay_us=1000", |standin| {
        let device = Cuda::load().unwrap().device(0).unwrap();
        let copier = device.copier_with(CopierOptions::default().slots(1).slot_len(LEN)).unwrap();
        let vram = device.allocate(LEN).unwrap();
        standin.poke(vram.address(), &[4; LEN]);
        let pieces = vram.piece(0..LEN).unwrap();
        for _ in 0..20 {
            let slot = block_on(copier.slot()).unwrap().whole();
            slot.copy_from(0, &[0; LEN]).unwrap();
            let copy = copier.read(&pieces, &slot, Order::Now);
            block_on(copy.queued()).unwrap();
            block_on(copy).unwrap();
            assert_eq!(slot.to_vec(), [4; LEN]);
            // The next slot is this one, when its copy has ended.
            drop(copier.read(&pieces, &slot, Order::Now));
        }
    });
}

#[test]
fn the_context_of_the_caller_stays_current() {
    run(here!(), "", |standin| {
        let engine = standin.engine(1);
        let current = || {
            let mut context = 0;
            assert_eq!(standin.current(&raw mut context), 0);
            context
        };
        let before = current();
        let device = Cuda::load().unwrap().device(0).unwrap();
        let vram = device.allocate(4096).unwrap();
        let slot = device.copier().unwrap().wait_slot().unwrap().slice(0, 4096).unwrap();
        vram.read(0, &slot).unwrap();
        assert_eq!(current(), before);
        drop((slot, vram, device));
        assert_eq!(current(), before);
        drop(engine);
        assert_eq!(current(), 0);
    });
}
