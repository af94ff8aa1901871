//! Copies between this library's memory and addresses that a caller did not register.
//!
//! Such an address may be wrong. The copy is a system call, as between two processes, because it
//! returns an error where a copy in user space would end the process.

use std::io;

use bytes::Bytes;
use libc::{c_void, iovec};

use super::device::{DeviceMemory, gather, scatter, stage};
use super::maps;
use crate::error::Failure;

/// The largest value: Mooncake's limit for a buffer.
const MAX_LEN: usize = 1 << 40;

/// The most bytes of one system call.
const STEP: usize = 1 << 30;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// Returns a copy of the `len` bytes at `address`.
pub(crate) fn copy_in(address: usize, len: usize) -> Result<Bytes, Failure> {
    if len > MAX_LEN {
        return Err(Failure::refuse(format_args!(
            "{len} bytes are more than a value can have ({MAX_LEN})"
        )));
    }
    let mut bytes = Vec::new();
    // Reserves addresses only: the system takes pages as bytes are written.
    if bytes.try_reserve_exact(len).is_err() {
        return Err(Failure::refuse(format_args!("not enough memory to copy {len} bytes")));
    }
    let ours: *mut u8 = bytes.spare_capacity_mut().as_mut_ptr().cast();
    // SAFETY: the vector has room for `len` bytes from `ours` on.
    if let Err(why) = unsafe { copy(Direction::In, ours, address, len) } {
        return of_device(address, len)?.ok_or_else(|| unusable(address, len, &why));
    }
    // SAFETY: `copy` has filled the first `len` bytes.
    unsafe { bytes.set_len(len) };
    Ok(bytes.into())
}

/// Copies `bytes` to `address`.
pub(crate) fn copy_out(bytes: &[u8], address: usize) -> Result<(), Failure> {
    let ours = bytes.as_ptr().cast_mut();
    // SAFETY: `copy` only reads `ours` with `Direction::Out`, and all `len()` bytes are valid.
    match unsafe { copy(Direction::Out, ours, address, bytes.len()) } {
        Ok(()) => Ok(()),
        Err(why) => match DeviceMemory::find(address, bytes.len())? {
            Some(memory) => to_device(bytes, &memory),
            None => Err(unusable(address, bytes.len(), &why)),
        },
    }
}

/// Returns a copy of the `len` bytes at `address`, if they are a GPU's.
fn of_device(address: usize, len: usize) -> Result<Option<Bytes>, Failure> {
    let Some(memory) = DeviceMemory::find(address, len)? else { return Ok(None) };
    let gathered = gather(&[memory], None)?;
    Ok(Some(gathered[0].to_vec().into()))
}

fn to_device(bytes: &[u8], memory: &DeviceMemory) -> Result<(), Failure> {
    let staged = stage(memory, bytes.len())?.whole();
    staged.copy_from(0, bytes).map_err(|why| Failure::refuse(format_args!("{why}")))?;
    scatter(&staged, std::slice::from_ref(memory), None)
}

/// Rejects memory whose first or last byte neither this process nor a GPU can read.
pub(crate) fn check_mapped(address: usize, len: usize) -> Result<(), Failure> {
    let Some(behind) = len.checked_sub(1) else { return Ok(()) };
    if DeviceMemory::find(address, len)?.is_some() {
        return Ok(());
    }
    for at in [Some(address), address.checked_add(behind)] {
        let mut byte = 0;
        let readable = match at {
            // SAFETY: `byte` has room for one byte.
            Some(at) => unsafe { copy(Direction::In, &raw mut byte, at, 1) },
            None => Err(io::ErrorKind::AddrNotAvailable.into()),
        };
        readable.map_err(|why| unusable(address, len, &why))?;
    }
    Ok(())
}

fn unusable(address: usize, len: usize, why: &io::Error) -> Failure {
    Failure::refuse(format_args!("cannot use the {len} bytes at {address:#x}: {why}"))
}

/// # Safety
/// `ours` must be valid for `len` bytes: for writes with [`Direction::In`], for reads with
/// [`Direction::Out`]. `theirs` may be anything.
unsafe fn copy(
    direction: Direction,
    ours: *mut u8,
    theirs: usize,
    len: usize,
) -> Result<(), io::Error> {
    let mut done = 0;
    while done < len {
        let step = (len - done).min(STEP);
        let Some(at) = theirs.checked_add(done) else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        let local = iovec { iov_base: ours.wrapping_add(done).cast::<c_void>(), iov_len: step };
        let remote = iovec { iov_base: std::ptr::with_exposed_provenance_mut(at), iov_len: step };
        let me = std::process::id().cast_signed();
        let copied = match direction {
            // SAFETY: `local` lies within the memory that the caller vouches for; the system
            // checks `remote`.
            Direction::In => unsafe { libc::process_vm_readv(me, &local, 1, &remote, 1, 0) },
            // SAFETY: as above.
            Direction::Out => unsafe { libc::process_vm_writev(me, &local, 1, &remote, 1, 0) },
        };
        match usize::try_from(copied) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => done += copied,
            Err(_) => match io::Error::last_os_error() {
                why if why.kind() == io::ErrorKind::Interrupted => {}
                why if is_forbidden(&why) => {
                    // SAFETY: the rest of `ours` is as valid as all of it.
                    return unsafe {
                        copy_checked(direction, ours.wrapping_add(done), at, len - done)
                    };
                }
                why => return Err(why),
            },
        }
    }
    Ok(())
}

/// Returns whether a sandbox forbids the system call.
fn is_forbidden(why: &io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
}

/// Copies in user space after checking that the addresses are mapped.
///
/// # Safety
/// As for [`copy`]; and unmapping `theirs` at the same time ends the process.
unsafe fn copy_checked(
    direction: Direction,
    ours: *mut u8,
    theirs: usize,
    len: usize,
) -> Result<(), io::Error> {
    let rights = maps::rights(theirs, len).ok_or(io::ErrorKind::AddrNotAvailable)?;
    let theirs: *mut u8 = std::ptr::with_exposed_provenance_mut(theirs);
    match direction {
        // SAFETY: the caller vouches for `ours`, and the system lists `theirs` as readable.
        Direction::In => unsafe { std::ptr::copy(theirs, ours, len) },
        Direction::Out if !rights.writable => {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // SAFETY: as above, and `theirs` can be written.
        Direction::Out => unsafe { std::ptr::copy(ours, theirs, len) },
    }
    Ok(())
}
