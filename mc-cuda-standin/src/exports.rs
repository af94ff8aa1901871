//! The functions of the library.

#![allow(non_snake_case, reason = "the names are NVIDIA's")]
#![allow(clippy::too_many_arguments, reason = "the driver's functions have as many")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::api::{
    context, control, copy, device, host, ipc, lookup, memory, pointer, stream, virtual_memory,
};
use crate::arguments::{
    AccessDescription, AllocationProperties, Argument, Copy2d, CopyAttributes, HostFunction,
    IpcHandle, Ptr,
};
use crate::codes::Answer;
use crate::driver;

/// `CUstream`, `CUevent`, `CUcontext`: a handle of the driver's.
type Handle = *mut c_void;

/// Declares functions of C, each with what it does and with how it is called: `call`, or
/// `call_any_time` before `cuInit`, too.
macro_rules! exports {
    ($($how:ident $name:ident($($argument:ident: $type:ty),*) = $body:path;)*) => {
        $(
            /// The function of the same name in NVIDIA's driver, or one for tests.
            ///
            /// # Safety
            /// As the driver's documentation says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                driver::$how(stringify!($name), |locked| {
                    $(
                        // SAFETY: the caller's promise.
                        let $argument = unsafe { Argument::of($argument) };
                    )*
                    $body(locked, $($argument),*)
                })
            }
        )*

        /// The functions' names, and the types of their arguments.
        pub const SIGNATURES: &[(&str, &[&str])] = &[
            $((stringify!($name), &[$(stringify!($type)),*]),)*
        ];

        /// Finds a function by its name.
        pub(crate) fn find(name: &str) -> Option<*const c_void> {
            match name {
                $(stringify!($name) => {
                    let function: unsafe extern "C" fn($($type),*) -> c_int = $name;
                    Some(function as *const c_void)
                })*
                _ => None,
            }
        }
    };
}

fn init(locked: &mut driver::Locked, _: c_uint) -> Answer {
    driver::start(locked)
}

fn proc_address(
    locked: &mut driver::Locked,
    name: Ptr<c_char>,
    function: Ptr<*mut c_void>,
    version: c_int,
    _: c_ulonglong,
) -> Answer {
    lookup::proc_address(locked, name, function, version, Ptr::null(), find)
}

fn proc_address_v2(
    locked: &mut driver::Locked,
    name: Ptr<c_char>,
    function: Ptr<*mut c_void>,
    version: c_int,
    _: c_ulonglong,
    status: Ptr<c_int>,
) -> Answer {
    lookup::proc_address(locked, name, function, version, status, find)
}

exports! {
    call_any_time cuInit(flags: c_uint) = init;
    call_any_time cuDriverGetVersion(version: *mut c_int) = lookup::version;
    call_any_time cuGetErrorName(code: c_int, name: *mut *const c_char) = lookup::error_name;
    call_any_time cuGetErrorString(code: c_int, text: *mut *const c_char) = lookup::error_string;
    call_any_time cuGetProcAddress(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong
    ) = proc_address;
    call_any_time cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong,
        status: *mut c_int
    ) = proc_address_v2;

    call cuDeviceGetCount(count: *mut c_int) = device::count;
    call cuDeviceGet(device: *mut c_int, ordinal: c_int) = device::get;
    call cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) = device::name;
    call cuDeviceGetAttribute(
        value: *mut c_int, attribute: c_int, device: c_int
    ) = device::attribute;
    call cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) = device::uuid;
    call cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) = device::pci_bus_id;
    call cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) = device::total_memory;

    call cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) = context::retain;
    call cuDevicePrimaryCtxRelease_v2(device: c_int) = context::release;
    call cuDevicePrimaryCtxGetState(
        device: c_int, flags: *mut c_uint, active: *mut c_int
    ) = context::state;
    call cuCtxPushCurrent_v2(context: Handle) = context::push;
    call cuCtxPopCurrent_v2(context: *mut Handle) = context::pop;
    call cuCtxGetCurrent(context: *mut Handle) = context::current;
    call cuCtxSetCurrent(context: Handle) = context::set_current;
    call cuCtxGetDevice(device: *mut c_int) = context::device;
    call cuCtxSynchronize() = context::synchronize;
    call cuCtxGetStreamPriorityRange(
        least: *mut c_int, greatest: *mut c_int
    ) = context::priorities;

    call cuMemAlloc_v2(address: *mut u64, len: usize) = memory::allocate;
    call cuMemFree_v2(address: u64) = memory::free;
    call cuMemAllocManaged(
        address: *mut u64, len: usize, flags: c_uint
    ) = memory::allocate_managed;
    call cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = memory::room;
    call cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64) = memory::range;
    call cuMemsetD8_v2(address: u64, byte: u8, len: usize) = memory::set_bytes;
    call cuMemsetD8Async(
        address: u64, byte: u8, len: usize, stream: Handle
    ) = memory::set_bytes_async;

    call cuMemHostAlloc(base: *mut *mut c_void, len: usize, flags: c_uint) = host::allocate;
    call cuMemFreeHost(base: *mut c_void) = host::free;
    call cuMemHostRegister_v2(base: *mut c_void, len: usize, flags: c_uint) = host::register;
    call cuMemHostUnregister(base: *mut c_void) = host::unregister;
    call cuMemHostGetDevicePointer_v2(
        pointer: *mut u64, base: *mut c_void, flags: c_uint
    ) = host::device_pointer;
    call cuMemHostGetFlags(flags: *mut c_uint, base: *mut c_void) = host::flags;

    call cuPointerGetAttribute(
        data: *mut c_void, attribute: c_int, address: u64
    ) = pointer::attribute;
    call cuPointerGetAttributes(
        count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, address: u64
    ) = pointer::attributes;

    call cuStreamCreate(stream: *mut Handle, flags: c_uint) = stream::create;
    call cuStreamCreateWithPriority(
        stream: *mut Handle, flags: c_uint, priority: c_int
    ) = stream::create_with_priority;
    call cuStreamDestroy_v2(stream: Handle) = stream::destroy;
    call cuStreamSynchronize(stream: Handle) = stream::synchronize;
    call cuStreamQuery(stream: Handle) = stream::query;
    call cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) = stream::wait_event;
    call cuEventCreate(event: *mut Handle, flags: c_uint) = stream::event_create;
    call cuEventRecord(event: Handle, stream: Handle) = stream::event_record;
    call cuEventQuery(event: Handle) = stream::event_query;
    call cuEventSynchronize(event: Handle) = stream::event_synchronize;
    call cuEventDestroy_v2(event: Handle) = stream::event_destroy;
    call cuLaunchHostFunc(
        stream: Handle, function: Option<HostFunction>, data: *mut c_void
    ) = stream::launch_host_function;

    call cuMemcpyHtoD_v2(target: u64, source: *const c_void, len: usize) = copy::to_device;
    call cuMemcpyDtoH_v2(target: *mut c_void, source: u64, len: usize) = copy::to_host;
    call cuMemcpyDtoD_v2(target: u64, source: u64, len: usize) = copy::inside;
    call cuMemcpyHtoDAsync_v2(
        target: u64, source: *const c_void, len: usize, stream: Handle
    ) = copy::to_device_async;
    call cuMemcpyDtoHAsync_v2(
        target: *mut c_void, source: u64, len: usize, stream: Handle
    ) = copy::to_host_async;
    call cuMemcpyDtoDAsync_v2(
        target: u64, source: u64, len: usize, stream: Handle
    ) = copy::inside_async;
    call cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: Handle) = copy::rows;
    call cuMemcpyBatchAsync(
        targets: *mut u64, sources: *mut u64, sizes: *mut usize, count: usize,
        attributes: *mut CopyAttributes, starts: *mut usize, attribute_count: usize,
        failed: *mut usize, stream: Handle
    ) = copy::batch_failing;
    call cuMemcpyBatchAsync_v2(
        targets: *mut u64, sources: *mut u64, sizes: *mut usize, count: usize,
        attributes: *mut CopyAttributes, starts: *mut usize, attribute_count: usize,
        stream: Handle
    ) = copy::batch;

    call cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64) = ipc::export_memory;
    call cuIpcOpenMemHandle_v2(
        address: *mut u64, handle: IpcHandle, flags: c_uint
    ) = ipc::open_memory;
    call cuIpcCloseMemHandle(address: u64) = ipc::close_memory;
    call cuIpcGetEventHandle(handle: *mut IpcHandle, event: Handle) = ipc::export_event;
    call cuIpcOpenEventHandle(event: *mut Handle, handle: IpcHandle) = ipc::open_event;
    call cuMemGetHandleForAddressRange(
        handle: *mut c_void, address: u64, len: usize, kind: c_int, flags: c_ulonglong
    ) = ipc::range_handle;

    call cuMemGetAllocationGranularity(
        granularity: *mut usize, properties: *const AllocationProperties, option: c_int
    ) = virtual_memory::granularity;
    call cuMemCreate(
        handle: *mut c_ulonglong, len: usize, properties: *const AllocationProperties,
        flags: c_ulonglong
    ) = virtual_memory::create;
    call cuMemRelease(handle: c_ulonglong) = virtual_memory::release;
    call cuMemAddressReserve(
        address: *mut u64, len: usize, alignment: usize, wanted: u64, flags: c_ulonglong
    ) = virtual_memory::reserve;
    call cuMemAddressFree(address: u64, len: usize) = virtual_memory::free_addresses;
    call cuMemMap(
        address: u64, len: usize, offset: usize, handle: c_ulonglong, flags: c_ulonglong
    ) = virtual_memory::map;
    call cuMemUnmap(address: u64, len: usize) = virtual_memory::unmap_range;
    call cuMemSetAccess(
        address: u64, len: usize, descriptions: *const AccessDescription, count: usize
    ) = virtual_memory::set_access;
    call cuMemExportToShareableHandle(
        descriptor: *mut c_void, handle: c_ulonglong, kind: c_int, flags: c_ulonglong
    ) = virtual_memory::export;
    call cuMemImportFromShareableHandle(
        handle: *mut c_ulonglong, descriptor: *mut c_void, kind: c_int
    ) = virtual_memory::import;

    call_any_time mc_standin_inject(text: *const c_char) = control::inject;
    call_any_time mc_standin_live(numbers: *mut u64) = control::live;
    call_any_time mc_standin_peek(address: u64, to: *mut c_void, len: usize) = control::peek;
    call_any_time mc_standin_poke(address: u64, from: *const c_void, len: usize) = control::poke;
    call mc_standin_spin(stream: Handle, micros: u64) = memory::spin;
    call mc_standin_fill(
        stream: Handle, address: u64, len: usize, byte: u8, micros: u64
    ) = memory::fill_later;
}

/// Copies the violations so far into `len` bytes at `text`, one in each line, and returns their number.
///
/// # Safety
/// `text` is null or has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mc_standin_violations(text: *mut c_char, len: usize) -> usize {
    let mut number = 0;
    let _ = driver::call_any_time("mc_standin_violations", |locked| {
        // SAFETY: the caller's promise.
        let text = unsafe { Argument::of(text) };
        number = control::violations(locked, text, len);
        Ok(())
    });
    number
}

/// Returns how often a function was called since the last [`mc_standin_inject`].
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mc_standin_calls(name: *const c_char) -> u64 {
    let mut number = 0;
    let _ = driver::call_any_time("mc_standin_calls", |locked| {
        // SAFETY: the caller's promise.
        let name = unsafe { Argument::of(name) };
        number = control::calls(locked, name);
        Ok(())
    });
    number
}
