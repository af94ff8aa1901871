//! Kinds of memory, and what the driver knows of them.

use mc_cuda::{Cuda, CudaError, PointerKind};

use crate::standin::{here, run};

#[test]
fn threads_that_look_for_the_driver_at_once_all_find_it() {
    run(here!(), "", |standin| {
        let engine = standin.engine(0);
        let block = engine.allocate(100);
        let together = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    together.wait();
                    let cuda = Cuda::loaded().expect("an engine has started it");
                    assert!(cuda.pointer(block, 100).unwrap().is_some());
                });
            }
        });
        assert_eq!(standin.free(block), 0);
    });
}

#[test]
fn every_kind_of_memory_is_told_with_its_allocation() {
    run(here!(), "", |standin| {
        let engine = standin.engine(1);
        let cuda = Cuda::load().unwrap();
        let len = 10_000;
        let device = engine.allocate(len);
        let (mut managed, mut pinned) = (0, 0);
        assert_eq!(standin.allocate_managed(&raw mut managed, len, 1), 0);
        assert_eq!(standin.pin(&raw mut pinned, len, 1), 0);
        let plain = vec![0_u8; len];
        let registered = plain.as_ptr().expose_provenance() as u64;
        assert_eq!(cuda.pointer(registered, len).unwrap(), None);
        assert_eq!(standin.register(registered, len, 1), 0);
        let mut ids = Vec::new();
        for (base, kind) in [
            (device, PointerKind::Device),
            (managed, PointerKind::Managed),
            (pinned, PointerKind::HostAllocated),
            (registered, PointerKind::HostRegistered),
        ] {
            for (at, part) in [(0, len), (1, len - 1), (len - 1, 1), (5, 0)] {
                let found = cuda.pointer(base + at as u64, part).unwrap().unwrap();
                assert_eq!((found.kind, found.device), (kind, 1));
                assert_eq!((found.base, found.len), (base, len));
                cuda.verify(&found).unwrap();
            }
            ids.push(cuda.pointer(base, 1).unwrap().unwrap().buffer_id);
            let beyond = cuda.pointer(base + 1, len).unwrap_err();
            assert_eq!(beyond, CudaError::OutOfRange { at: 1, len, room: len });
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4, "each allocation has its own number");
        assert_eq!(standin.unregister(registered), 0);
        assert_eq!(cuda.pointer(registered, len).unwrap(), None);
        assert_eq!(standin.unpin(pinned), 0);
        assert_eq!(standin.free(managed), 0);
        assert_eq!(standin.free(device), 0);
        drop(engine);
    });
}

#[test]
fn an_address_that_was_freed_and_given_again_is_another_allocation() {
    run(here!(), "devices=1", |standin| {
        let engine = standin.engine(0);
        let cuda = Cuda::load().unwrap();
        let first = engine.allocate(4096);
        let before = cuda.pointer(first, 1).unwrap().unwrap();
        assert_eq!(standin.free(first), 0);
        assert_eq!(cuda.verify(&before), Err(CudaError::Freed { address: first }));
        let second = engine.allocate(4096);
        assert_eq!(second, first, "the driver uses the address again");
        assert_eq!(cuda.verify(&before), Err(CudaError::Freed { address: first }));
        assert_eq!(standin.free(second), 0);
    });
}

#[test]
fn devices_are_told_by_their_identity_whatever_their_number() {
    run(here!(), "visible=3+1", |_| {
        let cuda = Cuda::load().unwrap();
        assert_eq!((cuda.devices().unwrap(), cuda.version()), (2, 12_080));
        let [first, second] = [0, 1].map(|number| cuda.device(number).unwrap());
        let uuid = second.uuid().unwrap();
        assert_ne!(first.uuid().unwrap(), uuid);
        assert_eq!(cuda.device_by_uuid(uuid).unwrap().ordinal(), 1);
        assert_eq!(first.pci_bus_id().unwrap(), "0000:04:00.0");
        assert!(uuid.to_string().starts_with("GPU-"), "{uuid}");
        let mut other = uuid;
        other.0[0] ^= 1;
        let unknown = cuda.device_by_uuid(other).unwrap_err();
        assert_eq!(unknown, CudaError::NoSuchDevice { uuid: other });
        assert!(matches!(cuda.device(2), Err(CudaError::Failed { .. })));
    });
}

#[test]
fn a_driver_that_nothing_has_started_is_not_started_to_ask_for_a_pointer() {
    run(here!(), "", |standin| {
        assert!(Cuda::loaded().is_none(), "the library is there, and cuInit was not called");
        assert_eq!(standin.calls("cuInit"), 0);
        assert_eq!(standin.initialise(0), 0);
        let cuda = Cuda::loaded().unwrap();
        assert_eq!(cuda.pointer(0x1000, 1).unwrap(), None);
        assert_eq!(standin.live(), [0; 5], "no context was needed");
    });
}

#[test]
fn the_processor_cannot_touch_memory_of_a_device() {
    run(here!(), "", |standin| {
        let engine = standin.engine(0);
        let address = engine.allocate(4096);
        let mut pipe = [0; 2];
        // SAFETY: there is room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let bytes = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the system refuses what it cannot read.
        let written = unsafe { libc::write(pipe[1], bytes, 1) };
        assert_eq!(written, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(standin.free(address), 0);
    });
}
