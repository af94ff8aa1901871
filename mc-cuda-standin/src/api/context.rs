//! Primary contexts, and those that a thread has pushed.

use std::ffi::{c_int, c_uint, c_void};

use crate::arguments::Ptr;
use crate::codes::{Answer, INVALID_CONTEXT};
use crate::driver::{Locked, contexts};

fn handle(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(number as usize)
}

pub(crate) fn retain(locked: &mut Locked, context: Ptr<*mut c_void>, device: c_int) -> Answer {
    let device = locked.device(device)?;
    context.write(handle(device.context))?;
    device.retained += 1;
    Ok(())
}

pub(crate) fn release(locked: &mut Locked, device: c_int) -> Answer {
    let found = locked.device(device)?;
    found.retained = found.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
    if found.retained > 0 {
        return Ok(());
    }
    let ordinal = device as usize;
    let left = locked.allocations.values().filter(|allocation| allocation.device == ordinal);
    let left = left.count();
    if left > 0 {
        locked.violate(format!("the context of GPU {device} was released with {left} allocations"));
    }
    Ok(())
}

pub(crate) fn state(
    locked: &mut Locked,
    device: c_int,
    flags: Ptr<c_uint>,
    active: Ptr<c_int>,
) -> Answer {
    let is_active = locked.device(device)?.retained > 0;
    flags.write(0)?;
    active.write(is_active.into())
}

pub(crate) fn push(locked: &mut Locked, context: Ptr<c_void>) -> Answer {
    locked.device_of(context.address())?;
    contexts(|contexts| contexts.push(context.address()));
    Ok(())
}

pub(crate) fn pop(_: &mut Locked, context: Ptr<*mut c_void>) -> Answer {
    let popped = contexts(Vec::pop).ok_or(INVALID_CONTEXT)?;
    context.write_if_wanted(handle(popped));
    Ok(())
}

pub(crate) fn current(_: &mut Locked, context: Ptr<*mut c_void>) -> Answer {
    context.write(handle(contexts(|contexts| contexts.last().copied().unwrap_or(0))))
}

pub(crate) fn set_current(locked: &mut Locked, context: Ptr<c_void>) -> Answer {
    let context = context.address();
    if context != 0 {
        locked.device_of(context)?;
    }
    contexts(|contexts| {
        contexts.pop();
        if context != 0 {
            contexts.push(context);
        }
    });
    Ok(())
}

pub(crate) fn device(locked: &mut Locked, device: Ptr<c_int>) -> Answer {
    device.write(locked.current()? as c_int)
}

pub(crate) fn synchronize(locked: &mut Locked) -> Answer {
    let device = locked.usable()?;
    if locked.settings.forbid_legacy {
        locked.violate("cuCtxSynchronize waits for the whole device");
    }
    let streams = locked.streams.iter().filter(|(_, stream)| stream.device == device);
    let wanted: Vec<_> = streams.map(|(key, stream)| (*key, stream.issued)).collect();
    for (key, number) in wanted {
        locked.wait_stream(device, key, number)?;
    }
    Ok(())
}

pub(crate) fn priorities(locked: &mut Locked, least: Ptr<c_int>, greatest: Ptr<c_int>) -> Answer {
    locked.usable()?;
    least.write_if_wanted(0);
    greatest.write_if_wanted(-5);
    Ok(())
}
