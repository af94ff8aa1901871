//! Processes that have the stand-in for a driver, and its functions for tests.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

/// Set in the process that has the stand-in.
const INSIDE: &str = "MC_CUDA_TEST_INSIDE";

/// The name of the test that this stands in.
macro_rules! here {
    () => {{
        fn inner() {}
        let name = std::any::type_name_of_val(&inner);
        name.strip_suffix("::inner").unwrap().split_once("::").unwrap().1
    }};
}
pub(crate) use here;

/// Runs the body in a process that finds the stand-in, and checks that it did nothing wrong and left nothing behind.
pub(crate) fn run(name: &str, settings: &str, body: impl FnOnce(&Standin)) {
    if std::env::var_os(INSIDE).is_none() {
        return run_inside(name, settings, &library());
    }
    let standin = Standin::open();
    body(&standin);
    assert_eq!(standin.violations(), Vec::<String>::new());
    assert_eq!(standin.live(), [0; 5], "allocations, pinned, streams, events, contexts");
}

/// Runs the body in a process that finds this library in place of the driver.
pub(crate) fn run_with(name: &str, library: &Path, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() { body() } else { run_inside(name, "", library) }
}

/// Runs a test in a process of its own.
fn run_inside(name: &str, settings: &str, library: &Path) {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(library, folder.path().join("libcuda.so.1")).unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    process.env("LD_LIBRARY_PATH", folder.path());
    process.env("MC_CUDA_STANDIN", settings).env(INSIDE, "1");
    let output = process.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{error}", output.status);
    assert!(out.contains("1 passed"), "no test is called {name}: {out}");
}

/// The stand-in's library, which is built with the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut found = folders.map(|folder| folder.join("libmc_cuda_standin.so"));
    found.find(|path| path.exists()).expect("cargo builds the stand-in with the tests")
}

/// The driver's library in this process.
pub(crate) struct Standin {
    handle: *mut c_void,
}

macro_rules! functions {
    ($($name:ident = $symbol:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// Calls the function, and returns its code.
            pub(crate) fn $name(&self, $($argument: $type),*) -> c_int {
                let function = self.find(stringify!($symbol));
                // SAFETY: the function of this name has this type.
                let function = unsafe {
                    std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn($($type),*) -> c_int,
                    >(function)
                };
                // SAFETY: the tests pass what the function asks for.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

impl Standin {
    fn open() -> Self {
        // SAFETY: the name is a C string, and the library is the stand-in.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "the stand-in is not found");
        Self { handle }
    }

    fn find(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is that of an open library, and the name a C string.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    functions! {
        initialise = cuInit(flags: u32);
        retain = cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int);
        release = cuDevicePrimaryCtxRelease_v2(device: c_int);
        push = cuCtxPushCurrent_v2(context: u64);
        pop = cuCtxPopCurrent_v2(context: *mut u64);
        current = cuCtxGetCurrent(context: *mut u64);
        allocate = cuMemAlloc_v2(address: *mut u64, len: usize);
        allocate_managed = cuMemAllocManaged(address: *mut u64, len: usize, flags: u32);
        free = cuMemFree_v2(address: u64);
        pin = cuMemHostAlloc(base: *mut u64, len: usize, flags: u32);
        unpin = cuMemFreeHost(base: u64);
        register = cuMemHostRegister_v2(base: u64, len: usize, flags: u32);
        unregister = cuMemHostUnregister(base: u64);
        stream_create = cuStreamCreate(stream: *mut u64, flags: u32);
        stream_destroy = cuStreamDestroy_v2(stream: u64);
        stream_synchronize = cuStreamSynchronize(stream: u64);
        event_create = cuEventCreate(event: *mut u64, flags: u32);
        event_record = cuEventRecord(event: u64, stream: u64);
        event_destroy = cuEventDestroy_v2(event: u64);
        copy_inside = cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64);
        spin_for = mc_standin_spin(stream: u64, micros: u64);
        fill_after = mc_standin_fill(stream: u64, address: u64, len: usize, byte: u8, micros: u64);
        peek_at = mc_standin_peek(address: u64, to: *mut u8, len: usize);
        poke_at = mc_standin_poke(address: u64, from: *const u8, len: usize);
        inject_text = mc_standin_inject(text: *const c_char);
        live_counts = mc_standin_live(counts: *mut u64);
    }

    pub(crate) fn inject(&self, text: &str) {
        let text = CString::new(text).unwrap();
        assert_eq!(self.inject_text(text.as_ptr()), 0, "{text:?}");
    }

    /// The bytes of a GPU's memory, whatever its streams do.
    pub(crate) fn peek(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.peek_at(address, bytes.as_mut_ptr(), len), 0);
        bytes
    }

    pub(crate) fn poke(&self, address: u64, bytes: &[u8]) {
        assert_eq!(self.poke_at(address, bytes.as_ptr(), bytes.len()), 0);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        let function = self.find("mc_standin_violations");
        // SAFETY: the function of this name has this type.
        let function = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u8, usize) -> usize>(
                function,
            )
        };
        let mut text = vec![0; 64 << 10];
        // SAFETY: the text has as many bytes.
        let count = unsafe { function(text.as_mut_ptr(), text.len()) };
        let end = text.iter().position(|byte| *byte == 0).unwrap();
        let text = String::from_utf8(text[..end].to_vec()).unwrap();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), count);
        lines
    }

    /// Allocations, pinned ranges, streams, events and contexts.
    pub(crate) fn live(&self) -> [u64; 5] {
        let mut counts = [0; 5];
        assert_eq!(self.live_counts(counts.as_mut_ptr()), 0);
        counts
    }

    /// How often a function was called since the last [`inject`](Self::inject).
    pub(crate) fn calls(&self, name: &str) -> u64 {
        let function = self.find("mc_standin_calls");
        // SAFETY: the function of this name has this type.
        let function = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> u64>(function)
        };
        let name = CString::new(name).unwrap();
        // SAFETY: the name is a C string.
        unsafe { function(name.as_ptr()) }
    }

    /// An engine with the primary context of a GPU.
    pub(crate) fn engine(&self, device: c_int) -> Engine<'_> {
        assert_eq!(self.initialise(0), 0);
        let mut context = 0;
        assert_eq!(self.retain(&raw mut context, device), 0);
        assert_eq!(self.push(context), 0);
        let mut stream = 0;
        assert_eq!(self.stream_create(&raw mut stream, 1), 0);
        Engine { standin: self, device, stream }
    }
}

/// A program that uses the driver itself, as an inference engine does; its context is current.
pub(crate) struct Engine<'a> {
    pub(crate) standin: &'a Standin,
    device: c_int,
    pub(crate) stream: u64,
}

impl Engine<'_> {
    pub(crate) fn allocate(&self, len: usize) -> u64 {
        let mut address = 0;
        assert_eq!(self.standin.allocate(&raw mut address, len), 0);
        address
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        assert_eq!(self.standin.stream_destroy(self.stream), 0);
        assert_eq!(self.standin.pop(ptr::null_mut()), 0);
        assert_eq!(self.standin.release(self.device), 0);
    }
}
