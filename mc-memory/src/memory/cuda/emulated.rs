//! A driver without a GPU, for tests: its device memory is the heap.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use super::driver::{Driver, MEMORY_TYPE, MEMORY_TYPE_HOST, RawContext};

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const INVALID_DEVICE: c_int = 101;
const INVALID_CONTEXT: c_int = 201;

/// Bytes of the device.
const SIZE: usize = 64 << 20;

/// The bit that is set in a device address and clear in an address of the host.
const DEVICE: u64 = 1 << 63;

#[derive(Default)]
struct State {
    allocations: HashMap<u64, usize>,
    pinned: HashMap<usize, usize>,
    retained: usize,
    /// Bytes from memory that is not pinned, on their way to device memory.
    late: Vec<(u64, Vec<u8>)>,
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The emulated driver, for one test at a time.
pub(super) struct Emulated {
    _guard: MutexGuard<'static, ()>,
}

impl Emulated {
    pub(super) fn lock() -> Self {
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
        *STATE.lock().unwrap_or_else(|error| error.into_inner()) = Some(State::default());
        Self { _guard: guard }
    }

    pub(super) fn driver(&self) -> Driver {
        Driver {
            init,
            error_name,
            device_count,
            device,
            retain,
            release,
            push,
            pop,
            allocate,
            free,
            fill,
            pin,
            unpin,
            to_device,
            to_host,
            synchronize,
            synchronize_stream,
            pointer_attribute,
        }
    }

    /// The bytes of device memory as a kernel of another stream sees them.
    pub(super) fn seen_elsewhere(&self, address: u64, len: usize) -> Vec<u8> {
        let base = host_of(address, len).expect("it lies in an allocation");
        // SAFETY: lies in an allocation.
        unsafe { std::slice::from_raw_parts(base, len) }.to_vec()
    }

    /// Allocations, pinned blocks and retained contexts that are left.
    pub(super) fn live(&self) -> (usize, usize, usize) {
        with(|state| (state.allocations.len(), state.pinned.len(), state.retained))
    }
}

fn with<T>(act: impl FnOnce(&mut State) -> T) -> T {
    let mut state = STATE.lock().unwrap_or_else(|error| error.into_inner());
    act(state.as_mut().expect("a test holds it"))
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, 512).expect("it is small")
}

/// Takes dirty memory.
fn take(len: usize) -> *mut u8 {
    // SAFETY: callers take more than nothing.
    let base = unsafe { alloc(layout(len)) };
    assert!(!base.is_null());
    // SAFETY: it has just been taken, with this length.
    unsafe { ptr::write_bytes(base, 0xdd, len) };
    base
}

/// The host's address behind a range of device memory, if it lies in one allocation.
fn host_of(address: u64, len: usize) -> Option<*mut u8> {
    let end = address.checked_add(len as u64)?;
    let is_inside = |(base, room): (&u64, &usize)| *base <= address && end <= base + *room as u64;
    let found = with(|state| state.allocations.iter().any(is_inside));
    found.then_some(ptr::with_exposed_provenance_mut((address ^ DEVICE) as usize))
}

/// Has the bytes arrive that are on their way.
fn arrive() {
    for (target, bytes) in with(|state| std::mem::take(&mut state.late)) {
        let Some(base) = host_of(target, bytes.len()) else { continue };
        // SAFETY: into an allocation, which no caller's bytes overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), base, bytes.len()) };
    }
}

fn is_pinned(address: usize) -> bool {
    let is_inside = |(base, len): (&usize, &usize)| (*base..base + len).contains(&address);
    with(|state| state.pinned.iter().any(is_inside))
}

unsafe extern "C" fn init(_: c_uint) -> c_int {
    0
}

unsafe extern "C" fn error_name(number: c_int, name: *mut *const c_char) -> c_int {
    let known = match number {
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller's pointer.
    unsafe { *name = known.as_ptr() };
    0
}

unsafe extern "C" fn device_count(count: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { *count = 1 };
    0
}

unsafe extern "C" fn device(device: *mut c_int, ordinal: c_int) -> c_int {
    if ordinal != 0 {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller's pointer.
    unsafe { *device = 0 };
    0
}

unsafe extern "C" fn retain(context: *mut RawContext, _: c_int) -> c_int {
    with(|state| state.retained += 1);
    // SAFETY: the caller's pointer.
    unsafe { *context = RawContext(ptr::without_provenance_mut(1)) };
    0
}

unsafe extern "C" fn release(_: c_int) -> c_int {
    with(|state| state.retained -= 1);
    0
}

unsafe extern "C" fn push(_: RawContext) -> c_int {
    CURRENT.set(CURRENT.get() + 1);
    0
}

unsafe extern "C" fn pop(context: *mut RawContext) -> c_int {
    CURRENT.set(CURRENT.get() - 1);
    // SAFETY: the caller's pointer.
    unsafe { *context = RawContext(ptr::without_provenance_mut(1)) };
    0
}

unsafe extern "C" fn allocate(address: *mut u64, len: usize) -> c_int {
    if CURRENT.get() == 0 {
        return INVALID_CONTEXT;
    }
    if len > SIZE {
        return OUT_OF_MEMORY;
    }
    let base = take(len).expose_provenance() as u64 | DEVICE;
    with(|state| state.allocations.insert(base, len));
    // SAFETY: the caller's pointer.
    unsafe { *address = base };
    0
}

unsafe extern "C" fn free(address: u64) -> c_int {
    arrive();
    let Some(base) = host_of(address, 0) else { return INVALID_VALUE };
    let Some(len) = with(|state| state.allocations.remove(&address)) else { return INVALID_VALUE };
    // SAFETY: was taken with this layout, and is known no more.
    unsafe { dealloc(base, layout(len)) };
    0
}

unsafe extern "C" fn fill(address: u64, byte: u8, len: usize) -> c_int {
    arrive();
    let Some(base) = host_of(address, len) else { return INVALID_VALUE };
    // SAFETY: lies in an allocation.
    unsafe { ptr::write_bytes(base, byte, len) };
    0
}

unsafe extern "C" fn pin(base: *mut *mut c_void, len: usize, _: c_uint) -> c_int {
    if CURRENT.get() == 0 {
        return INVALID_CONTEXT;
    }
    if len > SIZE {
        return OUT_OF_MEMORY;
    }
    let taken = take(len);
    with(|state| state.pinned.insert(taken.expose_provenance(), len));
    // SAFETY: the caller's pointer.
    unsafe { *base = taken.cast() };
    0
}

unsafe extern "C" fn unpin(base: *mut c_void) -> c_int {
    let Some(len) = with(|state| state.pinned.remove(&base.addr())) else { return INVALID_VALUE };
    // SAFETY: was taken with this layout, and is known no more.
    unsafe { dealloc(base.cast(), layout(len)) };
    0
}

unsafe extern "C" fn to_device(target: u64, source: *const c_void, len: usize) -> c_int {
    if host_of(target, len).is_none() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's bytes.
    let bytes = unsafe { std::slice::from_raw_parts(source.cast::<u8>(), len) }.to_vec();
    with(|state| state.late.push((target, bytes)));
    if is_pinned(source.addr()) {
        arrive();
    }
    0
}

unsafe extern "C" fn to_host(target: *mut c_void, source: u64, len: usize) -> c_int {
    arrive();
    let Some(base) = host_of(source, len) else { return INVALID_VALUE };
    // SAFETY: from an allocation, into the caller's bytes, which overlap none.
    unsafe { ptr::copy_nonoverlapping(base, target.cast(), len) };
    0
}

unsafe extern "C" fn synchronize() -> c_int {
    arrive();
    0
}

unsafe extern "C" fn synchronize_stream(_: *mut c_void) -> c_int {
    arrive();
    0
}

unsafe extern "C" fn pointer_attribute(value: *mut c_void, attribute: c_int, of: u64) -> c_int {
    if attribute != MEMORY_TYPE || !is_pinned(of as usize) {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's pointer.
    unsafe { *value.cast::<c_uint>() = MEMORY_TYPE_HOST };
    0
}
