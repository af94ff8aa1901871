//! The stand-in is late, ordered and strict, as a GPU and its driver are.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the functions are called as their documentation says"
)]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "as above")]

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use mc_cuda_standin::*;

type Handle = *mut c_void;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const NOT_READY: i32 = 600;
const LEN: usize = 8192;

/// The first GPU, whose context is current, for one test at a time.
struct Gpu {
    _guard: MutexGuard<'static, ()>,
    before: usize,
}

impl Gpu {
    fn new() -> Self {
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
        inject("resume=0,forbid_legacy=0,delay_us=50");
        assert_eq!(unsafe { cuInit(0) }, 0);
        let mut context = null_mut();
        assert_eq!(unsafe { cuDevicePrimaryCtxRetain(&raw mut context, 0) }, 0);
        assert_eq!(unsafe { cuCtxPushCurrent_v2(context) }, 0);
        Self { _guard: guard, before: violations().0 }
    }

    /// The violations of this test.
    fn violations(&self) -> Vec<String> {
        let (_, text) = violations();
        text.lines().skip(self.before).map(str::to_owned).collect()
    }

    fn memory(&self, len: usize) -> u64 {
        let mut address = 0;
        assert_eq!(unsafe { cuMemAlloc_v2(&raw mut address, len) }, 0);
        address
    }

    fn pinned(&self, len: usize) -> *mut u8 {
        let mut base = null_mut();
        assert_eq!(unsafe { cuMemHostAlloc(&raw mut base, len, 1) }, 0);
        base.cast()
    }

    fn stream(&self, flags: u32) -> Handle {
        let mut stream = null_mut();
        assert_eq!(unsafe { cuStreamCreate(&raw mut stream, flags) }, 0);
        stream
    }

    fn event(&self) -> Handle {
        let mut event = null_mut();
        assert_eq!(unsafe { cuEventCreate(&raw mut event, 2) }, 0);
        event
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        inject("resume=1");
        assert_eq!(unsafe { cuCtxPopCurrent_v2(null_mut()) }, 0);
        unsafe { cuDevicePrimaryCtxRelease_v2(0) };
    }
}

fn inject(text: &str) {
    let text = CString::new(text).unwrap();
    assert_eq!(unsafe { mc_standin_inject(text.as_ptr()) }, 0);
}

fn violations() -> (usize, String) {
    let mut text = vec![0_u8; 64 << 10];
    let count = unsafe { mc_standin_violations(text.as_mut_ptr().cast(), text.len()) };
    let end = text.iter().position(|byte| *byte == 0).unwrap();
    (count, String::from_utf8(text[..end].to_vec()).unwrap())
}

fn peek(address: u64) -> u8 {
    let mut byte = 0_u8;
    assert_eq!(unsafe { mc_standin_peek(address, (&raw mut byte).cast(), 1) }, 0);
    byte
}

#[test]
fn pinned_memory_is_read_and_written_when_the_copy_is_done_and_not_before() {
    let gpu = Gpu::new();
    let (device, host, stream) = (gpu.memory(LEN), gpu.pinned(LEN), gpu.stream(1));
    unsafe { host.write_bytes(1, LEN) };
    inject("hang=cuMemcpyHtoDAsync_v2:1");
    assert_eq!(unsafe { cuMemcpyHtoDAsync_v2(device, host.cast(), LEN, stream) }, 0);
    // Too early: the copy takes these bytes.
    unsafe { host.write_bytes(2, LEN) };
    assert_eq!(peek(device), 0xdd);
    inject("resume=1");
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, 0);
    assert_eq!(peek(device + LEN as u64 - 1), 2);
    inject("resume=0,hang=cuMemcpyDtoHAsync_v2:1");
    unsafe { host.write_bytes(3, LEN) };
    assert_eq!(unsafe { cuMemcpyDtoHAsync_v2(host.cast(), device, LEN, stream) }, 0);
    assert_eq!(unsafe { host.read() }, 3);
    inject("resume=1");
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, 0);
    assert_eq!(unsafe { host.read() }, 2);
    assert_eq!(unsafe { cuStreamDestroy_v2(stream) }, 0);
    assert_eq!(unsafe { cuMemFreeHost(host.cast()) }, 0);
    assert_eq!(unsafe { cuMemFree_v2(device) }, 0);
    assert_eq!(gpu.violations(), Vec::<String>::new());
}

#[test]
fn other_memory_is_staged_and_a_short_copy_returns_before_it_has_arrived() {
    let gpu = Gpu::new();
    let device = gpu.memory(LEN);
    let mut host = vec![1_u8; LEN];
    inject("hang=cuMemcpyHtoD_v2:1");
    assert_eq!(unsafe { cuMemcpyHtoD_v2(device, host.as_ptr().cast(), LEN) }, 0);
    host.fill(2);
    assert_eq!(peek(device), 0xdd, "it is still on its way");
    inject("resume=1");
    assert_eq!(unsafe { cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), device, LEN) }, 0);
    assert_eq!(host, [1; LEN]);
    assert_eq!(unsafe { cuMemFree_v2(device) }, 0);
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let gpu = Gpu::new();
    let (blocking, free) = (gpu.stream(0), gpu.stream(1));
    inject("hang=mc_standin_spin:1");
    assert_eq!(unsafe { mc_standin_spin(null_mut(), 0) }, 0);
    for stream in [blocking, free] {
        assert_eq!(unsafe { mc_standin_spin(stream, 0) }, 0);
    }
    assert_eq!(unsafe { cuStreamSynchronize(free) }, 0);
    assert_eq!(unsafe { cuStreamQuery(blocking) }, NOT_READY);
    inject("resume=1");
    assert_eq!(unsafe { cuStreamSynchronize(blocking) }, 0);
    // The other way round.
    inject("resume=0,hang=mc_standin_spin:1");
    assert_eq!(unsafe { mc_standin_spin(blocking, 0) }, 0);
    assert_eq!(unsafe { mc_standin_spin(null_mut(), 0) }, 0);
    assert_eq!(unsafe { mc_standin_spin(free, 0) }, 0);
    assert_eq!(unsafe { cuStreamSynchronize(free) }, 0);
    assert_eq!(unsafe { cuStreamQuery(null_mut()) }, NOT_READY);
    inject("resume=1");
    assert_eq!(unsafe { cuCtxSynchronize() }, 0);
    for stream in [blocking, free] {
        assert_eq!(unsafe { cuStreamDestroy_v2(stream) }, 0);
    }
    assert_eq!(gpu.violations(), Vec::<String>::new());
}

static CALLED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn called(data: *mut c_void) {
    CALLED.store(data.addr() as u32, Ordering::SeqCst);
}

#[test]
fn events_and_host_functions_keep_the_order_of_their_streams() {
    let gpu = Gpu::new();
    let (first, second, event) = (gpu.stream(1), gpu.stream(1), gpu.event());
    assert_eq!(unsafe { cuEventQuery(event) }, 0, "it was never recorded");
    inject("hang=mc_standin_spin:1");
    assert_eq!(unsafe { mc_standin_spin(first, 0) }, 0);
    assert_eq!(unsafe { cuEventRecord(event, first) }, 0);
    assert_eq!(unsafe { cuStreamWaitEvent(second, event, 0) }, 0);
    let data = std::ptr::without_provenance_mut(7);
    assert_eq!(unsafe { cuLaunchHostFunc(second, Some(called), data) }, 0);
    assert_eq!(unsafe { cuEventQuery(event) }, NOT_READY);
    assert_eq!(unsafe { cuStreamQuery(second) }, NOT_READY);
    assert_eq!(CALLED.load(Ordering::SeqCst), 0);
    inject("resume=1");
    assert_eq!(unsafe { cuStreamSynchronize(second) }, 0);
    assert_eq!(CALLED.load(Ordering::SeqCst), 7);
    assert_eq!(unsafe { cuEventQuery(event) }, 0);
    for stream in [first, second] {
        assert_eq!(unsafe { cuStreamDestroy_v2(stream) }, 0);
    }
    assert_eq!(unsafe { cuEventDestroy_v2(event) }, 0);
    assert_eq!(gpu.violations(), Vec::<String>::new());
}

#[test]
fn an_event_for_several_processes_is_one_event() {
    let gpu = Gpu::new();
    let (first, second) = (gpu.stream(1), gpu.stream(1));
    let (mut event, mut opened) = (null_mut(), null_mut());
    assert_eq!(unsafe { cuEventCreate(&raw mut event, 6) }, 0);
    let mut handle = std::mem::MaybeUninit::<IpcHandle>::uninit();
    assert_eq!(unsafe { cuIpcGetEventHandle(handle.as_mut_ptr(), event) }, 0);
    assert_eq!(unsafe { cuIpcOpenEventHandle(&raw mut opened, handle.assume_init()) }, 0);
    inject("hang=mc_standin_spin:1");
    assert_eq!(unsafe { mc_standin_spin(first, 0) }, 0);
    assert_eq!(unsafe { cuEventRecord(event, first) }, 0);
    assert_eq!(unsafe { cuStreamWaitEvent(second, opened, 0) }, 0);
    assert_eq!(unsafe { cuEventQuery(opened) }, NOT_READY);
    inject("resume=1");
    assert_eq!(unsafe { cuStreamSynchronize(second) }, 0);
    for event in [event, opened] {
        assert_eq!(unsafe { cuEventDestroy_v2(event) }, 0);
    }
    for stream in [first, second] {
        assert_eq!(unsafe { cuStreamDestroy_v2(stream) }, 0);
    }
    assert_eq!(gpu.violations(), Vec::<String>::new());
}

#[test]
fn what_a_program_does_wrong_is_refused_and_counted() {
    let gpu = Gpu::new();
    let (device, stream, event) = (gpu.memory(LEN), gpu.stream(1), gpu.event());
    let host = gpu.pinned(LEN);
    let copy = |at: u64, len| unsafe { cuMemcpyDtoHAsync_v2(host.cast(), at, len, stream) };
    assert_eq!(copy(device + 1, LEN), 1, "it leaves its allocation");
    assert_eq!(copy(0x1000, 1), 1, "it is no memory of a device");
    inject("hang=cuMemcpyDtoHAsync_v2:1");
    assert_eq!(copy(device, LEN), 0);
    assert_eq!(unsafe { cuMemFree_v2(device) }, 0);
    assert_eq!(unsafe { cuMemFreeHost(host.cast()) }, 0);
    inject("resume=1,forbid_legacy=1");
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, 0);
    assert_eq!(unsafe { cuCtxSynchronize() }, 0);
    assert_eq!(unsafe { cuStreamSynchronize(null_mut()) }, 0);
    assert_eq!(unsafe { cuStreamDestroy_v2(stream) }, 0);
    assert_eq!(unsafe { cuEventDestroy_v2(event) }, 0);
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, 400);
    assert_eq!(unsafe { cuEventQuery(event) }, 400);
    let found = gpu.violations();
    let wanted = [
        "leave their allocation",
        "memory of a GPU was freed while",
        "pinned memory was freed while",
        "waits for the whole device",
        "uses the legacy stream",
        "is no stream",
        "is no event",
    ];
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(found.contains(wanted), "{found}");
    }
}

#[test]
fn calls_without_a_context_or_with_one_that_is_gone_are_refused() {
    let gpu = Gpu::new();
    let mut context = null_mut();
    assert_eq!(unsafe { cuCtxPopCurrent_v2(&raw mut context) }, 0);
    let mut address = 0;
    assert_eq!(unsafe { cuMemAlloc_v2(&raw mut address, 1) }, 201);
    assert_eq!(unsafe { cuStreamSynchronize(null_mut()) }, 201);
    assert_eq!(unsafe { cuCtxPushCurrent_v2(std::ptr::without_provenance_mut(77)) }, 201);
    assert_eq!(unsafe { cuDevicePrimaryCtxRelease_v2(1) }, 201, "it was not retained");
    let mut other = null_mut();
    assert_eq!(unsafe { cuDevicePrimaryCtxRetain(&raw mut other, 1) }, 0);
    assert_eq!(unsafe { cuDevicePrimaryCtxRetain(&raw mut other, 2) }, 101);
    assert_eq!(unsafe { cuDevicePrimaryCtxRelease_v2(1) }, 0);
    assert_eq!(unsafe { cuCtxPushCurrent_v2(other) }, 201, "it was released");
    assert_eq!(unsafe { cuCtxPushCurrent_v2(context) }, 0);
    assert_eq!(gpu.violations(), Vec::<String>::new());
}

/// `CUmemAllocationProp` and `CUmemAccessDesc` of the first GPU.
static PROPERTIES: [u32; 8] = [1, 1, 1, 0, 0, 0, 0, 0];
static ACCESS: [u32; 3] = [1, 0, 3];

#[test]
fn physical_memory_is_mapped_opened_and_shared_by_descriptor() {
    let gpu = Gpu::new();
    let stream = gpu.stream(1);
    let properties: *const AllocationProperties = (&raw const PROPERTIES).cast();
    let mut step = 0;
    assert_eq!(unsafe { cuMemGetAllocationGranularity(&raw mut step, properties, 0) }, 0);
    let (mut handle, mut copy, mut fd) = (0, 0, 0_i32);
    assert_eq!(unsafe { cuMemCreate(&raw mut handle, step - 1, properties, 0) }, 1);
    assert_eq!(unsafe { cuMemCreate(&raw mut handle, step, properties, 0) }, 0);
    let out = (&raw mut fd).cast();
    assert_eq!(unsafe { cuMemExportToShareableHandle(out, handle, 1, 0) }, 0);
    let descriptor = std::ptr::without_provenance_mut(fd as usize);
    assert_eq!(unsafe { cuMemImportFromShareableHandle(&raw mut copy, descriptor, 1) }, 0);
    assert_eq!(unsafe { libc::close(fd) }, 0);
    let addresses = [handle, copy].map(|handle| {
        let mut address = 0;
        assert_eq!(unsafe { cuMemAddressReserve(&raw mut address, step, 0, 0, 0) }, 0);
        assert_eq!(unsafe { cuMemMap(address, step, 0, handle, 0) }, 0);
        assert_eq!(unsafe { cuMemRelease(handle) }, 0, "the mapping keeps it");
        address
    });
    let fill = |address| unsafe { cuMemsetD8Async(address, 5, step, stream) };
    assert_eq!(fill(addresses[0]), 1, "it is not accessible");
    assert_eq!(unsafe { cuMemSetAccess(addresses[0], step, (&raw const ACCESS).cast(), 1) }, 0);
    assert_eq!(fill(addresses[0]), 0);
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, 0);
    assert_eq!(peek(addresses[1] + step as u64 - 1), 5, "both are the same memory");
    let mut ipc = std::mem::MaybeUninit::<IpcHandle>::uninit();
    assert_eq!(unsafe { cuIpcGetMemHandle(ipc.as_mut_ptr(), addresses[0]) }, 1);
    assert_eq!(unsafe { cuMemAddressFree(addresses[0], step) }, 1, "memory is mapped there");
    for address in addresses {
        assert_eq!(unsafe { cuMemUnmap(address, step) }, 0);
        assert_eq!(unsafe { cuMemAddressFree(address, step) }, 0);
    }
    assert_eq!(unsafe { cuStreamDestroy_v2(stream) }, 0);
    let found = gpu.violations();
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn functions_are_found_in_the_form_of_the_version_that_is_asked_for() {
    let gpu = Gpu::new();
    let find = |name: &str, version| {
        let (name, mut found) = (CString::new(name).unwrap(), null_mut());
        let found_at = &raw mut found;
        let code = unsafe { cuGetProcAddress_v2(name.as_ptr(), found_at, version, 0, null_mut()) };
        assert_eq!(code == 0, !found.is_null());
        found.cast_const()
    };
    inject("version=13000");
    assert_eq!(find("cuMemcpyBatchAsync", 12_070), null());
    let forms = [12_080, 13_000].map(|version| find("cuMemcpyBatchAsync", version));
    let symbols = [cuMemcpyBatchAsync as *const c_void, cuMemcpyBatchAsync_v2 as *const c_void];
    assert_eq!(forms, symbols);
    assert_eq!(find("cuMemAlloc", 12_000), cuMemAlloc_v2 as *const c_void);
    assert_eq!(find("cuNoSuchFunction", 12_000), null());
    inject("version=12080");
    assert_eq!(find("cuMemcpyBatchAsync", 13_000), symbols[0], "the driver is older");
    inject("missing=cuMemAlloc");
    assert_eq!(find("cuMemAlloc", 12_000), null());
    inject("missing=");
    assert_eq!(gpu.violations(), Vec::<String>::new());
}
