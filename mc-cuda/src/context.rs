//! The primary context of a GPU.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::driver::{Driver, Functions, Handle};
use crate::error::CudaError;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned memory that every context may copy from and to.
pub(crate) const PORTABLE: c_uint = 1;

/// The primary context of a GPU, which lives until the last one that uses it is dropped.
pub(crate) struct Context {
    pub(crate) driver: Arc<Driver>,
    pub(crate) ordinal: usize,
    device: c_int,
    raw: Handle,
}

impl Context {
    pub(crate) fn of(driver: Arc<Driver>, ordinal: usize) -> Result<Self, CudaError> {
        let device = driver.device(ordinal)?;
        let mut raw = Handle::NONE;
        // SAFETY: the device is one, and its context is written to where it is told.
        let code = unsafe { (driver.functions.retain)(&raw mut raw, device) };
        driver.check("cuDevicePrimaryCtxRetain", ordinal, code)?;
        Ok(Self { driver, ordinal, device, raw })
    }

    pub(crate) fn device(&self) -> c_int {
        self.device
    }

    /// The GPU's address on the bus.
    pub(crate) fn pci_bus_id(&self) -> Result<String, CudaError> {
        let driver = &self.driver;
        driver.check_fork()?;
        let mut text: [c_char; 32] = [0; 32];
        let len = text.len() as c_int;
        // SAFETY: writes a C string of at most so many bytes to where it is told.
        let code =
            unsafe { (driver.functions.device_pci_bus_id)(text.as_mut_ptr(), len, self.device) };
        driver.check("cuDeviceGetPCIBusId", self.ordinal, code)?;
        // SAFETY: the driver wrote a C string into bytes that were zero.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Makes one call with the context current, and that of before again after it.
    pub(crate) fn call(
        &self,
        name: &'static str,
        len: usize,
        call: impl FnOnce(&Functions) -> c_int,
    ) -> Result<(), CudaError> {
        let driver = &*self.driver;
        driver.check_fork()?;
        self.enter()?;
        let code = call(&driver.functions);
        let mut popped = Handle::NONE;
        // SAFETY: takes off what was pushed above, and writes it to where it is told.
        let _ = unsafe { (driver.functions.pop)(&raw mut popped) };
        driver.check(name, len, code)
    }

    /// Makes the context current, for a thread of this crate.
    pub(crate) fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained until `self` is dropped.
        let code = unsafe { (self.driver.functions.push)(self.raw) };
        self.driver.check("cuCtxPushCurrent", 0, code)
    }

    pub(crate) fn allocate(&self, len: usize) -> Result<u64, CudaError> {
        if len == 0 {
            return Err(CudaError::Empty);
        }
        let mut address = 0;
        self.call("cuMemAlloc", len, |functions| {
            // SAFETY: writes the address to where it is told.
            unsafe { (functions.allocate)(&raw mut address, len) }
        })?;
        Ok(address)
    }

    /// Frees an allocation of this context.
    pub(crate) fn free(&self, address: u64) {
        let freed = self.call("cuMemFree", 0, |functions| {
            // SAFETY: waits for what the GPU does with it; the caller's buffer is being dropped,
            // so nothing here uses it later.
            unsafe { (functions.free)(address) }
        });
        warn_unless_forked("a buffer in VRAM", freed);
    }

    pub(crate) fn pin(&self, len: usize) -> Result<NonNull<u8>, CudaError> {
        if len == 0 {
            return Err(CudaError::Empty);
        }
        let mut base = std::ptr::null_mut();
        self.call("cuMemHostAlloc", len, |functions| {
            // SAFETY: writes the address to where it is told.
            unsafe { (functions.pin)(&raw mut base, len, PORTABLE) }
        })?;
        NonNull::new(base.cast()).ok_or(CudaError::Empty)
    }

    pub(crate) fn unpin(&self, base: NonNull<u8>) {
        let freed = self.call("cuMemFreeHost", 0, |functions| {
            // SAFETY: comes from `pin`, and its owner is being dropped with the last handle.
            unsafe { (functions.unpin)(base.as_ptr().cast()) }
        });
        warn_unless_forked("pinned memory", freed);
    }

    /// # Safety
    /// `len` bytes from `base` must stay mapped until they are unregistered.
    pub(crate) unsafe fn register(&self, base: *mut c_void, len: usize) -> Result<(), CudaError> {
        self.call("cuMemHostRegister", len, |functions| {
            // SAFETY: the caller's promise.
            unsafe { (functions.register)(base, len, PORTABLE) }
        })
    }

    pub(crate) fn unregister(&self, base: *mut c_void) {
        let freed = self.call("cuMemHostUnregister", 0, |functions| {
            // SAFETY: what was not registered is refused.
            unsafe { (functions.unregister)(base) }
        });
        warn_unless_forked("the registration of memory", freed);
    }
}

/// Notes what is lost. After a fork it is the parent's.
fn warn_unless_forked(what: &str, freed: Result<(), CudaError>) {
    match freed {
        Ok(()) | Err(CudaError::Forked) => {}
        Err(error) => tracing::warn!("{what} is lost: {error}"),
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.driver.check_fork().is_ok() {
            // SAFETY: was retained by `of`, and everything made with it is gone.
            let _ = unsafe { (self.driver.functions.release)(self.device) };
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("ordinal", &self.ordinal).finish_non_exhaustive()
    }
}
