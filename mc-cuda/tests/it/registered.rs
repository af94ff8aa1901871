//! Memory that is pinned where it is.

use mc_cuda::{Cuda, CudaError, Order, PointerKind};
use mc_memory::Memory;

use crate::standin::{here, run};

#[test]
fn memory_is_pinned_in_pieces_and_unpinned_when_dropped() {
    run(here!(), "forbid_legacy=1", |standin| {
        let cuda = Cuda::load().unwrap();
        let device = cuda.device(0).unwrap();
        let pool = Memory::allocate((3 << 20) + 5000).unwrap();
        let registered = device.register_in_pieces(&pool.whole(), 1 << 20);
        registered.wait();
        assert!(registered.is_over() && registered.failure().is_none());
        assert_eq!(registered.pinned_len(), pool.len());
        assert_eq!(standin.live()[1], 4);
        let address = pool.whole().address().expose_provenance() as u64;
        let found = cuda.pointer(address, 1).unwrap().unwrap();
        assert_eq!((found.kind, found.len), (PointerKind::HostRegistered, 1 << 20));

        let vram = device.allocate(pool.len()).unwrap();
        standin.poke(vram.address(), &vec![6; pool.len()]);
        let part = pool.slice(100, 5000).unwrap();
        let pieces = vram.piece(0..5000).unwrap();
        device.copier().unwrap().read(&pieces, &part, Order::Now).wait().unwrap();
        assert_eq!(part.to_vec(), [6; 5000]);
        // Across the borders of pieces, through slots.
        vram.read(0, &pool.whole()).unwrap();
        assert!(pool.whole().to_vec().iter().all(|byte| *byte == 6));
        drop(registered);
        assert_eq!(cuda.pointer(address, 1).unwrap(), None);
    });
}

#[test]
fn memory_that_cannot_be_pinned_is_used_as_it_is() {
    run(here!(), "fail=cuMemHostRegister_v2:2:2", |_| {
        let device = Cuda::load().unwrap().device(0).unwrap();
        let pool = Memory::allocate(4 << 20).unwrap();
        let registered = device.register_in_pieces(&pool.whole(), 1 << 20);
        registered.wait();
        assert_eq!(registered.pinned_len(), 1 << 20);
        let failure = registered.failure();
        assert!(matches!(failure, Some(CudaError::OutOfMemory { .. })), "{failure:?}");
        let vram = device.allocate(4 << 20).unwrap();
        vram.write(0, &pool.whole()).unwrap();
    });
}
