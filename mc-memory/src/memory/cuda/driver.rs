//! The functions of `libcuda.so.1` that are used, and safe calls of them.
//!
//! Their types are those of `cuda.h`: `CUresult` is an `int`, `CUdevice` an `int`, `CUdeviceptr`
//! a 64-bit number, `CUcontext` a pointer.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::error::{CudaCode, CudaError};

/// Pinned memory that every context may copy from and to.
const PORTABLE: c_uint = 1;

/// A context of the driver's.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct RawContext(pub(super) *mut c_void);

// SAFETY: contexts are the driver's handles, which any thread may push and pop.
unsafe impl Send for RawContext {}
// SAFETY: as above; a shared one is only copied.
unsafe impl Sync for RawContext {}

/// Declares the table of the driver's functions, and how it is filled.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// The driver's functions.
        pub(super) struct Driver {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            /// Looks all of them up in the library behind `handle`.
            #[cfg(target_os = "linux")]
            fn find(handle: NonNull<c_void>) -> Result<Self, CudaError> {
                Ok(Self { $($field: {
                    let symbol = const {
                        match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                            Ok(symbol) => symbol,
                            Err(_) => panic!("a name without zeros"),
                        }
                    };
                    // SAFETY: the handle is that of an open library, and the name is a C string.
                    let found = unsafe { libc::dlsym(handle.as_ptr(), symbol.as_ptr()) };
                    if found.is_null() {
                        return Err(CudaError::OldDriver { function: $symbol });
                    }
                    // SAFETY: the driver's function of this name has this type, which cuda.h
                    // declares and never changes: a new type gets a new name, such as `_v2`.
                    unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) -> c_int,
                        >(found)
                    }
                },)* })
            }
        }
    };
}

functions! {
    init = "cuInit": fn(c_uint);
    error_name = "cuGetErrorName": fn(c_int, *mut *const c_char);
    device_count = "cuDeviceGetCount": fn(*mut c_int);
    device = "cuDeviceGet": fn(*mut c_int, c_int);
    retain = "cuDevicePrimaryCtxRetain": fn(*mut RawContext, c_int);
    release = "cuDevicePrimaryCtxRelease_v2": fn(c_int);
    push = "cuCtxPushCurrent_v2": fn(RawContext);
    pop = "cuCtxPopCurrent_v2": fn(*mut RawContext);
    allocate = "cuMemAlloc_v2": fn(*mut u64, usize);
    free = "cuMemFree_v2": fn(u64);
    fill = "cuMemsetD8_v2": fn(u64, u8, usize);
    pin = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    unpin = "cuMemFreeHost": fn(*mut c_void);
    to_device = "cuMemcpyHtoD_v2": fn(u64, *const c_void, usize);
    to_host = "cuMemcpyDtoH_v2": fn(*mut c_void, u64, usize);
    synchronize = "cuCtxSynchronize": fn();
    synchronize_stream = "cuStreamSynchronize": fn(*mut c_void);
    pointer_attribute = "cuPointerGetAttribute": fn(*mut c_void, c_int, u64);
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
pub(super) const MEMORY_TYPE: c_int = 2;

/// `CU_MEMORYTYPE_HOST`.
pub(super) const MEMORY_TYPE_HOST: c_uint = 1;

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl Driver {
    #[cfg(target_os = "linux")]
    pub(super) fn load() -> Result<Self, CudaError> {
        // SAFETY: the name is a C string. Loading runs the initialisers of the system's driver,
        // which every program with CUDA runs. The library stays loaded: its functions are valid
        // for as long as the process lives.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        let Some(handle) = NonNull::new(handle) else {
            return Err(CudaError::NoDriver { reason: loader_error() });
        };
        let driver = Self::find(handle)?;
        driver.start()?;
        Ok(driver)
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn load() -> Result<Self, CudaError> {
        Err(CudaError::NoDriver { reason: "it is looked for on Linux only".into() })
    }

    fn start(&self) -> Result<(), CudaError> {
        // SAFETY: may be called at any time, and again.
        let code = unsafe { (self.init)(0) };
        self.check("cuInit", 0, code)
    }

    pub(super) fn devices(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: writes the number to where it is told.
        let code = unsafe { (self.device_count)(&raw mut count) };
        self.check("cuDeviceGetCount", 0, code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn check(&self, call: &'static str, len: usize, number: c_int) -> Result<(), CudaError> {
        if number == 0 {
            return Ok(());
        }
        Err(CudaError::Failed { call, len, code: CudaCode { number, name: self.name(number) } })
    }

    fn name(&self, number: c_int) -> String {
        let mut name = ptr::null();
        // SAFETY: writes the address of a C string, or null, to where it is told.
        let code = unsafe { (self.error_name)(number, &raw mut name) };
        if code != 0 || name.is_null() {
            return String::new();
        }
        // SAFETY: it is not null, and then a C string that lives as long as the library.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

/// Returns the loader's text about its last failure in this thread.
#[cfg(target_os = "linux")]
fn loader_error() -> String {
    // SAFETY: gives null or a C string that is valid until this thread calls the loader again.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it is not null, and copied before the loader is called again.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// The primary context of a GPU, which lives until the last one that uses it is dropped.
pub(super) struct Context {
    driver: Arc<Driver>,
    device: c_int,
    raw: RawContext,
}

impl Context {
    pub(super) fn of(driver: Arc<Driver>, number: usize) -> Result<Self, CudaError> {
        let mut device = 0;
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: writes the device to where it is told.
        let code = unsafe { (driver.device)(&raw mut device, ordinal) };
        driver.check("cuDeviceGet", number, code)?;
        let mut raw = RawContext(ptr::null_mut());
        // SAFETY: the device is one, and its context is written to where it is told.
        let code = unsafe { (driver.retain)(&raw mut raw, device) };
        driver.check("cuDevicePrimaryCtxRetain", number, code)?;
        Ok(Self { driver, device, raw })
    }

    /// Makes one call with the context current, and that of before again after it.
    fn call(
        &self,
        name: &'static str,
        len: usize,
        call: impl FnOnce(&Driver) -> c_int,
    ) -> Result<(), CudaError> {
        let driver = &*self.driver;
        // SAFETY: the context is retained until `self` is dropped.
        let code = unsafe { (driver.push)(self.raw) };
        driver.check("cuCtxPushCurrent", len, code)?;
        let code = call(driver);
        let mut popped = RawContext(ptr::null_mut());
        // SAFETY: takes off what was pushed above, and writes it to where it is told.
        let _ = unsafe { (driver.pop)(&raw mut popped) };
        driver.check(name, len, code)
    }

    pub(super) fn allocate(&self, len: usize) -> Result<u64, CudaError> {
        if len == 0 {
            return Err(CudaError::Empty);
        }
        let mut address = 0;
        self.call("cuMemAlloc", len, |driver| {
            // SAFETY: writes the address to where it is told.
            unsafe { (driver.allocate)(&raw mut address, len) }
        })?;
        Ok(address)
    }

    /// Zeroes `len` bytes of an allocation of this context, and waits until that is done.
    pub(super) fn zero(&self, address: u64, len: usize) -> Result<(), CudaError> {
        self.call("cuMemsetD8", len, |driver| {
            // SAFETY: what is not an allocation of this GPU is refused by the driver or faults on
            // the GPU; no memory of this process can be reached by a device address.
            unsafe { (driver.fill)(address, 0, len) }
        })?;
        self.call("cuCtxSynchronize", len, |driver| {
            // SAFETY: waits, and nothing else.
            unsafe { (driver.synchronize)() }
        })
    }

    /// Frees an allocation of this context.
    pub(super) fn free(&self, address: u64) {
        let freed = self.call("cuMemFree", 0, |driver| {
            // SAFETY: waits for what the GPU does with it; the caller's buffer is being dropped,
            // so nothing here uses it later.
            unsafe { (driver.free)(address) }
        });
        if let Err(error) = freed {
            tracing::warn!("a buffer in VRAM is lost: {error}");
        }
    }

    pub(super) fn pin(&self, len: usize) -> Result<NonNull<u8>, CudaError> {
        if len == 0 {
            return Err(CudaError::Empty);
        }
        let mut base = ptr::null_mut();
        self.call("cuMemHostAlloc", len, |driver| {
            // SAFETY: writes the address to where it is told.
            unsafe { (driver.pin)(&raw mut base, len, PORTABLE) }
        })?;
        NonNull::new(base.cast()).ok_or(CudaError::Empty)
    }

    pub(super) fn unpin(&self, base: NonNull<u8>) {
        let freed = self.call("cuMemFreeHost", 0, |driver| {
            // SAFETY: comes from `pin`, and its owner is being dropped with the last handle.
            unsafe { (driver.unpin)(base.as_ptr().cast()) }
        });
        if let Err(error) = freed {
            tracing::warn!("pinned memory is lost: {error}");
        }
    }

    /// # Safety
    /// `len` bytes from `source` must be readable during the call, and as many from `target` be
    /// memory of the GPU.
    pub(super) unsafe fn copy_to_device(
        &self,
        target: u64,
        source: *const u8,
        len: usize,
    ) -> Result<(), CudaError> {
        if len == 0 {
            return Ok(());
        }
        self.call("cuMemcpyHtoD", len, |driver| {
            // SAFETY: the caller's promise. The driver reads the bytes outside of Rust's sight,
            // as a peer does, and has read them when it returns.
            unsafe { (driver.to_device)(target, source.cast(), len) }
        })?;
        if self.is_pinned(source) {
            return Ok(());
        }
        // Bytes of other memory went through a buffer of the driver, and the GPU may be taking
        // the last of them from there. Kernels of other streams do not wait for that.
        self.call("cuStreamSynchronize", len, |driver| {
            // SAFETY: null is the stream of the copy, the default one of this context.
            unsafe { (driver.synchronize_stream)(ptr::null_mut()) }
        })
    }

    /// Returns whether the driver knows the memory at `address` as pinned.
    fn is_pinned(&self, address: *const u8) -> bool {
        let mut kind: c_uint = 0;
        let asked = self.call("cuPointerGetAttribute", 0, |driver| {
            let address = address.expose_provenance() as u64;
            // SAFETY: the attribute is a number of this size, and any address may be asked for.
            unsafe { (driver.pointer_attribute)((&raw mut kind).cast(), MEMORY_TYPE, address) }
        });
        asked.is_ok() && kind == MEMORY_TYPE_HOST
    }

    /// # Safety
    /// `len` bytes from `target` must be writable during the call, without a reference to any of
    /// them, and as many from `source` be memory of the GPU.
    pub(super) unsafe fn copy_to_host(
        &self,
        target: *mut u8,
        source: u64,
        len: usize,
    ) -> Result<(), CudaError> {
        if len == 0 {
            return Ok(());
        }
        self.call("cuMemcpyDtoH", len, |driver| {
            // SAFETY: the caller's promise. The driver has written the bytes when it returns.
            unsafe { (driver.to_host)(target.cast(), source, len) }
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: was retained by `of`, and everything made with it is gone.
        let _ = unsafe { (self.driver.release)(self.device) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.device).finish_non_exhaustive()
    }
}
