//! The C interface of USRBIO, `libhf3fs_api_shared.so`.
//!
//! Declared after `src/lib/api/hf3fs_usrbio.h` of <https://github.com/deepseek-ai/3FS> at commit
//! `0ea5a9c29c8eb5a7c035d007a31838a8e9dbdf76`; what the header leaves open is as in `UsrbIo.cc`
//! beside it and `src/fuse/IoRing.cc`. This is the only file of the crate with `unsafe`. It keeps
//! these promises, which the comments refer to:
//!
//! * **Loaded**: the library stays loaded until the process ends, so that its functions can always be
//!   called. They have the signatures of the header.
//! * **Created**: an [`Iov`] or [`Ior`] in a [`Ring`] was filled in by the library's function that
//!   creates it, stays at its address, and is destroyed once, when the ring is dropped.
//! * **Alone**: the functions that prepare, submit and wait are called with `&mut Ring`, thus by one
//!   thread at a time, as the header asks for.
//! * **Inside**: the block of a request lies in the buffer of the ring: its number is below
//!   [`Ring::blocks`], and its length at most that of a block.
#![allow(unsafe_code)]

use core::error::Error as _;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use libloading::Library;

/// A name of the header's `mount_point` fields, with its NUL.
const MAX_MOUNT_POINT: usize = 256;

/// `struct hf3fs_iov`: memory that is shared with the process that does the requests.
#[repr(C)]
struct Iov {
    base: *mut u8,
    handle: *mut c_void,
    id: [c_char; 16],
    mount_point: [c_char; MAX_MOUNT_POINT],
    size: usize,
    block_size: usize,
    numa: c_int,
}

/// `struct hf3fs_ior`: a ring of requests and results.
#[repr(C)]
struct Ior {
    iov: Iov,
    handle: *mut c_void,
    mount_point: [c_char; MAX_MOUNT_POINT],
    for_read: bool,
    io_depth: c_int,
    priority: c_int,
    timeout: c_int,
    flags: u64,
}

/// `struct hf3fs_cqe`: a result.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cqe {
    index: i32,
    reserved: i32,
    result: i64,
    userdata: *const c_void,
}

type ExtractMountPoint = unsafe extern "C" fn(*mut c_char, c_int, *const c_char) -> c_int;
type IovCreate = unsafe extern "C" fn(*mut Iov, *const c_char, usize, usize, c_int) -> c_int;
type IovDestroy = unsafe extern "C" fn(*mut Iov);
type IorCreate =
    unsafe extern "C" fn(*mut Ior, *const c_char, c_int, bool, c_int, c_int, c_int, u64) -> c_int;
type IorDestroy = unsafe extern "C" fn(*mut Ior);
type RegFd = unsafe extern "C" fn(c_int, u64) -> c_int;
type DeregFd = unsafe extern "C" fn(c_int);
type PrepIo = unsafe extern "C" fn(
    *const Ior,
    *const Iov,
    bool,
    *mut c_void,
    c_int,
    usize,
    u64,
    *const c_void,
) -> c_int;
type SubmitIos = unsafe extern "C" fn(*const Ior) -> c_int;
type WaitForIos =
    unsafe extern "C" fn(*const Ior, *mut Cqe, c_int, c_int, *const libc::timespec) -> c_int;

/// The functions of the library.
pub(super) struct Api {
    extract_mount_point: ExtractMountPoint,
    iov_create: IovCreate,
    iov_destroy: IovDestroy,
    ior_create: IorCreate,
    ior_destroy: IorDestroy,
    reg_fd: RegFd,
    dereg_fd: DeregFd,
    prep_io: PrepIo,
    submit_ios: SubmitIos,
    wait_for_ios: WaitForIos,
}

impl Api {
    /// Loads the library: by its path, or by the search of the system when it is a name.
    pub(super) fn load(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: the initializers of the library of 3FS set up its logging. That the file is this
        // library is what the administrator says who names it, as with every library that a program
        // is linked with.
        let library = unsafe { Library::new(path) }.map_err(LoadError::Open)?;
        let api = Self {
            extract_mount_point: symbol(&library, c"hf3fs_extract_mount_point")?,
            iov_create: symbol(&library, c"hf3fs_iovcreate")?,
            iov_destroy: symbol(&library, c"hf3fs_iovdestroy")?,
            ior_create: symbol(&library, c"hf3fs_iorcreate4")?,
            ior_destroy: symbol(&library, c"hf3fs_iordestroy")?,
            reg_fd: symbol(&library, c"hf3fs_reg_fd")?,
            dereg_fd: symbol(&library, c"hf3fs_dereg_fd")?,
            prep_io: symbol(&library, c"hf3fs_prep_io")?,
            submit_ios: symbol(&library, c"hf3fs_submit_ios")?,
            wait_for_ios: symbol(&library, c"hf3fs_wait_for_ios")?,
        };
        // Loaded: it has static objects and threads, which an unloading would pull the ground from.
        core::mem::forget(library);
        Ok(api)
    }

    /// The mount point of the 3FS that has this path, which must exist; `None` when none has.
    pub(super) fn mount_point(&self, path: &Path) -> io::Result<Option<CString>> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut name = [0u8; MAX_MOUNT_POINT];
        let size = MAX_MOUNT_POINT as c_int;
        // SAFETY: Loaded; the buffer has the length that is given, and both texts end with a NUL.
        let len =
            unsafe { (self.extract_mount_point)(name.as_mut_ptr().cast(), size, path.as_ptr()) };
        if len < 0 {
            return Ok(None);
        }
        if len as usize > MAX_MOUNT_POINT {
            return Err(io::Error::new(
                io::ErrorKind::InvalidFilename,
                "the mount point is too long",
            ));
        }
        let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
        Ok(Some(name.to_owned()))
    }
}

/// Finds a function. `F` is its type.
fn symbol<F: Copy>(library: &Library, name: &'static CStr) -> Result<F, LoadError> {
    // SAFETY: each caller assigns the function to a field of the type that the header gives it.
    let symbol = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
    symbol.map(|symbol| *symbol).map_err(|source| LoadError::Function { name, source })
}

/// Why the library is not usable.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// The reason is in the source of the error alone.
    #[error("{}", .0.source().map_or_else(|| .0.to_string(), ToString::to_string))]
    Open(#[source] libloading::Error),
    #[error("it has no function {}", name.to_string_lossy())]
    Function { name: &'static CStr, source: libloading::Error },
}

/// A file that requests can be prepared for.
pub(super) struct Registered {
    api: Arc<Api>,
    file: File,
}

impl Registered {
    pub(super) fn new(api: &Arc<Api>, file: File) -> io::Result<Self> {
        // SAFETY: Loaded; the descriptor is open.
        let code = unsafe { (api.reg_fd)(file.as_raw_fd(), 0) };
        // An error is a positive number here.
        if code > 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        Ok(Self { api: Arc::clone(api), file })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: Loaded; the descriptor is open until the file is dropped, after this.
        unsafe { (self.api.dereg_fd)(self.file.as_raw_fd()) }
    }
}

/// A ring for reads or for writes, with a buffer of blocks.
pub(super) struct Ring {
    api: Arc<Api>,
    ior: Box<Ior>,
    iov: Box<Iov>,
    for_read: bool,
    blocks: usize,
    block_len: usize,
}

// SAFETY: the pointers are to memory that the ring owns and that belongs to no thread; the functions
// may be called from any thread, by one at a time (Alone).
unsafe impl Send for Ring {}

impl Ring {
    pub(super) fn new(
        api: &Arc<Api>,
        mount_point: &CStr,
        for_read: bool,
        blocks: usize,
        block_len: usize,
    ) -> Result<Self, (&'static str, io::Error)> {
        // A ring of the library has one entry that is never used.
        let entries = c_int::try_from(blocks + 1).expect("the settings limit it");
        let mut iov = Box::new(MaybeUninit::<Iov>::zeroed());
        let (size, name) = (blocks * block_len, mount_point.as_ptr());
        // SAFETY: Loaded; there is memory for the structure, and the text ends with a NUL.
        let code = unsafe { (api.iov_create)(iov.as_mut_ptr(), name, size, 0, -1) };
        check(code).map_err(|error| ("hf3fs_iovcreate", error))?;
        // SAFETY: zeros are a value of each field, and the library has filled them in.
        let mut iov = unsafe { iov.assume_init() };
        let mut ior = Box::new(MaybeUninit::<Ior>::zeroed());
        // SAFETY: as above.
        let code =
            unsafe { (api.ior_create)(ior.as_mut_ptr(), name, entries, for_read, 0, 0, -1, 0) };
        if let Err(error) = check(code) {
            // SAFETY: Created; nothing else has it.
            unsafe { (api.iov_destroy)(&raw mut *iov) };
            return Err(("hf3fs_iorcreate4", error));
        }
        // SAFETY: as above.
        let ior = unsafe { ior.assume_init() };
        Ok(Self { api: Arc::clone(api), ior, iov, for_read, blocks, block_len })
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes of a block.
    pub(super) fn block_len(&self) -> usize {
        self.block_len
    }

    /// The first byte of a block that has at least `len` bytes.
    fn block(&self, block: usize, len: usize) -> *mut u8 {
        assert!(block < self.blocks && len <= self.block_len, "there is no such block");
        // SAFETY: Inside; the buffer has as many bytes as the blocks together.
        unsafe { self.iov.base.add(block * self.block_len) }
    }

    /// Copies bytes into a block.
    pub(super) fn fill(&mut self, block: usize, bytes: &[u8]) {
        let to = self.block(block, bytes.len());
        // SAFETY: Inside; the bytes are none of the buffer, to which there are no references.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copies the first bytes of a block.
    pub(super) fn copy(&self, block: usize, to: &mut [u8]) {
        let from = self.block(block, to.len());
        // SAFETY: Inside; as in `fill`. The other process may write there still if it lies about
        // the request's end: what is copied then is any bytes, which are compared with checksums.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) }
    }

    /// Prepares a request for the first `len` bytes of a block.
    pub(super) fn prepare(
        &mut self,
        file: &Registered,
        block: usize,
        len: usize,
        offset: u64,
    ) -> io::Result<()> {
        let memory = self.block(block, len).cast();
        let (ior, iov, fd) = (&raw const *self.ior, &raw const *self.iov, file.file.as_raw_fd());
        // Any number, which comes back with the result; the memory there is not read.
        let number = core::ptr::without_provenance(block);
        // SAFETY: Loaded, Created, Alone, Inside; the file is registered and open.
        let code = unsafe {
            (self.api.prep_io)(
                ior,
                iov,
                self.for_read,
                memory,
                fd,
                offset as usize,
                len as u64,
                number,
            )
        };
        check(code)
    }

    /// Submits the requests.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        // SAFETY: Loaded, Created, Alone.
        check(unsafe { (self.api.submit_ios)(&raw const *self.ior) })
    }

    /// Waits for at least one result, and returns the blocks and results that there are: the number
    /// of bytes, or the error. None when the time is up.
    pub(super) fn wait(&mut self, time: Duration) -> io::Result<Vec<(usize, io::Result<usize>)>> {
        let begin = Instant::now();
        loop {
            let left = time.saturating_sub(begin.elapsed());
            // The library goes by a clock that may be set back.
            let results = self.wait_until(SystemTime::now() + left.min(Duration::from_secs(1)))?;
            if !results.is_empty() || left.is_zero() {
                return Ok(results);
            }
        }
    }

    fn wait_until(&mut self, until: SystemTime) -> io::Result<Vec<(usize, io::Result<usize>)>> {
        let none = Cqe { index: 0, reserved: 0, result: 0, userdata: core::ptr::null() };
        let mut results = vec![none; self.blocks];
        let until = until.duration_since(UNIX_EPOCH).unwrap_or_default();
        let until = libc::timespec {
            tv_sec: until.as_secs() as libc::time_t,
            tv_nsec: until.subsec_nanos().into(),
        };
        let (room, ior) = (self.blocks as c_int, &raw const *self.ior);
        // SAFETY: Loaded, Created, Alone; there is room for as many results.
        let count = unsafe {
            (self.api.wait_for_ios)(ior, results.as_mut_ptr(), room, 1, &raw const until)
        };
        check(count)?;
        results.truncate(count as usize);
        let result = |cqe: Cqe| {
            let len = usize::try_from(cqe.result);
            let failure = |_| io::Error::from_raw_os_error(cqe.result.unsigned_abs() as i32);
            (cqe.userdata.addr(), len.map_err(failure))
        };
        Ok(results.into_iter().map(result).collect())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: Loaded, Created.
        unsafe { (self.api.ior_destroy)(&raw mut *self.ior) };
        // SAFETY: Loaded, Created. The other process has a mapping of its own for requests on their
        // way.
        unsafe { (self.api.iov_destroy)(&raw mut *self.iov) };
    }
}

/// The result of a function that returns an error as a negative number.
fn check(code: c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::from_raw_os_error(code.wrapping_neg())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use core::mem::{offset_of, size_of};
    use std::process::Command;

    use super::*;

    /// Compares the structures with those that a C compiler makes of the header.
    #[test]
    fn the_structures_have_the_layout_of_the_header() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("layout");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/usrbio/layout.c");
        let compiled = Command::new("cc").arg("-o").arg(&program).arg(source).status().unwrap();
        assert!(compiled.success());
        let printed = Command::new(&program).output().unwrap().stdout;
        let expected = [
            size_of::<Iov>(),
            offset_of!(Iov, handle),
            offset_of!(Iov, id),
            offset_of!(Iov, mount_point),
            offset_of!(Iov, size),
            offset_of!(Iov, block_size),
            offset_of!(Iov, numa),
            size_of::<Ior>(),
            offset_of!(Ior, handle),
            offset_of!(Ior, mount_point),
            offset_of!(Ior, for_read),
            offset_of!(Ior, io_depth),
            offset_of!(Ior, priority),
            offset_of!(Ior, timeout),
            offset_of!(Ior, flags),
            size_of::<Cqe>(),
            offset_of!(Cqe, reserved),
            offset_of!(Cqe, result),
            offset_of!(Cqe, userdata),
        ];
        let printed = String::from_utf8(printed).unwrap();
        let printed: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(printed, expected);
    }
}
