//! Pinned memory of the host.

use std::ffi::{c_uint, c_void};

use crate::arguments::Ptr;
use crate::codes::{
    Answer, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE,
    OUT_OF_MEMORY,
};
use crate::driver::Locked;
use crate::state::HostRange;
use crate::store::Store;

pub(crate) fn allocate(
    locked: &mut Locked,
    base: Ptr<*mut c_void>,
    len: usize,
    flags: c_uint,
) -> Answer {
    let device = locked.usable()?;
    if len == 0 || flags & !7 != 0 {
        return Err(INVALID_VALUE);
    }
    // More than this is refused as if the system could not pin it.
    if len > 1 << 40 {
        return Err(OUT_OF_MEMORY);
    }
    let store = Store::new(len).map_err(|_| OUT_OF_MEMORY)?;
    let address = store.at(0);
    base.write(address.cast())?;
    let (id, allocated) = (locked.id(), Some(flags));
    locked.used.insert(id, 0);
    let range = HostRange { id, len, device, allocated, store: Some(store) };
    locked.hosts.insert(address.expose_provenance() as u64, range);
    Ok(())
}

pub(crate) fn free(locked: &mut Locked, base: Ptr<c_void>) -> Answer {
    let device = locked.current()?;
    remove(locked, base.address(), true).ok_or(INVALID_VALUE)?;
    locked.check_lost(device)
}

/// Removes a range that begins at `base`.
fn remove(locked: &mut Locked, base: u64, was_allocated: bool) -> Option<()> {
    let is_it = locked.hosts.get(&base)?.allocated.is_some() == was_allocated;
    if !is_it {
        return None;
    }
    let mut range = locked.hosts.remove(&base)?;
    let is_hung = locked.used.get(&range.id).is_some_and(|pending| *pending > 0);
    locked.forget(range.id, "pinned memory");
    if is_hung {
        // What is executed later finds that the range is gone, and a reader of it finds pages.
        std::mem::forget(range.store.take());
    }
    Some(())
}

pub(crate) fn register(
    locked: &mut Locked,
    base: Ptr<c_void>,
    len: usize,
    flags: c_uint,
) -> Answer {
    let device = locked.usable()?;
    let base = base.address();
    let end = base.checked_add(len as u64).ok_or(INVALID_VALUE)?;
    if len == 0 || base == 0 || flags & !15 != 0 {
        return Err(INVALID_VALUE);
    }
    let overlaps = locked.hosts.range(..end).next_back();
    if overlaps.is_some_and(|(start, range)| start + range.len as u64 > base) {
        return Err(HOST_MEMORY_ALREADY_REGISTERED);
    }
    let id = locked.id();
    locked.used.insert(id, 0);
    locked.hosts.insert(base, HostRange { id, len, device, allocated: None, store: None });
    Ok(())
}

pub(crate) fn unregister(locked: &mut Locked, base: Ptr<c_void>) -> Answer {
    let device = locked.current()?;
    remove(locked, base.address(), false).ok_or(HOST_MEMORY_NOT_REGISTERED)?;
    locked.check_lost(device)
}

pub(crate) fn device_pointer(
    locked: &mut Locked,
    pointer: Ptr<u64>,
    base: Ptr<c_void>,
    flags: c_uint,
) -> Answer {
    locked.usable()?;
    if flags != 0 || locked.host_at(base.address()).is_none() {
        return Err(INVALID_VALUE);
    }
    pointer.write(base.address())
}

pub(crate) fn flags(locked: &mut Locked, flags: Ptr<c_uint>, base: Ptr<c_void>) -> Answer {
    let found = locked.host_at(base.address()).and_then(|(_, range)| range.allocated);
    flags.write(found.ok_or(INVALID_VALUE)?)
}
