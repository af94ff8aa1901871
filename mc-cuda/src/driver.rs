//! The functions of `libcuda.so.1` that are used.
//!
//! Their types are those of `cuda.h`: `CUresult` is an `int`, `CUdevice` an `int`, `CUdeviceptr`
//! a 64-bit number, `CUcontext`, `CUstream` and `CUevent` are pointers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::{CudaCode, CudaError};

/// A handle of the driver's: a context, a stream or an event.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) *mut c_void);

impl Handle {
    pub(crate) const NONE: Self = Self(ptr::null_mut());

    /// The handle that a program passes as a number.
    pub(crate) fn of(number: u64) -> Self {
        Self(ptr::with_exposed_provenance_mut(number as usize))
    }
}

// SAFETY: handles are the driver's, which any thread may use.
unsafe impl Send for Handle {}
// SAFETY: as above; a shared one is only copied.
unsafe impl Sync for Handle {}

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcMemHandle {
    pub(crate) reserved: [u8; 64],
}

/// `CUmemcpyAttributes`.
#[repr(C)]
pub(crate) struct CopyAttributes {
    /// `CU_MEMCPY_SRC_ACCESS_ORDER_*`.
    pub(crate) source_order: c_int,
    /// Hints for managed memory, which is not copied here: the kind is 0, that of none.
    pub(crate) locations: [[c_int; 2]; 2],
    pub(crate) flags: c_uint,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
pub(crate) struct Copy2d {
    pub(crate) source: Side2d,
    pub(crate) target: Side2d,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// One side of [`Copy2d`].
#[repr(C)]
pub(crate) struct Side2d {
    pub(crate) x: usize,
    pub(crate) y: usize,
    /// `CU_MEMORYTYPE_*`.
    pub(crate) kind: c_uint,
    pub(crate) host: *mut c_void,
    pub(crate) device: u64,
    pub(crate) array: *mut c_void,
    pub(crate) pitch: usize,
}

/// The name of a function as a C string.
macro_rules! symbol {
    ($symbol:literal) => {
        const {
            match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                Ok(symbol) => symbol,
                Err(_) => panic!("a name without zeros"),
            }
        }
    };
}

/// Declares the table of the driver's functions, and how it is filled.
macro_rules! functions {
    (
        required { $($field:ident = $symbol:literal: fn($($argument:ty),*);)* }
        optional { $($extra:ident = $name:literal from $version:literal as $form:literal:
            fn($($extra_argument:ty),*);)* }
    ) => {
        /// The driver's functions.
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            $(pub(crate) $extra: Option<unsafe extern "C" fn($($extra_argument),*) -> c_int>,)*
        }

        impl Functions {
            /// Looks all of them up in the library behind `handle`.
            #[cfg(target_os = "linux")]
            fn find(handle: NonNull<c_void>) -> Result<Self, CudaError> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the handle is that of an open library, and the name is a C string.
                        let found = unsafe { libc::dlsym(handle.as_ptr(), symbol!($symbol).as_ptr()) };
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
                    },)*
                    $($extra: None,)*
                })
            }

            /// Looks up those that a driver of this version may have.
            fn find_optional(&mut self, lookup: GetProcAddress, version: c_int) {
                $(if version >= $version {
                    self.$extra = find_form(lookup, symbol!($name), $version).map(|found| {
                        // SAFETY: the form that this version of the function has is of this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($extra_argument),*) -> c_int,
                            >(found.as_ptr())
                        }
                    });
                })*
            }
        }

        /// The functions' names, with the types of their arguments.
        #[cfg(test)]
        const SIGNATURES: &[(&str, &[&str])] = &[
            $(($symbol, &[$(stringify!($argument)),*]),)*
            $(($form, &[$(stringify!($extra_argument)),*]),)*
        ];
    };
}

functions! {
    required {
        init = "cuInit": fn(c_uint);
        version = "cuDriverGetVersion": fn(*mut c_int);
        error_name = "cuGetErrorName": fn(c_int, *mut *const c_char);
        device_count = "cuDeviceGetCount": fn(*mut c_int);
        device = "cuDeviceGet": fn(*mut c_int, c_int);
        device_uuid = "cuDeviceGetUuid_v2": fn(*mut [u8; 16], c_int);
        device_pci_bus_id = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, c_int);
        retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
        release = "cuDevicePrimaryCtxRelease_v2": fn(c_int);
        push = "cuCtxPushCurrent_v2": fn(Handle);
        pop = "cuCtxPopCurrent_v2": fn(*mut Handle);
        stream_priorities = "cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int);
        allocate = "cuMemAlloc_v2": fn(*mut u64, usize);
        free = "cuMemFree_v2": fn(u64);
        fill = "cuMemsetD8Async": fn(u64, u8, usize, Handle);
        pin = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
        unpin = "cuMemFreeHost": fn(*mut c_void);
        register = "cuMemHostRegister_v2": fn(*mut c_void, usize, c_uint);
        unregister = "cuMemHostUnregister": fn(*mut c_void);
        host_flags = "cuMemHostGetFlags": fn(*mut c_uint, *mut c_void);
        pointer_attributes = "cuPointerGetAttributes":
            fn(c_uint, *mut c_int, *mut *mut c_void, u64);
        stream_create = "cuStreamCreateWithPriority": fn(*mut Handle, c_uint, c_int);
        stream_destroy = "cuStreamDestroy_v2": fn(Handle);
        stream_wait_event = "cuStreamWaitEvent": fn(Handle, Handle, c_uint);
        event_create = "cuEventCreate": fn(*mut Handle, c_uint);
        event_record = "cuEventRecord": fn(Handle, Handle);
        event_query = "cuEventQuery": fn(Handle);
        event_destroy = "cuEventDestroy_v2": fn(Handle);
        to_device = "cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, Handle);
        to_host = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, Handle);
        rows = "cuMemcpy2DAsync_v2": fn(*const Copy2d, Handle);
        ipc_export = "cuIpcGetMemHandle": fn(*mut IpcMemHandle, u64);
        ipc_open = "cuIpcOpenMemHandle_v2": fn(*mut u64, IpcMemHandle, c_uint);
        ipc_close = "cuIpcCloseMemHandle": fn(u64);
    }
    optional {
        batch = "cuMemcpyBatchAsync" from 13000 as "cuMemcpyBatchAsync_v2":
            fn(*mut u64, *mut u64, *mut usize, usize, *mut CopyAttributes, *mut usize, usize, Handle);
        batch_failing = "cuMemcpyBatchAsync" from 12080 as "cuMemcpyBatchAsync":
            fn(
                *mut u64, *mut u64, *mut usize, usize, *mut CopyAttributes, *mut usize, usize,
                *mut usize, Handle
            );
    }
}

/// `cuGetProcAddress`, in its two forms.
#[derive(Clone, Copy)]
enum GetProcAddress {
    Old(unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong) -> c_int),
    New(
        unsafe extern "C" fn(
            *const c_char,
            *mut *mut c_void,
            c_int,
            c_ulonglong,
            *mut c_int,
        ) -> c_int,
    ),
}

/// The form that a function has in a version of CUDA.
fn find_form(lookup: GetProcAddress, name: &CStr, version: c_int) -> Option<NonNull<c_void>> {
    let mut found = ptr::null_mut();
    let code = match lookup {
        // SAFETY: the name is a C string, and the function is written to where it is told.
        GetProcAddress::Old(lookup) => unsafe { lookup(name.as_ptr(), &raw mut found, version, 0) },
        GetProcAddress::New(lookup) => {
            let mut status = 0;
            // SAFETY: as above, and so is the status.
            unsafe { lookup(name.as_ptr(), &raw mut found, version, 0, &raw mut status) }
        }
    };
    NonNull::new(found).filter(|_| code == 0)
}

/// NVIDIA's driver in this process.
pub(crate) struct Driver {
    pub(crate) functions: Functions,
    pub(crate) version: i32,
    /// The process that started it.
    process: u32,
}

static DRIVER: OnceLock<Arc<Driver>> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

/// The time within which a driver starts that does not hang.
const LOADS_WITHIN: Duration = Duration::from_secs(5);

/// `CUDA_ERROR_NOT_INITIALIZED`.
const NOT_INITIALIZED: c_int = 3;

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Driver {
    /// The driver of this process, which is loaded and started the first time.
    pub(crate) fn load() -> Result<Arc<Self>, CudaError> {
        if let Some(driver) = DRIVER.get() {
            driver.check_fork()?;
            return Ok(Arc::clone(driver));
        }
        let _one_at_a_time = LOADING.lock();
        if let Some(driver) = DRIVER.get() {
            return Ok(Arc::clone(driver));
        }
        let functions = open(false)?.ok_or(CudaError::NoDriver { reason: String::new() })?;
        Self::start(functions)
    }

    /// The driver, if this process has loaded and started it already: here or elsewhere.
    pub(crate) fn loaded() -> Option<Arc<Self>> {
        if let Some(driver) = DRIVER.get() {
            return driver.check_fork().is_ok().then(|| Arc::clone(driver));
        }
        // Another thread looks for it, too, or loads it, which takes a while; one that hangs is not waited for.
        let _one_at_a_time = LOADING.try_lock_for(LOADS_WITHIN)?;
        if let Some(driver) = DRIVER.get() {
            return Some(Arc::clone(driver));
        }
        let functions = open(true).ok().flatten()?;
        let mut count = 0;
        // SAFETY: writes the number to where it is told. Before `cuInit` it does nothing but say so.
        let code = unsafe { (functions.device_count)(&raw mut count) };
        if code != 0 {
            return None;
        }
        Self::start(functions).ok()
    }

    fn start(functions: Functions) -> Result<Arc<Self>, CudaError> {
        let mut driver = Self { functions, version: 0, process: std::process::id() };
        // SAFETY: may be called at any time, and again.
        let code = unsafe { (driver.functions.init)(0) };
        if code == NOT_INITIALIZED {
            // The driver's answer after a fork.
            return Err(CudaError::Forked);
        }
        driver.check("cuInit", 0, code)?;
        // SAFETY: writes the version to where it is told.
        let code = unsafe { (driver.functions.version)(&raw mut driver.version) };
        driver.check("cuDriverGetVersion", 0, code)?;
        if let Some(lookup) = proc_address() {
            driver.functions.find_optional(lookup, driver.version);
        }
        Ok(Arc::clone(DRIVER.get_or_init(|| Arc::new(driver))))
    }

    /// Refuses to touch the driver in a process that was forked after the driver was started.
    pub(crate) fn check_fork(&self) -> Result<(), CudaError> {
        if self.process == std::process::id() { Ok(()) } else { Err(CudaError::Forked) }
    }

    pub(crate) fn check(
        &self,
        call: &'static str,
        len: usize,
        number: c_int,
    ) -> Result<(), CudaError> {
        if number == 0 {
            return Ok(());
        }
        Err(CudaError::of(call, len, CudaCode { number, name: self.name(number) }))
    }

    fn name(&self, number: c_int) -> String {
        let mut name = ptr::null();
        // SAFETY: writes the address of a C string, or null, to where it is told.
        let code = unsafe { (self.functions.error_name)(number, &raw mut name) };
        if code != 0 || name.is_null() {
            return String::new();
        }
        // SAFETY: it is not null, and then a C string that lives as long as the library.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    pub(crate) fn devices(&self) -> Result<usize, CudaError> {
        self.check_fork()?;
        let mut count = 0;
        // SAFETY: writes the number to where it is told.
        let code = unsafe { (self.functions.device_count)(&raw mut count) };
        self.check("cuDeviceGetCount", 0, code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The driver's number of a device.
    pub(crate) fn device(&self, ordinal: usize) -> Result<c_int, CudaError> {
        self.check_fork()?;
        let mut device = 0;
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: writes the device to where it is told.
        let code = unsafe { (self.functions.device)(&raw mut device, number) };
        self.check("cuDeviceGet", ordinal, code)?;
        Ok(device)
    }
}

/// Opens the library. With `is_loaded`, only if the process has it already.
#[cfg(target_os = "linux")]
fn open(is_loaded: bool) -> Result<Option<Functions>, CudaError> {
    let mode = libc::RTLD_NOW | if is_loaded { libc::RTLD_NOLOAD } else { 0 };
    // SAFETY: the name is a C string. Loading runs the initialisers of the system's driver,
    // which every program with CUDA runs. The library stays loaded: its functions are valid
    // for as long as the process lives.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), mode) };
    let Some(handle) = NonNull::new(handle) else {
        if is_loaded {
            return Ok(None);
        }
        return Err(CudaError::NoDriver { reason: loader_error() });
    };
    Functions::find(handle).map(Some)
}

#[cfg(not(target_os = "linux"))]
fn open(is_loaded: bool) -> Result<Option<Functions>, CudaError> {
    if is_loaded {
        return Ok(None);
    }
    Err(CudaError::NoDriver { reason: "it is looked for on Linux only".into() })
}

/// The driver's own look-up, by which functions with several forms are found.
#[cfg(target_os = "linux")]
fn proc_address() -> Option<GetProcAddress> {
    // SAFETY: the name is a C string, and the library is loaded.
    let handle =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    let handle = NonNull::new(handle)?;
    // SAFETY: the handle is that of an open library, and the name is a C string.
    let new = unsafe { libc::dlsym(handle.as_ptr(), c"cuGetProcAddress_v2".as_ptr()) };
    if !new.is_null() {
        // SAFETY: cuda.h declares this type for it.
        return Some(GetProcAddress::New(unsafe {
            std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(
                    *const c_char,
                    *mut *mut c_void,
                    c_int,
                    c_ulonglong,
                    *mut c_int,
                ) -> c_int,
            >(new)
        }));
    }
    // SAFETY: as above.
    let old = unsafe { libc::dlsym(handle.as_ptr(), c"cuGetProcAddress".as_ptr()) };
    (!old.is_null()).then(|| {
        // SAFETY: cuda.h declares this type for it.
        GetProcAddress::Old(unsafe {
            std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong) -> c_int,
            >(old)
        })
    })
}

#[cfg(not(target_os = "linux"))]
fn proc_address() -> Option<GetProcAddress> {
    None
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::SIGNATURES;

    /// A type by its size and its being a pointer: names differ between the two crates.
    fn shape(of: &str) -> String {
        let of = of.trim().replace(' ', "");
        match &*of {
            "Handle" => "pointer".into(),
            "c_int" | "c_uint" => of,
            "IpcHandle" | "IpcMemHandle" => "ipc handle".into(),
            _ if of.starts_with('*') => "pointer".into(),
            _ => of,
        }
    }

    #[test]
    fn the_standin_declares_every_function_in_the_same_way() {
        for (name, arguments) in SIGNATURES {
            let theirs = mc_cuda_standin::SIGNATURES.iter().find(|(other, _)| other == name);
            let (_, theirs) = theirs.unwrap_or_else(|| panic!("the stand-in has no {name}"));
            let shapes = |of: &[&str]| of.iter().map(|of| shape(of)).collect::<Vec<_>>();
            assert_eq!(shapes(arguments), shapes(theirs), "{name}");
        }
    }
}
