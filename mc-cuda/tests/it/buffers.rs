//! Buffers of a GPU's memory, and memory of the host of any kind.

use mc_cuda::{Cuda, CudaError, VramBuffer};
use mc_memory::{Memory, StagedMemory};

use crate::standin::{here, run};

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn a_buffer_keeps_what_is_written() {
    run(here!(), "forbid_legacy=1", |standin| {
        let device = Cuda::load().unwrap().device(0).unwrap();
        let len = 9 << 20;
        let (vram, stage) = (device.allocate(len).unwrap(), device.pinned(len).unwrap());
        assert_eq!((vram.len(), stage.len()), (len, len));
        vram.read(0, &stage.whole()).unwrap();
        assert!(stage.whole().to_vec().iter().all(|byte| *byte == 0), "fresh memory is zeroed");
        let value = value(len);
        stage.whole().copy_from(0, &value).unwrap();
        vram.write(0, &stage.whole()).unwrap();
        assert_eq!(standin.peek(vram.address(), len), value, "for kernels of every stream");
        stage.whole().copy_from(0, &vec![0xff; len]).unwrap();
        vram.read(0, &stage.whole()).unwrap();
        assert_eq!(stage.whole().to_vec(), value);

        // Memory that is not pinned, in more parts than there are slots for at a time.
        let plain = Memory::allocate(len - 100).unwrap();
        vram.read(50, &plain.whole()).unwrap();
        assert_eq!(plain.whole().to_vec(), &value[50..len - 50]);
        vram.write(100, &plain.whole()).unwrap();
        assert_eq!(standin.peek(vram.address() + 100, len - 100), &value[50..len - 50]);

        for at in [101, len, usize::MAX] {
            let refused = vram.write(at, &plain.whole()).unwrap_err();
            assert!(matches!(refused, CudaError::OutOfRange { room, .. } if room == len));
            assert!(vram.read(at, &plain.whole()).is_err());
        }
    });
}

#[test]
fn peers_reach_a_buffer_through_stages() {
    run(here!(), "forbid_legacy=1", |_| {
        let vram = Cuda::load().unwrap().device(0).unwrap().allocate(3 << 20).unwrap();
        let stages = vram.stages().unwrap();
        assert_eq!((stages.len(), stages[0].len()), (8, 1 << 20));
        let staged: &dyn StagedMemory = &vram;
        stages[0].whole().copy_from(0, &value(1 << 20)).unwrap();
        staged.write(7, &stages[0].whole()).unwrap();
        staged.read(8, &stages[1].slice(0, 999).unwrap()).unwrap();
        assert_eq!(stages[1].slice(0, 999).unwrap().to_vec(), &value(1 << 20)[1..1000]);
        assert!(staged.read(3 << 20, &stages[0].whole()).is_err());
    });
}

#[test]
fn many_threads_share_few_slots() {
    run(here!(), "", |_| {
        let device = Cuda::load().unwrap().device(0).unwrap();
        let len = 5 << 20;
        let buffers: Vec<VramBuffer> = (0..20).map(|_| device.allocate(len).unwrap()).collect();
        std::thread::scope(|scope| {
            for (number, vram) in buffers.iter().enumerate() {
                scope.spawn(move || {
                    let plain = Memory::allocate(len).unwrap();
                    plain.whole().copy_from(0, &vec![number as u8; len]).unwrap();
                    vram.write(0, &plain.whole()).unwrap();
                    plain.whole().copy_from(0, &vec![0xff; len]).unwrap();
                    vram.read(0, &plain.whole()).unwrap();
                    assert!(plain.whole().to_vec().iter().all(|byte| *byte == number as u8));
                });
            }
        });
    });
}

#[test]
fn memory_that_is_lent_is_not_freed() {
    run(here!(), "", |standin| {
        let device = Cuda::load().unwrap().device(0).unwrap();
        let tensor = device.allocate(64).unwrap();
        // SAFETY: the tensor is the owner.
        let lent = unsafe { device.borrow(tensor.address() + 16, 32, tensor.clone()) };
        let plain = Memory::allocate(32).unwrap();
        plain.whole().copy_from(0, &[7; 32]).unwrap();
        lent.write(0, &plain.whole()).unwrap();
        assert!(lent.write(1, &plain.whole()).is_err());
        drop(lent);
        let all = [[0; 16], [7; 16], [7; 16], [0; 16]];
        assert_eq!(standin.peek(tensor.address(), 64), all.concat());
    });
}
