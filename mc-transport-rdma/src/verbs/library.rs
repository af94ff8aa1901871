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
    (
        required { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* }
        optional { $($newer:ident: fn($($taken:ty),*) $(-> $given:ty)?;)* }
    ) => {
        /// The functions, by the names that they have in C.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            // `None` in releases that do not have it.
            $(pub(super) $newer: Option<unsafe extern "C" fn($($taken),*) $(-> $given)?>,)*
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
                    $($newer: {
                        let symbol = library.symbol(concat!(stringify!($newer), "\0")).ok();
                        // SAFETY: as above; a library that has no such function gives no symbol.
                        symbol.map(|symbol| unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($taken),*) $(-> $given)?,
                            >(symbol)
                        })
                    },)*
                })
            }
        }
    };
}

functions! {
    required {
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
    optional {
        // rdma-core 28; takes the flags that a device may do without.
        ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, u32) -> *mut ibv_mr;
        ibv_fork_init: fn() -> c_int;
        // rdma-core 35.
        ibv_is_fork_initialized: fn() -> c_int;
    }
}

/// The answer of `ibv_is_fork_initialized` where the library does nothing about forks.
const FORK_DISABLED: c_int = 0;

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
        let open = || Self::open().inspect(Self::survive_forks);
        LIBRARY.get_or_init(open).as_ref().map_err(|failure| failure.clone().into())
    }

    /// Keeps the pages of registered memory with this process when it forks: before Linux 5.12 the
    /// first of both that wrote to one got a copy, while the device kept the page of before. It must
    /// come before any memory is registered.
    fn survive_forks(&self) {
        let state = self.ibv_is_fork_initialized.map(|state| {
            // SAFETY: the function takes nothing and asks the kernel.
            unsafe { state() }
        });
        let (true, Some(init)) = (forks_lose_pages(state), self.ibv_fork_init) else { return };
        // SAFETY: the function takes nothing; it may be called at any time, and fails when it is
        // too late.
        let failed = unsafe { init() };
        if failed == 0 {
            tracing::info!("children of this process do not have its registered memory");
        } else {
            let error = std::io::Error::from_raw_os_error(failed.saturating_abs());
            tracing::warn!(%error, "this process must not fork: RDMA would use stale memory");
        }
    }
}

/// Returns whether a fork separates a process from the pages of its registered memory, by what
/// `ibv_is_fork_initialized` says; a library that cannot be asked is older than the kernels that
/// copy such pages for the child.
fn forks_lose_pages(state: Option<c_int>) -> bool {
    state.is_none_or(|state| state == FORK_DISABLED)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_are_prepared_for_where_nothing_else_does() {
        // IBV_FORK_DISABLED, IBV_FORK_ENABLED by the environment, IBV_FORK_UNNEEDED from Linux 5.12.
        let states = [None, Some(0), Some(1), Some(2)];
        assert_eq!(states.map(forks_lose_pages), [true, true, false, false]);
    }
}
