//! The attributes of a pointer.

use std::ffi::{c_int, c_uint, c_void};

use crate::arguments::Ptr;
use crate::codes::{Answer, Code, INVALID_VALUE};
use crate::driver::Locked;
use crate::state::Kind;

/// `CU_POINTER_ATTRIBUTE_*`.
mod attribute {
    pub(super) const CONTEXT: i32 = 1;
    pub(super) const MEMORY_TYPE: i32 = 2;
    pub(super) const DEVICE_POINTER: i32 = 3;
    pub(super) const HOST_POINTER: i32 = 4;
    pub(super) const BUFFER_ID: i32 = 7;
    pub(super) const IS_MANAGED: i32 = 8;
    pub(super) const DEVICE_ORDINAL: i32 = 9;
    pub(super) const IS_LEGACY_IPC_CAPABLE: i32 = 10;
    pub(super) const RANGE_START: i32 = 11;
    pub(super) const RANGE_SIZE: i32 = 12;
    pub(super) const MAPPED: i32 = 13;
    pub(super) const ACCESS_FLAGS: i32 = 16;
}

/// `CU_MEMORYTYPE_*`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

struct Found {
    context: u64,
    memory_type: c_uint,
    host: u64,
    id: u64,
    is_managed: bool,
    device: c_int,
    is_ipc_capable: bool,
    base: u64,
    len: usize,
}

fn find(locked: &Locked, address: u64) -> Option<Found> {
    if let Some((base, allocation)) = locked.allocation_at(address) {
        let is_managed = allocation.kind == Kind::Managed;
        return Some(Found {
            context: locked.devices[allocation.device].context,
            memory_type: DEVICE,
            host: if is_managed { address } else { 0 },
            id: allocation.id,
            is_managed,
            device: allocation.device as c_int,
            is_ipc_capable: allocation.kind == Kind::Device,
            base,
            len: allocation.len,
        });
    }
    locked.host_at(address).map(|(base, range)| Found {
        context: locked.devices[range.device].context,
        memory_type: HOST,
        host: address,
        id: range.id,
        is_managed: false,
        device: range.device as c_int,
        is_ipc_capable: false,
        base,
        len: range.len,
    })
}

/// Writes an attribute; of memory that is unknown, its empty value.
fn write(data: Ptr<c_void>, attribute: c_int, address: u64, found: Option<&Found>) -> Answer {
    let number = |value: u64| data.cast::<u64>().write(value);
    let word = |value: c_uint| data.cast::<c_uint>().write(value);
    let flag = |value: bool| data.cast::<u8>().write(value.into());
    let of = |value: fn(&Found) -> u64| found.map_or(0, value);
    match attribute {
        attribute::CONTEXT => number(of(|found| found.context)),
        attribute::MEMORY_TYPE => word(found.map_or(0, |found| found.memory_type)),
        attribute::DEVICE_POINTER => number(if found.is_some() { address } else { 0 }),
        attribute::HOST_POINTER => number(of(|found| found.host)),
        attribute::BUFFER_ID => number(of(|found| found.id)),
        attribute::IS_MANAGED => word(found.is_some_and(|found| found.is_managed).into()),
        attribute::DEVICE_ORDINAL => {
            data.cast::<c_int>().write(found.map_or(-2, |found| found.device))
        }
        attribute::IS_LEGACY_IPC_CAPABLE => flag(found.is_some_and(|found| found.is_ipc_capable)),
        attribute::RANGE_START => number(of(|found| found.base)),
        attribute::RANGE_SIZE => data.cast::<usize>().write(found.map_or(0, |found| found.len)),
        attribute::MAPPED => flag(found.is_some()),
        attribute::ACCESS_FLAGS => word(if found.is_some() { 3 } else { 0 }),
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) fn attribute(
    locked: &mut Locked,
    data: Ptr<c_void>,
    attribute: c_int,
    address: u64,
) -> Answer {
    let found = find(locked, address).ok_or(INVALID_VALUE)?;
    write(data, attribute, address, Some(&found))
}

pub(crate) fn attributes(
    locked: &mut Locked,
    count: c_uint,
    attributes: Ptr<c_int>,
    data: Ptr<*mut c_void>,
    address: u64,
) -> Answer {
    let found = find(locked, address);
    for at in 0..count as usize {
        let to: Result<_, Code> = data.read(at);
        // SAFETY: the caller of the C function gave room for each attribute.
        let to = unsafe { <Ptr<c_void> as crate::arguments::Argument<_>>::of(to?) };
        write(to, attributes.read(at)?, address, found.as_ref())?;
    }
    Ok(())
}
