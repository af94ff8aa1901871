//! Devices that are open.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::{self, MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::{
    ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_mtu, ibv_pd, ibv_port_attr,
    ibv_port_state, verbs_context,
};

use super::VerbsError;
use super::library::Library;

/// `link_layer` of an InfiniBand port, where paths are named by local identifiers.
const LINK_LAYER_INFINIBAND: u8 = 1;

/// A device that is open, with the protection domain of its queue pairs and regions.
pub(in super::super) struct Device {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<ibv_context>,
    pub(super) domain: NonNull<ibv_pd>,
    name: Arc<str>,
    limits: Limits,
    relaxed_ordering: AtomicBool,
}

// SAFETY: the functions of libibverbs may be called from any thread at the same time ("thread
// safe", ibverbs' README); the pointers are valid until `drop`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The limits of a device.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Limits {
    /// Bytes of the largest memory region.
    pub(in super::super) region: u64,
    /// Work requests of a queue.
    pub(in super::super) queue: u32,
    /// Entries of a completion queue.
    pub(in super::super) completions: u32,
    /// Pieces of local memory of a request.
    pub(in super::super) pieces: u32,
    /// Reads that a queue pair may have under way, as requester.
    pub(in super::super) reads_out: u8,
    /// Reads that a queue pair serves at the same time.
    pub(in super::super) reads_in: u8,
}

/// The state of a port.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Port {
    pub(in super::super) is_active: bool,
    pub(in super::super) is_infiniband: bool,
    /// The local identifier of an InfiniBand port.
    pub(in super::super) lid: u16,
    /// Bytes of the largest packet, by the number that the specification gives it: 1 is 256
    /// bytes, 5 is 4096.
    pub(in super::super) mtu: u8,
    /// Bytes of the longest message.
    pub(in super::super) message: u32,
    /// Entries of the table of partition keys.
    pub(in super::super) partitions: u16,
}

/// Returns the names of the devices of this host.
///
/// # Errors
/// [`VerbsError`] when libibverbs is missing; [`VerbsError::NoDevice`] without kernel support.
pub(in super::super) fn devices() -> Result<Vec<String>, VerbsError> {
    Ok(DeviceList::get()?.iter().map(|(name, _)| name).collect())
}

impl Device {
    /// Opens the device `name`; `relaxed_ordering` lets it write memory in any order until a request
    /// completes, where it can.
    ///
    /// # Errors
    /// [`VerbsError`] when it does not exist or cannot be opened.
    pub(in super::super) fn open(
        name: &str,
        relaxed_ordering: bool,
    ) -> Result<Arc<Self>, VerbsError> {
        let list = DeviceList::get()?;
        let library = list.library;
        let Some((_, device)) = list.iter().find(|(known, _)| known == name) else {
            let available = list.iter().map(|(name, _)| name).collect();
            return Err(VerbsError::NoSuchDevice { name: name.to_owned(), available });
        };
        let name: Arc<str> = name.into();
        let failed = |call| VerbsError::Failed {
            call,
            device: Arc::clone(&name),
            source: io::Error::last_os_error(),
        };
        // SAFETY: the device is of the list, which lives until the end of this function.
        let context = NonNull::new(unsafe { (library.ibv_open_device)(device) })
            .ok_or_else(|| failed("ibv_open_device"))?;
        // Closes the device if what follows fails.
        let open = OpenContext { library, context };
        let limits = open.limits(&name)?;
        // SAFETY: the context is open.
        let domain = NonNull::new(unsafe { (library.ibv_alloc_pd)(context.as_ptr()) })
            .ok_or_else(|| failed("ibv_alloc_pd"))?;
        mem::forget(open);
        let relaxed_ordering = AtomicBool::new(relaxed_ordering);
        let device = Self { library, context, domain, name, limits, relaxed_ordering };
        device.set_nonblocking(device.async_fd())?;
        Ok(Arc::new(device))
    }

    pub(in super::super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(in super::super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether memory is registered with relaxed ordering.
    pub(super) fn relaxed_ordering(&self) -> bool {
        self.relaxed_ordering.load(Ordering::Relaxed)
    }

    /// Registers memory without relaxed ordering from now on; returns whether it was with it.
    pub(super) fn order_strictly(&self) -> bool {
        self.relaxed_ordering.swap(false, Ordering::Relaxed)
    }

    /// The error of a call that returned `number`, an error number, or that set `errno`.
    pub(super) fn failed(&self, call: &'static str, source: io::Error) -> VerbsError {
        VerbsError::Failed { call, device: Arc::clone(&self.name), source }
    }

    /// Turns the value of a call that returns an error number into a result.
    pub(super) fn check(&self, call: &'static str, value: i32) -> Result<(), VerbsError> {
        match value {
            0 => Ok(()),
            // Some providers return it negated, or -1 and set `errno`.
            -1 => Err(self.failed(call, io::Error::last_os_error())),
            number => Err(self.failed(call, io::Error::from_raw_os_error(number.saturating_abs()))),
        }
    }

    /// Turns the value of a call that returns a pointer into a result.
    pub(super) fn made<T>(
        &self,
        call: &'static str,
        pointer: *mut T,
    ) -> Result<NonNull<T>, VerbsError> {
        NonNull::new(pointer).ok_or_else(|| self.failed(call, io::Error::last_os_error()))
    }

    pub(super) fn set_nonblocking(&self, fd: i32) -> Result<(), VerbsError> {
        // SAFETY: the descriptor belongs to an object of this device that lives.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        // SAFETY: as above; the call changes a flag of the descriptor.
        let set = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
        if flags < 0 || set < 0 {
            return Err(self.failed("fcntl", io::Error::last_os_error()));
        }
        Ok(())
    }

    fn async_fd(&self) -> i32 {
        // SAFETY: the context is open, and the field never changes.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    /// Reads the state of port `number`.
    ///
    /// # Errors
    /// [`VerbsError::Failed`], for a number that the device does not have, too.
    pub(in super::super) fn port(&self, number: u8) -> Result<Port, VerbsError> {
        let attributes = self.query_port(number)?;
        Ok(Port {
            is_active: attributes.state == ibv_port_state::IBV_PORT_ACTIVE,
            is_infiniband: attributes.link_layer == LINK_LAYER_INFINIBAND,
            lid: attributes.lid,
            mtu: attributes.active_mtu.clamp(ibv_mtu::IBV_MTU_256, ibv_mtu::IBV_MTU_4096) as u8,
            message: attributes.max_msg_sz,
            partitions: attributes.pkey_tbl_len,
        })
    }

    /// Queries a port as C's `ibv_query_port` macro does: asks the driver, which fills the whole
    /// structure, or calls the function of that name, which knows the front of the structure only.
    fn query_port(&self, number: u8) -> Result<ibv_port_attr, VerbsError> {
        // SAFETY: all zeros are valid for a structure of numbers.
        let mut attributes: ibv_port_attr = unsafe { mem::zeroed() };
        let context = self.context.as_ptr();
        // SAFETY: the context is open.
        let is_extended = unsafe { (*context).abi_compat }.addr() == usize::MAX;
        let mut done = None;
        if is_extended {
            // SAFETY: by the mark in `abi_compat` the context lies inside a `verbs_context`.
            let extended = unsafe { context.byte_sub(offset_of!(verbs_context, context)) };
            let extended = extended.cast::<verbs_context>();
            let wanted = size_of::<verbs_context>() - offset_of!(verbs_context, query_port);
            // SAFETY: `sz` is the last field but the context, which all versions have.
            let has_query = unsafe { (*extended).sz } >= wanted;
            // SAFETY: `sz` says how many of its fields, counted from the end, this library has.
            let query = has_query.then(|| unsafe { (*extended).query_port }).flatten();
            if let Some(query) = query {
                let len = size_of::<ibv_port_attr>();
                // SAFETY: the driver fills at most `len` bytes.
                done = Some(unsafe { query(context, number, &raw mut attributes, len) });
            }
        }
        let done = done.unwrap_or_else(|| {
            let front = (&raw mut attributes).cast();
            // SAFETY: the function fills the front of the structure, which is longer.
            unsafe { (self.library.ibv_query_port)(context, number, front) }
        });
        self.check("ibv_query_port", done)?;
        Ok(attributes)
    }

    /// Reads the GID `index` of port `port`.
    ///
    /// # Errors
    /// [`VerbsError::Failed`] when there is none.
    pub(in super::super) fn gid(&self, port: u8, index: u8) -> Result<[u8; 16], VerbsError> {
        let mut gid = MaybeUninit::<ibv_gid>::zeroed();
        let context = self.context.as_ptr();
        // SAFETY: the call fills the GID that it is given.
        let done = unsafe {
            (self.library.ibv_query_gid)(context, port, i32::from(index), gid.as_mut_ptr())
        };
        self.check("ibv_query_gid", done)?;
        // SAFETY: zeros are a valid GID.
        let gid = unsafe { gid.assume_init() };
        // SAFETY: every form of a GID is 16 plain bytes.
        Ok(unsafe { gid.raw })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every object of the domain holds this device, so none is left.
        let freed = unsafe { (self.library.ibv_dealloc_pd)(self.domain.as_ptr()) };
        // SAFETY: as above.
        let closed = unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
        if freed != 0 || closed != 0 {
            tracing::warn!(device = %self.name, freed, closed, "the device was not closed cleanly");
        }
    }
}

/// The descriptor that is readable when the device has an event.
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until the device is closed, in `drop`.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A context that is closed when this is dropped.
struct OpenContext {
    library: &'static Library,
    context: NonNull<ibv_context>,
}

impl OpenContext {
    fn limits(&self, name: &Arc<str>) -> Result<Limits, VerbsError> {
        // SAFETY: all zeros are valid for a structure of numbers.
        let mut attributes: ibv_device_attr = unsafe { mem::zeroed() };
        let context = self.context.as_ptr();
        // SAFETY: the call fills the structure that it is given.
        let done = unsafe { (self.library.ibv_query_device)(context, &raw mut attributes) };
        if done != 0 {
            return Err(VerbsError::Failed {
                call: "ibv_query_device",
                device: Arc::clone(name),
                source: io::Error::from_raw_os_error(done.saturating_abs()),
            });
        }
        let positive = |number: i32| u32::try_from(number).unwrap_or(0).max(1);
        let small = |number: i32| u8::try_from(number.clamp(1, 16)).unwrap_or(1);
        Ok(Limits {
            region: attributes.max_mr_size,
            queue: positive(attributes.max_qp_wr),
            completions: positive(attributes.max_cqe),
            pieces: positive(attributes.max_sge),
            reads_out: small(attributes.max_qp_init_rd_atom),
            reads_in: small(attributes.max_qp_rd_atom),
        })
    }
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: the context is open, and nothing was made of it.
        unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
    }
}

/// The list of devices, freed when this is dropped.
struct DeviceList {
    library: &'static Library,
    first: NonNull<*mut ibv_device>,
    len: usize,
}

impl DeviceList {
    fn get() -> Result<Self, VerbsError> {
        let library = Library::get()?;
        let mut len = 0;
        // SAFETY: the call stores a number where it is told.
        let first = unsafe { (library.ibv_get_device_list)(&raw mut len) };
        // Without support by the kernel there is no list; with it and no card an empty one.
        let first = NonNull::new(first).ok_or(VerbsError::NoDevice)?;
        let list = Self { library, first, len: usize::try_from(len).unwrap_or(0) };
        if list.len == 0 { Err(VerbsError::NoDevice) } else { Ok(list) }
    }

    fn iter(&self) -> impl Iterator<Item = (String, *mut ibv_device)> {
        (0..self.len).map(|index| {
            // SAFETY: the list has `len` entries.
            let entry = unsafe { self.first.add(index) };
            // SAFETY: each entry is a device.
            let device = unsafe { entry.read() };
            // SAFETY: the device is of the list.
            let name = unsafe { (self.library.ibv_get_device_name)(device) };
            // SAFETY: the name ends with a zero byte, and lives as long as the list.
            let name = unsafe { CStr::from_ptr(name) };
            (name.to_string_lossy().into_owned(), device)
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the library made the list; devices that were opened do not need it.
        unsafe { (self.library.ibv_free_device_list)(self.first.as_ptr()) };
    }
}
