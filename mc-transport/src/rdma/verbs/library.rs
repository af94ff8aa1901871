//! The control functions of libibverbs, loaded at run time.
//!
//! A program that links the library does not start on a host without it. The functions that carry
//! data are inline in C and go through pointers of the device, so only these have to be found.

use std::ffi::CStr;
use std::sync::OnceLock;

use libc::{c_char, c_int, c_void};
use rdma_sys::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid,
    ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

use super::VerbsError;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by the names that they have in C.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn open() -> Result<Self, Failure> {
                let library = Handle::open()?;
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let symbol = library.symbol(name)?;
                        // SAFETY: the function of this name has had this signature since the
                        // library's first release with a stable interface; see <infiniband/verbs.h>.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    // The symbol of this name fills the front of today's structure; see `Device::query_port`.
    ibv_query_port: fn(*mut ibv_context, u8, *mut c_void) -> c_int;
    ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
        -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, u32);
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: fn(*mut ibv_async_event);
}

/// A failure that is remembered for the life of the process.
#[derive(Clone)]
enum Failure {
    NoLibrary(String),
    NoFunction(&'static str),
}

impl From<Failure> for VerbsError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoLibrary(reason) => Self::NoLibrary { reason },
            Failure::NoFunction(name) => Self::NoFunction { name },
        }
    }
}

impl Library {
    /// Returns the library, loaded by the first call.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`] and [`VerbsError::NoFunction`].
    pub(super) fn get() -> Result<&'static Self, VerbsError> {
        static LIBRARY: OnceLock<Result<Library, Failure>> = OnceLock::new();
        LIBRARY.get_or_init(Self::open).as_ref().map_err(|failure| failure.clone().into())
    }
}

/// The loaded library. Never closed: its functions are used until the process ends.
struct Handle(*mut c_void);

impl Handle {
    fn open() -> Result<Self, Failure> {
        // SAFETY: the name ends with a zero byte. Loading runs the initialisers of libibverbs,
        // which are safe to run at any time.
        let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return Err(Failure::NoLibrary(last_error()));
        }
        Ok(Self(handle))
    }

    fn symbol(&self, name: &'static str) -> Result<*mut c_void, Failure> {
        let text = CStr::from_bytes_with_nul(name.as_bytes()).expect("the macro appends a zero");
        // SAFETY: the handle is open, and the name ends with a zero byte.
        let symbol = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        let name = name.trim_end_matches('\0');
        if symbol.is_null() { Err(Failure::NoFunction(name)) } else { Ok(symbol) }
    }
}

fn last_error() -> String {
    // SAFETY: the call returns null or a text that lasts until the next call by this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason was given".to_owned();
    }
    // SAFETY: the text ends with a zero byte, and is copied before another call is made.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
