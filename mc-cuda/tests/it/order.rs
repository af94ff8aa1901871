//! Order between copies and the engine's work.

use mc_cuda::{Cuda, EngineEvent, EngineStream, Order, Pending};

use crate::standin::{here, run};

const LEN: usize = 8192;
/// Longer than any test.
const HOUR: u64 = 3_600_000_000;

#[test]
fn a_read_sees_what_the_engine_was_to_write_before_it() {
    run(here!(), "forbid_legacy=1", |standin| {
        let engine = standin.engine(0);
        // SAFETY: the stream lives as long as the engine.
        let stream = unsafe { EngineStream::new(engine.stream) };
        let device = Cuda::load().unwrap().device(0).unwrap();
        let (vram, copier) = (device.allocate(LEN).unwrap(), device.copier().unwrap());
        // Two pieces: a batch.
        let pieces = vram.pieces([0..100, 200..LEN]).unwrap();
        let slot = copier.wait_slot().unwrap().slice(0, pieces.len()).unwrap();
        for (byte, order, seen) in [(1, Order::Now, 0), (2, Order::After(stream), 2)] {
            // The kernel does not end before it is told to.
            standin.inject("resume=0,hang=mc_standin_fill:1");
            standin.fill_after(engine.stream, vram.address(), LEN, byte, 0);
            let copy = copier.read(&pieces, &slot, order);
            copy.wait_queued().unwrap();
            let copy = if order == Order::Now {
                copy.wait().unwrap();
                None
            } else {
                Some(copy)
            };
            standin.inject("resume=1");
            copy.map_or(Ok(()), Pending::wait).unwrap();
            assert_eq!(slot.to_vec(), vec![seen; slot.len()], "{order:?}");
            standin.stream_synchronize(engine.stream);
        }
        // The event of an engine, as it was recorded.
        let mut event = 0;
        assert_eq!(standin.event_create(&raw mut event, 2), 0);
        standin.fill_after(engine.stream, vram.address(), LEN, 3, 1000);
        assert_eq!(standin.event_record(event, engine.stream), 0);
        // Work after the event is not waited for.
        standin.spin_for(engine.stream, HOUR);
        // SAFETY: the event is destroyed after the copy.
        let order = Order::AfterEvent(unsafe { EngineEvent::new(event) });
        copier.read(&pieces, &slot, order).wait().unwrap();
        assert_eq!(slot.to_vec(), vec![3; slot.len()]);
        assert_eq!(standin.event_destroy(event), 0);
        drop((slot, pieces, vram));
    });
}

#[test]
fn work_that_follows_a_read_is_not_waited_for() {
    run(here!(), "", |standin| {
        let engine = standin.engine(0);
        // SAFETY: the stream lives as long as the engine.
        let order = Order::After(unsafe { EngineStream::new(engine.stream) });
        let device = Cuda::load().unwrap().device(0).unwrap();
        let (vram, copier) = (device.allocate(LEN).unwrap(), device.copier().unwrap());
        let slot = copier.wait_slot().unwrap().slice(0, LEN).unwrap();
        let pieces = vram.piece(0..LEN).unwrap();
        standin.fill_after(engine.stream, vram.address(), LEN, 5, 1000);
        let copy = copier.read(&pieces, &slot, order);
        standin.spin_for(engine.stream, HOUR);
        copy.wait().unwrap();
        assert_eq!(slot.to_vec(), vec![5; LEN]);
    });
}

#[test]
fn a_write_waits_for_the_engine_and_the_engine_for_the_write() {
    run(here!(), "forbid_legacy=1", |standin| {
        let engine = standin.engine(0);
        // SAFETY: the stream lives as long as the engine.
        let stream = unsafe { EngineStream::new(engine.stream) };
        let device = Cuda::load().unwrap().device(0).unwrap();
        let vram = device.allocate(2 * LEN).unwrap();
        let copier = device.copier().unwrap();
        let slot = copier.wait_slot().unwrap().slice(0, LEN).unwrap();
        slot.copy_from(0, &[8; LEN]).unwrap();
        let pieces = vram.piece(0..LEN).unwrap();
        let other = vram.address() + LEN as u64;
        for (signals, seen) in [(None, 1), (Some(stream), 8)] {
            standin.inject("resume=0,hang=cuMemcpyHtoDAsync_v2:1");
            // A kernel that still uses the old bytes, then the write, then one that reads the new.
            standin.fill_after(engine.stream, vram.address(), LEN, 1, 1000);
            let copy = copier.write(&slot, &pieces, Order::After(stream), signals);
            copy.wait_queued().unwrap();
            assert_eq!(standin.copy_inside(other, vram.address(), LEN, engine.stream), 0);
            if signals.is_none() {
                assert_eq!(standin.stream_synchronize(engine.stream), 0);
            }
            assert!(!copy.is_over());
            standin.inject("resume=1");
            assert_eq!(standin.stream_synchronize(engine.stream), 0);
            assert_eq!(standin.peek(other, LEN), vec![seen; LEN], "{signals:?}");
            copy.wait().unwrap();
            assert_eq!(standin.peek(vram.address(), LEN), vec![8; LEN]);
        }
    });
}

#[test]
fn the_legacy_stream_of_an_engine_does_not_hold_up_copies() {
    run(here!(), "", |standin| {
        let engine = standin.engine(0);
        let device = Cuda::load().unwrap().device(0).unwrap();
        let (vram, copier) = (device.allocate(LEN).unwrap(), device.copier().unwrap());
        standin.spin_for(0, HOUR);
        let slot = copier.wait_slot().unwrap().slice(0, LEN).unwrap();
        vram.read(0, &slot).unwrap();
        vram.write(0, &slot).unwrap();
        drop((slot, vram));
        drop(engine);
    });
}
