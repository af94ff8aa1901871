//! The allocation that an address belongs to.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::driver::Driver;
use crate::error::CudaError;

/// The kind of memory behind a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PointerKind {
    /// Memory of a GPU, which the processor cannot touch.
    Device,
    /// Memory that moves between the GPU and the host when it is touched.
    Managed,
    /// Pinned memory of the host that the driver allocated.
    HostAllocated,
    /// Memory of the host that was pinned later.
    HostRegistered,
}

/// The allocation that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pointed {
    /// The kind of memory.
    pub kind: PointerKind,
    /// The ordinal of the GPU that it belongs to, or whose context pinned it.
    pub device: usize,
    /// The first address of the allocation.
    pub base: u64,
    /// Bytes of the allocation.
    pub len: usize,
    /// A number that no other allocation of this process has, nor will have: it tells memory that was freed from memory that
    /// has its address now.
    pub buffer_id: u64,
}

/// `CU_POINTER_ATTRIBUTE_*`.
const MEMORY_TYPE: c_int = 2;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;

/// `CU_MEMORYTYPE_*`.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

/// Finds what `len` bytes from `address` belong to; `None` for memory that the driver does not know.
pub(crate) fn find(
    driver: &Driver,
    address: u64,
    len: usize,
) -> Result<Option<Pointed>, CudaError> {
    driver.check_fork()?;
    let (mut memory_type, mut is_managed, mut ordinal): (c_uint, c_uint, c_int) = (0, 0, 0);
    let (mut buffer_id, mut base, mut size): (u64, u64, usize) = (0, 0, 0);
    let mut wanted = [MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, BUFFER_ID, RANGE_START, RANGE_SIZE];
    let mut room: [*mut c_void; 6] = [
        (&raw mut memory_type).cast(),
        (&raw mut is_managed).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut buffer_id).cast(),
        (&raw mut base).cast(),
        (&raw mut size).cast(),
    ];
    // SAFETY: each attribute has room of its size, and any address may be asked for.
    let code = unsafe {
        (driver.functions.pointer_attributes)(
            wanted.len() as c_uint,
            wanted.as_mut_ptr(),
            room.as_mut_ptr(),
            address,
        )
    };
    driver.check("cuPointerGetAttributes", len, code)?;
    let kind = match memory_type {
        _ if is_managed != 0 => PointerKind::Managed,
        DEVICE => PointerKind::Device,
        HOST if is_host_allocated(driver, address) => PointerKind::HostAllocated,
        HOST => PointerKind::HostRegistered,
        _ => return Ok(None),
    };
    let at = usize::try_from(address.wrapping_sub(base)).unwrap_or(usize::MAX);
    if at.checked_add(len).is_none_or(|end| end > size) {
        return Err(CudaError::OutOfRange { at, len, room: size });
    }
    let device = usize::try_from(ordinal).unwrap_or(0);
    Ok(Some(Pointed { kind, device, base, len: size, buffer_id }))
}

/// Returns whether the driver allocated pinned memory, rather than pinned what was there.
fn is_host_allocated(driver: &Driver, address: u64) -> bool {
    let mut flags = 0;
    let base = ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: writes the flags to where it is told, and refuses other memory.
    let code = unsafe { (driver.functions.host_flags)(&raw mut flags, base) };
    code == 0
}
