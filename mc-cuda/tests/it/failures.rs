//! Failures of the driver and of the GPU, each with its error.

use std::path::PathBuf;
use std::time::Duration;

use mc_cuda::{Copier, CopierOptions, Cuda, CudaDevice, CudaError, Order, VramBuffer};
use mc_memory::MemorySlice;

use crate::standin::{here, run, run_with};

const LEN: usize = 4096;

struct Setup {
    slot: MemorySlice,
    vram: VramBuffer,
    copier: Copier,
    device: CudaDevice,
}

fn set_up(limit: Duration) -> Setup {
    let device = Cuda::load().unwrap().device(0).unwrap();
    let options = CopierOptions::default().slots(2).slot_len(LEN).limit(limit);
    let copier = device.copier_with(options).unwrap();
    let vram = device.allocate(2 * LEN).unwrap();
    let slot = copier.wait_slot().unwrap().whole();
    Setup { slot, vram, copier, device }
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_driver_without_a_gpu_is_told() {
    run(here!(), "devices=0", |_| {
        let error = Cuda::load().unwrap_err();
        assert!(
            matches!(&error, CudaError::Failed { call: "cuInit", code, .. } if code.number == 100),
            "{error}"
        );
    });
}

#[test]
fn a_library_that_lacks_a_function_is_too_old() {
    run_with(here!(), &system_library(), || {
        let error = Cuda::load().unwrap_err();
        assert_eq!(error, CudaError::OldDriver { function: "cuInit" });
        assert!(error.to_string().contains("newer"), "{error}");
        assert!(Cuda::loaded().is_none());
    });
}

/// A library that is no driver: that of the standard functions of C, which every process has.
fn system_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_once('/'));
    let mut paths = paths.map(|(_, path)| PathBuf::from("/").join(path));
    paths.find(|path| path.to_string_lossy().contains("libc")).unwrap()
}

#[test]
fn a_batch_that_the_driver_does_not_support_is_copied_piece_by_piece() {
    run(here!(), "", |standin| {
        let setup = set_up(LONG);
        standin.poke(setup.vram.address(), &[3; 500]);
        let pieces = setup.vram.pieces([0..100, 200..250]).unwrap();
        let slot = setup.slot.part(0, 150).unwrap();
        standin.inject("fail=cuMemcpyBatchAsync:1:801");
        setup.copier.read(&pieces, &slot, Order::Now).wait().unwrap();
        assert_eq!(slot.to_vec(), [3; 150]);
        assert_eq!(standin.calls("cuMemcpyDtoHAsync_v2"), 2);
    });
}

#[test]
fn a_host_without_the_driver_is_told_what_to_install() {
    let Err(error @ CudaError::NoDriver { .. }) = Cuda::load() else {
        return; // This host has a driver.
    };
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    assert!(Cuda::loaded().is_none());
}

#[test]
fn memory_that_is_not_there_is_told() {
    run(here!(), "memory=1048576", |standin| {
        let device = Cuda::load().unwrap().device(0).unwrap();
        let error = device.allocate(2 << 20).unwrap_err();
        assert_eq!(error, CudaError::OutOfMemory { call: "cuMemAlloc", len: 2 << 20 });
        assert!(error.is_retryable());
        let error = device.allocate(usize::MAX / 2).unwrap_err();
        assert!(matches!(error, CudaError::OutOfMemory { .. }), "{error}");
        assert_eq!(device.allocate(0).unwrap_err(), CudaError::Empty);
        assert_eq!(device.pinned(0).unwrap_err(), CudaError::Empty);
        // Slots that cannot be pinned are tried again.
        standin.inject("fail=cuMemHostAlloc:1:2");
        let copier = device.copier().unwrap();
        assert!(matches!(copier.wait_slot(), Err(CudaError::OutOfMemory { .. })));
        assert_eq!(copier.wait_slot().unwrap().len(), copier.slot_len());
    });
}

#[test]
fn a_copy_that_the_driver_refuses_fails_alone() {
    run(here!(), "", |standin| {
        let setup = set_up(LONG);
        let pieces = setup.vram.piece(0..LEN).unwrap();
        standin.inject("fail=cuMemcpyDtoHAsync_v2:1:999");
        let error = setup.copier.read(&pieces, &setup.slot, Order::Now).wait().unwrap_err();
        let CudaError::Failed { call, code, .. } = &error else { panic!("{error}") };
        assert_eq!(
            (*call, code.number, &*code.name),
            ("cuMemcpyDtoHAsync", 999, "CUDA_ERROR_UNKNOWN")
        );
        assert!(!setup.copier.is_broken());
        setup.copier.read(&pieces, &setup.slot, Order::Now).wait().unwrap();
        // The second of two pieces: the first is still on its way when the driver refuses it.
        let copier = setup.device.copier_with(CopierOptions::default().batches(false)).unwrap();
        let scattered = setup.vram.pieces([100..200, 300..500]).unwrap();
        let slot = copier.wait_slot().unwrap().slice(0, 300).unwrap();
        standin.inject("delay_us=5000,fail=cuMemcpyDtoHAsync_v2:2:1");
        let error = copier.read(&scattered, &slot, Order::Now).wait().unwrap_err();
        assert!(matches!(error, CudaError::Failed { .. }), "{error}");
    });
}

/// The GPU loses the context: every copy ends with that error.
fn check_lost() {
    let device = Cuda::load().unwrap().device(0).unwrap();
    let vram = device.allocate(LEN).unwrap();
    let copier = device.copier().unwrap();
    let slot = copier.wait_slot().unwrap().slice(0, LEN).unwrap();
    let pieces = vram.piece(0..LEN).unwrap();
    let copies = [0; 3].map(|_| copier.read(&pieces, &slot, Order::Now));
    for copy in copies {
        let error = copy.wait().unwrap_err();
        assert!(matches!(error, CudaError::Lost { .. }), "{error}");
        assert!(error.to_string().contains("restart"), "{error}");
    }
    let later = copier.write(&slot, &pieces, Order::Now, None).wait().unwrap_err();
    assert!(matches!(later, CudaError::Lost { .. }), "{later}");
    assert!(matches!(device.allocate(1), Err(CudaError::Lost { .. })));
}

#[test]
fn an_illegal_address_ends_every_copy() {
    run(here!(), "delay_us=1000,lost=700", |_| check_lost());
}

#[test]
fn a_memory_error_of_the_gpu_ends_every_copy() {
    run(here!(), "delay_us=1000,lost=214", |_| check_lost());
}

#[test]
fn a_kernel_that_failed_ends_every_copy() {
    run(here!(), "delay_us=1000,fail=cuMemcpyDtoHAsync_v2:1:719", |_| check_lost());
}

#[test]
fn a_copy_that_hangs_ends_for_its_caller_and_its_slot_stays_away() {
    run(here!(), "", |standin| {
        let limit = Duration::from_millis(50);
        let Setup { slot, vram, copier, device } = set_up(limit);
        let pieces = vram.piece(0..LEN).unwrap();
        standin.inject("hang=cuMemcpyDtoHAsync_v2:1");
        let address = slot.address();
        let copy = copier.read(&pieces, &slot, Order::Now);
        drop(slot);
        let hung = CudaError::Hung { device: 0, limit };
        assert_eq!(copy.wait(), Err(hung.clone()));
        assert!(hung.is_retryable() && copier.is_broken());
        // The other slot is free, and the hung one never comes back meanwhile.
        let other = copier.wait_slot().unwrap();
        assert_ne!(other.whole().address(), address);
        assert_eq!(copier.wait_slot().unwrap_err(), hung);
        // Later copies fail at once, and other copiers go on.
        let later = copier.write(&other.whole(), &pieces, Order::Now, None).wait();
        assert_eq!(later, Err(hung.clone()));
        let slot = device.copier().unwrap().wait_slot().unwrap().slice(0, LEN).unwrap();
        vram.read(LEN, &slot).unwrap();
        // It comes back when the copy ends.
        standin.inject("resume=1");
        let again = loop {
            match copier.wait_slot() {
                Ok(slot) => break slot,
                Err(error) => assert_eq!(error, hung),
            }
        };
        assert_eq!(again.whole().address(), address);
        // On a busy machine a copy may take as long as the limit.
        loop {
            match copier.read(&pieces, &again.whole(), Order::Now).wait() {
                Ok(()) => break,
                Err(error) => assert_eq!(error, hung),
            }
        }
    });
}

#[test]
fn a_call_that_does_not_return_holds_up_no_other() {
    run(here!(), "", |standin| {
        let limit = Duration::from_millis(50);
        let Setup { slot, vram, copier, device } = set_up(limit);
        let pieces = vram.piece(0..LEN).unwrap();
        standin.inject("block=cuMemcpyHtoDAsync_v2:1");
        let copies = [0; 3].map(|_| copier.write(&slot, &pieces, Order::Now, None));
        let hung = CudaError::Hung { device: 0, limit };
        for copy in copies {
            assert_eq!(copy.wait(), Err(hung.clone()));
        }
        let theirs = device.copier().unwrap().wait_slot().unwrap().slice(0, LEN).unwrap();
        vram.read(LEN, &theirs).unwrap();
        standin.inject("resume=1");
        loop {
            match copier.read(&pieces, &slot, Order::Now).wait() {
                Ok(()) => break,
                Err(error) => assert_eq!(error, hung),
            }
        }
    });
}

#[test]
fn a_forked_process_does_not_touch_the_driver() {
    run(here!(), "", |_| {
        let Setup { slot, vram, copier, device } = set_up(LONG);
        let pieces = vram.piece(0..LEN).unwrap();
        // SAFETY: the child only does what is tested, and leaves without running destructors of others.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let checks = [
                matches!(Cuda::load(), Err(CudaError::Forked)),
                Cuda::loaded().is_none(),
                copier.read(&pieces, &slot, Order::Now).wait() == Err(CudaError::Forked),
                matches!(device.allocate(1), Err(CudaError::Forked)),
                matches!(copier.try_slot(), Err(CudaError::Forked)),
            ];
            drop((slot, vram, pieces, copier, device));
            let failed = checks.iter().position(|is_right| !is_right);
            let code = failed.map_or(0, |at| at as i32 + 10);
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: the child is ours, and the status is written to where it is told.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), 0);
    });
}
