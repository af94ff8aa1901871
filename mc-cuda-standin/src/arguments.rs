//! The arguments of C functions.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::codes::{Code, INVALID_VALUE};

/// A pointer that the caller of the C function gave, to values of this type or to none.
pub(crate) struct Ptr<T>(*mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Ptr<T> {
    /// The pointer as a number.
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// Writes the value there.
    pub(crate) fn write(self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the C function gave a pointer to a value of this type.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value there, unless the caller does not want it.
    pub(crate) fn write_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `write`.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// The element of this number.
    pub(crate) fn read(self, at: usize) -> Result<T, Code>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        let element = self.0.wrapping_add(at);
        // SAFETY: the caller of the C function gave so many elements.
        Ok(unsafe { element.read_unaligned() })
    }

    /// The pointer to nothing.
    pub(crate) const fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// The pointer to the element of this number.
    pub(crate) fn element(self, at: usize) -> Self {
        Self(self.0.wrapping_add(at))
    }

    /// The same pointer to another type.
    pub(crate) fn cast<U>(self) -> Ptr<U> {
        Ptr(self.0.cast())
    }
}

/// A conversion from the type in the C declaration.
pub(crate) trait Argument<C> {
    /// # Safety
    /// A pointer is null or leads to what the driver's documentation says.
    unsafe fn of(value: C) -> Self;
}

impl<T> Argument<*mut T> for Ptr<T> {
    unsafe fn of(value: *mut T) -> Self {
        Self(value)
    }
}

impl<T> Argument<*const T> for Ptr<T> {
    unsafe fn of(value: *const T) -> Self {
        Self(value.cast_mut())
    }
}

macro_rules! as_they_are {
    ($($type:ty),*) => {
        $(impl Argument<$type> for $type {
            unsafe fn of(value: $type) -> Self {
                value
            }
        })*
    };
}

as_they_are!(c_int, c_uint, u8, usize, c_ulonglong, IpcHandle, Option<HostFunction>);

/// `CUhostFn`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// `CUipcMemHandle` and `CUipcEventHandle`, which are passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IpcHandle {
    pub(crate) reserved: [c_char; 64],
}

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemcpyAttributes`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CopyAttributes {
    pub(crate) source_order: c_int,
    pub(crate) source: Location,
    pub(crate) target: Location,
    pub(crate) flags: c_uint,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Copy2d {
    pub(crate) source_x: usize,
    pub(crate) source_y: usize,
    pub(crate) source_kind: c_uint,
    pub(crate) source_host: *const c_void,
    pub(crate) source_device: u64,
    pub(crate) source_array: *mut c_void,
    pub(crate) source_pitch: usize,
    pub(crate) target_x: usize,
    pub(crate) target_y: usize,
    pub(crate) target_kind: c_uint,
    pub(crate) target_host: *mut c_void,
    pub(crate) target_device: u64,
    pub(crate) target_array: *mut c_void,
    pub(crate) target_pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AllocationProperties {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) security: *mut c_void,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: c_int,
}
