//! Physical memory that is mapped at reserved addresses.

use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::sync::Arc;

use crate::arguments::{AccessDescription, AllocationProperties, Ptr};
use crate::codes::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::driver::Locked;
use crate::state::{Allocation, Kind};
use crate::store::{AddressSpace, Store, hide, show, unmap};

const GRANULARITY: usize = 2 << 20;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX: c_int = 1;

fn device(
    locked: &mut Locked,
    properties: &AllocationProperties,
) -> Result<usize, crate::codes::Code> {
    if properties.kind != 1 || properties.location.kind != 1 {
        return Err(INVALID_VALUE);
    }
    locked.device(properties.location.id).map_err(|_| INVALID_DEVICE)?;
    Ok(properties.location.id as usize)
}

pub(crate) fn granularity(
    locked: &mut Locked,
    granularity: Ptr<usize>,
    properties: Ptr<AllocationProperties>,
    _: c_int,
) -> Answer {
    device(locked, &properties.read(0)?)?;
    granularity.write(GRANULARITY)
}

pub(crate) fn create(
    locked: &mut Locked,
    handle: Ptr<c_ulonglong>,
    len: usize,
    properties: Ptr<AllocationProperties>,
    flags: c_ulonglong,
) -> Answer {
    let device = device(locked, &properties.read(0)?)?;
    if len == 0 || !len.is_multiple_of(GRANULARITY) || flags != 0 {
        return Err(INVALID_VALUE);
    }
    if len > locked.settings.memory.saturating_sub(locked.used_memory(device)) {
        return Err(OUT_OF_MEMORY);
    }
    let store = Store::new(len).map_err(|_| OUT_OF_MEMORY)?;
    let key = locked.handle();
    handle.write(key)?;
    locked.physical.insert(key, (device, Arc::new(store)));
    Ok(())
}

pub(crate) fn release(locked: &mut Locked, handle: c_ulonglong) -> Answer {
    locked.physical.remove(&handle).map(|_| ()).ok_or(INVALID_VALUE)
}

pub(crate) fn reserve(
    locked: &mut Locked,
    address: Ptr<u64>,
    len: usize,
    _: usize,
    _: u64,
    flags: c_ulonglong,
) -> Answer {
    if len == 0 || !len.is_multiple_of(GRANULARITY) || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let space = AddressSpace::reserve(len).map_err(|_| OUT_OF_MEMORY)?;
    address.write(space.base)?;
    locked.reservations.insert(space.base, len);
    Ok(())
}

pub(crate) fn free_addresses(locked: &mut Locked, address: u64, len: usize) -> Answer {
    if locked.reservations.get(&address) != Some(&len) {
        return Err(INVALID_VALUE);
    }
    if locked.allocations.range(address..address + len as u64).next().is_some() {
        locked.violate("addresses were freed that memory is mapped at");
        return Err(INVALID_VALUE);
    }
    locked.reservations.remove(&address);
    unmap(address, len);
    Ok(())
}

pub(crate) fn map(
    locked: &mut Locked,
    address: u64,
    len: usize,
    offset: usize,
    handle: c_ulonglong,
    flags: c_ulonglong,
) -> Answer {
    let end = address.checked_add(len as u64).ok_or(INVALID_VALUE)?;
    let (base, reserved) =
        locked.reservations.range(..=address).next_back().ok_or(INVALID_VALUE)?;
    let is_reserved = end <= base + *reserved as u64;
    let is_taken = locked.allocations.range(address..end).next().is_some()
        || locked.allocation_at(address).is_some();
    let (device, store) = locked.physical.get(&handle).ok_or(INVALID_VALUE)?;
    if !is_reserved || is_taken || offset != 0 || flags != 0 || len != store.len() {
        return Err(INVALID_VALUE);
    }
    let (device, store) = (*device, Arc::clone(store));
    show(address, &store, false).map_err(|_| OUT_OF_MEMORY)?;
    let id = locked.id();
    locked.used.insert(id, 0);
    let kind = Kind::Mapped;
    let allocation = Allocation { id, device, len, kind, store, offset, is_accessible: false };
    locked.allocations.insert(address, allocation);
    Ok(())
}

pub(crate) fn unmap_range(locked: &mut Locked, address: u64, len: usize) -> Answer {
    let is_it = |allocation: &Allocation| allocation.kind == Kind::Mapped && allocation.len == len;
    if !locked.allocations.get(&address).is_some_and(is_it) {
        return Err(INVALID_VALUE);
    }
    if let Some(allocation) = locked.allocations.remove(&address) {
        locked.forget(allocation.id, "mapped memory");
        hide(address, len);
    }
    Ok(())
}

pub(crate) fn set_access(
    locked: &mut Locked,
    address: u64,
    len: usize,
    descriptions: Ptr<AccessDescription>,
    count: usize,
) -> Answer {
    let end = address.checked_add(len as u64).ok_or(INVALID_VALUE)?;
    let is_open = (0..count)
        .try_fold(false, |is_open, at| Ok(is_open || descriptions.read(at)?.flags == 3))?;
    let mut found = false;
    for (_, allocation) in locked.allocations.range_mut(address..end) {
        allocation.is_accessible = is_open;
        found = true;
    }
    if found { Ok(()) } else { Err(INVALID_VALUE) }
}

pub(crate) fn export(
    locked: &mut Locked,
    descriptor: Ptr<c_void>,
    handle: c_ulonglong,
    kind: c_int,
    flags: c_ulonglong,
) -> Answer {
    if kind != POSIX || flags != 0 {
        return Err(NOT_SUPPORTED);
    }
    let (_, store) = locked.physical.get(&handle).ok_or(INVALID_VALUE)?;
    let file = store.file().try_clone().map_err(|_| OUT_OF_MEMORY)?;
    descriptor.cast::<c_int>().write(file.into_raw_fd())
}

pub(crate) fn import(
    locked: &mut Locked,
    handle: Ptr<c_ulonglong>,
    descriptor: Ptr<c_void>,
    kind: c_int,
) -> Answer {
    let device = locked.current().unwrap_or(0);
    if kind != POSIX {
        return Err(NOT_SUPPORTED);
    }
    // The descriptor itself stands where the pointer would.
    let fd = c_int::try_from(descriptor.address()).map_err(|_| INVALID_VALUE)?;
    // SAFETY: any number may be asked for, and the caller keeps its descriptor.
    let copy = unsafe { libc::dup(fd) };
    if copy < 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: it is new, and nothing else has it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(copy) });
    let len = file.metadata().map_err(|_| INVALID_VALUE)?.len() as usize;
    let store = Store::of(file.into(), len).map_err(|_| INVALID_VALUE)?;
    let key = locked.handle();
    handle.write(key)?;
    match locked.physical.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert((device, Arc::new(store)));
            Ok(())
        }
        Entry::Occupied(_) => Err(INVALID_VALUE),
    }
}
