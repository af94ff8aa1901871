//! Memory of a GPU.

use std::collections::HashSet;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use crate::arguments::Ptr;
use crate::codes::{Answer, Code, INVALID_VALUE, NOT_FOUND, OUT_OF_MEMORY};
use crate::driver::Locked;
use crate::state::Kind;
use crate::store::{Store, pages};
use crate::stream::{Action, End};

fn take(locked: &mut Locked, address: Ptr<u64>, len: usize, kind: Kind) -> Answer {
    let device = locked.usable()?;
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    let room = locked.settings.memory.saturating_sub(locked.used_memory(device));
    if len > room || pages(len) > room {
        return Err(OUT_OF_MEMORY);
    }
    let store = Store::new(len).map_err(|_| OUT_OF_MEMORY)?;
    address.write(locked.add(device, kind, Arc::new(store))?)
}

pub(crate) fn allocate(locked: &mut Locked, address: Ptr<u64>, len: usize) -> Answer {
    take(locked, address, len, Kind::Device)
}

pub(crate) fn allocate_managed(
    locked: &mut Locked,
    address: Ptr<u64>,
    len: usize,
    flags: c_uint,
) -> Answer {
    if !matches!(flags, 1 | 2) {
        return Err(INVALID_VALUE);
    }
    take(locked, address, len, Kind::Managed)
}

pub(crate) fn free(locked: &mut Locked, address: u64) -> Answer {
    let device = locked.current()?;
    let kind = locked.allocations.get(&address).map(|allocation| allocation.kind);
    if !matches!(kind, Some(Kind::Device | Kind::Managed)) {
        locked.violate(format!("cuMemFree of {address:#x}, which is no allocation"));
        return Err(INVALID_VALUE);
    }
    if let Some(allocation) = locked.allocations.remove(&address) {
        locked.forget(allocation.id, "memory of a GPU");
        locked.devices[allocation.device].space.hide(address, allocation.len);
    }
    locked.check_lost(device)
}

pub(crate) fn room(locked: &mut Locked, free: Ptr<usize>, total: Ptr<usize>) -> Answer {
    let device = locked.usable()?;
    let memory = locked.settings.memory;
    free.write(memory.saturating_sub(locked.used_memory(device)))?;
    total.write(memory)
}

pub(crate) fn range(locked: &mut Locked, base: Ptr<u64>, len: Ptr<usize>, address: u64) -> Answer {
    locked.current()?;
    let (start, allocation) = locked.allocation_at(address).ok_or(NOT_FOUND)?;
    base.write_if_wanted(start);
    len.write_if_wanted(allocation.len);
    Ok(())
}

fn set(locked: &mut Locked, address: u64, byte: u8, len: usize, stream: u64) -> Answer {
    let (_, key) = locked.named_stream(stream)?;
    if len == 0 {
        return Ok(());
    }
    let call = locked.call;
    let Some((to, id)) = locked.resolve(call, address, len)? else { return Err(INVALID_VALUE) };
    let action = Action::Fill { to, byte, len };
    let delay = locked.settings.delay;
    locked.enqueue(key, action, delay, HashSet::from([id]));
    locked.changed();
    Ok(())
}

pub(crate) fn set_bytes(locked: &mut Locked, address: u64, byte: u8, len: usize) -> Answer {
    set(locked, address, byte, len, 0)
}

pub(crate) fn set_bytes_async(
    locked: &mut Locked,
    address: u64,
    byte: u8,
    len: usize,
    stream: Ptr<c_void>,
) -> Answer {
    set(locked, address, byte, len, stream.address())
}

/// Bytes of one allocation, past all streams.
pub(super) fn bytes(locked: &mut Locked, address: u64, len: usize) -> Result<End, Code> {
    let (base, allocation) = locked.allocation_at(address).ok_or(INVALID_VALUE)?;
    let at = (address - base) as usize;
    if len > allocation.len - at {
        return Err(INVALID_VALUE);
    }
    let store = Arc::clone(&allocation.store);
    Ok(End::Store { store, offset: allocation.offset + at })
}

/// A kernel that fills bytes after a while.
pub(crate) fn fill_later(
    locked: &mut Locked,
    stream: Ptr<c_void>,
    address: u64,
    len: usize,
    byte: u8,
    micros: u64,
) -> Answer {
    let (_, key) = locked.named_stream(stream.address())?;
    let Some((to, id)) = locked.resolve("mc_standin_fill", address, len)? else {
        return Err(INVALID_VALUE);
    };
    let latency = Duration::from_micros(micros);
    locked.enqueue(key, Action::Fill { to, byte, len }, latency, HashSet::from([id]));
    locked.changed();
    Ok(())
}

/// A kernel that does nothing for a while.
pub(crate) fn spin(locked: &mut Locked, stream: Ptr<c_void>, micros: u64) -> Answer {
    let (_, key) = locked.named_stream(stream.address())?;
    locked.enqueue(key, Action::Spin, Duration::from_micros(micros), HashSet::new());
    locked.changed();
    Ok(())
}
